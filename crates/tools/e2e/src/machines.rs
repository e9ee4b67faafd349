//! Several machines on this one, for what is bootstrapped from a machine's own files, services and network.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{
    cluster::{binary, busybox, tool},
    diagnostics,
    process::{Ran, run},
};

const SCRIPT: &str = include_str!("machines.sh");

/// The network that machines hang on; they and their files go with it.
pub struct Machines {
    name: String,
    directory: PathBuf,
    remover: Child,
}

impl Machines {
    /// A place for machines, with a network between them; [`Machines::start`] makes one.
    pub fn new(test: &str) -> Self {
        let name = format!("wl-{test}-{}", std::process::id());
        // Short, because a socket's path may have no more than 107 bytes.
        let directory = std::env::temp_dir().join(&name);
        fs::create_dir_all(&directory)
            .unwrap_or_else(|e| panic!("creating {}: {e}", directory.display()));
        let script = directory.join("machines.sh");
        fs::write(&script, SCRIPT).unwrap_or_else(|e| panic!("writing {}: {e}", script.display()));
        // The script removes itself with the rest, so that this one is read from the command line.
        let mut remover = Command::new("sh");
        remover.args(["-c", SCRIPT, "sh", "remove"]).arg(&directory).arg(&name);
        remover.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let remover = remover.spawn().unwrap_or_else(|e| panic!("starting sh: {e}"));
        let machines = Self { name, directory, remover };
        run(machines.script("create"), b"").ok();
        machines
    }

    fn script(&self, command: &str) -> Command {
        let mut script = Command::new("sh");
        script.arg(self.directory.join("machines.sh")).arg(command);
        script.arg(&self.directory).arg(&self.name);
        script
    }

    /// A program on the network between the machines, as 192.0.2.254 on br0. It ends with the thread that starts it.
    pub fn between(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.args(["--", "setpriv", "--pdeathsig", "KILL", program]).args(args);
        command.env_remove("WINDLASS");
        command
    }

    /// A file for all machines, which goes with them.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Starts a machine with an address of the network's, and containerd on it.
    #[track_caller]
    pub fn start(&self, name: &str, number: u8) -> Host<'_> {
        let address = format!("192.0.2.{number}");
        run(self.script("start").arg(name).arg(&address), b"").ok();
        Host { machines: self, name: name.to_owned(), address }
    }
}

/// A service manager that has nothing but the kubelet to start.
const BOOT: &str =
    "setsid \"$0\" internal keep-kubelet >>/var/log/windlass/kubelet.log 2>&1 </dev/null &";

impl Machines {
    /// Takes the power away from a machine, whose disk keeps what is on it.
    #[track_caller]
    pub fn lose_power(&self, host: &Host<'_>) {
        host.do_to("crash");
    }

    /// Gives power back to a machine that was a node.
    #[track_caller]
    pub fn power_on(&self, host: &Host<'_>) {
        run(self.script("start").arg(&host.name).arg(&host.address), b"").ok();
        host.run("sh", &["-c", BOOT, &host.binary()]).ok();
    }
}

impl Host<'_> {
    fn do_to(&self, what: &str) {
        let mut script = self.machines.script(what);
        script.arg(&self.name);
        run(script, b"").ok();
    }

    /// Takes the power away, and what is on the disk with it.
    #[track_caller]
    pub fn lose(self) {
        self.do_to("stop");
    }

    /// Cuts the machine off from the others.
    #[track_caller]
    pub fn cut(&self) {
        self.do_to("cut");
    }

    /// Gives a machine its way to the others back.
    #[track_caller]
    pub fn heal(&self) {
        self.do_to("heal");
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if std::thread::panicking() {
            diagnostics::print_logs(&self.directory);
        }
        if std::env::var_os("WINDLASS_KEEP").is_some() {
            // Whoever looks into a failure clears away by hand: `sh DIR/machines.sh remove DIR NAME </dev/null`.
            let _ = self.remover.kill();
        }
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// A machine.
pub struct Host<'a> {
    machines: &'a Machines,
    pub name: String,
    pub address: String,
}

impl Host<'_> {
    /// A program that is to run as if on this machine.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.machines.script("run");
        command.arg(&self.name).arg(program).args(args).env_remove("WINDLASS");
        command
    }

    /// Runs a program to its end on this machine.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> Ran {
        run(self.command(program, args), b"")
    }

    /// Runs a command of windlass, whose words hold no blanks.
    #[track_caller]
    pub fn windlass(&self, line: &str) -> Ran {
        self.run(&binary().display().to_string(), &line.split_whitespace().collect::<Vec<_>>())
    }

    /// kubectl as the administrator of this control plane.
    #[track_caller]
    pub fn kubectl(&self, line: &str) -> Ran {
        self.kubectl_with(&line.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Runs kubectl as the administrator, with words that hold anything, and input.
    #[track_caller]
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Ran {
        let mut command = self.command(&tool("kubectl"), args);
        command
            .env("KUBECONFIG", "/etc/kubernetes/admin.conf")
            .env("HOME", &self.machines.directory);
        run(command, input.as_bytes())
    }

    /// The binary under test.
    pub fn binary(&self) -> String {
        binary().display().to_string()
    }

    /// Brings the image box:1 here, which says its name and waits.
    #[track_caller]
    pub fn build_box(&self) {
        let script = "echo here is $(hostname); trap exit TERM; while :; do sleep 1; done";
        self.build_image("box:1", script);
    }

    /// Brings the image app:1 here, a web server that says its name and serves it.
    #[track_caller]
    pub fn build_app(&self) {
        let script = "echo here is $(hostname); mkdir -p /www; echo \"version 1 on $(hostname)\" >/www/index.html; \
                      trap exit TERM; httpd -f -v -p 8080 -h /www & wait";
        self.build_image("app:1", script);
    }

    fn build_image(&self, name: &str, script: &str) {
        let links = ["sh", "sleep", "hostname", "nslookup", "httpd", "nc", "mkdir", "grep", "wget"]
            .map(|applet| format!("/bin/{applet}"))
            .join(",");
        let socket = "unix:///run/containerd/containerd.sock";
        let busybox = busybox();
        let args = [
            "images",
            "build",
            name,
            "--binary",
            &busybox,
            "--path",
            "/bin/busybox",
            "--link",
            &links,
        ];
        let more = ["--cri-socket", socket, "--", "sh", "-c", script];
        self.run(&self.binary(), &[&args[..], &more].concat()).ok();
    }

    /// Packs the image site:1, a web server that says its name, into an archive.
    #[track_caller]
    pub fn build_site(&self, archive: &Path) {
        let links =
            ["sh", "cat", "httpd", "hostname", "mkdir"].map(|applet| format!("/bin/{applet}"));
        let script = "mkdir -p /www; echo here is $(hostname) >/www/index.html; exec httpd -f -p 8080 -h /www";
        let (busybox, archive) = (busybox(), archive.display().to_string());
        let args = ["images", "build", "site:1", "--binary", &busybox, "--path", "/bin/busybox"];
        let more = ["--link", &links.join(","), "--output", &archive, "--", "sh", "-c", script];
        self.run(&self.binary(), &[&args[..], &more].concat()).ok();
    }

    /// A file for the machines to read, which all of them see at the same place.
    #[track_caller]
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.machines.directory.join(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("writing {}: {e}", path.display()));
        path.display().to_string()
    }
}
