//! A machine below a temporary root, with a fake of systemd and Debian's programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::{PermissionsExt as _, symlink},
    sync::Arc,
    time::SystemTime,
};

use api_meta::{Timestamp, Tree as _};
use kops_api::yaml;
use parking_lot::Mutex;
use serde_json::json;
use sys::{ProgramOutput, RecordedPrograms};

use super::*;
use crate::hash::file_hash;

/// The units that run, with their start times, and those that start with the machine.
#[derive(Default)]
struct UnitStates {
    started: BTreeMap<String, SystemTime>,
    enabled: BTreeSet<String>,
}

/// A control plane below a temporary root.
struct TestMachine {
    dir: tempfile::TempDir,
    programs: RecordedPrograms,
    config: Value,
}

fn configure_now(root: &Path, boot: Value, programs: &dyn Programs) -> Result<Vec<String>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(configure(root, boot, programs))
}

pub(super) const BASE: &str = "demo.example.com";

/// Reports whether this process may give files to other users.
pub(super) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
}

impl TestMachine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        prepare(root, "cp-1");
        let config = config(root);
        Self { programs: programs(root), dir, config }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Stores the node configuration and configures the machine.
    fn run(&self) -> Result<Vec<String>, Error> {
        let text = yaml::to_string(&self.config);
        let store = self.root().join("store").join(BASE);
        let path = store.join("igconfig/control-plane/cp/nodeupconfig.yaml");
        pki::write_file(&path, text.as_bytes(), 0o600).unwrap();
        let boot = json!({
            "CloudProvider": "metal", "ClusterName": BASE, "InstanceGroupName": "cp",
            "InstanceGroupRole": "ControlPlane", "ConfigBase": format!("file://{}", store.display()),
            "NodeupConfigHash": content_hash(text.as_bytes()),
        });
        configure_now(self.root(), boot, &self.programs)
    }

    /// Returns the commands of a run that change something.
    fn commands(&self) -> Vec<String> {
        let before = self.programs.calls().len();
        self.run().unwrap_or_else(|error| panic!("{error}"));
        let calls = self.programs.calls().into_iter().skip(before);
        calls.filter(|call| !call.contains(" show ") && !call.starts_with("dpkg-query")).collect()
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

/// Writes the files of a machine that nodeup has not configured yet, and its downloads.
pub(super) fn prepare(root: &Path, hostname: &str) {
    for directory in ["etc", "opt/in/bin", "lib/systemd/system", "store"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for (name, text) in [
        ("etc/os-release", "ID=debian\n"),
        ("etc/hostname", hostname),
        ("etc/hosts", "127.0.0.1 localhost\n"),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("etc/group", "root:x:0:\n"),
        ("opt/in/kubelet", "kubelet"),
        ("opt/in/kubectl", "kubectl"),
        ("opt/in/runc.amd64", "runc"),
        ("opt/in/bin/containerd", "containerd"),
    ] {
        fs::write(root.join(name), text).unwrap();
    }
    let (input, archive) = (root.join("opt/in"), root.join("opt/in/containerd.tar"));
    let (input, archive) = (input.display().to_string(), archive.display().to_string());
    sys::HostPrograms.must(&["tar", "-cf", &archive, "-C", &input, "bin"]).unwrap();
}

/// Returns the downloads of a node configuration.
pub(super) fn assets(root: &Path) -> Value {
    let asset = |name: &str| {
        let hash = file_hash(&root.join("opt/in").join(name)).unwrap();
        format!("{hash}@file:///opt/in/{name}")
    };
    let assets: Vec<_> = ["kubelet", "kubectl", "runc.amd64", "containerd.tar"].map(asset).into();
    json!({"amd64": assets, "arm64": assets})
}

/// Returns programs that keep the state of units, users and packages.
pub(super) fn programs(root: &Path) -> RecordedPrograms {
    let units = Arc::new(Mutex::new(UnitStates::default()));
    let root = root.to_owned();
    RecordedPrograms::new(move |command| {
        let words: Vec<&str> = command.split(' ').collect();
        let mut stdout = String::new();
        match words.as_slice() {
            ["systemctl", "show", "--property=NeedDaemonReload", ..] => {}
            ["systemctl", "show", .., name] => {
                let units = units.lock();
                // A oneshot that has ended and that no other unit refers to is forgotten.
                let is_forgotten = *name == "greet.service";
                let started = units.started.get(*name).filter(|_| !is_forgotten);
                let active = if started.is_some() { "active" } else { "inactive" };
                let restart = if is_forgotten { "no" } else { "always" };
                let enabled = if units.enabled.contains(*name) { "enabled" } else { "disabled" };
                let time = started.map(|time| Timestamp::from(*time).micros());
                let time = time.map(|time| time.replace('T', " ").replace('Z', " UTC"));
                let time = time.map(|time| format!("Fri {time}")).unwrap_or_default();
                stdout = format!(
                    "LoadState=loaded\nActiveState={active}\nUnitFileState={enabled}\nResult=success\nRestart={restart}\n\
                     ExecMainStartTimestamp={time}\nActiveEnterTimestamp={time}\n"
                );
            }
            ["systemctl", "restart", "--no-block", name] => {
                units.lock().started.insert((*name).to_owned(), rt::now());
            }
            ["systemctl", "enable", name] => {
                units.lock().enabled.insert((*name).to_owned());
            }
            ["useradd", "-u", uid, "-s", shell, rest @ .., name] => {
                let home = rest.last().copied().unwrap_or("/home");
                let path = root.join("etc/passwd");
                let line = format!("{name}:x:{uid}:0::{home}:{shell}\n");
                let text = fs::read_to_string(&path).unwrap_or_default() + &line;
                fs::write(path, text).unwrap();
            }
            ["dpkg-query", "--show", _, names @ ..] => {
                stdout = names.iter().map(|name| format!("{name} ii \n")).collect();
            }
            ["tar", ..] => {
                sys::HostPrograms.must(&words).unwrap();
            }
            _ => {}
        }
        ProgramOutput { code: Some(0), stdout, ..ProgramOutput::default() }
    })
}

/// Stores the keysets below the root, and returns a control plane's configuration.
fn config(root: &Path) -> Value {
    let (mut ids, mut trusted) = (json!({}), json!({}));
    for name in ["kubernetes-ca", "apiserver-aggregator-ca", "etcd-clients-ca", "service-account"] {
        let keyset = Keyset::generate(name, rt::now()).unwrap();
        let path = root.join(format!("store/{BASE}/pki/private/{name}/keyset.yaml"));
        pki::write_file(&path, keyset.document(true).unwrap().as_bytes(), 0o600).unwrap();
        ids[name] = keyset.primary_id().into();
        trusted[name] = keyset.certificates().into();
    }
    let image = |name: &str| format!("registry.k8s.io/{name}:v1.36.2");
    json!({
        "ClusterName": BASE, "KubernetesVersion": "1.36.2", "CAs": trusted, "KeypairIDs": ids,
        "Assets": assets(root),
        "Networking": {"nonMasqueradeCIDR": "100.64.0.0/10", "serviceClusterIPRange": "100.64.0.0/13"},
        "KubeletConfig": {
            "podManifestPath": "/etc/kubernetes/manifests", "clusterDNS": "100.64.0.10", "maxPods": 20,
            "kubeconfigPath": "/var/lib/kubelet/kubeconfig",
        },
        "APIServerConfig": {
            "ClusterDNSDomain": "cluster.local", "API": {"publicName": "api.demo.example.com"},
            "KubeAPIServer": {"image": image("kube-apiserver"), "securePort": 443},
            "ServiceAccountPublicKeys": "PEM",
        },
        "ControlPlaneConfig": {
            "KubeControllerManager": {"image": image("kube-controller-manager")},
            "KubeScheduler": {"image": image("kube-scheduler")},
        },
        "KubeProxy": {"image": image("kube-proxy")},
        "containerdConfig": {"version": "1.6.20"},
        "Hooks": [null, [{"name": "greet", "manifest": "Type=oneshot\nExecStart=/bin/true\n"}]],
        "FileAssets": [{"name": "note", "content": "hello"}],
        "SysctlParameters": ["fs.file-max = 7"],
        "packages": ["htop"],
        "UpdatePolicy": "external", "usesNoneDNS": true, "usesLegacyGossip": false,
    })
}

#[test]
fn configures_a_machine_and_changes_only_what_differs() {
    if !is_root() {
        return;
    }
    let mut machine = TestMachine::new();
    let first = machine.commands();
    for wanted in [
        "systemctl enable kubelet.service",
        "systemctl restart --no-block kubelet.service",
        "systemctl restart --no-block containerd.service",
        "systemctl restart --no-block greet.service",
        "sysctl --system",
    ] {
        assert!(first.iter().any(|call| call == wanted), "{wanted}: {first:#?}");
    }
    assert!(machine.text("etc/sysctl.d/99-k8s-general.conf").ends_with("fs.file-max = 7"));
    assert_eq!(machine.text("srv/kubernetes/assets/note"), "hello");
    assert_eq!(machine.text("usr/bin/containerd"), "containerd");
    assert!(machine.text("etc/hosts").contains("127.0.0.1\tapi.internal.demo.example.com"));
    assert!(machine.text("lib/systemd/system/kubelet.service").contains("/usr/local/bin/kubelet"));
    let kubeconfig = machine.text("var/lib/kubelet/kubeconfig");

    // Nothing differs.
    assert_eq!(machine.run().unwrap(), Vec::<String>::new());
    assert_eq!(machine.commands(), Vec::<String>::new());
    assert_eq!(machine.text("var/lib/kubelet/kubeconfig"), kubeconfig);

    machine.config.put("SysctlParameters", json!(["fs.file-max = 8"]));
    assert_eq!(machine.commands(), ["sysctl --system"]);
    machine.config.put("KubeletConfig.maxPods", 30);
    assert_eq!(machine.commands(), ["systemctl restart --no-block kubelet.service"]);
    machine.config.put("containerdConfig.logLevel", "debug");
    assert_eq!(machine.commands(), ["systemctl restart --no-block containerd.service"]);
    machine.config.put("FileAssets", json!([{"name": "note", "content": "bye"}]));
    assert_eq!(machine.run().unwrap(), ["wrote /srv/kubernetes/assets/note"]);
}

#[test]
fn repeats_the_commands_of_a_change_after_a_stop() {
    if !is_root() {
        return;
    }
    let machine = TestMachine::new();
    machine.run().unwrap();
    // A run that stopped after it wrote the file, and before it ran the commands.
    let name = Sha256::digest(b"/etc/sysctl.d/99-k8s-general.conf");
    let mark = machine.root().join(PENDING).join(data_encoding::HEXLOWER.encode(&name));
    assert!(!mark.exists());
    pki::write_file(&mark, b"", 0o600).unwrap();
    assert_eq!(machine.commands(), ["sysctl --system"]);
    assert!(!mark.exists());
}

/// Returns the paths below a directory, but for the store, programs and the lock.
fn paths(root: &Path) -> Vec<String> {
    let root = root.display().to_string();
    let output = sys::HostPrograms.must(&["find", &root, "-printf", "%P %s %T@\n"]).unwrap();
    let skip = ["store", "var/cache", "var ", "run"];
    let lines = output.lines().filter(|line| !skip.iter().any(|skip| line.starts_with(skip)));
    lines.map(str::to_owned).filter(|line| !line.starts_with(' ')).collect()
}

#[test]
fn rejects_hostile_configurations_before_the_first_change() {
    let hook = |hook: Value| ("Hooks", json!([null, [hook]]));
    let file = |path: &str| ("FileAssets", json!([{"path": path, "content": "x"}]));
    for (field, value) in [
        file("/srv/../etc/shadow"),
        file("etc/shadow"),
        file("/etc/a\nb"),
        file("/etc/link"),
        file("/etc"),
        ("FileAssets", json!([{"name": "../../etc/shadow", "content": "x"}])),
        ("FileAssets", json!([{"path": "/a", "content": "x".repeat((1 << 20) + 1)}])),
        ("FileAssets", json!([{"path": "/a", "content": "x", "mode": "u+s"}])),
        ("FileAssets", json!([{"path": "/a", "content": "%", "isBase64": true}])),
        hook(json!({"name": "../a", "manifest": "Type=oneshot"})),
        hook(json!({"name": "a", "manifest": "Type=oneshot", "requires": ["b\n[Service]"]})),
        ("packages", json!(["--allow-unauthenticated"])),
        ("packages", json!(["htop; reboot"])),
        ("KubeletConfig.hostnameOverride", json!("a\" --anonymous-auth=true \"")),
        ("containerdConfig.registryMirrors", json!({"../../x": ["https://a"]})),
        ("VolumeMounts", json!([{"device": "/dev/vdb", "path": "/data"}])),
        ("channelsManifest", json!("file:///etc/shadow")),
        ("APIServerConfig.API.publicName", json!("a\n1.2.3.4 bank")),
    ] {
        let mut machine = TestMachine::new();
        symlink("/etc/passwd", machine.root().join("etc/link")).unwrap();
        machine.config.put(field, value.clone());
        let before = paths(machine.root());
        let error =
            machine.run().map_or_else(|error| error.to_string(), |done| format!("ran: {done:?}"));
        assert!(!error.starts_with("ran"), "{field} {value}: {error}");
        assert_eq!(paths(machine.root()), before, "{field} {value}: {error}");
    }
}

#[test]
fn rejects_roles_and_configurations_of_others() {
    let machine = TestMachine::new();
    let boot = |role: &str| json!({"CloudProvider": "metal", "InstanceGroupRole": role});
    for role in ["Bastion", "APIServer", ""] {
        let error = configure_now(machine.root(), boot(role), &machine.programs).unwrap_err();
        assert!(matches!(error, Error::Systemd(SystemdError::Role(_))), "{role}: {error}");
    }
    machine.run().ok();
    let store = machine.root().join("store").join(BASE);
    let boot = json!({
        "CloudProvider": "metal", "InstanceGroupName": "cp", "InstanceGroupRole": "ControlPlane",
        "ConfigBase": format!("file://{}", store.display()), "NodeupConfigHash": content_hash(b"other"),
    });
    let error = configure_now(machine.root(), boot, &machine.programs).unwrap_err();
    assert!(matches!(error, Error::NodeConfig), "{error}");
}

#[test]
fn installs_a_unit_for_plain_paths_only() {
    let dir = tempfile::tempdir().unwrap();
    let programs = programs(dir.path());
    for path in ["conf.yaml", "/a b", "/a\nExecStart=/bin/sh", "/a%n", "/a;b"] {
        assert!(install_unit(dir.path(), Path::new(path), &|_| None, &programs).is_err(), "{path}");
    }
    assert_eq!(programs.calls(), Vec::<String>::new());
    let conf = Path::new("/opt/kops/conf/kube_env.yaml");
    let hostile = |_: &str| Some("a\nLD_PRELOAD=/tmp/x.so".to_owned());
    assert!(install_unit(dir.path(), conf, &hostile, &programs).is_err());
    assert_eq!(programs.calls(), Vec::<String>::new());
    let secret = |name: &str| (name == "S3_SECRET_ACCESS_KEY").then(|| "key".to_owned());
    install_unit(dir.path(), conf, &secret, &programs).unwrap();
    install_unit(dir.path(), conf, &|_| None, &programs).unwrap();
    let environment = dir.path().join(ENVIRONMENT);
    assert_eq!(fs::read_to_string(&environment).unwrap(), "S3_SECRET_ACCESS_KEY=key\n");
    let mode = fs::metadata(&environment).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let unit = fs::read_to_string(dir.path().join("etc/systemd/system").join(UNIT)).unwrap();
    assert!(unit.contains(" nodeup --conf=/opt/kops/conf/kube_env.yaml\n"), "{unit}");
    assert!(programs.calls().iter().any(|call| call.starts_with("systemctl start --no-block")));
}
