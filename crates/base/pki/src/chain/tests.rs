use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustls::pki_types::CertificateDer;

use crate::{ClientCa, ClientError, encode, handshake_key};

const VECTORS: &str = include_str!("../../vectors/client-certificates.tsv");

/// The certificates that Go accepts and this crate rejects, with a part of the message.
const STRICTER: &[(&str, &str)] = &[
    ("p224", "its ECDSA key is on an unknown curve"),
    ("rsa-1024", "its RSA key has 1024 bits"),
    ("openssl-without-extensions-rsa1024", "its RSA key has 1024 bits"),
    ("openssl-with-extensions-rsa1024", "its RSA key has 1024 bits"),
    ("authority-rsa-1024", "its RSA key has 1024 bits"),
    // Other programs obey these extensions, but Go ignores them.
    ("version-1-with-extensions", "version 1, which has no extensions"),
    ("version-2-with-extensions", "version 2, which has no extensions"),
    // Go takes the last name, other programs the first.
    ("two-common-names", "its subject has 2 common names"),
];

struct Vector {
    name: &'static str,
    at: SystemTime,
    go: &'static str,
    roots: String,
    chain: Vec<CertificateDer<'static>>,
}

fn vectors() -> Vec<Vector> {
    let ders = |field: &str| -> Vec<Vec<u8>> {
        field.split(',').map(|text| STANDARD.decode(text).unwrap()).collect()
    };
    let rows =
        VECTORS.lines().filter(|line| !line.starts_with(['#']) && !line.starts_with("key\t"));
    rows.map(|line| {
        let [name, at, go, _, roots, chain] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        Vector {
            name,
            at: UNIX_EPOCH + Duration::from_secs(at.parse().unwrap()),
            go,
            roots: ders(roots).iter().map(|der| encode("CERTIFICATE", der)).collect(),
            chain: ders(chain).into_iter().map(CertificateDer::from).collect(),
        }
    })
    .collect()
}

/// Returns the common name, or the empty string for a certificate that names no user.
fn verdict(vector: &Vector) -> Result<String, ClientError> {
    let ca = ClientCa::from_pem(vector.roots.as_bytes())?;
    let verified = ca.verify(&vector.chain, vector.at)?;
    Ok(verified.map(|verified| verified.identity.name).unwrap_or_default())
}

#[test]
fn agrees_with_go_on_every_vector() {
    let vectors = vectors();
    assert!(vectors.len() > 150, "{}", vectors.len());
    for vector in &vectors {
        let (name, ours) = (vector.name, verdict(vector));
        if let Some((_, why)) = STRICTER.iter().find(|(stricter, _)| *stricter == name) {
            assert!(vector.go.starts_with("ok "), "{name} is not stricter: {}", vector.go);
            let refused = ours.expect_err(name).to_string();
            assert!(refused.contains(why), "{name}: {refused}");
            continue;
        }
        match vector.go.strip_prefix("ok ") {
            Some(user) => {
                assert_eq!(ours.as_deref().ok(), user.split(' ').next(), "{name}")
            }
            None => assert!(ours.is_err(), "{name}: {ours:?} and Go says {}", vector.go),
        }
    }
}

#[test]
fn rejects_chain_in_the_words_of_go() {
    let refused = vectors().into_iter().filter_map(|vector| {
        let words = vector.go.strip_prefix("refused x509: ")?;
        // Go adds its own message for a signature that does not match.
        Some((words.split(" (possibly because").next()?, vector))
    });
    for (words, vector) in refused {
        let ours = verdict(&vector).expect_err(vector.name).to_string();
        assert!(ours.contains(words), "{}: {ours}\nGo: {words}", vector.name);
    }
}

#[test]
fn verifies_no_chain_without_handshake_key() {
    let mut unprovable = 0;
    for vector in vectors() {
        if handshake_key(&vector.chain[0]).is_err() {
            unprovable += 1;
            assert!(verdict(&vector).is_err(), "{}", vector.name);
        }
    }
    assert!(unprovable > 10, "{unprovable}");
}

#[test]
fn reports_weak_signature_of_authority() {
    for name in ["rsa-sha1", "rsa-sha1-version-1", "ecdsa-sha1", "openssl-sha1"] {
        let vector = vectors().into_iter().find(|vector| vector.name == name).unwrap();
        let refused = verdict(&vector).unwrap_err().to_string();
        assert!(refused.contains("insecure algorithm SHA1"), "{name}: {refused}");
    }
}

#[test]
fn bounds_the_signatures_of_one_verification() {
    let vectors = vectors();
    let find = |name: &str| vectors.iter().find(|vector| vector.name == name).unwrap();
    // 200 authorities of the right name, none of which signed.
    let mut roots = find("same-name-other-key").roots.clone();
    roots = find("one-name-two-keys").roots.clone() + &roots;
    let wrong = &find("one-name-two-keys").chain[1];
    let leaf = &find("one-name-two-keys").chain[0];
    let mut chain = vec![leaf.clone()];
    chain.extend(std::iter::repeat_n(wrong.clone(), 200));
    chain.push(find("one-name-two-keys").chain[2].clone());
    let ca = ClientCa::from_pem(roots.as_bytes()).unwrap();
    let refused = ca.verify(&chain, find("one-name-two-keys").at).unwrap_err().to_string();
    assert!(refused.contains("signed by unknown authority"), "{refused}");
}
