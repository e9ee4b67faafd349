//! `up --config`: a cluster from a file, and its change by another one.

use std::fs;

use e2e::{Cluster, Session, share_machine, until};

/// Writes a file of the test, and returns its path.
fn write(cluster: &Cluster, name: &str, text: &str) -> String {
    let path = cluster.directory.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn document(cluster: &Cluster, body: &str) -> String {
    let head = "apiVersion: windlass.io/v1alpha1\nkind: Cluster\n";
    write(cluster, "cluster.yaml", &format!("{head}{body}"))
}

const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays"}, "spec": {
    "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "box:1"}]}}"#;

/// Files that change the API server: audit, encryption at rest, and a key for it.
fn api_server_files(cluster: &Cluster) -> String {
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
    let audit = write(cluster, "audit.yaml", policy);
    let encryption = write(
        cluster,
        "encryption.yaml",
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: [secrets]\n  providers:\n  - secretbox: {keys: [{name: a, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}\n",
    );
    let log = cluster.directory.join("audit.log").display().to_string();
    format!(
        "apiServer:\n  extraArgs:\n  - {{name: audit-policy-file, value: {audit}}}\n  - {{name: audit-log-path, value: {log}}}\n  \
         - {{name: encryption-provider-config, value: {encryption}}}\n"
    )
}

#[test]
fn file_configures_cluster_and_changes_it_without_loss() {
    let _turn = share_machine();
    let cluster = Cluster::new("configured");
    for (body, words) in [
        ("nodez: []", "unknown field \"nodez\""),
        ("apiServer: {extraArgs: [{name: no-such-flag, value: x}]}", "--no-such-flag"),
        ("kubelet: {maxPodz: 1}", "maxPodz"),
    ] {
        let path = document(&cluster, body);
        let refused = cluster.up_with(&["--config", &path]).refused();
        assert!(refused.contains(words), "{body}: {refused}");
        assert!(!cluster.root().exists(), "a wrong file creates nothing");
    }
    let api_server = api_server_files(&cluster);
    let nodes = "nodes:\n- labels: {example.com/disk: ssd, example.com/old: x}\n- taints: [{key: only, effect: NoSchedule}]\n";
    let registries = "registries: [{host: example.com, mirrors: [\"http://192.0.2.5:5000\"]}]\n";
    let body = format!("{api_server}{nodes}{registries}kubelet: {{maxPods: 50}}\n");
    cluster.up_with(&["--config", &document(&cluster, &body)]).ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    let names = s.field("nodes", "{.items[*].metadata.name}");
    let first = names.split_whitespace().find(|name| *name != "worker").unwrap().to_owned();
    for node in [first.as_str(), "worker"] {
        assert_eq!(s.field(&format!("node {node}"), "{.status.capacity.pods}"), "50", "{node}");
    }
    let label = |key: &str| {
        s.field(&format!("node {first}"), &format!("{{.metadata.labels.example\\.com/{key}}}"))
    };
    assert_eq!((&*label("disk"), &*label("old")), ("ssd", "x"));
    assert_eq!(s.field("node worker", "{.spec.taints[?(@.key==\"only\")].effect}"), "NoSchedule");
    let hosts = cluster.root().join("nodes/worker/etc/containerd/certs.d/example.com/hosts.toml");
    assert!(fs::read_to_string(hosts).unwrap().contains("http://192.0.2.5:5000"));
    s.kubectl("create secret generic hidden --from-literal=word=plain-text-in-the-store").ok();
    let stored = fs::read_dir(cluster.root().join("var/lib/store")).unwrap().flatten();
    for file in stored.filter(|file| file.path().is_file()) {
        let bytes = fs::read(file.path()).unwrap();
        // The value is base64 in JSON.
        for needle in ["plain-text-in-the-store", "cGxhaW4tdGV4dC1pbi10aGUtc3RvcmU"] {
            let found = bytes.windows(needle.len()).any(|window| window == needle.as_bytes());
            assert!(!found, "{} contains the Secret", file.path().display());
        }
    }
    let audit = || fs::read_to_string(cluster.directory.join("audit.log")).unwrap_or_default();
    until("the Secret is audited", || {
        if audit().contains("/secrets/hidden") || audit().contains("\"hidden\"") {
            Ok(())
        } else {
            Err(audit())
        }
    });
    s.apply(POD);
    s.kubectl("wait pod/stays --for=condition=Ready --timeout=60s").ok();
    let started = "{.status.containerStatuses[0].state.running.startedAt}";
    let before = s.field("pod stays", started);

    let body = format!(
        "{api_server}nodes: [{{labels: {{example.com/disk: hdd}}}}]\nkubelet: {{maxPods: 60}}\n"
    );
    cluster.up_with(&["--config", &document(&cluster, &body)]).ok();
    for node in [first.as_str(), "worker"] {
        s.until(&format!("get node {node} -o jsonpath={{.status.capacity.pods}}"), |pods| {
            pods == "60"
        });
    }
    assert_eq!((&*label("disk"), &*label("old")), ("hdd", ""));
    assert_eq!(s.field("node worker", "{.spec.taints[?(@.key==\"only\")].effect}"), "");
    assert_eq!(s.field("pod stays", started), before, "no container is restarted");
    assert_eq!(s.field("secret hidden", "{.data.word}"), "cGxhaW4tdGV4dC1pbi10aGUtc3RvcmU=");
    // Without a file the former one stays.
    let again = cluster.up();
    assert!(!again.stderr.contains("restart what the new options concern"), "{again}");
    let refused =
        cluster.up_with(&["--config", &document(&cluster, "networking: {podSubnet: 10.9.0.0/16}")]);
    assert!(refused.refused().contains("networking.podSubnet cannot change"));
    cluster.down(&[]).ok();
}
