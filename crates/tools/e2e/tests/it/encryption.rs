//! The keys of a running cluster's Secrets: rotated although the command is killed, and used after a restart.

use e2e::{Cluster, Session, share_machine, until};

/// Returns the names of the keys, the one that encrypts first.
#[track_caller]
fn keys(cluster: &Cluster) -> Vec<String> {
    let status = cluster.windlass(&["secrets-encrypt", "status"]).ok();
    let names = status.lines().filter_map(|line| line.split_once("key: "));
    names.map(|(_, name)| name.to_owned()).collect()
}

/// Returns `true` if a file of the store contains a text.
fn stores(cluster: &Cluster, text: &str) -> bool {
    let store = cluster.root().join("var/lib/store").display().to_string();
    cluster.run("grep", &["-rqa", text, &store]).code == Some(0)
}

#[test]
fn rotates_keys_although_killed_and_reads_secrets_after_restart() {
    let _turn = share_machine();
    let cluster = &Cluster::new("encryption");
    cluster.up().ok();
    let s = Session::in_default_namespace(cluster);
    s.kubectl("create secret generic before --from-literal=a=plain-text-before").ok();
    assert!(stores(cluster, "cGxhaW4tdGV4dC1iZWZvcmU"), "base64 of the value");
    let refused = cluster.windlass(&["secrets-encrypt", "rotate"]);
    assert!(refused.stderr.contains("windlass up --secrets-encryption"), "{refused}");
    cluster.down(&["--keep-data"]).ok();
    cluster.up_with(&["--secrets-encryption"]).ok();
    s.kubectl("create secret generic after --from-literal=a=plain-text-after").ok();
    assert!(!stores(cluster, "cGxhaW4tdGV4dC1hZnRlcg"));
    cluster.windlass(&["secrets-encrypt", "reencrypt"]).ok();
    let read = || ["before", "after"].map(|name| s.field(&format!("secret {name}"), "{.data.a}"));
    let values = read();
    assert_eq!(values, ["cGxhaW4tdGV4dC1iZWZvcmU=", "cGxhaW4tdGV4dC1hZnRlcg=="]);
    let first = keys(cluster);
    let binary = cluster.root().join("bin/windlass").display().to_string();
    for seconds in ["0.05", "0.3", "3", "8"] {
        let (name, root) = (&cluster.name, cluster.root().display().to_string());
        let rotate = [&*binary, "secrets-encrypt", "--name", name, "--root", &root, "rotate"];
        cluster.run("timeout", &[&["-s", "KILL", seconds][..], &rotate].concat());
        assert_eq!(read(), values, "after {seconds} s");
        let status = cluster.windlass(&["secrets-encrypt", "status"]).ok();
        assert!(status.contains("stage: "), "{status}");
    }
    cluster.windlass(&["secrets-encrypt", "rotate"]).ok();
    let last = keys(cluster);
    assert!(last.len() == 1 && last != first, "{first:?} {last:?}");
    assert_eq!(read(), values);
    // The process starts again with the last key only.
    cluster.kill("control-plane");
    until("Secrets after a restart", || {
        let secret = s.kubectl("get secret before -o jsonpath={.data.a}");
        if secret.stdout == values[0] { Ok(()) } else { Err(secret.to_string()) }
    });
}
