//! Kills the configuration of a control plane at each of its writes, and runs it again on the same disk.
//!
//! The writer is this test's own program in a mount namespace, under strace, which kills it before it puts the n-th
//! file in place. `cargo test -p kops-node crash_of_nodeup -- --nocapture` prints the table of steps and outcomes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use bootstrap::containers::NoRuntime;
use kops_api::yaml;
use kops_core::node_config_path;
use kops_store::{Keyset, SERVICE_ACCOUNT, private_keyset};
use serde_json::json;

use super::*;
use crate::{parameters::PROGRAM_ANNOTATION, testing::is_installed};

const CLUSTER: &str = "a.local";
const ADDRESS: &str = "172.29.0.2";
/// The variable that tells the writer its directory.
const DIRECTORY: &str = "WINDLASS_TEST_NODEUP";
/// The directories that nodeup writes to. Each gets a layer of the machine's own disk.
const DISK: [&str; 5] = ["/etc", "/opt", "/srv", "/mnt", "/var"];
/// More writes than a start has.
const MOST_WRITES: usize = 400;

/// A control plane's disk and the store.
struct ControlPlaneDisk(tempfile::TempDir);

impl ControlPlaneDisk {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let (mut ids, mut cas, mut keys) = (json!({}), json!({}), String::new());
        for name in ["kubernetes-ca", "apiserver-aggregator-ca", "etcd-clients-ca", SERVICE_ACCOUNT]
        {
            let keyset = Keyset::generate(name, rt::now()).unwrap();
            place.put(&private_keyset(CLUSTER, name), &keyset.document(true).unwrap());
            let public = keyset.public().unwrap();
            ids[name] = public.primary_id.into();
            if name == SERVICE_ACCOUNT {
                keys = public.public_keys;
            } else {
                cas[name] = public.certificates.into();
            }
        }
        let config = json!({
            "ClusterName": CLUSTER, "KubernetesVersion": "1.36.2", "CAs": cas, "KeypairIDs": ids,
            "Networking": {"serviceClusterIPRange": "100.64.0.0/13"},
            "ControlPlaneConfig": {"KubeControllerManager": {"clusterCIDR": "100.96.0.0/11"}},
            "APIServerConfig": {
                "ClusterDNSDomain": "cluster.local", "ServiceAccountPublicKeys": keys,
                "KubeAPIServer": {"anonymousAuth": false},
            },
            "FileAssets": [{"name": "motd", "content": "hello"}],
            "EtcdClusterNames": ["main", "events"],
        });
        place.put(
            &format!("{CLUSTER}/{}", node_config_path("ControlPlane", "cp")),
            &config.to_string(),
        );
        let channels = json!({"metadata": {"annotations": {PROGRAM_ANNOTATION: "channels"}}});
        let channels = yaml::to_string(&channels);
        place.put(&format!("{CLUSTER}/manifests/channels/kops-channels.yaml"), &channels);
        for etcd in ["main", "events"] {
            place.put(&format!("{CLUSTER}/backups/etcd/{etcd}/control/etcd-cluster-spec"), "{}");
        }
        for path in DISK {
            for part in ["upper", "work"] {
                fs::create_dir_all(place.disk(part, path)).unwrap();
            }
        }
        place
    }

    fn put(&self, name: &str, content: &str) {
        let path = self.0.path().join("store").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn disk(&self, part: &str, path: &str) -> PathBuf {
        self.0.path().join(part).join(path.trim_start_matches('/'))
    }

    /// Returns a command that runs its arguments with layers over the directories of this host.
    fn command(&self) -> Command {
        let mut script = String::from("set -e\n");
        for path in DISK {
            let (upper, work) = (self.disk("upper", path), self.disk("work", path));
            script += &format!(
                "mount -t overlay overlay -o lowerdir={path},upperdir={},workdir={} {path}\n",
                upper.display(),
                work.display()
            );
        }
        script += "exec \"$@\"\n";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs the writer. With a number, it is killed before it puts that file in place.
    fn run(&self, killed_at: Option<usize>) -> Output {
        let own = std::env::current_exe().unwrap();
        let trace = self.0.path().join("trace");
        let mut command = self.command();
        if let Some(number) = killed_at {
            let calls = "rename,renameat,renameat2";
            command.args(["strace", "--follow-forks", "--quiet=all", "--trace", calls, "-o"]);
            command.arg(trace).arg("--inject");
            command.arg(format!("{calls}:signal=SIGKILL:when={number}"));
        }
        command.arg(own).args(["--exact", "nodeup::crash_tests::writes_files_of_a_control_plane"]);
        command.args(["--ignored", "--test-threads=1"]).env(DIRECTORY, self.0.path());
        command.output().unwrap()
    }

    /// Returns the file that the killed writer was about to put in place.
    fn killed_before(&self) -> String {
        let trace = fs::read_to_string(self.0.path().join("trace")).unwrap_or_default();
        let mut renames = trace.lines().filter(|line| line.contains("rename"));
        let last = renames.next_back().unwrap_or_default();
        // The last quoted text is the target.
        last.rsplit('"').nth(1).unwrap_or(last).to_owned()
    }
}

/// Writes all files of a control plane. The test below runs it as a program of its own.
#[tokio::test]
#[ignore = "runs in a namespace of another test"]
async fn writes_files_of_a_control_plane() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let base = format!("file://{directory}/store/{CLUSTER}");
    let boot = json!({
        "CloudProvider": "local", "ClusterName": CLUSTER, "ConfigBase": base,
        "InstanceGroupName": "cp", "InstanceGroupRole": "ControlPlane", "APIServerIPs": [ADDRESS],
    });
    let config = control_plane::read_node_config(&base, &boot).unwrap();
    let config = parse_yaml("the configuration", config.as_bytes()).unwrap();
    let address = ADDRESS.parse().unwrap();
    let machine = Machine {
        cluster: CLUSTER.to_owned(),
        group: "cp".to_owned(),
        name: "cp-1".to_owned(),
        id: "a".to_owned(),
        made: 0,
        address,
        gateway: "172.29.0.1".parse().unwrap(),
        cgroup: "/a".to_owned(),
        trusted: true,
        user_data: String::new(),
        volumes: Vec::new(),
    };
    for etcd in ["main", "events"] {
        fs::create_dir_all(format!("{}/{CLUSTER}--{etcd}--0", machine::VOLUMES)).unwrap();
    }
    let context = NodeContext { boot, config, machine, credentials: Default::default() };
    let (init, members) = write_files(&context, None).await.unwrap();
    assert_eq!(members.len(), 2);
    let (clock, containers) =
        (Arc::new(rt::SystemClock), Arc::new(NoRuntime("none here".to_owned())));
    let node = Node::new(init, Layout::default(), Host::default(), clock, containers);
    run_phases_on(node, &CONTROL_PLANE_PHASES, true, &context).await.unwrap();
}

/// Reports whether this host can kill the writer at a write.
fn can_trace() -> bool {
    let traced =
        ControlPlaneDisk::new().command().args(["strace", "-o", "/dev/null", "true"]).output();
    let can = is_installed() && traced.is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: no strace, no etcd, or no right to mount");
    }
    can
}

#[test]
fn crash_of_nodeup_at_every_write_is_repaired() {
    if !can_trace() {
        return;
    }
    println!("a control plane's files");
    for number in 1..MOST_WRITES {
        let place = ControlPlaneDisk::new();
        let killed = place.run(Some(number));
        if killed.status.success() {
            assert!(number > 30, "{number} writes");
            return;
        }
        let step = place.killed_before();
        let again = place.run(None);
        let text = String::from_utf8_lossy(&again.stdout).into_owned();
        assert!(again.status.success() && text.contains("1 passed"), "before {step}: {text}");
        assert_whole(&place, &step);
        println!("  {number:2} killed before {step:60} the next run writes all files");
    }
    panic!("more than {MOST_WRITES} writes");
}

/// Asserts that keys and certificates belong together, and that all static Pods exist.
fn assert_whole(place: &ControlPlaneDisk, step: &str) {
    let directory = place.disk("upper", "/etc/kubernetes");
    for name in ["ca", "front-proxy-ca", "etcd/ca", "apiserver", "etcd/peer", "etcd/server"] {
        let path = |extension: &str| directory.join(format!("pki/{name}.{extension}"));
        let (cert, key) = (pki::read_cert(&path("crt")), pki::read_key(&path("key")));
        cert.unwrap().check_key(&key.unwrap()).unwrap_or_else(|e| panic!("{step}: {name}: {e}"));
    }
    let mut pods: Vec<String> = fs::read_dir(directory.join("manifests"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    pods.sort();
    let expected = [
        "etcd-events-cp.manifest",
        "etcd.yaml",
        "kops-channels.manifest",
        "kops-controller.manifest",
        "kube-apiserver.yaml",
        "kube-controller-manager.yaml",
        "kube-proxy.manifest",
        "kube-scheduler.yaml",
        "protokube.manifest",
    ];
    assert_eq!(pods, expected, "{step}");
    assert!(Path::new(&place.disk("upper", ORIGINAL_HOSTS)).exists(), "{step}");
}
