//! Tests of `update cluster` on metal: written objects, boot configurations, and rejected flags.

use std::fs;

use crate::stored::TestStore;

/// Returns a store with a cluster, and its spec.
fn store() -> TestStore {
    let place = TestStore::new();
    let state = format!("file://{}/state", place.dir.path().display());
    let cluster = format!(
        "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata:\n  name: demo.example.com\n  labels: \
         {{alpha.kops.k8s.io/cloud: metal}}\nspec:\n  api: {{dns: {{}}}}\n  configBase: {state}/demo.example.com\n  \
         kubernetesVersion: 1.36.1\n  networking: {{cni: {{}}}}\n  nonMasqueradeCIDR: 100.64.0.0/10\n  \
         authorization: {{rbac: {{}}}}\n  iam: {{}}\n  masterPublicName: 192.0.2.10\n  kubernetesApiAccess: \
         [0.0.0.0/0]\n  etcdClusters:\n  - {{name: main, etcdMembers: [{{name: a, instanceGroup: cp}}]}}\n  subnets: \
         [{{name: a, zone: main, type: Public, cidr: 10.0.0.0/20}}]\n  topology: {{dns: {{type: None}}}}\n"
    );
    let group = |name: &str, role: &str| {
        format!(
            "---\napiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: {name}\n  labels: \
             {{kops.k8s.io/cluster: demo.example.com}}\nspec: {{role: {role}, minSize: 1, maxSize: 1, subnets: [a]}}\n"
        )
    };
    let file = place.file(&(cluster + &group("cp", "Master") + &group("workers", "Node")));
    place.kops(&["create", "-f", &file]).unwrap_or_else(|e| panic!("{e}"));
    place.write(
        "addons/bootstrap-channel.yaml",
        "spec:\n  addons:\n  - {name: coredns, id: a, manifest: coredns/a.yaml}\n",
    );
    place.write("addons/coredns/a.yaml", "kind: List\n");
    place
}

fn update(place: &TestStore, more: &[&str]) -> Result<String, String> {
    let addons = place.path("addons");
    let usual = ["update", "cluster", "demo.example.com", "--addons", &addons];
    place.kops(&[&usual[..], more].concat())
}

/// Returns the path of a table with the hashes that the command reports as missing.
fn known(place: &TestStore) -> String {
    let refused = update(place, &[]).expect_err("no hash is known");
    let urls = refused.lines().filter_map(|line| line.strip_prefix("  "));
    let files = urls.map(|url| format!("- {{canonical: '{url}', sha: {}}}\n", "a1".repeat(32)));
    let files: String = files.collect();
    assert!(files.contains("linux/amd64/kubelet"), "{refused}");
    place.write("known.yaml", &format!("files:\n{files}"))
}

#[test]
fn writes_what_machines_read_once() {
    let place = store();
    let known = known(&place);
    let before = place.objects().len();
    let shown = update(&place, &["--known", &known]).unwrap_or_else(|e| panic!("{e}"));
    assert!(shown.contains("Must specify --yes"), "{shown}");
    assert_eq!(place.objects().len(), before);
    let out = place.path("out");
    let done = update(&place, &["--known", &known, "--out", &out, "--yes"]);
    let done = done.unwrap_or_else(|e| panic!("{e}"));
    assert!(done.contains("objects of the state store were changed"), "{done}");
    let cluster = place.dir.path().join("state/demo.example.com");
    for name in [
        "cluster-completed.spec",
        "kops-version.txt",
        "igconfig/control-plane/cp/nodeupconfig.yaml",
        "igconfig/node/workers/nodeupconfig.yaml",
        "manifests/etcd/main-cp.yaml",
        "manifests/static/kube-apiserver-healthcheck.yaml",
        "manifests/channels/kops-channels.yaml",
        "addons/coredns/a.yaml",
        "addons/bootstrap-channel.yaml",
        "backups/etcd/main/control/etcd-cluster-spec",
        "pki/private/kubernetes-ca/keyset.yaml",
    ] {
        assert!(cluster.join(name).is_file(), "{name}");
    }
    let boot = fs::read_to_string(place.dir.path().join("out/cp.yaml")).unwrap();
    let config = fs::read(cluster.join("igconfig/control-plane/cp/nodeupconfig.yaml")).unwrap();
    let hash = kops_core::content_hash(&config);
    for part in [
        "CloudProvider: metal".to_owned(),
        format!("ConfigBase: file://{}", cluster.display()),
        format!("NodeupConfigHash: {hash}"),
    ] {
        assert!(boot.contains(&part), "{part}: {boot}");
    }
    let worker = fs::read_to_string(place.dir.path().join("out/workers.yaml")).unwrap();
    assert!(worker.contains("192.0.2.10") && !worker.contains("ConfigBase"), "{worker}");
    let again = update(&place, &["--known", &known, "--yes"]).unwrap_or_else(|e| panic!("{e}"));
    assert!(again.contains("\n0 objects"), "{again}");
}

#[test]
fn rejects_flags_of_clouds() {
    let place = store();
    let known = known(&place);
    for flags in [
        &["--target=terraform"][..],
        &["--prune", "--yes"],
        &["--phase", "network"],
        &["--instance-group", "cp"],
        &["--ssh-public-key", "/dev/null"],
    ] {
        let error = update(&place, &[&["--known", &known], flags].concat());
        let error = error.expect_err("a flag without effect");
        assert!(error.contains("--"), "{flags:?}: {error}");
    }
    let wrong = place.write("wrong.yaml", "account: \"123456789012\"\n");
    let error = update(&place, &["--known", &wrong]).expect_err("a fact of AWS");
    assert!(error.contains("metal"), "{error}");
}
