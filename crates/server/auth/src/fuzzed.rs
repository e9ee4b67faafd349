//! Robustness tests with malformed certificates and tokens.

use std::time::SystemTime;

use crate::authn::{certificate::ClientCa, keys::VerifyingKey};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn authorities_and_keys() {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
    let cert = params.self_signed(&key).unwrap();
    let (der, pem) = (cert.der().to_vec(), cert.pem() + &key.public_key_pem());
    let ca = ClientCa::from_pem(cert.pem().as_bytes()).unwrap();
    fuzz::fuzz(HERE, "client-certificate", &[&der, pem.as_bytes()], |input| {
        let _ = ClientCa::from_pem(input);
        let _ = VerifyingKey::all_from_pem(input);
        let _ = VerifyingKey::from_spki(input);
        let chain = [rustls::pki_types::CertificateDer::from(input.to_vec())];
        let _ = ca.verify(&chain, SystemTime::UNIX_EPOCH);
    });
}
