//! Tests of a machine's tasks against upstream's goldens, one builder at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use api_meta::Tree as _;
use kops_api::{Kind, Object, yaml};
use kops_core::{
    Error, Machines, NodeInputs, NodeKeyset, complete, node_config,
    nodeup::{Asset, Distribution, Keypair, MachineFacts, MachineInputs, builder_tasks},
};
use serde_json::{Value, json};

use crate::{
    completed::objects,
    golden::{difference, read, source},
    mock::{assert_missed, world},
    node::certificate,
};

/// Tasks that differ from upstream's, with the reason.
const MISSED: &[(&str, &str)] = &[];

const TESTS: &str = "nodeup/pkg/model/tests";
const CHANNELS: &str =
    "memfs://clusters.example.com/minimal.example.com/manifests/channels/kops-channels.yaml";
/// The text that upstream's test stores as the manifest of channels.
const CHANNELS_POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: kops-channels\n  namespace: kube-system\n";

/// A golden of upstream.
#[derive(Clone, Copy)]
struct Case {
    directory: &'static str,
    file: &'static str,
    builder: &'static str,
    architecture: &'static str,
    distribution: Distribution,
    is_warming: bool,
}

const fn case(directory: &'static str, file: &'static str, builder: &'static str) -> Case {
    Case {
        directory,
        file,
        builder,
        architecture: "amd64",
        distribution: Distribution::Ubuntu,
        is_warming: false,
    }
}

const fn api_server(directory: &'static str) -> Case {
    case(directory, "tasks-kube-apiserver.yaml", "kube-apiserver")
}

const fn arm64(case: Case) -> Case {
    Case { architecture: "arm64", ..case }
}

const MINIMAL: &str = "golden/minimal";
const SIDE: &str = "golden/side-loading";
/// The directory of the builds that the versions of `SIDE` name.
const BUILD: &str = "https://dl.k8s.io/release/";

/// The goldens that upstream's tests read.
const CASES: [Case; 33] = [
    case("containerdbuilder/simple", "tasks.yaml", "containerd"),
    Case {
        distribution: Distribution::Flatcar,
        ..case("containerdbuilder/flatcar", "tasks.yaml", "containerd")
    },
    case("containerdbuilder/skipinstall", "tasks.yaml", "containerd"),
    case("containerdbuilder/complex", "tasks.yaml", "containerd"),
    case("containerdbuilder/v3", "tasks.yaml", "containerd"),
    case("kubelet/featuregates", "tasks.yaml", "kubelet"),
    Case { is_warming: true, ..case("kubelet/warmpool", "tasks.yaml", "kubelet") },
    case("channels", "tasks-channels.yaml", "channels"),
    case("updateservicebuilder/automatic", "tasks-updateservice.yaml", "updates"),
    case("updateservicebuilder/external", "tasks-updateservice.yaml", "updates"),
    case("protokube", "tasks-protokube.yaml", "protokube"),
    case("golden/hooks-containerd-exec", "tasks-hooks.yaml", "hooks"),
    case(MINIMAL, "tasks-secret.yaml", "secrets"),
    Case { distribution: Distribution::Flatcar, ..case(MINIMAL, "tasks-kubectl.yaml", "kubectl") },
    case(MINIMAL, "tasks-kops-controller.yaml", "kops-controller"),
    case(MINIMAL, "tasks-kube-proxy.yaml", "kube-proxy"),
    case(SIDE, "tasks-kube-proxy-amd64.yaml", "kube-proxy"),
    arm64(case(SIDE, "tasks-kube-proxy-arm64.yaml", "kube-proxy")),
    case(MINIMAL, "tasks-kube-controller-manager.yaml", "kube-controller-manager"),
    case(SIDE, "tasks-kube-controller-manager-amd64.yaml", "kube-controller-manager"),
    arm64(case(SIDE, "tasks-kube-controller-manager-arm64.yaml", "kube-controller-manager")),
    case(MINIMAL, "tasks-kube-scheduler.yaml", "kube-scheduler"),
    case(SIDE, "tasks-kube-scheduler-amd64.yaml", "kube-scheduler"),
    arm64(case(SIDE, "tasks-kube-scheduler-arm64.yaml", "kube-scheduler")),
    api_server(MINIMAL),
    api_server("golden/audit"),
    api_server("golden/oidc"),
    api_server("golden/dedicated-apiserver"),
    api_server("golden/without-etcd-events"),
    api_server("golden/awsiam"),
    api_server("golden/envvars"),
    case(SIDE, "tasks-kube-apiserver-amd64.yaml", "kube-apiserver"),
    arm64(case(SIDE, "tasks-kube-apiserver-arm64.yaml", "kube-apiserver")),
];

/// The key pairs of upstream's tests.
struct Keys {
    /// The constants of the test file, as they are written there.
    literals: BTreeMap<String, String>,
}

impl Keys {
    fn read(source: &Path) -> Self {
        let text = read(&source.join("nodeup/pkg/model/kubelet_test.go"));
        let lines = text.lines().filter_map(|line| line.trim().split_once('='));
        let literals = lines.filter_map(|(name, value)| {
            let value = value.trim().strip_prefix('"')?.strip_suffix('"')?;
            Some((name.trim().to_owned(), value.to_owned()))
        });
        Self { literals: literals.collect() }
    }

    fn literal(&self, name: &str) -> &str {
        self.literals.get(name).map_or_else(|| panic!("no {name}"), String::as_str)
    }

    fn pem(&self, name: &str) -> String {
        self.literal(name).replace("\\n", "\n")
    }

    fn pair(&self, name: &str) -> Keypair {
        Keypair {
            certificate: self.pem(&format!("{name}Certificate")),
            key: self.pem(&format!("{name}Key")),
        }
    }
}

/// Returns the node configuration that upstream's tests make: the cluster's settings, without the files that
/// `update cluster` adds.
fn config(cluster: &Object, group: &Object, keys: &Keys) -> Result<Value, Error> {
    let mut inputs = NodeInputs { kops: "1.18.0".to_owned(), ..NodeInputs::default() };
    let mut names: Vec<String> =
        ["kubernetes-ca", "service-account", "etcd-clients-ca", "apiserver-aggregator-ca"]
            .map(str::to_owned)
            .into();
    for etcd in cluster.spec.items("etcdClusters") {
        let name = etcd.text("name");
        names.extend(["manager", "peers"].map(|kind| format!("etcd-{kind}-ca-{name}")));
    }
    inputs.keysets.extend(names.into_iter().map(|name| (name, NodeKeyset::default())));
    // No table has the hashes of these tests' versions, so any will do.
    let text = loop {
        match node_config(cluster, group, &inputs) {
            Err(Error::Unknown { what: "file", name, .. }) => {
                inputs.hashes.insert(name, "0".repeat(64));
            }
            other => break other?,
        }
    };
    let mut config = yaml::parse("node configuration", text.as_bytes())?;
    for field in ["staticManifests", "etcdManifests", "EtcdClusterNames"] {
        config.remove(field);
    }
    if let Some(files) = config.at_mut("FileAssets").and_then(Value::as_array_mut) {
        files.retain(|file| file.text("path") != "/var/lib/kube-scheduler/config.yaml");
    }
    let kubelet = group.spec.opt_at("kubelet").unwrap_or(cluster.spec.at("kubelet"));
    config.put("KubeletConfig", kubelet.clone());
    config.put("KubeletConfig.podManifestPath", "/etc/kubernetes/manifests");
    let trusted = keys.pem("dummyCertificate") + &keys.pem("nextCertificate");
    config.put("CAs", json!({"kubernetes-ca": trusted}));
    config.put("KeypairIDs", json!({"kubernetes-ca": "3", "service-account": "2"}));
    if config.has("APIServerConfig") {
        let public = ["previousCertificate", "nextCertificate"];
        let public = public.map(|name| certificate(keys.literal(name)).key).concat();
        config.put("APIServerConfig.ServiceAccountPublicKeys", public);
    }
    config.put("channelsManifest", CHANNELS);
    Ok(config)
}

/// The downloads of upstream's tests, by builder.
fn assets(builder: &str) -> Vec<Asset> {
    let asset = |key: &str, path: &str| Asset {
        key: key.to_owned(),
        path: path.to_owned(),
        source: String::new(),
    };
    match builder {
        "containerd" => {
            let names = ["containerd", "containerd-shim", "containerd-shim-runc-v1"];
            let more = ["containerd-shim-runc-v2", "containerd-stress", "ctr"];
            let names = names.iter().chain(&more);
            let runc = "https://github.com/opencontainers/runc/releases/download/v1.1.0/runc.amd64";
            let members = names.map(|name| asset(name, &format!("bin/{name}")));
            members.chain([asset("runc.amd64", runc)]).collect()
        }
        "protokube" => vec![asset("protokube", "/opt/kops/bin/protokube")],
        "kubectl" => vec![asset("kubectl", "/path/to/kubectl/asset")],
        _ => vec![asset("kubelet", "kubelet")],
    }
}

/// Returns a case's tasks.
fn tasks(source: &Path, case: Case, keys: &Keys) -> Result<Vec<Value>, String> {
    let text = read(&source.join(TESTS).join(case.directory).join("cluster.yaml"));
    // A version that is the address of a build is rejected when the spec is completed. Of such a build, machines have
    // images whose names contain the architecture.
    let text = text.replace(BUILD, "");
    let mut objects = objects(case.directory, &text).map_err(|e| e.to_string())?;
    let at = objects.iter().position(|o| o.kind == Kind::Cluster).ok_or("no cluster")?;
    let cluster = objects.remove(at);
    let mut world = world(false);
    world.api_server_nodes = objects.iter().any(|o| o.spec.text("role") == "APIServer");
    let cluster = complete(&cluster, &objects, &world, &Machines::default());
    let cluster = cluster.map_err(|e| e.to_string())?;
    let group = match objects.pop() {
        Some(group) => group.normalized(),
        None => Object { spec: json!({}), ..Object::new(Kind::InstanceGroup, "") },
    };
    let boot = json!({
        "CloudProvider": "aws", "ClusterName": cluster.name(),
        "InstanceGroupName": group.name(), "InstanceGroupRole": group.spec.text("role"),
    });
    let pair = |id: &str, pair: Keypair| BTreeMap::from([(id.to_owned(), pair)]);
    let mut config = config(&cluster, &group, keys).map_err(|e| e.to_string())?;
    if case.directory == SIDE {
        for path in [
            "KubeProxy.image",
            "APIServerConfig.KubeAPIServer.image",
            "ControlPlaneConfig.KubeControllerManager.image",
            "ControlPlaneConfig.KubeScheduler.image",
        ] {
            let image = config.text(path).replace(':', "-amd64:");
            config.put(path, image);
        }
    }
    let inputs = MachineInputs {
        boot,
        config,
        machine: MachineFacts {
            distribution: case.distribution,
            architecture: case.architecture.to_owned(),
            hostname: "machine".to_owned(),
            addresses: Vec::new(),
            has_resolved: false,
            users: Vec::new(),
            is_warming: case.is_warming,
        },
        keypairs: [
            ("kubernetes-ca".to_owned(), pair("3", keys.pair("dummy"))),
            ("service-account".to_owned(), pair("2", keys.pair("previous"))),
        ]
        .into(),
        files: [(CHANNELS.to_owned(), CHANNELS_POD.to_owned())].into(),
        secrets: BTreeMap::new(),
        assets: assets(case.builder),
    };
    let tasks = builder_tasks(&inputs, case.builder).map_err(|e| e.to_string())?;
    Ok(tasks.iter().map(|task| tasks.describe(task)).collect())
}

/// Returns tasks as text, in the order of their contents.
fn sorted(tasks: Vec<Value>) -> String {
    let mut texts: Vec<_> = tasks.iter().map(yaml::to_string).collect();
    texts.sort();
    texts.join("---\n")
}

/// Returns the path or name of a task, with what distinguishes tasks of one name.
fn identity(task: &Value) -> (String, bool) {
    let name = task.opt_text("path").unwrap_or(task.text("Name"));
    (name.to_owned(), task.has("ServerURL"))
}

#[test]
fn machine_tasks_match_upstream() {
    let Some(source) = source() else { return };
    let keys = Keys::read(&source);
    let mut missed = Vec::new();
    for case in CASES {
        let path = source.join(TESTS).join(case.directory).join(case.file);
        let theirs = yaml::parse_all(case.file, &read(&path)).unwrap_or_else(|e| panic!("{e}"));
        let theirs: Vec<Value> = theirs.into_iter().filter(|task| !task.is_null()).collect();
        let why = match tasks(&source, case, &keys) {
            Ok(mut ours) => {
                if case.builder == "kubelet" {
                    // Upstream's test makes four of the builder's tasks.
                    let wanted: BTreeSet<_> = theirs.iter().map(identity).collect();
                    ours.retain(|task| wanted.contains(&identity(task)));
                }
                difference(&sorted(ours), &sorted(theirs))
            }
            Err(error) => Some(error),
        };
        missed.extend(why.map(|why| (format!("{}/{}", case.directory, case.file), why)));
    }
    assert_missed("tasks of machines", CASES.len(), &missed, MISSED);
}
