use std::{
    os::unix::fs::PermissionsExt,
    time::{Duration, SystemTime},
};

use crate::*;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn authority(algorithm: KeyAlgorithm) -> Authority {
    Authority::create("kubernetes", algorithm, Validity::starting(now(), 10 * YEAR)).unwrap()
}

fn server_spec() -> LeafSpec {
    LeafSpec {
        subject: Subject::new("kube-apiserver"),
        alt_names: ["kubernetes", "10.96.0.1", "fd00::1"].map(|n| n.parse().unwrap()).to_vec(),
        usage: Usage::Server,
    }
}

#[test]
fn signs_and_stores_leaf_with_every_algorithm() {
    let dir = tempfile::tempdir().unwrap();
    for algorithm in KeyAlgorithm::ALL {
        let ca = authority(algorithm);
        let (cert, key) =
            ca.issue_new(&server_spec(), algorithm, Validity::starting(now(), YEAR)).unwrap();
        let (cert_file, key_file) = (dir.path().join("etcd/a.crt"), dir.path().join("etcd/a.key"));
        write_cert(&cert_file, &cert).unwrap();
        write_key(&key_file, &key).unwrap();
        let (cert, key) = (read_cert(&cert_file).unwrap(), read_key(&key_file).unwrap());
        cert.check_key(&key).unwrap();
        cert.check_signed_by(ca.cert()).unwrap();
        ca.cert().check_signed_by(ca.cert()).unwrap();
        cert.check_names(&server_spec().alt_names).unwrap();
        cert.check_usage(Usage::Server).unwrap();
        cert.check_valid_at(now()).unwrap();
        for (file, mode) in [(cert_file, 0o644), (key_file, 0o600)] {
            assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, mode);
        }
        let other_form =
            Key::from_pem(&crate::pem::encode("PRIVATE KEY", &key.to_pkcs8().unwrap())).unwrap();
        assert_eq!(other_form.public_pem().unwrap(), key.public_pem().unwrap());
        assert_eq!(other_form.algorithm(), Some(algorithm));
    }
}

#[test]
fn issues_leaf_with_kubeadm_extensions() {
    let ca = authority(KeyAlgorithm::EcdsaP256);
    let validity = Validity::starting(now(), YEAR);
    let info =
        ca.issue_new(&server_spec(), KeyAlgorithm::EcdsaP256, validity).unwrap().0.info().unwrap();
    assert_eq!(info.subject, Subject::new("kube-apiserver"));
    assert_eq!(info.issuer, Subject::new("kubernetes"));
    assert_eq!(info.alt_names, server_spec().alt_names);
    assert_eq!(info.not_before, now() - Duration::from_secs(300));
    assert_eq!(info.not_after, info.not_before + YEAR);
    assert!(info.server_auth && !info.client_auth && !info.is_ca);
    assert!(info.digital_signature && info.key_encipherment && !info.cert_sign);
    let ca = ca.cert().info().unwrap();
    assert!(ca.is_ca && ca.cert_sign && ca.digital_signature && ca.key_encipherment);
    assert!(!ca.server_auth && !ca.client_auth);
    assert_eq!(ca.alt_names, [AltName::dns("kubernetes")]);
}

#[test]
fn distinguishes_errors() {
    let (ca, other) = (authority(KeyAlgorithm::EcdsaP256), authority(KeyAlgorithm::EcdsaP256));
    let (cert, _) = ca
        .issue_new(&server_spec(), KeyAlgorithm::EcdsaP256, Validity::starting(now(), YEAR))
        .unwrap();
    assert!(matches!(cert.check_key(other.key()), Err(Error::KeyMismatch { .. })));
    assert!(matches!(cert.check_signed_by(other.cert()), Err(Error::NotSignedBy { .. })));
    assert!(matches!(cert.check_valid_at(now() + YEAR), Err(Error::Expired { .. })));
    assert!(matches!(cert.check_valid_at(now() - YEAR), Err(Error::NotYetValid { .. })));
    assert!(matches!(cert.check_usage(Usage::Client), Err(Error::MissingUsage { .. })));
    let missing = cert.check_names(&[AltName::dns("elsewhere")]).unwrap_err();
    assert_eq!(
        missing.to_string(),
        r#"certificate "CN=kube-apiserver" is not valid for "elsewhere""#
    );
    assert!(matches!(
        Authority::from_parts(cert, Key::generate(KeyAlgorithm::EcdsaP256).unwrap()),
        Err(Error::NotAnAuthority { .. })
    ));
    assert!(matches!(
        Authority::from_parts(ca.cert().clone(), Key::generate(KeyAlgorithm::EcdsaP256).unwrap()),
        Err(Error::KeyMismatch { .. })
    ));
}

#[test]
fn keeps_several_groups_through_request_and_signing() {
    let subject = Subject::new("jane").in_group("dev").in_group("système");
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let sent = SigningRequest::create(&subject, &[AltName::dns("jane.example")], &key).unwrap();
    let request = SigningRequest::from_pem(&sent.to_pem()).unwrap();
    assert_eq!(request.info().unwrap().subject, subject);
    let ca = authority(KeyAlgorithm::Rsa2048);
    let ca = Authority::from_parts(
        ca.cert().clone(),
        Key::from_pem(&ca.key().to_pem().unwrap()).unwrap(),
    )
    .unwrap();
    let cert = ca.sign_request(&request, Usage::Client, Validity::starting(now(), YEAR)).unwrap();
    assert_eq!(cert.info().unwrap().subject, subject);
    let identity = cert.identity().unwrap().unwrap();
    assert_eq!((identity.name, identity.groups), (subject.common_name, subject.organizations));
    assert_eq!(cert.info().unwrap().alt_names, [AltName::dns("jane.example")]);
    cert.check_key(&key).unwrap();
    cert.check_signed_by(ca.cert()).unwrap();
}

#[test]
fn rejects_tampered_request() {
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let request = SigningRequest::create(&Subject::new("system:node:a"), &[], &key).unwrap();
    let mut der = request.der().to_vec();
    let at = der.windows(6).position(|w| w == b"node:a").unwrap() + 5;
    der[at] = b'b';
    assert!(matches!(SigningRequest::from_der(der), Err(Error::RequestSignature)));
}

#[test]
fn rustls_accepts_the_chain() {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    for algorithm in [KeyAlgorithm::Rsa2048, KeyAlgorithm::EcdsaP384] {
        let ca = authority(algorithm);
        let (cert, key) =
            ca.issue_new(&server_spec(), algorithm, Validity::starting(now(), YEAR)).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.cert().to_rustls()).unwrap();
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
            roots.into(),
            provider.clone(),
        )
        .build()
        .unwrap();
        let at = rustls_pki_types::UnixTime::since_unix_epoch(
            now().duration_since(SystemTime::UNIX_EPOCH).unwrap(),
        );
        for name in ["kubernetes", "10.96.0.1", "fd00::1"] {
            let name = rustls_pki_types::ServerName::try_from(name).unwrap();
            rustls::client::danger::ServerCertVerifier::verify_server_cert(
                &*verifier,
                &cert.to_rustls(),
                &[],
                &name,
                &[],
                at,
            )
            .unwrap();
        }
        provider.key_provider.load_private_key(key.to_rustls().unwrap()).unwrap();
    }
}

#[test]
fn covers_one_label_with_wildcard() {
    let ca = authority(KeyAlgorithm::EcdsaP256);
    let spec = LeafSpec { alt_names: vec![AltName::dns("*.example.org")], ..server_spec() };
    let (cert, _) =
        ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, Validity::starting(now(), YEAR)).unwrap();
    cert.check_names(&[AltName::dns("api.example.org")]).unwrap();
    for refused in ["example.org", "a.b.example.org"] {
        assert!(cert.check_names(&[AltName::dns(refused)]).is_err(), "{refused}");
    }
}

#[test]
fn names_unexpected_pem_label() {
    let ca = authority(KeyAlgorithm::EcdsaP256);
    let error = Key::from_pem(&ca.cert().to_pem()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no PEM block of type PRIVATE KEY found; the input is CERTIFICATE"
    );
    assert!(Cert::from_pem("-----BEGIN CERTIFICATE-----\nAAAA\n").is_err());
    assert!(Cert::from_pem("").unwrap_err().to_string().contains("no PEM text"));
}

#[test]
fn computes_same_pin_as_openssl() {
    // Created with: openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | sha256sum
    let cert = Cert::from_pem(include_str!("../testdata/ca.crt")).unwrap();
    assert_eq!(cert.pin().unwrap(), include_str!("../testdata/ca.pin").trim());
}

proptest::proptest! {
    #[test]
    fn pem_round_trips(der in proptest::collection::vec(0u8.., 0..300)) {
        let text = format!("noise\n{}noise\n", encode("X Y", &der));
        proptest::prop_assert_eq!(decode_all(&text).unwrap(), vec![("X Y".to_owned(), der)]);
    }
}

/// A self-signed certificate of X.509 version 1, which has no extensions, and its key.
const VERSION_1: [&str; 2] = [
    "-----BEGIN CERTIFICATE-----
MIIBHzCBxQIUMFrIiFmsawHsIWj5iKvJV7f0glwwCgYIKoZIzj0EAwIwETEPMA0G
A1UEAwwGb2xkLWNhMCAXDTI2MTEyNzEyMjAwOFoYDzIxMjYxMTAzMTIyMDA4WjAR
MQ8wDQYDVQQDDAZvbGQtY2EwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQEERES
cG4zBqMnlpyvtHd4vre53kVqPAHjHLx41UMnPOyFfC1gOGqLxkNmg80OhIYa4iVo
XODOF4z/kB99LE3LMAoGCCqGSM49BAMCA0kAMEYCIQDOKNu/y6giBjZ1Gq/FWWKm
M30SPu0DZCwadACeBAip7wIhAOjImF1B4TSOpIFSHwY/HAOocUAsvqp5/xJhyUIt
6Chi
-----END CERTIFICATE-----",
    "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgWM49khMZ1LU2p2P+
aaT/pQc3fbg9gy7y84uPwVzbD3yhRANCAAQEEREScG4zBqMnlpyvtHd4vre53kVq
PAHjHLx41UMnPOyFfC1gOGqLxkNmg80OhIYa4iVoXODOF4z/kB99LE3L
-----END PRIVATE KEY-----",
];

#[test]
fn signs_with_authority_of_version_1() {
    let [cert, key] = VERSION_1;
    let (cert, key) = (Cert::from_pem(cert).unwrap(), Key::from_pem(key).unwrap());
    assert!(!cert.info().unwrap().is_ca);
    let ca = Authority::from_parts(cert, key).unwrap();
    let spec = LeafSpec { usage: Usage::Client, ..server_spec() };
    let validity = Validity::starting(SystemTime::now(), YEAR);
    let (leaf, _) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    leaf.check_signed_by(ca.cert()).unwrap();
    let trusted = ClientCa::from_pem(ca.cert().to_pem().as_bytes()).unwrap();
    trusted.verify(&[leaf.to_rustls()], SystemTime::now()).unwrap();
}
