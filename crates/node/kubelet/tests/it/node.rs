//! The node under test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use cri::v1;
use kubelet::{Config, HostSettings, Settings};
use rt::{Shutdown, Tasks};

pub(crate) const APP: &str = "windlass.test/app:1";
/// An image like [`APP`] whose user is 1000.
pub(crate) const USER: &str = "windlass.test/user:1";
const PAUSE: &str = "windlass.test/pause:1";
const BUSYBOX: &str = "/bin/busybox";

/// A node: a containerd and a kubelet, below one directory and one cgroup.
pub(crate) struct Node {
    pub(crate) dir: PathBuf,
    pub(crate) cgroup: String,
    containerd: Child,
    pub(crate) cri: cri::Client,
    pub(crate) port: u16,
    kubelet: Option<Tasks>,
}

impl Node {
    /// Starts a node whose kubelet is not running yet.
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_with(name, |_| String::new()).await
    }

    /// Starts a node whose containers are run by a shell script. Its arguments are those of runc.
    pub(crate) async fn start_with_runc(name: &str, script: &str) -> Self {
        let runtime = |dir: &Path| {
            let runc = dir.join("runc");
            testkit::write_script(&runc, script);
            let table = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc";
            let runc = runc.display();
            format!(
                "{table}]\nruntime_type = \"io.containerd.runc.v2\"\n{table}.options]\nBinaryName = \"{runc}\"\n"
            )
        };
        Self::start_with(name, runtime).await
    }

    /// Starts a node with further lines of containerd's configuration.
    async fn start_with(name: &str, further: impl FnOnce(&Path) -> String) -> Self {
        let id = format!("windlass-test-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(&id);
        for below in ["manifests", "kubelet", "logs", "cni/bin", "cni/net.d"] {
            fs::create_dir_all(dir.join(below)).unwrap();
        }
        fs::write(dir.join("config.toml"), configuration(&dir) + &further(&dir)).unwrap();
        network(&dir);
        let log = fs::File::create(dir.join("containerd.log")).unwrap();
        let containerd = Command::new("containerd")
            .arg("--config")
            .arg(dir.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let cri = cri::Client::new(
            dir.join("containerd.sock").to_str().unwrap(),
            Duration::from_secs(30),
        );
        identities(&dir);
        let port = testkit::free_port();
        let node = Self { dir, cgroup: format!("/{id}"), containerd, cri, port, kubelet: None };
        eventually("containerd answers", async || node.cri.version().await.is_ok()).await;
        node.import();
        eventually("the images are known", async || {
            let known = async |image| matches!(node.cri.image_status(image).await, Ok(Some(_)));
            known(APP).await && known(USER).await && known(PAUSE).await
        })
        .await;
        node
    }

    fn import(&self) {
        let archive = self.dir.join("images.tar");
        let pause = oci::Image::of_binary(
            PAUSE,
            Path::new(BUSYBOX),
            BUSYBOX,
            &[BUSYBOX, "sleep", "2147483647"],
        );
        let mut app = oci::Image::of_binary(APP, Path::new(BUSYBOX), BUSYBOX, &[BUSYBOX]);
        let applets =
            "sh sleep cat echo tar nc true false touch wget httpd id env stty tail mkdir rm";
        for applet in applets.split(' ') {
            let link = oci::Entry::Link { target: "busybox".to_owned() };
            app.entries.insert(format!("/bin/{applet}"), link);
        }
        let user = oci::Image { name: USER.to_owned(), user: "1000".to_owned(), ..app.clone() };
        oci::write_archive(&[pause, app, user], fs::File::create(&archive).unwrap()).unwrap();
        oci::import(&self.dir.join("containerd.sock"), &archive).unwrap();
    }

    /// Returns the settings. A full disk of the development machine must not evict the tests' Pods.
    pub(crate) fn settings(&self) -> Settings {
        let dir = self.dir.display();
        let text = format!(
            "staticPodPath: {dir}/manifests\npodLogsDir: {dir}/logs\ncgroupRoot: {}\nclusterDomain: cluster.local\n\
             containerRuntimeEndpoint: unix://{dir}/containerd.sock\nport: {}\nhealthzPort: 0\naddress: 127.0.0.1\n\
             authentication: {{x509: {{clientCAFile: {dir}/ca.crt}}}}\nauthorization: {{mode: AlwaysAllow}}\n\
             evictionHard: {{memory.available: 100Mi}}\nimageGCHighThresholdPercent: 100\n",
            self.cgroup, self.port
        );
        let place = HostSettings {
            node_name: "node".into(),
            node_ips: vec!["127.0.0.1".into()],
            root: self.dir.join("kubelet"),
            cert_dir: self.dir.join("pki"),
            labels: Default::default(),
        };
        Settings::new(&kubelet::parse(&text).unwrap(), place).unwrap()
    }

    /// Runs the kubelet in the background. May be called again after [`Node::stop_kubelet`].
    pub(crate) fn start_kubelet(&mut self, client: Option<client::Client>) {
        self.start_kubelet_with(self.settings(), client);
    }

    pub(crate) fn start_kubelet_with(
        &mut self,
        settings: Settings,
        client: Option<client::Client>,
    ) {
        let tasks = Tasks::new(Shutdown::new());
        let config = Config {
            settings,
            heartbeats: None,
            rotate_certificates: false,
            service_manager: Default::default(),
            host: kubelet::Host::real(),
        };
        let inner = tasks.clone();
        tasks.spawn("kubelet", async move { kubelet::run(config, client, &inner).await.unwrap() });
        self.kubelet = Some(tasks);
    }

    /// Ends the kubelet at an arbitrary point, like a crash.
    pub(crate) async fn stop_kubelet(&mut self) {
        if let Some(tasks) = self.kubelet.take() {
            tasks.drain(Duration::from_secs(10)).await;
        }
    }

    pub(crate) fn manifest(&self, name: &str, text: &str) {
        // Written to another directory and renamed, as careful tools do.
        let aside = self.dir.join(format!("{name}.tmp"));
        fs::write(&aside, text).unwrap();
        fs::rename(aside, self.dir.join("manifests").join(format!("{name}.yaml"))).unwrap();
    }

    pub(crate) fn remove_manifest(&self, name: &str) {
        fs::remove_file(self.dir.join("manifests").join(format!("{name}.yaml"))).unwrap();
    }

    /// Reports whether the version of containerd is at least this one.
    pub(crate) async fn runtime_is_at_least(&self, major: u32, minor: u32) -> bool {
        let version = self.cri.version().await.unwrap().runtime_version;
        let mut parts =
            version.trim_start_matches('v').split('.').map(|part| part.parse().unwrap());
        (parts.next().unwrap(), parts.next().unwrap()) >= (major, minor)
    }

    /// Returns the containers of a name, newest first.
    pub(crate) async fn containers(&self, name: &str) -> Vec<v1::Container> {
        let all = self.cri.list_containers(None).await.unwrap();
        let mut found: Vec<_> =
            all.into_iter().filter(|c| c.metadata.as_ref().unwrap().name == name).collect();
        found.sort_by_key(|c| std::cmp::Reverse(c.created_at));
        found
    }

    pub(crate) async fn running(&self, name: &str) -> Option<v1::Container> {
        let newest = self.containers(name).await.into_iter().next()?;
        (newest.state() == v1::ContainerState::ContainerRunning).then_some(newest)
    }

    pub(crate) async fn run(&self, id: &str, cmd: &[&str]) -> String {
        let cmd = cmd.iter().map(ToString::to_string).collect();
        let answer = self.cri.exec_sync(id, cmd, Duration::from_secs(10)).await.unwrap();
        String::from_utf8_lossy(&answer.stdout).into_owned()
    }

    /// Reports whether nothing is left of the node's Pods except the runtime's own files.
    pub(crate) async fn is_empty(&self) -> bool {
        let entries = |below: &str| fs::read_dir(self.dir.join(below)).map_or(0, |d| d.count());
        self.cri.list_pod_sandboxes(None).await.unwrap().is_empty()
            && entries("kubelet/pods") == 0
            && entries("logs") == 0
    }

    pub(crate) async fn close(mut self) {
        self.stop_kubelet().await;
        for sandbox in self.cri.list_pod_sandboxes(None).await.unwrap_or_default() {
            let _ = self.cri.stop_pod_sandbox(&sandbox.id).await;
            let _ = self.cri.remove_pod_sandbox(&sandbox.id).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A failed test has not closed the node, so its containers are killed with their cgroup.
        let cgroups = sys::cgroup::detect();
        let _ = cgroups.kill(&self.cgroup);
        let _ = self.containerd.kill();
        let _ = self.containerd.wait();
        kill_shims(&self.dir);
        let until = Instant::now() + Duration::from_secs(5);
        while cgroups.remove(&self.cgroup).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = sys::mount::Mounts::unmount_below(&sys::mount::HostMounts, &self.dir);
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default();
            let end: Vec<&str> = log.lines().rev().take(15).collect();
            eprintln!(
                "containerd's last words:\n{}",
                end.into_iter().rev().collect::<Vec<_>>().join("\n")
            );
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Creates a client CA with a client, and another CA with a client that the first does not trust.
fn identities(dir: &Path) {
    use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
    let validity = Validity::starting(std::time::SystemTime::now(), Duration::from_secs(86_400));
    let spec =
        LeafSpec { subject: Subject::new("tester"), alt_names: Vec::new(), usage: Usage::Client };
    for (authority, client) in [("ca", "client"), ("other-ca", "stranger")] {
        let ca = Authority::create(authority, KeyAlgorithm::EcdsaP256, validity).unwrap();
        fs::write(dir.join(format!("{authority}.crt")), ca.cert().to_pem()).unwrap();
        let (cert, key) = ca.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
        fs::write(dir.join(format!("{client}.crt")), cert.to_pem()).unwrap();
        fs::write(dir.join(format!("{client}.key")), key.to_pem().unwrap()).unwrap();
    }
}

/// Kills the shims of this node's containerd, which outlive it by design.
fn kill_shims(dir: &Path) {
    let socket = dir.join("containerd.sock");
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut arguments = command.split(|&b| b == 0);
        if arguments.any(|argument| argument == socket.as_os_str().as_encoded_bytes()) {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "version = 2\nroot = \"{dir}/root\"\nstate = \"{dir}/state\"\n\
         disabled_plugins = [\"io.containerd.internal.v1.opt\"]\n\
         [grpc]\naddress = \"{dir}/containerd.sock\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{PAUSE}\"\nrestrict_oom_score_adj = true\n\
         disable_apparmor = true\nstream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{dir}/cni/bin\"\nconf_dir = \"{dir}/cni/net.d\"\n"
    )
}

/// Creates a network with loopback only, so that no test changes the machine's network.
fn network(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let plugin = "#!/bin/sh\ncat >/dev/null\ncase \"$CNI_COMMAND\" in\n\
        ADD) nsenter --net=\"$CNI_NETNS\" ip link set lo up\n\
        echo '{\"cniVersion\":\"0.4.0\",\"interfaces\":[{\"name\":\"eth0\",\"sandbox\":\"'$CNI_NETNS'\"}],\
\"ips\":[{\"version\":\"4\",\"address\":\"10.99.0.7/24\",\"interface\":0}]}' ;;\n\
        VERSION) echo '{\"cniVersion\":\"0.4.0\",\"supportedVersions\":[\"0.3.1\",\"0.4.0\"]}' ;;\nesac\n";
    for name in ["loopback", "nothing"] {
        let path = dir.join("cni/bin").join(name);
        fs::write(&path, plugin).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let list = "{\"cniVersion\":\"0.4.0\",\"name\":\"none\",\"plugins\":[{\"type\":\"nothing\"}]}";
    fs::write(dir.join("cni/net.d/10-none.conflist"), list).unwrap();
}

/// Waits until a condition holds, and fails after half a minute.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < until, "it did not come about that {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
