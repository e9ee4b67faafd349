//! Fuzz tests with damaged certificates, keys and requests.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;

use crate::{
    authority::{Authority, LeafSpec},
    cert::Cert,
    client::{ClientCa, handshake_key},
    csr::SigningRequest,
    key::{Key, KeyAlgorithm},
    names::{Subject, Usage},
    validity::Validity,
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn parses_certificates_and_keys_without_panic() {
    let validity = Validity::starting(SystemTime::UNIX_EPOCH, Duration::from_secs(86_400));
    let authority = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let subject = Subject::new("system:node:a").in_group("system:nodes");
    let spec = LeafSpec {
        subject,
        alt_names: vec![crate::names::AltName::Ip([127, 0, 0, 1].into())],
        usage: Usage::Client,
    };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let pem = cert.to_pem() + &key.to_pem().unwrap();
    fuzz::fuzz(HERE, "certificate", &[cert.der(), pem.as_bytes()], |input| {
        let text = String::from_utf8_lossy(input);
        let _ = Key::from_pem(&text);
        let found = Cert::from_der(input.to_vec())
            .into_iter()
            .chain(Cert::all_from_pem(&text).unwrap_or_default());
        for cert in found {
            let _ = cert.info();
            let _ = cert.identity();
            let _ = cert.pin();
            let _ = cert.check_signed_by(authority.cert());
            let _ = cert.check_usage(Usage::Client);
            let _ = cert.can_serve();
            let _ = cert.check_valid_at(SystemTime::UNIX_EPOCH);
        }
        let shown = CertificateDer::from(input.to_vec());
        let _ = handshake_key(&shown);
        let root = crate::pem::encode("CERTIFICATE", input);
        if let Ok(ca) = ClientCa::from_pem(root.as_bytes()) {
            let _ = ca.verify(&[shown.clone(), shown], SystemTime::UNIX_EPOCH);
        }
    });
}

#[test]
fn signs_parsed_requests_with_their_own_subject() {
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let subject = Subject::new("system:node:a").in_group("system:nodes").in_group("dev");
    let names = [crate::names::AltName::dns("a"), crate::names::AltName::Ip([127, 0, 0, 1].into())];
    let request = SigningRequest::create(&subject, &names, &key).unwrap();
    let rsa = Key::generate(KeyAlgorithm::Rsa2048).unwrap();
    let other = SigningRequest::create(&Subject::new("a"), &[], &rsa).unwrap();
    let validity = Validity::starting(SystemTime::UNIX_EPOCH, Duration::from_secs(86_400));
    let authority = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let pem = request.to_pem();
    let seeds = [request.der(), other.der(), pem.as_bytes()];
    fuzz::fuzz(HERE, "request", &seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let _ = SigningRequest::from_base64(&text);
        // A damaged request fails its signature check, so also read the contents without that check.
        let _ = SigningRequest::unverified(input.to_vec()).info();
        let found = SigningRequest::from_der(input.to_vec()).ok();
        let Some(request) = found.or_else(|| SigningRequest::from_pem(&text).ok()) else { return };
        let Ok(asked) = request.info() else { return };
        let cert = authority.sign_request(&request, Usage::Client, validity).unwrap();
        let identity = cert.identity().unwrap().unwrap();
        assert_eq!(identity.name, asked.subject.common_name);
        assert_eq!(identity.groups.len(), asked.subject.organizations.len());
    });
}
