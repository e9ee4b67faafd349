//! Tests of the objects that commands store and show.

use std::{collections::BTreeMap, fs, path::PathBuf, time::SystemTime};

use clap::{Args as _, FromArgMatches as _};

pub(crate) const CLUSTER: &str = "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata:\n  name: demo.local\n  labels: {alpha.kops.k8s.io/cloud: local}\nspec:\n  configBase: file:///state/demo.local\n  kubernetesVersion: 1.36.1\n  networking: {cni: {}}\n  nonMasqueradeCIDR: 100.64.0.0/10\n  authorization: {rbac: {}}\n  iam: {}\n  etcdClusters:\n  - {name: main, etcdMembers: [{name: a, instanceGroup: cp}]}\n  subnets: [{name: a, zone: z, type: Public, cidr: 10.0.0.0/16}]\n  topology: {dns: {type: None}}\n";
pub(crate) const GROUP: &str = "apiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: cp\n  labels: {kops.k8s.io/cluster: demo.local}\nspec: {role: Master, minSize: 1, maxSize: 1, subnets: [a]}\n";

pub(crate) struct TestStore {
    pub(crate) dir: tempfile::TempDir,
}

impl TestStore {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap_or_else(|e| panic!("{e}")) }
    }

    pub(crate) fn file(&self, text: &str) -> String {
        self.write("file.yaml", text)
    }

    /// Writes a file that is not in the store, and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        let parent = path.parent().unwrap_or(self.dir.path());
        fs::create_dir_all(parent).unwrap_or_else(|e| panic!("{e}"));
        fs::write(&path, text).unwrap_or_else(|e| panic!("{e}"));
        path.display().to_string()
    }

    pub(crate) fn kops(&self, arguments: &[&str]) -> Result<String, String> {
        self.kops_with(arguments, &[])
    }

    /// Runs a command with environment variables.
    pub(crate) fn kops_with(
        &self,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<String, String> {
        let command = kops::Args::augment_args(clap::Command::new("kops"));
        let all = std::iter::once(&"kops").chain(arguments);
        let matches = command.try_get_matches_from(all).map_err(|e| e.to_string())?;
        let args = kops::Args::from_arg_matches(&matches).map_err(|e| e.to_string())?;
        let state = format!("file://{}/state", self.dir.path().display());
        let mut out = Vec::new();
        let environment = |name: &str| {
            let set = variables.iter().find(|(variable, _)| *variable == name);
            let set = set.map(|(_, value)| (*value).to_owned());
            set.or_else(|| (name == "KOPS_STATE_STORE").then(|| state.clone()))
        };
        let now = SystemTime::UNIX_EPOCH;
        let mut around = kops::CommandEnvironment { now, out: &mut out, environment: &environment };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap_or_else(|e| panic!("{e}"));
        runtime.block_on(kops::run(&args, &mut around)).map_err(|e| e.to_string())?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    /// Returns the names and contents of all objects of the store.
    pub(crate) fn objects(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut objects = BTreeMap::new();
        let mut directories = vec![self.dir.path().join("state")];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    let content = fs::read(&path).unwrap_or_else(|e| panic!("{e}"));
                    objects.insert(path, content);
                }
            }
        }
        objects
    }

    /// Writes an object of the store.
    pub(crate) fn put(&self, name: &str, content: &str) {
        let path = self.dir.path().join("state").join(name);
        let done = fs::create_dir_all(path.parent().unwrap_or(&path));
        done.and_then(|()| fs::write(&path, content)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Returns the path of a file that is not in the store.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Creates a store with a cluster of a cloud and its control plane.
    pub(crate) fn with_cluster(cloud: &str) -> Self {
        let place = Self::new();
        let cluster = CLUSTER.replace("cloud: local", &format!("cloud: {cloud}"));
        let file = place.file(&format!("{cluster}---\n{GROUP}"));
        place.kops(&["create", "-f", &file]).unwrap_or_else(|e| panic!("{e}"));
        place
    }

    pub(crate) fn read(&self, name: &str) -> String {
        let path = self.dir.path().join("state").join(name);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.store_path(name).exists()
    }

    /// Returns the path of a name in the store.
    pub(crate) fn store_path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("state").join(name)
    }
}

#[test]
fn creates_shows_replaces_and_deletes_a_cluster() {
    let place = TestStore::new();
    let file = place.file(&format!("{CLUSTER}---\n{GROUP}"));
    let missing = place.kops(&["replace", "-f", &file]).unwrap_err();
    assert!(missing.contains("does not exist (try adding --force flag)"), "{missing}");
    let made = place.kops(&["create", "-f", &file]).unwrap();
    assert_eq!(made, "\nCreated cluster/demo.local\nCreated instancegroup/cp\n");
    assert!(place.has("demo.local/config") && place.has("demo.local/instancegroup/cp"));
    assert!(place.kops(&["create", "-f", &file]).unwrap_err().contains("already exists"));
    let shown = place.kops(&["get", "clusters"]).unwrap();
    assert_eq!(shown, "NAME\t\tCLOUD\tZONES\ndemo.local\tlocal\tz\n");
    let shown = place.kops(&["get", "ig", "--name", "demo.local"]).unwrap();
    assert_eq!(shown.lines().nth(1), Some("cp\tControlPlane\t\t\t1\t1\tz"), "{shown}");
    let all = place.kops(&["get", "all", "demo.local", "-o", "yaml"]).unwrap();
    assert_eq!(all.matches("\n---\n\n").count(), 1);
    // The shown objects can be stored again.
    let file = place.file(&all.replace("  minSize: 1", "  updatePolicy: external\n  minSize: 1"));
    place.kops(&["replace", "-f", &file]).unwrap();
    let group = place.kops(&["get", "ig", "cp", "--name", "demo.local", "-o", "yaml"]).unwrap();
    assert!(
        group.contains("updatePolicy: external")
            && group.contains("creationTimestamp: \"1970-01-01T00:00:00Z\"")
    );
    assert!(
        place.kops(&["delete", "cluster", "demo.local"]).unwrap().contains("Must specify --yes")
    );
    assert!(place.has("demo.local/config"));
    let deleted = place.kops(&["delete", "cluster", "demo.local", "--yes"]).unwrap();
    assert_eq!(deleted, "\nDeleted cluster: \"demo.local\"\n");
    assert!(!place.has("demo.local"));
    assert_eq!(place.kops(&["get", "clusters"]).unwrap_err(), "no clusters found");
}

#[test]
fn writes_nothing_if_one_object_is_invalid() {
    let place = TestStore::new();
    for (group, reason) in [
        (GROUP.replace("minSize", "minsize"), "spec.minsize"),
        (GROUP.replace("role: Master", "role: King"), "spec.role"),
        (GROUP.replace("demo.local", "other.local"), "not found"),
        (GROUP.replace("demo.local", "../x"), "leads out of the store"),
        (GROUP.replace("kops.k8s.io/cluster", "c"), "label"),
        (format!("{GROUP}---\n{GROUP}"), "twice"),
        (GROUP.replace("name: cp", "name: ../../x"), "metadata.name"),
    ] {
        let file = place.file(&format!("{CLUSTER}---\n{group}"));
        let error = place.kops(&["create", "-f", &file]).unwrap_err();
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(!place.has("demo.local"), "{reason}");
    }
}

#[test]
fn keeps_foreign_objects() {
    let place = TestStore::new();
    let file = place.file(&format!("{CLUSTER}---\n{GROUP}"));
    place.kops(&["create", "-f", &file]).unwrap();
    let state = place.dir.path().join("state/demo.local");
    fs::write(state.join("diary"), "mine").unwrap();
    let error = place.kops(&["delete", "cluster", "demo.local", "--yes"]).unwrap_err();
    assert!(error.contains("demo.local/diary") && place.has("demo.local/config"), "{error}");
    // A truncated object, and one copied to another name.
    fs::copy(state.join("instancegroup/cp"), state.join("instancegroup/nodes")).unwrap();
    let error = place.kops(&["get", "ig", "--name", "demo.local"]).unwrap_err();
    assert!(error.contains("instancegroup/nodes"), "{error}");
    fs::write(state.join("config"), &CLUSTER[..60]).unwrap();
    let error = place.kops(&["get", "clusters"]).unwrap_err();
    assert!(error.contains("demo.local/config"), "{error}");
}

#[test]
fn rejects_settings_that_local_machines_ignore() {
    let place = TestStore::new();
    place.kops(&["create", "-f", &place.file(CLUSTER)]).unwrap();
    for (field, named) in [
        ("hooks: [{manifest: x}]", "spec.hooks of instance group cp"),
        ("packages: [nfs-common]", "spec.packages of instance group cp"),
        ("sysctlParameters: [a=b]", "spec.sysctlParameters of instance group cp"),
        ("machineType: m5.large", "spec.machineType of instance group cp"),
        ("kubelet: {cgroupRoot: /x}", "spec.kubelet.cgroupRoot of instance group cp"),
        (
            "volumeMounts: [{device: /dev/a, path: /a, filesystem: ext4}]",
            "spec.volumeMounts of instance group cp",
        ),
        (
            "additionalUserData: [{name: a, type: text/x-shellscript, content: b}]",
            "spec.additionalUserData of",
        ),
    ] {
        let group = GROUP.replace("subnets: [a]", &format!("subnets: [a], {field}"));
        let reason = place.kops(&["create", "-f", &place.file(&group)]).unwrap_err();
        assert!(reason.contains(named), "{reason}");
        assert!(!place.has("demo.local/instancegroup/cp"), "{field}");
    }
    let cluster = CLUSTER.replace("  iam: {}\n", "  iam: {}\n  packages: [nfs-common]\n");
    let reason = place.kops(&["replace", "-f", &place.file(&cluster)]).unwrap_err();
    assert!(reason.contains("spec.packages: cloud local does not do this"), "{reason}");
    let kept = place.kops(&["get", "cluster", "demo.local", "-o", "yaml"]).unwrap();
    assert!(!kept.contains("packages"), "{kept}");
    // Fields that act are stored.
    let group = GROUP.replace("subnets: [a]", "subnets: [a], kubelet: {maxPods: 5}");
    place.kops(&["create", "-f", &place.file(&group)]).unwrap();
}

#[test]
fn rejects_specs_that_update_cannot_apply() {
    let place = TestStore::new();
    let file = place.file(&format!("{CLUSTER}---\n{GROUP}"));
    place.kops(&["create", "-f", &file]).unwrap();
    let second = "etcdMembers: [{name: a, instanceGroup: cp}]}\n  - {name: leases, etcdMembers: [{name: a, instanceGroup: cp}]}";
    for (old, new, reason) in [
        (
            "etcdMembers: [{name: a, instanceGroup: cp}]}",
            second,
            "spec.etcdClusters[1].name other than main or events",
        ),
        ("1.36.1", "1.35.1", "Kubernetes 1.35.1"),
        ("{cni: {}}", "{kindnet: {}}", "spec.networking.kindnet"),
        (
            "instanceGroup: cp",
            "instanceGroup: other",
            "must have a member in etcd cluster \"main\"",
        ),
    ] {
        let file = place.file(&CLUSTER.replace(old, new));
        let error = place.kops(&["replace", "-f", &file]).unwrap_err();
        assert!(error.contains(reason), "{reason}: {error}");
    }
    let error =
        place.kops(&["replace", "-f", &place.file(&GROUP.replace("maxSize: 1", "maxSize: 2"))]);
    assert!(error.unwrap_err().contains("must have maxSize set to 1"));
    let workers = GROUP.replace("Master", "Node").replace("name: cp", "name: nodes");
    let workers = workers.replace("maxSize: 1", "maxSize: 2");
    let error = place.kops(&["create", "-f", &place.file(&workers)]).unwrap_err();
    assert!(error.contains("minSize of instance group nodes other than its maxSize"), "{error}");
    assert!(!place.read("demo.local/config").contains("leases"));
}

/// A spec that another program stored can be replaced by one that is supported, unless its etcd cluster exists.
#[test]
fn takes_back_what_was_never_applied() {
    let place = TestStore::new();
    place.kops(&["create", "-f", &place.file(&format!("{CLUSTER}---\n{GROUP}"))]).unwrap();
    let path = place.dir.path().join("state/demo.local");
    let stored = place.read("demo.local/config");
    let events = "  - etcdMembers:\n    - instanceGroup: cp\n      name: a\n    name: events\n";
    let (before, after) = stored.split_once("  iam:").unwrap();
    let written = format!("{before}{events}  iam:{after}");
    fs::write(path.join("config"), &written).unwrap();
    let file = place.file(CLUSTER);
    fs::write(path.join("cluster-completed.spec"), &stored).unwrap();
    place.kops(&["replace", "-f", &file]).unwrap();
    assert!(!place.read("demo.local/config").contains("events"));
    // The etcd cluster was created.
    fs::write(path.join("config"), &written).unwrap();
    fs::write(path.join("cluster-completed.spec"), &written).unwrap();
    let error = place.kops(&["replace", "-f", &file]).unwrap_err();
    assert!(error.contains("EtcdClusters cannot be removed"), "{error}");
}

#[test]
fn rejects_groups_that_upstream_refuses() {
    let place = TestStore::new();
    place.kops(&["create", "-f", &place.file(CLUSTER)]).unwrap();
    for (field, reason) in [
        ("hooks: [{name: a}]", "you must set either manifest or execContainer for a hook"),
        ("sysctlParameters: [a]", "must contain a \"=\" character"),
        (
            "volumeMounts: [{device: /dev/a, path: /a, filesystem: zfs9}]",
            "supported values: \"btfs\", \"ext4\", \"xfs\"",
        ),
    ] {
        let group = GROUP.replace("subnets: [a]", &format!("subnets: [a], {field}"));
        let error = place.kops(&["create", "-f", &place.file(&group)]).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert!(!place.has("demo.local/instancegroup/cp"), "{field}");
    }
}

#[test]
fn overlapping_subnets_are_rejected_before_they_are_stored() {
    let place = TestStore::new();
    let one = "{name: a, zone: z, type: Public, cidr: 10.0.0.0/16}";
    let two = format!("{one}, {{name: b, zone: z, type: Public, cidr: 10.0.0.0/17}}");
    let cluster = CLUSTER.replace(one, &two);
    let error = place.kops(&["create", "-f", &place.file(&cluster)]).unwrap_err();
    assert!(
        error.contains("10.0.0.0/16 of subnet \"a\" and 10.0.0.0/17 of subnet \"b\""),
        "{error}"
    );
    assert!(!place.has("demo.local/config"));
    // Upstream's validation permits them for its clouds.
    let aws = cluster.replace("  labels: {alpha.kops.k8s.io/cloud: local}\n", "");
    let aws = aws.replace("spec:\n", "spec:\n  cloudProvider: aws\n  networkCIDR: 10.0.0.0/16\n");
    let aws = aws.replace("zone: z", "zone: eu-west-1a");
    place.kops(&["create", "-f", &place.file(&aws)]).unwrap();
}

#[test]
fn rejects_flags_that_have_no_effect() {
    let place = TestStore::new();
    place.kops(&["create", "-f", &place.file(&format!("{CLUSTER}---\n{GROUP}"))]).unwrap();
    for (arguments, reason) in [
        (&["delete", "cluster", "--external", "--yes"][..], "--external is for clusters"),
        (&["delete", "cluster", "--region", "x", "--yes"], "--region is for clusters"),
        (&["delete", "cluster", "--count", "3", "--yes"], "--count is for other clouds"),
        (&["delete", "cluster", "--interval", "3s", "--yes"], "--interval is for other clouds"),
        (&["delete", "cluster", "--wait", "soon", "--yes"], "invalid value 'soon'"),
        (
            &["rolling-update", "cluster", "--bastion-interval", "3s"],
            "--bastion-interval is for clouds",
        ),
        (&["update", "cluster", "--plan", "x"], "--plan is for --yes"),
        (&["update", "cluster", "--plan", "x", "--plan-out", "y"], "cannot be used with"),
        (
            &["update", "cluster", "--admin", "--create-kube-config=false"],
            "--admin needs --create-kube-config",
        ),
        (
            &["validate", "cluster", "--api-server", "https://a", "--use-kubeconfig"],
            "cannot be used with",
        ),
    ] {
        let all = [arguments, &["--name", "demo.local"]].concat();
        let error = place.kops(&all).unwrap_err();
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
    assert!(place.has("demo.local/config"));
    let shown = place.kops(&["delete", "cluster", "demo.local", "--unregister"]).unwrap();
    assert!(shown.contains("Must specify --yes") && place.has("demo.local/config"), "{shown}");
    let done = place.kops(&["delete", "cluster", "demo.local", "--unregister", "--yes"]).unwrap();
    assert_eq!(done, "\nUnregistered cluster: \"demo.local\"\n");
    assert!(!place.has("demo.local"));
}

#[test]
fn adds_control_planes_with_their_members_to_a_cluster_without_machines() {
    let place = TestStore::with_cluster("local");
    let group = |name: &str| GROUP.replace("name: cp", &format!("name: {name}"));
    let both = format!("{}---\n{}", group("cp-b"), group("cp-c"));
    let members = "{name: a, instanceGroup: cp}, {name: b, instanceGroup: cp-b}, {name: c, instanceGroup: cp-c}";
    let cluster = CLUSTER.replace("{name: a, instanceGroup: cp}", members);
    // A member without its group would never start.
    place.kops(&["replace", "-f", &place.file(&cluster)]).unwrap();
    let error = place.kops(&["update", "cluster", "demo.local"]).unwrap_err();
    assert!(error.contains("\"cp-b\" is not one of control planes; store that group"), "{error}");
    let file = place.file(&format!("{cluster}---\n{both}"));
    place.kops(&["replace", "--force", "-f", &file]).unwrap();
    let shown = place.kops(&["update", "cluster", "demo.local"]).unwrap();
    for name in ["cp", "cp-b", "cp-c"] {
        assert!(shown.contains(&format!("InstanceGroup/{name}\n")), "{shown}");
    }
}

#[test]
fn rejects_flags_of_updates_without_effect() {
    let place = TestStore::with_cluster("local");
    let config = place.path("kubeconfig");
    for (flags, reason) in [
        (&["--phase", "network"][..], "--phase is for clouds whose network and roles kops makes"),
        (&["--phase", "stage"], "invalid value 'stage'"),
        (&["--lifecycle-overrides", "VPC=Ignore"], "--lifecycle-overrides is for clouds"),
        (&["--instance-group", "none"], "InstanceGroup \"none\" not found"),
        (&["--instance-group", "cp"], "has no machines yet"),
        (&["--instance-group-roles", "king"], "invalid instance group role \"king\""),
        (&["--user", "nobody"], "could not find user \"nobody\""),
        (&["--user", "nobody", "--admin"], "cannot use both --admin and --user"),
        (&["--internal", "--create-kube-config=false"], "--internal needs --create-kube-config"),
        (&["--api-server", "http://192.0.2.1"], "--api-server is not a URL"),
        (&["--use-kubeconfig"], "kubeconfig"),
        (&["--target=terraform", "--instance-group", "cp"], "are for --target=direct"),
        (&["--target=terraform", "--prune"], "--prune is for --target=direct"),
        (&["--target=terraform", "--internal"], "are for --target=direct"),
    ] {
        let all = [&["update", "cluster", "demo.local"][..], flags].concat();
        let error = place.kops_with(&all, &[("KUBECONFIG", &config)]).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert!(!place.has("demo.local/pki"), "{flags:?} has stored keys");
    }
    for flags in [&["--phase", "cluster"][..], &["--ignore-kubelet-version-skew"], &["--prune"]] {
        let all = [&["update", "cluster", "demo.local"][..], flags].concat();
        let shown = place.kops(&all).unwrap();
        assert!(shown.contains("Must specify --yes"), "{shown}");
    }
}

#[test]
fn refuses_plans_of_another_state() {
    let place = TestStore::new();
    place.kops(&["create", "-f", &place.file(&format!("{CLUSTER}---\n{GROUP}"))]).unwrap();
    let plan = place.dir.path().join("plan.json").display().to_string();
    let shown = place.kops(&["update", "cluster", "demo.local", "--plan-out", &plan]).unwrap();
    assert!(shown.contains("InstanceGroup/cp"), "{shown}");
    let group = GROUP.replace("subnets: [a]", "subnets: [a], nodeLabels: {a: b}");
    place.kops(&["replace", "-f", &place.file(&group)]).unwrap();
    let again =
        place.kops(&["update", "cluster", "demo.local", "--yes", "--plan", &plan]).unwrap_err();
    assert!(again.contains("have changed since"), "{again}");
    // Nothing was done: there are no keys, no machines and no lock.
    assert!(!place.has("demo.local/pki") && !place.has("demo.local/lock"));
    assert!(!place.dir.path().join("state-instances").exists());
    let error = place.kops(&["update", "cluster", "demo.local", "--yes", "--plan", "/dev/zero"]);
    assert!(error.unwrap_err().contains("/dev/zero"));
}
