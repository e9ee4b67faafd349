//! A namespace with a bridge for the server, and one for the client.

use std::{
    os::fd::AsFd,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use clap::Parser;
use netboot::cmd::{self, ServeArgs};

pub(crate) const SERVER: &str = "192.168.77.1";

/// Runs the test again in a network namespace. Returns `true` in that run.
pub(crate) fn inside(test: &str) -> bool {
    if std::env::var_os("NETBOOT_NAMESPACE").is_some() {
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return false;
    }
    let status = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env("NETBOOT_NAMESPACE", "1")
        .status()
        .unwrap();
    assert!(status.success(), "{test}: {status}");
    false
}

/// Runs a command that must succeed and returns its output.
#[track_caller]
pub(crate) fn run(command: &str) -> String {
    let (ok, text) = try_run(command);
    assert!(ok, "{command}: {text}");
    text
}

pub(crate) fn try_run(command: &str) -> (bool, String) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Returns `true` if a program or file that a test needs exists.
pub(crate) fn have(what: &str) -> bool {
    let have = if what.starts_with('/') {
        std::path::Path::new(what).exists()
    } else {
        try_run(&format!("command -v {what}")).0
    };
    if !have {
        eprintln!("skipped: there is no {what}");
    }
    have
}

/// Runs a command until it succeeds.
#[track_caller]
pub(crate) fn eventually(command: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !try_run(command).0 {
        assert!(Instant::now() < deadline, "{command}: still fails");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    tasks: rt::Tasks,
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

impl World {
    /// Creates a bridge with the server's address, and a directory with a store, assets and files for TFTP.
    pub(crate) fn new() -> Self {
        run("ip link set lo up && ip link add br0 type bridge && ip link set br0 up");
        run(&format!("ip addr add {SERVER}/24 dev br0"));
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("groups/default.json", r#"{"id":"default","profile":"p","metadata":{"a":"b"}}"#),
            ("profiles/p.json", r#"{"id":"p","generic_id":"g","boot":{"kernel":"/assets/k"}}"#),
            ("generic/g", "{{.a}}"),
            ("assets/k", "kernel"),
            ("tftp/text", "a\nb\n"),
        ] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        Self { dir, runtime, tasks: rt::Tasks::new(rt::Shutdown::new()) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the server with these arguments in addition to the default ones.
    pub(crate) fn serve(&mut self, args: &str) {
        let dir = self.dir.path().display();
        let usual = format!(
            "serve --address {SERVER}:8080 --data-path {dir} --assets-path {dir}/assets --interface br0 \
             --tftp-root {dir}/tftp --dhcp-leasefile {dir}/leases --machines-file {dir}/machines {args}"
        );
        let cli = Cli::parse_from(usual.split_whitespace());
        self.tasks = rt::Tasks::new(rt::Shutdown::new());
        drop(self.runtime.block_on(cmd::start(&cli.args, &self.tasks, None)).unwrap());
    }

    pub(crate) fn stop(&self) {
        let drained = self.runtime.block_on(self.tasks.drain(Duration::from_secs(5)));
        assert!(drained.unfinished.is_empty(), "{drained:?}");
    }
}

/// A network namespace that a process holds, with one end of a link to the bridge.
pub(crate) struct Host {
    holder: Child,
}

impl Host {
    pub(crate) fn new(link: &str) -> Self {
        let holder = Command::new("unshare")
            .args(["--net", "sleep", "600"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let host = Self { holder };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        let place = format!("/proc/{}/ns/net", host.holder.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(&place).is_ok_and(|namespace| namespace == own) {
            assert!(Instant::now() < deadline, "no namespace");
            std::thread::sleep(Duration::from_millis(5));
        }
        run(&format!(
            "ip link add {link} type veth peer name {link}p && ip link set {link} master br0 up"
        ));
        run(&format!("ip link set {link}p netns {} name eth0", host.holder.id()));
        host.run("ip link set lo up && ip link set eth0 up");
        host
    }

    fn there(&self, command: &str) -> String {
        format!("nsenter --net=/proc/{}/ns/net sh -c '{command}'", self.holder.id())
    }

    /// Runs `work` on a thread in the namespace.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", self.holder.id())).unwrap();
        let enter = move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    #[track_caller]
    pub(crate) fn run(&self, command: &str) -> String {
        run(&self.there(command))
    }

    pub(crate) fn try_run(&self, command: &str) -> (bool, String) {
        try_run(&self.there(command))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
