//! Tests of adding, promoting, distrusting and trusting keypairs.

use crate::stored::TestStore;

fn ids(place: &TestStore, keyset: &str) -> Vec<String> {
    let shown = place.kops(&["get", "keypairs", keyset, "--distrusted", "--name", "demo.local"]);
    let lines: Vec<String> = shown.unwrap_or_default().lines().skip(1).map(str::to_owned).collect();
    lines.iter().filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect()
}

#[test]
fn rotates_a_keyset_step_by_step() {
    let place = TestStore::with_cluster("metal");
    let kops = |args: &[&str]| place.kops(&[args, &["--name", "demo.local"]].concat());
    assert_eq!(kops(&["get", "keypairs"]).unwrap_err(), "no keypairs found");
    let first = kops(&["create", "keypair", "kubernetes-ca"]).unwrap_err();
    assert_eq!(first, "the first keypair added to a keyset must be primary");
    for name in ["kubernetes-ca", "service-account"] {
        let made = kops(&["create", "keypair", name, "--primary"]).unwrap();
        assert!(made.starts_with(&format!("Created {name} ")), "{made}");
    }
    let old = ids(&place, "kubernetes-ca").remove(0);
    let none = kops(&["promote", "keypair", "kubernetes-ca"]).unwrap();
    assert_eq!(none, format!("No kubernetes-ca keypair newer than current primary {old}\n"));
    let made = kops(&["create", "keypair", "all"]).unwrap();
    assert_eq!(made.lines().count(), 2, "{made}");
    let new = ids(&place, "kubernetes-ca").into_iter().find(|id| *id != old).unwrap();
    let promoted = kops(&["promote", "keypair", "kubernetes-ca", &new]).unwrap();
    assert_eq!(promoted, format!("Promoted kubernetes-ca {new}\n"));
    let wrong = kops(&["distrust", "keypair", "kubernetes-ca", &new]).unwrap_err();
    assert_eq!(wrong, "cannot distrust the primary keypair");
    let distrusted = kops(&["distrust", "keypair", "kubernetes-ca", &old]).unwrap();
    assert_eq!(distrusted, format!("Distrusted kubernetes-ca {old}\n"));
    // It stays distrusted after other changes, and cannot be promoted.
    kops(&["create", "keypair", "kubernetes-ca"]).unwrap();
    assert!(
        kops(&["promote", "keypair", "kubernetes-ca", &old]).unwrap_err().contains("distrusted")
    );
    let shown = kops(&["get", "keypairs", "kubernetes-ca"]).unwrap();
    assert!(!shown.contains(&old) && shown.contains(&new), "{shown}");
    let header: Vec<_> = shown.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "ID", "ISSUED", "EXPIRES", "PRIMARY", "HASPRIVATE"]);
    let trusted = kops(&["trust", "keypair", "kubernetes-ca", &old]).unwrap();
    assert_eq!(trusted, format!("Trusted kubernetes-ca {old}\n"));
    let issued = place.read("demo.local/pki/issued/kubernetes-ca/keyset.yaml");
    assert!(
        issued.contains(&format!("primaryID: \"{new}\"")) && !issued.contains("privateMaterial")
    );
    assert!(
        place.read("demo.local/pki/private/kubernetes-ca/keyset.yaml").contains("privateMaterial")
    );
}

#[test]
fn rejects_invalid_keypairs_without_changes() {
    let place = TestStore::with_cluster("metal");
    let kops = |args: &[&str]| place.kops(&[args, &["--name", "demo.local"]].concat());
    kops(&["create", "keypair", "kubernetes-ca", "--primary"]).unwrap();
    let path = "demo.local/pki/private/kubernetes-ca/keyset.yaml";
    let before = place.read(path);
    let file = place.file("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    for (args, reason) in [
        (vec!["create", "keypair", "admin"], "adding keypair to \"admin\" is not supported"),
        (vec!["create", "keypair", "all", "--primary"], "cannot specify --primary with \"all\""),
        (vec!["create", "keypair", "kubernetes-ca", "--cert", &file], ""),
        (vec!["create", "keypair", "kubernetes-ca", "--key", &file], ""),
        (vec!["create", "keypair", "../../x-ca", "--primary"], "leads out of the store"),
        (vec!["promote", "keypair", "all", "5"], "cannot specify ID with \"all\""),
        (vec!["promote", "keypair", "other-ca"], "not found"),
        (vec!["promote", "keypair", "kubernetes-ca", "5"], "not found"),
        (vec!["distrust", "keypair", "kubernetes-ca", "5"], "not found"),
        (vec!["trust", "keypair", "kubernetes-ca"], "must specify names of keypairs to trust"),
    ] {
        let error = kops(&args).unwrap_err();
        assert!(error.contains(reason), "{args:?}: {error}");
        assert_eq!(place.read(path), before, "{args:?}");
    }
}

/// A command that was stopped between its two writes is completed by the same command.
#[test]
fn completes_a_change_whose_public_half_was_not_written() {
    let place = TestStore::with_cluster("local");
    let kops = |args: &[&str]| place.kops(&[args, &["--name", "demo.local"]].concat());
    kops(&["create", "keypair", "kubernetes-ca", "--primary"]).unwrap();
    let old = ids(&place, "kubernetes-ca").remove(0);
    kops(&["create", "keypair", "all"]).unwrap();
    let new = ids(&place, "kubernetes-ca").into_iter().find(|id| *id != old).unwrap();
    let issued = "demo.local/pki/issued/kubernetes-ca/keyset.yaml";
    let stale = place.read(issued);
    kops(&["promote", "keypair", "kubernetes-ca", &new]).unwrap();
    let whole = place.read(issued);
    assert_ne!(whole, stale);
    std::fs::write(place.store_path(issued), &stale).unwrap();
    let again = kops(&["promote", "keypair", "kubernetes-ca", &new]).unwrap();
    assert!(again.starts_with("No kubernetes-ca keypair newer"), "{again}");
    assert_eq!(place.read(issued), whole);
}
