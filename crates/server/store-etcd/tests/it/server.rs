//! Real etcd servers on loopback, each with a directory of its own, killed on drop.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use testkit::free_port;

/// Reports whether an etcd program is installed, and prints a note if not.
pub(crate) fn is_there() -> bool {
    let there = Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !there {
        eprintln!("skipped: no etcd in PATH (Debian: apt-get install etcd-server)");
    }
    there
}

pub(crate) struct Server {
    pub(crate) url: String,
    arguments: Vec<String>,
    child: Child,
    directory: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one member with additional arguments. `--cert-file` enables TLS.
    pub(crate) fn start_with(more: &[&str]) -> Self {
        let peer = format!("http://127.0.0.1:{}", free_port());
        let scheme = if more.contains(&"--cert-file") { "https" } else { "http" };
        Self::member("default", scheme, &peer, &format!("default={peer}"), more)
    }

    /// Starts a cluster of three members.
    pub(crate) fn start_three() -> [Self; 3] {
        let peers = [0, 1, 2].map(|_| format!("http://127.0.0.1:{}", free_port()));
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(n, peer)| format!("m{n}={peer}")).collect();
        let cluster = cluster.join(",");
        [0, 1, 2].map(|n| Self::member(&format!("m{n}"), "http", &peers[n], &cluster, &[]))
    }

    fn member(name: &str, scheme: &str, peer: &str, cluster: &str, more: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let url = format!("{scheme}://127.0.0.1:{}", free_port());
        let data = directory.path().join("data");
        let pairs = [
            ("--name", name),
            ("--data-dir", data.to_str().unwrap()),
            ("--listen-client-urls", &url),
            ("--advertise-client-urls", &url),
            ("--listen-peer-urls", peer),
            ("--initial-advertise-peer-urls", peer),
            ("--initial-cluster", cluster),
        ];
        let arguments: Vec<String> = pairs
            .iter()
            .flat_map(|(flag, value)| [*flag, *value])
            .chain(more.iter().copied())
            .map(str::to_owned)
            .collect();
        let child = spawn(&arguments, directory.path());
        Self { url, arguments, child, directory }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([format!("-{name}"), pid]).status().unwrap();
        assert!(sent.success(), "kill -{name}");
    }

    /// Restarts the member with its data.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.arguments, self.directory.path());
    }
}

fn spawn(arguments: &[String], directory: &Path) -> Child {
    let log = std::fs::File::create(directory.join("log")).unwrap();
    Command::new("etcd").args(arguments).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
