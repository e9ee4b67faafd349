//! Tests of `edit`, `create instancegroup` and `delete -f`.

use crate::stored::{CLUSTER, GROUP, TestStore};

/// Creates a store with a cluster, its control plane and a group of workers.
fn store_with_workers() -> TestStore {
    let place = TestStore::with_cluster("metal");
    let file = place.file(&workers());
    place.kops(&["create", "-f", &file]).unwrap_or_else(|e| panic!("{e}"));
    place
}

fn workers() -> String {
    GROUP.replace("name: cp", "name: nodes").replace("Master", "Node")
}

#[test]
fn sets_and_unsets_fields() {
    let place = store_with_workers();
    let edit = |what: &[&str], flags: &[&str]| {
        place.kops(&[&["edit"], what, flags, &["--name", "demo.local"]].concat())
    };
    let cluster = || place.read("demo.local/config");
    let group = || place.read("demo.local/instancegroup/nodes");
    edit(&["cluster"], &["--set", "spec.kubernetesVersion=1.36.2,cluster.spec.channel=alpha"])
        .unwrap();
    assert!(cluster().contains("kubernetesVersion: 1.36.2"), "{}", cluster());
    assert!(cluster().contains("channel: alpha"));
    edit(
        &["cluster"],
        &["--unset", "spec.channel", "--set", "\"spec.sshAccess=10.0.0.0/8,11.0.0.0/8\""],
    )
    .unwrap();
    assert!(!cluster().contains("channel: alpha"));
    assert!(cluster().contains("sshAccess:\n  - 10.0.0.0/8\n  - 11.0.0.0/8"), "{}", cluster());
    edit(&["cluster"], &["--set", "spec.masterPublicName=api.example.com"]).unwrap();
    assert!(cluster().contains("masterPublicName: api.example.com"), "{}", cluster());
    edit(&["ig", "nodes"], &["--set", "instancegroup.spec.maxSize=3", "--set", "spec.minSize=2"])
        .unwrap();
    assert!(group().contains("maxSize: 3\n  minSize: 2"), "{}", group());
    edit(&["ig", "nodes"], &["--unset", "spec.minSize"]).unwrap();
    assert!(!group().contains("minSize"), "{}", group());
    let before = place.objects();
    for (what, flags, reason) in [
        (vec!["cluster"], vec!["--set", "spec.channel"], "unhandled field: \"spec.channel\""),
        (vec!["cluster"], vec!["--set", "spec.chanel=x"], "unknown field \"chanel\""),
        (vec!["cluster"], vec!["--unset", "spec.chanel"], "unknown field \"chanel\""),
        (vec!["cluster"], vec!["--set", "spec.nonMasqueradeCIDR=x"], "nonMasqueradeCIDR"),
        (vec!["cluster"], vec!["--set", "metadata.name=x.local"], "cannot be renamed"),
        (vec!["cluster"], vec!["--set", "spec.kubelet.maxPods=many"], "maxPods"),
        (vec!["ig", "nodes"], vec!["--set", "spec.role=King"], "spec.role"),
        (vec!["ig", "nodes"], vec!["--set", "spec.maxSize=99999999999"], "maxSize"),
        (vec!["ig", "none"], vec!["--set", "spec.maxSize=1"], "InstanceGroup \"none\" not found"),
        (vec!["ig", "../config"], vec!["--set", "spec.maxSize=1"], "leads out of the store"),
    ] {
        let error = edit(&what, &flags).unwrap_err();
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert_eq!(place.objects(), before, "{flags:?}");
    }
}

#[test]
fn stores_what_the_editor_leaves() {
    let place = store_with_workers();
    let edit = |editor: &str| {
        let args = ["edit", "ig", "nodes", "--name", "demo.local"];
        let temporary = place.dir.path().display().to_string();
        place.kops_with(&args, &[("EDITOR", editor), ("TMPDIR", &temporary)])
    };
    assert_eq!(edit("true").unwrap(), "Edit cancelled: no changes made.\n");
    edit("sed -i s/maxSize:.1/maxSize:\\ 2/").unwrap();
    assert!(place.read("demo.local/instancegroup/nodes").contains("maxSize: 2"));
    let before = place.objects();
    for (editor, reason) in [
        ("false", "ended with"),
        ("sed -i s/name:.nodes/name:\\ other/", "cannot be renamed"),
        ("sed -i s/maxSize/maxsize/", "spec.maxsize"),
        ("truncate -s 0", "reading"),
        ("sed -i '$a ---\\nkind: InstanceGroup'", "2 documents"),
        ("printf '\\377' >", "reading"),
        ("rm", "reading"),
    ] {
        let error = edit(editor).unwrap_err();
        assert!(error.contains(reason), "{editor}: {error}");
        assert_eq!(place.objects(), before, "{editor}");
        let copy = error.split_once("a copy of your changes is in ");
        let has_copy = !["false", "rm"].contains(&editor);
        assert_eq!(copy.is_some(), has_copy, "{editor}: {error}");
        if let Some((_, copy)) = copy {
            assert!(std::path::Path::new(copy).exists(), "{editor}");
        }
    }
}

#[test]
fn creates_instance_groups() {
    let place = TestStore::with_cluster("metal");
    let create = |args: &[&str], editor: &str| {
        let all = [&["create", "instancegroup"], args, &["--name", "demo.local"]].concat();
        let temporary = place.dir.path().display().to_string();
        place.kops_with(&all, &[("EDITOR", editor), ("TMPDIR", &temporary)])
    };
    let before = place.objects();
    let shown = create(&["nodes", "--dry-run", "-o", "yaml"], "false").unwrap();
    assert_eq!(
        shown,
        "apiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  labels:\n    kops.k8s.io/cluster: \
         demo.local\n  name: nodes\nspec:\n  maxSize: 2\n  minSize: 2\n  nodeLabels:\n    kops.k8s.io/instancegroup: \
         nodes\n  role: Node\n  subnets:\n  - a\n"
    );
    let json = create(&["nodes", "--dry-run", "-o", "json", "--zone", "z"], "false").unwrap();
    assert!(json.starts_with('{') && json.contains("\"zones\":[\"z\"]"), "{json}");
    for (args, editor, reason) in [
        (vec!["nodes", "--dry-run"], "true", "must set output flag; yaml or json"),
        (vec!["nodes", "-o", "yaml"], "true", "--output is for --dry-run"),
        (vec!["nodes", "--role", "king"], "true", "unknown role \"king\""),
        (vec!["cp"], "true", "instance group \"cp\" already exists"),
        (vec!["cp2", "--role", "control-plane"], "true", "--subnet"),
        (vec!["nodes", "--subnet", "none", "--edit=false"], "true", "spec.subnets"),
        (vec!["../x", "--edit=false"], "true", "leads out of the store"),
        (vec!["a/b", "--edit=false"], "true", "metadata.name"),
        (vec!["nodes"], "false", "ended with"),
        (vec!["nodes"], "sed -i s/Node/King/", "spec.role"),
        (
            vec!["nodes"],
            "sed -i -e s/kind:.*/kind:\\ Host/ -e '/^spec/,$d'",
            "Host, not an InstanceGroup",
        ),
    ] {
        let error = create(&args, editor).unwrap_err();
        assert!(error.contains(reason), "{args:?}: {error}");
        assert_eq!(place.objects(), before, "{args:?}");
    }
    create(&["nodes"], "sed -i s/maxSize:.2/maxSize:\\ 5/").unwrap();
    assert!(place.read("demo.local/instancegroup/nodes").contains("maxSize: 5"));
    let masters = ["cp2", "--role", "Masters", "--subnet", "a", "--dry-run", "-o", "yaml"];
    let shown = create(&masters, "false").unwrap();
    assert!(shown.contains("maxSize: 1\n") && shown.contains("role: Master\n"), "{shown}");
    // A control plane needs a member in each etcd cluster first.
    let error = create(&["cp2", "--role", "master", "--subnet", "a", "--edit=false"], "false");
    assert!(error.unwrap_err().contains("must have a member in etcd cluster"));
}

#[test]
fn creates_instance_groups_of_clouds() {
    let place = |cloud: &str| {
        let place = TestStore::new();
        let image =
            "{providerID: aws, name: ubuntu, kubernetesVersion: '>=1.36.0', architectureID: amd64}";
        let channel = place.write("channel.yaml", &format!("spec: {{images: [{image}]}}\n"));
        let cluster = CLUSTER.replace("  labels: {alpha.kops.k8s.io/cloud: local}\n", "");
        let spec = format!("spec:\n  channel: {channel}\n  cloudProvider: {cloud}\n");
        let cluster = match cloud {
            "gce" => cluster
                .replace("zone: z", "region: us-test1")
                .replace("spec:\n", &(spec + "  project: p\n")),
            _ => cluster.replace("spec:\n", &spec),
        };
        place.kops(&["create", "-f", &place.file(&cluster)]).unwrap_or_else(|e| panic!("{e}"));
        place
    };
    let create = |place: &TestStore, flags: &[&str]| {
        let usual = ["create", "ig", "nodes", "--edit=false", "--name", "demo.local"];
        place.kops(&[&usual[..], flags].concat())
    };
    let aws = place("aws");
    let types = "defaultMachineTypes: {Node: t3.medium}\nmachineTypes: {t3.medium: {architecture: amd64}}\n";
    let known = aws.write("known.yaml", types);
    let yaml = create(&aws, &["--known", &known, "--dry-run", "-o", "yaml"]).unwrap();
    for line in ["  image: ubuntu\n", "  machineType: t3.medium\n", "  subnets:\n  - a\n"] {
        assert!(yaml.contains(line), "{line}: {yaml}");
    }
    create(&aws, &["--known", &known, "--image", "own"]).unwrap();
    assert!(aws.read("demo.local/instancegroup/nodes").contains("image: own\n"));
    let gce = place("gce");
    let error = create(&gce, &["--image", "i"]).unwrap_err();
    assert!(error.contains("--zone"), "{error}");
    let error = create(&gce, &["--zone", "us-test1-a"]).unwrap_err();
    assert!(error.contains("--image is required"), "{error}");
    let error = create(&gce, &["--zone", "us-test1-a", "--known", &known]).unwrap_err();
    assert!(error.contains("gce"), "{error}");
    let flags = ["--zone", "us-test1-a", "--image", "i", "--dry-run", "-o", "yaml"];
    let yaml = create(&gce, &flags).unwrap();
    for line in ["metadata-proxy-ready: \"true\"\n", "machineType: e2-medium\n", "- us-test1-a\n"] {
        assert!(yaml.contains(line), "{line}: {yaml}");
    }
}

#[test]
fn deletes_the_objects_of_files() {
    let (place, nodes) = (store_with_workers(), workers());
    let before = place.objects();
    let host = "apiVersion: kops.k8s.io/v1alpha2\nkind: Host\nmetadata: {name: a}\nspec: {}\n";
    for (text, reason) in [
        (String::new(), "no objects found"),
        (format!("{nodes}---\n{host}"), "unhandled kind \"Host\" in"),
        (format!("{nodes}---\nkind: Secret\n"), "is not one of"),
        (format!("{nodes}---\n{}", nodes.replace("kops.k8s.io/cluster", "c")), "label"),
        (nodes.replace("name: nodes", "name: ../config"), "leads out of the store"),
        (nodes.replace("name: nodes", "name: none"), "not found"),
    ] {
        let error = place.kops(&["delete", "--yes", "-f", &place.file(&text)]).unwrap_err();
        assert!(error.contains(reason), "{reason}: {error}");
        assert_eq!(place.objects(), before, "{reason}");
    }
    assert_eq!(place.kops(&["delete", "--yes"]).unwrap_err(), "--filename is required");
    let file = place.file(&nodes);
    let asked = place.kops(&["delete", "-f", &file]).unwrap();
    assert!(asked.contains("Must specify --yes") && place.objects() == before, "{asked}");
    place.kops(&["delete", "-f", &file, "--yes"]).unwrap();
    assert!(!place.has("demo.local/instancegroup/nodes"));
    let cluster = CLUSTER.replace("cloud: local", "cloud: metal");
    let file = place.file(&format!("{cluster}---\n{GROUP}"));
    let deleted = place.kops(&["delete", "-y", "-f", &file]).unwrap();
    assert!(deleted.contains("Deleted cluster: \"demo.local\""), "{deleted}");
    assert!(!place.has("demo.local"));
}
