//! Clusters of `windlass kops` with the cloud `local`.

use std::{fs, path::PathBuf};

use crate::{
    cluster::Cluster,
    process::{Output, until},
    programs::binary,
};

/// A cluster of the cloud `local`, with its state store and its machines. Dropping it deletes the cluster.
pub struct Kops {
    /// The network namespace and the directory of the test.
    pub cluster: Cluster,
    /// The kOps cluster name.
    pub name: String,
}

impl Kops {
    /// Prepares the directory and the network namespace, and creates no machine yet. `name` is unique among tests.
    pub fn new(name: &str) -> Self {
        let cluster = Cluster::new(name);
        let name = format!("{}.local", cluster.name);
        Self { cluster, name }
    }

    /// Returns the state store's directory.
    pub fn state(&self) -> PathBuf {
        self.cluster.directory.join("state")
    }

    /// Runs a command of kOps on this cluster.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Output {
        let state = format!("file://{}", self.state().display());
        let kubeconfig = format!("KUBECONFIG={}", self.cluster.kubeconfig().display());
        let mut all = vec![kubeconfig.as_str()];
        let binary = binary().display().to_string();
        all.extend([binary.as_str(), "kops", "--state", &state, "--name", &self.name]);
        all.extend_from_slice(args);
        self.cluster.run("env", &all)
    }

    /// Returns the directory of the machines.
    pub fn instances(&self) -> PathBuf {
        self.cluster.directory.join("state-instances").join(&self.name)
    }

    /// Returns the images below [`Kops::instances`] that are attached to loop devices.
    pub fn attached_images(&self) -> Vec<String> {
        let images = sys::attached_images(&self.instances()).expect("loop devices");
        images.into_iter().map(|device| device.image.display().to_string()).collect()
    }

    /// Reads a pid file below [`Kops::instances`].
    pub fn pid(&self, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.instances().join(file)).ok()?;
        text.split_whitespace().next().map(str::to_owned)
    }

    /// Kills the process of a pid file below [`Kops::instances`] and waits until the file names another process.
    #[track_caller]
    pub fn kill_and_wait(&self, file: &str) {
        let before = self.pid(file).unwrap_or_else(|| panic!("no pid in {file}"));
        self.cluster.run("kill", &["-9", &before]).ok();
        until(&format!("another process in {file}"), || match self.pid(file) {
            Some(pid) if pid != before => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Returns the id of the machine that has this name now.
    pub fn machine_id(&self, name: &str) -> String {
        let path = self.instances().join("machines").join(name).join("document/machine.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let tree: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        tree["id"].as_str().expect("an id").to_owned()
    }

    /// Creates a cluster whose etcd is backed up every three seconds.
    #[track_caller]
    pub fn create_with_backups(&self, control_planes: &str, workers: &str) {
        let size = ["--control-plane-count", control_planes, "--node-count", workers];
        self.run(&[&["create", "cluster", "--cloud", "local"], &size[..]].concat()).ok();
        let spec = self.run(&["get", "cluster", "-o", "yaml"]).ok();
        let often = "backupInterval: 3s\n      backupRetentionDays: 90";
        let file = self.cluster.directory.join("spec.yaml");
        fs::write(&file, spec.replace("backupRetentionDays: 90", often))
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.run(&["replace", "-f", &file.display().to_string()]).ok();
        self.run(&["update", "cluster", "--yes"]).ok();
    }

    /// Runs a command of `etcd-manager-ctl` on the cluster's backups.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> Output {
        let store = self.state().join(&self.name).join("backups/etcd/main");
        let store = format!("--backup-store=file://{}", store.display());
        let all = [&["etcd-manager-ctl", store.as_str()], args].concat();
        self.cluster.run(&binary().display().to_string(), &all)
    }

    /// Returns the names of the backups, the oldest first.
    #[track_caller]
    pub fn list_backups(&self) -> Vec<String> {
        self.ctl(&["list-backups"]).ok().lines().skip(1).map(str::to_owned).collect()
    }

    /// Returns the name of a backup that was started after this call.
    #[track_caller]
    pub fn wait_for_backup(&self) -> String {
        // The next backup may have started before this call, so wait for the one after it.
        let before = self.list_backups().len();
        let backups = until("two more backups", || {
            let backups = self.list_backups();
            if backups.len() > before + 1 { Ok(backups) } else { Err(format!("{backups:?}")) }
        });
        backups.last().expect("a backup").clone()
    }

    /// Restores a backup, and waits until the command has been carried out.
    #[track_caller]
    pub fn restore(&self, backup: &str) {
        self.ctl(&["restore-backup", backup]).ok();
        self.wait_for_removed_commands();
        self.wait_until_valid();
    }

    /// Waits until the keeper has removed all commands from the backup store.
    #[track_caller]
    pub fn wait_for_removed_commands(&self) {
        until("the removal of the commands", || {
            let commands = self.ctl(&["list-commands"]).ok();
            if commands.lines().count() == 1 { Ok(()) } else { Err(commands) }
        });
    }

    /// Waits until `validate cluster` succeeds.
    #[track_caller]
    pub fn wait_until_valid(&self) {
        self.run(&["validate", "cluster", "--wait", "5m", "--interval", "2s"]).ok();
    }
}

impl Drop for Kops {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.cluster.diagnose();
        }
        // Ignore errors: the test may have deleted the cluster or failed before creating it.
        drop(self.run(&["delete", "cluster", "--yes"]));
    }
}
