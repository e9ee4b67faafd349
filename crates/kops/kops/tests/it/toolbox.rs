//! Tests of `toolbox`: templates, dumps, selected machine types, and refusals.

use std::{fs, os::unix::fs::symlink};

use crate::stored::{CLUSTER, GROUP, TestStore};

const AWS: &str = "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata: {name: demo.example.com}\nspec:\n  cloudProvider: aws\n  configBase: s3://store/demo.example.com\n  kubernetesVersion: 1.36.1\n  networkCIDR: 10.0.0.0/16\n  networking: {cni: {}}\n  nonMasqueradeCIDR: 100.64.0.0/10\n  authorization: {rbac: {}}\n  iam: {}\n  etcdClusters:\n  - {name: main, etcdMembers: [{name: a, instanceGroup: cp}]}\n  subnets:\n  - {name: a, zone: eu-west-1a, type: Public, cidr: 10.0.0.0/20}\n  - {name: utility-a, zone: eu-west-1a, type: Utility, cidr: 10.0.16.0/20}\n  topology: {dns: {type: Public}}\n";

struct Demo {
    place: TestStore,
}

impl Demo {
    fn new() -> Self {
        Self { place: TestStore::new() }
    }

    fn template(&self, flags: &[&str]) -> Result<String, String> {
        self.place.kops(&[&["toolbox", "template"][..], flags].concat())
    }
}

#[test]
fn renders_templates_with_values_and_snippets() {
    let demo = Demo::new();
    let values = demo
        .place
        .write("values.yaml", "groups: {foo: {ami: ami-1, type: m4.large}}\nzone: example.com\n");
    let more = demo.place.write("more.yaml", "groups: {foo: {type: t2.large}}\n");
    let first =
        demo.place.write("a.yaml", "name: {{.clusterName}}.{{.zone}}\n{{ include \"spec\" . }}");
    demo.place.write("dir/b.yaml", "b: {{ .groups.foo.type | quote }}\n---\nc:   1\n");
    demo.place.write("dir/sub/c.yaml", "");
    let directory = demo.place.path("dir");
    demo.place.write("snippets/deep/spec", "ami: {{ .groups.foo.ami }}\n");
    let snippets = demo.place.path("snippets");
    let files =
        ["--values", &values, "--values", &more, "--template", &first, "--template", &directory];
    let usual = [&files[..], &["--snippets", &snippets]].concat();
    for (flags, want) in [
        (&["demo"][..], "name: demo.example.com\nami: ami-1\n---\nb: \"t2.large\"\n---\nc:   1\n"),
        (
            &["demo", "--format-yaml"],
            "ami: ami-1\nname: demo.example.com\n---\nb: t2.large\n---\nc: 1\n",
        ),
        (
            &["--set", "clusterName=x,groups.foo.type=7", "--set-string", "zone=true"],
            "name: x.true\nami: ami-1\n---\nb: \"7\"\n---\nc:   1\n",
        ),
        (&["demo", "--config-value", "zone"], "example.com\n"),
        (&["demo", "--config-value", "clusterName"], "demo\n"),
        (&["demo", "--config-value", "none"], "null\n"),
    ] {
        let shown = demo.template(&[&usual[..], flags].concat());
        assert_eq!(shown.as_deref(), Ok(want), "{flags:?}");
    }
    let out = demo.place.path("out.yaml");
    assert_eq!(demo.template(&[&usual[..], &["demo", "--out", &out]].concat()).as_deref(), Ok(""));
    assert!(fs::read_to_string(&out).unwrap().starts_with("name: demo.example.com\n"));
}

#[test]
fn writes_no_file_for_hostile_templates() {
    let demo = Demo::new();
    let out = demo.place.path("out.yaml");
    let plain = demo.place.write("plain", "a: 1\n");
    let huge = demo.place.write("huge.yaml", &format!("a: {}\n", "x".repeat(17 << 20)));
    let list = demo.place.write("list.yaml", "- 1\n");
    let file = |name: &str, text: &str| demo.place.write(name, text);
    let itself = file("s/self", "{{ include \"self\" . }}");
    let root = file("loop/x", "a: 1\n");
    symlink(demo.place.path("loop"), demo.place.path("loop/again")).unwrap();
    let (loops, missing) =
        (file("t1", "{{ range 1000000000 }}x{{ end }}"), file("t2", "{{ .nope }}"));
    let (recursive, secret) =
        (file("t3", "{{ include \"self\" . }}"), file("t4", "{{ env \"HOME\" }}"));
    let yaml = file("t5", "a: [\n");
    for (flags, reason) in [
        (&["--template", &loops][..], "t1: rendering the template: template: mainTemplate:1"),
        (&["--template", &missing], "map has no entry for key \"nope\""),
        (&["--template", &recursive, "--snippets", &itself], "exceeded maximum template depth"),
        (&["--template", &secret], "Sprig's function env is not supported"),
        (&["--template", &yaml, "--format-yaml"], "parsing the rendered document"),
        (&["--template", &plain, "--values", &huge], "is larger than"),
        (&["--template", &plain, "--values", "/dev/zero"], "/dev/zero"),
        (&["--template", &plain, "--values", &list], "is not a map of values"),
        (&["--template", &plain, "--set", "a[99999999]=1"], "an index is greater than"),
        (&["--template", &plain, "--channel", "/nonexistent"], "reading the channel"),
        (&["--template", "/nonexistent"], "reading"),
    ] {
        let error = demo.template(&[flags, &["--out", &out]].concat()).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert!(!fs::exists(&out).unwrap(), "{flags:?} has written the output");
    }
    // A link to a directory within itself is not followed, but it is no readable file either.
    let looped = demo.place.path("loop");
    assert!(
        demo.template(&["--template", &looped]).expect_err("a link").contains("again"),
        "{root}"
    );
}

#[test]
fn dumps_specs_and_machines() {
    let demo = Demo::new();
    demo.place
        .kops(&["create", "-f", &demo.place.file(&format!("{CLUSTER}---\n{GROUP}"))])
        .unwrap();
    let dump =
        |flags: &[&str]| demo.place.kops(&[&["toolbox", "dump", "demo.local"][..], flags].concat());
    let json: serde_json::Value = serde_json::from_str(&dump(&["-o", "json"]).unwrap()).unwrap();
    assert_eq!(json["cluster"]["metadata"]["name"], "demo.local");
    assert_eq!(json["instanceGroups"][0]["metadata"]["name"], "cp");
    assert_eq!(json["instances"], serde_json::json!([]));
    let yaml = dump(&["--cloud-resources=false"]).unwrap();
    assert!(yaml.starts_with("cluster:\n") && !yaml.contains("\ninstances:"), "{yaml}");
    for (flags, reason) in [
        (&["-o", "table"][..], "invalid value"),
        (&["--private-key", "k"], "--private-key is for machines that are reached by SSH"),
        (&["--ssh-user", "u"], "--ssh-user is for"),
        (&["--node-dump-timeout", "soon"], "invalid value 'soon'"),
        (&["--k8s-resources"], "cluster \"demo.local\""),
    ] {
        let error = dump(flags).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
    }
    let error = demo.place.kops(&["toolbox", "dump", "../x"]).expect_err("outside");
    assert!(error.contains("leads out of the store"), "{error}");
}

impl Demo {
    /// Returns a store with a cluster on AWS, and a table of machine types.
    fn for_selection() -> Self {
        let demo = Self::new();
        let channel =
            demo.place.write("channel", "spec:\n  images:\n  - {name: img, providerID: aws}\n");
        let cluster = AWS.replace("spec:\n", &format!("spec:\n  channel: {channel}\n"));
        demo.place
            .kops(&["create", "-f", &demo.place.file(&cluster)])
            .expect("the cluster is created");
        let one = |name: &str, memory: u32| {
            serde_json::json!({"InstanceType": name, "VCpuInfo": {"DefaultVCpus": 2}, "MemoryInfo": {"SizeInMiB": memory},
                "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]}, "SupportedUsageClasses": ["on-demand", "spot"]})
        };
        let table = serde_json::json!({"InstanceTypes": [one("m5.large", 8192), one("c5.large", 4096), one("m4.large", 8192)]});
        demo.place.write("types.json", &table.to_string());
        demo
    }

    /// Runs `toolbox instance-selector` for a cluster.
    fn select(&self, cluster: &str, flags: &[&str]) -> Result<String, String> {
        let types = self.place.path("types.json");
        let usual =
            ["--name", cluster, "toolbox", "instance-selector", "mine", "--machine-types", &types];
        self.place.kops(&[&usual[..], flags].concat())
    }
}

#[test]
fn selects_flexible_and_similar_machine_types() {
    let demo = Demo::for_selection();
    for (flags, machine) in [
        (&["--flexible", "--vcpus", "2"][..], "c5.large"),
        (&["--flexible", "--memory", "8gb"], "m4.large"),
        (&["--base-instance-type", "m5.large"], "m4.large"),
        (&["--base-instance-type", "c5.large"], "c5.large"),
    ] {
        let all = [flags, &["--dry-run", "-o", "json"]].concat();
        let shown = demo.select("demo.example.com", &all).unwrap();
        let group: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(group["spec"]["machineType"], machine, "{flags:?}");
    }
}

#[test]
fn selects_machine_types_into_groups() {
    let demo = Demo::for_selection();
    let run = |flags: &[&str]| demo.select("demo.example.com", flags);
    let shown = run(&[
        "--dry-run",
        "--vcpus",
        "2",
        "--memory-min",
        "8gb",
        "--usage-class",
        "spot",
        "-o",
        "json",
    ])
    .unwrap();
    let group: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let policy = serde_json::json!({"instances": ["m4.large", "m5.large"], "onDemandAboveBase": 0, "onDemandBase": 0, "spotAllocationStrategy": "capacity-optimized"});
    assert_eq!(group["spec"]["mixedInstancesPolicy"], policy);
    assert_eq!(group["spec"]["machineType"], "m4.large");
    assert_eq!((&group["spec"]["minSize"], &group["spec"]["maxSize"]), (&1.into(), &10.into()));
    assert_eq!(group["spec"]["cloudLabels"]["k8s.io/cluster-autoscaler/demo.example.com"], "1");
    assert!(!demo.place.has("demo.example.com/instancegroup"), "--dry-run has stored a group");
    let bad = demo.place.write("bad.json", "[");
    for (flags, reason) in [
        (&["--memory", "4kb"][..], "is not an amount of memory"),
        (&["--vcpus-min", "64"], "criteria specified was too narrow"),
        (&["--subnets", "b"], "subnets must exist in the cluster"),
        (&["--subnets", "a,utility-a"], "cannot span public and private subnets"),
        (&["--allow-list", "("], "--allow-list: regex parse error"),
        (&["--allow-list", "((a{1000}){1000}){1000}"], "--allow-list"),
        (&["--flexible"], "criteria specified was too narrow"),
        (&["--base-instance-type", "x9.large"], "is not a machine type of --machine-types"),
        (&["--ig-count", "4000000000"], "--ig-count is not between"),
        (&["--machine-types", &bad], "cannot be used multiple times"),
    ] {
        let error = run(flags).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert!(!demo.place.has("demo.example.com/instancegroup"), "{flags:?} has stored a group");
    }
    let stored = run(&["--ig-count", "2", "--subnets", "a", "--deny-list", "^m4"]).unwrap();
    assert_eq!(stored.matches("kind: InstanceGroup").count(), 2, "{stored}");
    for (name, machine) in [("mine1", "c5.large"), ("mine2", "m5.large")] {
        let group = demo.place.read(&format!("demo.example.com/instancegroup/{name}"));
        assert!(group.contains(&format!("machineType: {machine}")), "{group}");
        assert!(group.contains("image: img\n"), "{group}");
    }
    let local = demo.place.file(CLUSTER);
    demo.place.kops(&["create", "-f", &local]).unwrap();
    let error = demo.select("demo.local", &[]);
    assert!(error.expect_err("local").contains("from non-aws cluster"));
}

#[test]
fn rejects_unsupported_tools_by_name() {
    let demo = Demo::new();
    demo.place.kops(&["create", "-f", &demo.place.file(AWS)]).unwrap();
    let absent = format!("file://{}", demo.place.path("channel.yaml"));
    for (command, reason) in [
        (
            &["clusterapi", "generate", "machinedeployment", "--replicas", "1"][..],
            "toolbox clusterapi is not supported",
        ),
        (&["addons", "list", "--name", "demo.example.com"], "has no keys yet"),
        (&["addons", "apply", "--name", "demo.example.com", &absent], "channel.yaml"),
        (
            &[
                "addons",
                "apply",
                "--name",
                "demo.example.com",
                "https://evil.example.com/c.yaml",
                "--yes",
            ],
            "https",
        ),
    ] {
        let error = demo.place.kops(&[&["toolbox"][..], command].concat()).expect_err(reason);
        assert!(error.contains(reason), "{command:?}: {error}");
    }
}
