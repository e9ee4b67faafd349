//! Tests of `export kubeconfig`, `helpers kubectl-auth` and `delete instance`.

use std::fs;

use crate::stored::TestStore;

fn store() -> TestStore {
    let place = TestStore::with_cluster("metal");
    let args = ["create", "keypair", "kubernetes-ca", "--primary", "--name", "demo.local"];
    place.kops(&args).unwrap_or_else(|e| panic!("{e}"));
    place
}

#[test]
fn exports_contexts() {
    let place = store();
    let file = place.path("kubeconfig");
    let export = |flags: &[&str]| {
        place.kops(&[&["export", "kubeconfig", "--kubeconfig", &file], flags].concat())
    };
    let read = || fs::read_to_string(&file).unwrap_or_default();
    let done = export(&["demo.local"]).unwrap();
    assert_eq!(done, "kOps has set your kubectl context to demo.local\n");
    assert!(read().contains("server: https://api.demo.local\n"), "{}", read());
    assert!(read().contains("tls-server-name: api.internal.demo.local\n"), "{}", read());
    assert!(!read().contains("client-certificate-data"), "{}", read());
    export(&["demo.local", "--admin=2h"]).unwrap();
    assert!(read().contains("client-certificate-data") && read().contains("user: demo.local\n"));
    // Without a new user, the context keeps its own.
    export(&["demo.local", "--internal"]).unwrap();
    assert!(read().contains("server: https://api.internal.demo.local\n"), "{}", read());
    assert!(read().contains("client-certificate-data") && read().contains("user: demo.local\n"));
    export(&["--all", "--api-server", "https://10.0.0.1:6443"]).unwrap();
    assert!(read().contains("server: https://10.0.0.1:6443\n"), "{}", read());
    export(&["demo.local", "--user", "demo.local"]).unwrap();
    export(&["demo.local", "--auth-plugin"]).unwrap();
    assert!(!read().contains("client-certificate-data"), "{}", read());
    assert!(read().contains("command: kops\n") && read().contains("--cluster=demo.local\n"));
    let before = read();
    for (flags, reason) in [
        (vec!["demo.local", "--admin", "--user", "a"], "cannot use both --admin and --user"),
        (vec!["demo.local", "--all"], "cannot use both --all flag and positional arguments"),
        (vec!["demo.local", "--user", "none"], "could not find user \"none\""),
        (vec!["none.local", "--admin"], "was not found"),
        (vec!["../x", "--admin"], "leads out of the store"),
        (vec!["demo.local", "--admin=often"], "invalid value 'often'"),
    ] {
        let error = export(&flags).unwrap_err();
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert_eq!(read(), before, "{flags:?}");
    }
    let keyless = TestStore::with_cluster("metal");
    let file = keyless.path("kubeconfig");
    let args = ["export", "kubeconfig", "demo.local", "--admin", "--kubeconfig", &file];
    assert!(keyless.kops(&args).unwrap_err().contains("has no keys yet"));
    assert!(!std::path::Path::new(&file).exists());
}

#[test]
fn prints_credentials_for_kubectl() {
    let place = store();
    let auth = |flags: &[&str]| place.kops(&[&["helpers", "kubectl-auth"], flags].concat());
    let shown = auth(&["--cluster=demo.local", "--lifetime=30m"]).unwrap();
    assert!(shown.contains("\"apiVersion\":\"client.authentication.k8s.io/v1beta1\""), "{shown}");
    assert!(shown.contains("\"expirationTimestamp\":\"1970-01-01T00:30:00Z\""), "{shown}");
    assert!(shown.contains("BEGIN CERTIFICATE") && shown.contains("PRIVATE KEY"));
    assert!(auth(&[]).is_err());
    assert!(auth(&["--cluster=none.local"]).unwrap_err().contains("was not found"));
    assert!(auth(&["--cluster=demo.local", "--api-version=v9"]).is_err());
}

#[test]
fn rejects_deletions_of_unknown_instances() {
    let place = TestStore::with_cluster("local");
    let delete = |flags: &[&str]| {
        place.kops(&[&["delete", "instance"], flags, &["--name", "demo.local"]].concat())
    };
    let before = place.objects();
    let error = delete(&["i-0", "--cloudonly", "--yes"]).unwrap_err();
    assert_eq!(error, "could not find instance i-0");
    let error = delete(&["../x", "--cloudonly", "--surge=false"]).unwrap_err();
    assert_eq!(error, "could not find instance ../x");
    assert!(delete(&["i-0", "--yes"]).unwrap_err().contains("has no keys yet"));
    assert!(delete(&["i-0", "--yes", "--use-kubeconfig"]).is_err());
    assert!(delete(&[]).is_err());
    let metal = TestStore::with_cluster("metal");
    let error = metal.kops(&["delete", "instance", "i-0", "--name", "demo.local"]).unwrap_err();
    assert!(error.contains("cloud metal is not supported yet"), "{error}");
    assert_eq!(place.objects(), before);
}
