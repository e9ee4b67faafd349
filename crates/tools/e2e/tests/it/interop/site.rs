//! Two machines on which upstream's components and ours replace each other.

use std::path::PathBuf;

use e2e::{Background, Host, fetch_script, until};

const SOCKET: &str = "--cri-socket unix:///run/containerd/containerd.sock";
/// The components of kubeadm's control plane besides etcd.
pub(super) const CONTROL_PLANE: [&str; 3] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
/// The repository of our images.
pub(super) const OURS: &str = "windlass.local";
/// The repository of upstream's images.
pub(super) const UPSTREAMS: &str = "registry.k8s.io";

/// The configuration. The conntrack limits are off, because the machines share a kernel. kube-proxy's mode is iptables:
/// in the mode nftables, upstream's kube-proxy v1.36.2 with nft 1.0.6 loses its rules when it restarts.
pub(super) const CONFIGURATION: &str = "
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
controlPlaneEndpoint: 192.0.2.1:6443
encryptionAlgorithm: ECDSA-P256
networking: {podSubnet: 10.244.0.0/16}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
evictionHard: {nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%, imagefs.inodesFree: 0%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
";

/// The replacement of a service manager: runs the kubelet once kubeadm has written its configuration and flags.
const KUBELET: &str = "
    until [ -s /var/lib/kubelet/config.yaml ] && [ -s /var/lib/kubelet/kubeadm-flags.env ]; do sleep 0.1; done
    . /var/lib/kubelet/kubeadm-flags.env
    log=$1; shift
    exec \"$@\" --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
        --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS >>$log 2>&1";

/// A DaemonSet of web servers whose pages show their names, and their Service.
const WORKLOAD: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: app, image: 'app:1', imagePullPolicy: Never}]
---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec: {selector: {app: NAME}, ports: [{port: 80, targetPort: 8080}]}
";

/// The versions of the images that a version of upstream's kubeadm wants.
pub(super) struct Versions {
    pub(super) kubernetes: &'static str,
    pub(super) etcd: &'static str,
    pub(super) pause: &'static str,
    pub(super) coredns: &'static str,
}

/// The versions of our own release.
pub(super) const CURRENT: Versions =
    Versions { kubernetes: "v1.36.2", etcd: "3.6.8-0", pause: "3.10.2", coredns: "v1.14.2" };

/// Two machines of one cluster: the first has the control plane.
pub(super) struct Site<'a> {
    pub(super) first: &'a Host<'a>,
    pub(super) worker: &'a Host<'a>,
    /// The directory of upstream's binaries.
    pub(super) peer: PathBuf,
    pub(super) versions: Versions,
}

impl Site<'_> {
    pub(super) fn hosts(&self) -> [&Host<'_>; 2] {
        [self.first, self.worker]
    }

    fn program(&self, name: &str) -> String {
        let path = self.peer.join(name);
        assert!(path.is_file(), "{} does not exist", path.display());
        path.display().to_string()
    }

    /// Builds our images, and upstream's from its binaries, so that no registry is needed.
    pub(super) fn images(&self) {
        for host in self.hosts() {
            host.windlass(&format!("images build {SOCKET}")).ok();
            host.build_app();
            // Upstream's image contains kube-proxy's tools; here the machine's tools are mounted.
            let proxy = format!("kube-proxy:{}", self.versions.kubernetes);
            self.pack(host, &proxy, "kube-proxy", "/opt/kube-proxy");
            for tag in ["3.6", self.versions.pause] {
                rename(host, &format!("pause:{}", CURRENT.pause), &format!("pause:{tag}"));
            }
        }
        for name in CONTROL_PLANE {
            let path = format!("/usr/local/bin/{name}");
            self.pack(self.first, &format!("{name}:{}", self.versions.kubernetes), name, &path);
        }
        let etcd = format!("etcd:{}", self.versions.etcd);
        self.pack(self.first, &etcd, "etcd", "/usr/local/bin/etcd");
        // Both clusters use our cluster DNS.
        let ours = format!("coredns:{}", CURRENT.coredns);
        rename(self.first, &ours, &format!("coredns/coredns:{}", self.versions.coredns));
    }

    fn pack(&self, host: &Host<'_>, image: &str, program: &str, path: &str) {
        let binary = self.program(program);
        let image = format!("{UPSTREAMS}/{image}");
        host.windlass(&format!("images build {image} --binary {binary} --path {path} {SOCKET}"))
            .ok();
    }

    /// Runs upstream's kubeadm.
    #[track_caller]
    pub(super) fn kubeadm(&self, host: &Host<'_>, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        host.run(&self.program("kubeadm"), &words).ok()
    }

    pub(super) fn upstreams_kubelet(&self, host: &Host<'_>) -> Background {
        run_kubelet(host, &[&self.program("kubelet")])
    }

    pub(super) fn our_kubelet(&self, host: &Host<'_>) -> Background {
        run_kubelet(host, &[&host.binary(), "kubelet"])
    }

    /// Waits until the static Pods of these components run from a repository's images.
    #[track_caller]
    pub(super) fn running(&self, components: &[&str], repository: &str) {
        for component in components {
            let path = "{.status.containerStatuses[0].image} {.status.containerStatuses[0].ready}";
            let pod = format!("{component}-{}", self.first.name);
            let line = ["-n", "kube-system", "get", "pod", &pod, "-o"];
            until(&format!("{component} of {repository}"), || {
                let output = format!("jsonpath={path}");
                let ran = self.first.kubectl_with(&[&line[..], &[&output]].concat(), "");
                let right = ran.stdout.starts_with(repository) && ran.stdout.ends_with(" true");
                if right { Ok(()) } else { Err(ran.to_string()) }
            });
        }
    }

    /// Changes the images of static Pods to another repository and waits until they run.
    #[track_caller]
    pub(super) fn swap(&self, components: &[&str], from: &str, to: &str) {
        for component in components {
            let command = format!("s|image: {from}/{component}|image: {to}/{component}|");
            let manifest = format!("/etc/kubernetes/manifests/{component}.yaml");
            self.first.run("sed", &["-i", &command, &manifest]).ok();
        }
        self.running(components, to);
    }

    /// Switches kube-proxy to upstream's, with the machine's tools mounted in place of its image's.
    #[track_caller]
    pub(super) fn upstreams_proxy(&self) {
        let places = ["/usr", "/lib", "/lib64", "/sbin", "/etc/alternatives"];
        let real = |place: &str| match place {
            "/lib" | "/lib64" | "/sbin" => format!("/usr{place}"),
            _ => place.to_owned(),
        };
        let name = |place: &str| place.trim_start_matches('/').replace('/', "-");
        let mounts =
            places.map(|p| serde_json::json!({"name": name(p), "mountPath": p, "readOnly": true}));
        let volumes =
            places.map(|p| serde_json::json!({"name": name(p), "hostPath": {"path": real(p)}}));
        let image = format!("{UPSTREAMS}/kube-proxy:{}", self.versions.kubernetes);
        let command = [
            "/opt/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ];
        let patch = serde_json::json!({"spec": {"template": {"spec": {"volumes": volumes, "containers": [{
            "name": "kube-proxy", "image": image, "command": command,
            "volumeMounts": mounts}]}}}});
        let patch = patch.to_string();
        let line = ["-n", "kube-system", "patch", "daemonset", "kube-proxy", "-p", &patch];
        self.first.kubectl_with(&line, "").ok();
        self.proxies(UPSTREAMS);
    }

    /// Waits until every node's kube-proxy runs from a repository's image.
    #[track_caller]
    pub(super) fn proxies(&self, repository: &str) {
        let system = |line: &str| self.first.kubectl(&format!("-n kube-system {line}"));
        system("rollout status daemonset/kube-proxy --timeout=90s").ok();
        let path = "jsonpath={.items[*].spec.containers[0].image}";
        let images = system(&format!("get pods -l k8s-app=kube-proxy -o {path}")).ok();
        let right = images.split_whitespace().all(|image| image.starts_with(repository));
        assert!(right && !images.is_empty(), "{images}");
    }

    /// Creates a workload on every node, checks it with [`Site::answers`], and deletes it.
    #[track_caller]
    pub(super) fn works(&self, name: &str) {
        let kubectl = |line: &str| self.first.kubectl(line);
        self.deploy(name);
        self.answers(name);
        kubectl(&format!("delete daemonset,service {name}")).ok();
        until("the workload's end", || {
            let ran = kubectl(&format!("get pods -l app={name} -o name"));
            if ran.code == Some(0) && ran.stdout.is_empty() { Ok(()) } else { Err(self.state()) }
        });
    }

    #[track_caller]
    pub(super) fn deploy(&self, name: &str) {
        let manifest = WORKLOAD.replace("NAME", name);
        self.first.kubectl_with(&["apply", "-f", "-"], &manifest).ok();
        let ran = self.first.kubectl(&format!("rollout status daemonset/{name} --timeout=90s"));
        assert!(ran.code == Some(0), "{ran}\n{}", self.state());
    }

    /// Asserts that `logs` and `exec` work for every Pod of a workload and that each Pod reaches the Service by name.
    #[track_caller]
    pub(super) fn answers(&self, name: &str) {
        let pods = self.first.kubectl(&format!("get pods -l app={name} -o name")).ok();
        assert_eq!(pods.lines().count(), 2, "one on each node: {pods}");
        for pod in pods.lines() {
            let own = pod.trim_start_matches("pod/");
            let logs = self.first.kubectl(&format!("logs {pod}")).ok();
            assert!(logs.contains(&format!("here is {own}")), "{pod} logged {logs}");
            let script = fetch_script(&format!("{name}.default.svc.cluster.local"), "80");
            until(&format!("an answer of {name} to {pod}"), || {
                let ran = self.first.kubectl_with(&["exec", pod, "--", "sh", "-c", &script], "");
                if ran.stdout.starts_with("version 1 on ") { Ok(()) } else { Err(ran.to_string()) }
            });
        }
    }

    /// Returns the container ids of a workload, which a replacement of components must not change.
    pub(super) fn containers(&self, name: &str) -> String {
        let path = "{.items[*].status.containerStatuses[*].containerID}";
        self.first.kubectl(&format!("get pods -l app={name} -o jsonpath={path}")).ok()
    }

    fn state(&self) -> String {
        ["get pods -A -o wide", "get nodes", "get events -A"]
            .map(|line| self.first.kubectl(line).to_string())
            .join("\n")
    }
}

pub(super) fn rename(host: &Host<'_>, ours: &str, theirs: &str) {
    let (ours, theirs) = (format!("{OURS}/{ours}"), format!("{UPSTREAMS}/{theirs}"));
    host.run("ctr", &["-n", "k8s.io", "images", "tag", "--force", &ours, &theirs]).ok();
}

/// Runs a kubelet with the settings of `join`, and logs into a file.
pub(super) fn run_kubelet(host: &Host<'_>, program: &[&str]) -> Background {
    let log = host.write(&format!("kubelet-{}.log", host.name), "");
    let script = ["-c", KUBELET, "sh", &log];
    Background::start(host.command("sh", &[&script[..], program].concat()))
}
