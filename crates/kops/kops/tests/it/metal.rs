//! Tests of `update cluster` and `toolbox enroll` on metal.

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

#[test]
fn rejects_update_by_older_kops() {
    let place = store();
    let known = known(&place);
    let updated_by = |version: &str, flags: &[&str]| {
        place.write("state/demo.example.com/kops-version.txt", version);
        update(&place, &[&["--known", &known], flags].concat())
    };
    for newer in ["1.37.0", "1.37.0-alpha.1", "2.0.0\n"] {
        let error = updated_by(newer, &[]).expect_err(newer);
        assert!(error.contains("use the newer one") && error.contains(newer.trim()), "{error}");
        updated_by(newer, &["--allow-kops-downgrade"]).unwrap_or_else(|e| panic!("{e}"));
    }
    for older in ["1.36.99", "1.35.0", "v1.36.2"] {
        updated_by(older, &[]).unwrap_or_else(|e| panic!("{older}: {e}"));
    }
    let error = updated_by("../x", &[]).expect_err("no version");
    assert!(error.contains("is not a version"), "{error}");
}

/// Replaces `ssh` by a program that records its calls and input, and answers as a machine. Returns its directory.
fn fake_ssh(place: &TestStore) -> String {
    let directory = place.dir.path().join("bin");
    let (calls, input) = (place.path("calls"), place.path("input"));
    let script = format!(
        "echo \"$@\" >>{calls}\n/bin/cat >>{input}\n\
         printf 'worker-1\\n-----BEGIN PUBLIC KEY-----\\nabc\\n-----END PUBLIC KEY-----\\n'"
    );
    testkit::write_script(&directory.join("ssh"), &script);
    directory.display().to_string()
}

#[test]
fn enrolls_worker_by_ssh() {
    let place = store();
    let path = fake_ssh(&place);
    let enroll = |flags: &[&str]| {
        let usual = ["toolbox", "enroll", "--cluster", "demo.example.com", "--host"];
        place.kops_with(&[&usual[..], flags].concat(), &[("PATH", path.as_str())])
    };
    let calls = || fs::read_to_string(place.path("calls")).unwrap_or_default();
    for (flags, reason) in [
        (&["192.0.2.7", "--instance-group", "none"][..], "InstanceGroup not found \"none\""),
        (&["192.0.2.7", "--instance-group", "cp"], "has not the role Node"),
        (&["192.0.2.7", "--instance-group", "workers"], "has no node configuration yet"),
    ] {
        let error = enroll(flags).expect_err(reason);
        assert!(error.contains(reason), "{reason}: {error}");
    }
    let user = ["192.0.2.7", "--instance-group", "workers", "--ssh-user=-x"];
    assert!(enroll(&user).expect_err("an option").contains("must not begin with a dash"));
    assert_eq!(calls(), "", "a refused machine was reached");

    let flags =
        ["192.0.2.7", "--instance-group", "workers", "--ssh-user", "admin", "--ssh-port", "2222"];
    let host = enroll(&[&flags[..], &["--build-host"]].concat()).unwrap_or_else(|e| panic!("{e}"));
    for part in ["kind: Host\n", "  name: worker-1\n", "  instanceGroup: workers\n", "    abc\n"] {
        assert!(host.contains(part), "{part}: {host}");
    }
    let identify = "-p 2222 -l admin -- 192.0.2.7 sudo sh -s\n";
    assert_eq!(calls(), identify);
    let known = known(&place);
    update(&place, &["--known", &known, "--yes"]).unwrap_or_else(|e| panic!("{e}"));
    // Without the API there is no Host, so that nodeup is not started.
    let error = enroll(&[&flags[..], &["--api-server", "https://127.0.0.1:1"]].concat());
    assert!(error.expect_err("no API").contains("127.0.0.1:1"));
    assert_eq!(calls(), identify.repeat(2));
}
