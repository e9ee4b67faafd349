//! Simulated machines on this machine, each with its own files, services and network, for tests of the bootstrap.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{
    diagnostics,
    process::{Output, run},
    programs::{binary, busybox, tool},
};

const SCRIPT: &str = include_str!("machines.sh");

/// The simulated machines of a test and the network between them. Dropping it removes the machines and their files.
pub struct Machines {
    name: String,
    directory: PathBuf,
    remover: Child,
}

impl Machines {
    /// Creates the network between the machines. [`Machines::start`] starts a machine.
    pub fn new(test: &str) -> Self {
        let name = format!("wl-{test}-{}", std::process::id());
        // Keep the path short: the path of a Unix socket has at most 107 bytes.
        let directory = std::env::temp_dir().join(&name);
        fs::create_dir_all(&directory)
            .unwrap_or_else(|e| panic!("creating {}: {e}", directory.display()));
        let script = directory.join("machines.sh");
        fs::write(&script, SCRIPT).unwrap_or_else(|e| panic!("writing {}: {e}", script.display()));
        // The script deletes its own file, so pass the text on the command line.
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

    /// Returns a command on the network between the machines, with the address 192.0.2.254 on br0. The kernel kills the
    /// process when the thread that started it ends.
    pub fn bridge_command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.args(["--", "setpriv", "--pdeathsig", "KILL", program]).args(args);
        command.env_remove("WINDLASS");
        command
    }

    /// Returns the path of a file that all machines see.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Starts a machine with the address 192.0.2.`number`, and containerd on it.
    #[track_caller]
    pub fn start(&self, name: &str, number: u8) -> Host<'_> {
        let address = format!("192.0.2.{number}");
        run(self.script("start").arg(name).arg(&address), b"").ok();
        Host { machines: self, name: name.to_owned(), address }
    }
}

/// The replacement of a service manager at boot: a script that starts the kubelet's supervisor.
const BOOT: &str =
    "setsid \"$0\" internal keep-kubelet >>/var/log/windlass/kubelet.log 2>&1 </dev/null &";

impl Machines {
    /// Cuts the power of a machine. The contents of its disk stay.
    #[track_caller]
    pub fn lose_power(&self, host: &Host<'_>) {
        host.run_script("crash");
    }

    /// Starts a machine after [`Machines::lose_power`], with the kubelet.
    #[track_caller]
    pub fn power_on(&self, host: &Host<'_>) {
        run(self.script("start").arg(&host.name).arg(&host.address), b"").ok();
        host.run("sh", &["-c", BOOT, &host.binary()]).ok();
    }
}

impl Host<'_> {
    fn run_script(&self, what: &str) {
        let mut script = self.machines.script(what);
        script.arg(&self.name);
        run(script, b"").ok();
    }

    /// Stops the machine and deletes its disk.
    #[track_caller]
    pub fn lose(self) {
        self.run_script("stop");
    }

    /// Disconnects the machine from the others.
    #[track_caller]
    pub fn cut(&self) {
        self.run_script("cut");
    }

    /// Reconnects the machine to the others.
    #[track_caller]
    pub fn heal(&self) {
        self.run_script("heal");
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        if std::thread::panicking() {
            diagnostics::print_logs(&self.directory);
        }
        if std::env::var_os("WINDLASS_KEEP").is_some() {
            // Remove the machines by hand later: `sh DIR/machines.sh remove DIR NAME </dev/null`.
            let _ = self.remover.kill();
        }
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// A simulated machine.
pub struct Host<'a> {
    machines: &'a Machines,
    /// The host name.
    pub name: String,
    /// The IPv4 address.
    pub address: String,
}

impl Host<'_> {
    /// Returns a command that runs on this machine.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.machines.script("run");
        command.arg(&self.name).arg(program).args(args).env_remove("WINDLASS");
        command
    }

    /// Runs a program on this machine and waits for its end.
    #[track_caller]
    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        run(self.command(program, args), b"")
    }

    /// Runs a windlass command. `line` is split at white space.
    #[track_caller]
    pub fn windlass(&self, line: &str) -> Output {
        self.run(&binary().display().to_string(), &line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs kubectl as administrator with this control plane's `admin.conf`. `line` is split at white space.
    #[track_caller]
    pub fn kubectl(&self, line: &str) -> Output {
        self.kubectl_with(&line.split_whitespace().collect::<Vec<_>>(), "")
    }

    /// Runs kubectl as administrator with separate arguments and with `input` on its standard input.
    #[track_caller]
    pub fn kubectl_with(&self, args: &[&str], input: &str) -> Output {
        let mut command = self.command(&tool("kubectl"), args);
        command
            .env("KUBECONFIG", "/etc/kubernetes/admin.conf")
            .env("HOME", &self.machines.directory);
        run(command, input.as_bytes())
    }

    /// Returns the path of the binary under test.
    pub fn binary(&self) -> String {
        binary().display().to_string()
    }

    /// Builds the image `box:1` on this machine. Its container prints the host name and waits.
    #[track_caller]
    pub fn build_box(&self) {
        let script = "echo here is $(hostname); trap exit TERM; while :; do sleep 1; done";
        self.build_image("box:1", script);
    }

    /// Builds the image `app:1` on this machine: a web server whose page shows the host name.
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

    /// Builds the image `site:1`, a web server whose page shows the host name, and writes it into an archive.
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

    /// Writes a file that all machines see, and returns its path.
    #[track_caller]
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.machines.directory.join(name);
        fs::write(&path, text).unwrap_or_else(|e| panic!("writing {}: {e}", path.display()));
        path.display().to_string()
    }
}
