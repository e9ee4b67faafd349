//! Damaged certificates, keys and requests.

use std::time::{Duration, SystemTime};

use crate::{Authority, Cert, Key, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn certificates_and_keys() {
    let validity = Validity::starting(SystemTime::UNIX_EPOCH, Duration::from_secs(86_400));
    let authority = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let subject = Subject::new("system:node:a").in_group("system:nodes");
    let spec = LeafSpec {
        subject,
        alt_names: vec![crate::AltName::Ip([127, 0, 0, 1].into())],
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
            let _ = cert.check_valid_at(SystemTime::UNIX_EPOCH);
        }
    });
}
