//! Fuzzes the parsers of documents in the state store, which other programs write too.

use std::time::SystemTime;

use kops_api::Kind;

use crate::{Keyset, Registry, parse_secret, parse_yaml, ssh_keys::SshKey};

#[test]
fn stored_documents() {
    let keyset = Keyset::generate("kubernetes-ca", SystemTime::UNIX_EPOCH);
    let keyset = keyset.and_then(|keyset| keyset.document(true)).unwrap_or_else(|e| panic!("{e}"));
    let group: &[u8] = b"apiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata: {name: nodes}\nspec: {role: Node}\n";
    let secret: &[u8] = br#"{"Data": "e30="}"#;
    let key: &[u8] =
        b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBPuFjoI6iK9Nl3hxVuQ7SBhKT2CpsSwp9dVQ4BnFZxY a@b\n";
    let seeds = [keyset.as_bytes(), group, secret, key];
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "documents", &seeds, |input| {
        if let Ok(keyset) = Keyset::parse("path", "kubernetes-ca", input) {
            // A keyset that was read can be stored, and is then the same.
            let Ok(written) = keyset.document(true) else { return };
            let again = Keyset::parse("path", "kubernetes-ca", written.as_bytes());
            let again = again.unwrap_or_else(|e| panic!("{e}\n{written}"));
            assert_eq!(again.document(true).unwrap_or_else(|e| panic!("{e}")), written);
            let _ = (keyset.primary().is_ok(), keyset.public().is_ok(), keyset.certificates());
        }
        let _ = Registry::parse("a/instancegroup/nodes", Kind::InstanceGroup, "nodes", input);
        let _ = (parse_yaml("path", input), SshKey::parse("path", input));
        if let Err(error) = parse_secret("path", input) {
            assert!(error.to_string().contains("path"), "{error}");
        }
    });
}
