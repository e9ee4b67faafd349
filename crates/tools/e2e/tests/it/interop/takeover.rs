//! Replacement of the components of `up` by upstream's processes, and the way back.

use std::{collections::BTreeMap, path::PathBuf};

use e2e::{Background, Cluster, Session, binary, lock_machine, until};

use super::{peer, results::Results};

const TAKEN: &str =
    "upstream's controller manager, scheduler, kubelet and kube-proxy replace those of `up`";
const WORKS: &str = "a new workload runs, and no container of ours was restarted";
const BACK: &str =
    "ours replace upstream's again, no container is restarted, and upstream's workload is deleted";

/// Returns id and restart count of the containers of all Pods whose names do not start with `except`.
fn containers(s: &Session<'_>, except: &str) -> BTreeMap<String, String> {
    let pods = s.get("pods --all-namespaces");
    let mut found = BTreeMap::new();
    for pod in pods["items"].as_array().unwrap() {
        for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            if !name.starts_with(except) {
                found.insert(name, format!("{} {}", status["containerID"], status["restartCount"]));
            }
        }
    }
    found
}

/// Starts components as processes on a cluster of `up`.
struct Components<'a> {
    cluster: &'a Cluster,
    kubernetes: PathBuf,
    peer: PathBuf,
}

/// Prints the ends of the components' logs if the test failed.
impl Drop for Components<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for component in
            ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"]
        {
            let log = self.cluster.directory.join(format!("{component}.log"));
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.get(lines.len().saturating_sub(20)..).unwrap_or_default();
            eprintln!("--- {component}\n{}", last.join("\n"));
        }
    }
}

impl Components<'_> {
    fn file(&self, name: &str) -> String {
        self.kubernetes.join(name).display().to_string()
    }

    /// Starts a component in the background. Its log is in the cluster's directory.
    fn start(&self, component: &str, program: &str, flags: &[String]) -> Background {
        let log = self.cluster.directory.join(format!("{component}.log")).display().to_string();
        let script = "log=$1; shift; exec \"$@\" >>\"$log\" 2>&1";
        let mut command = self.cluster.namespace.command("sh", &["-c", script, "sh", &log]);
        command.args(program.split_whitespace()).args(flags);
        Background::start(command)
    }

    fn upstream(&self, component: &str, flags: &[String]) -> Background {
        let program = self.peer.join(component);
        assert!(program.is_file(), "{} does not exist", program.display());
        self.start(component, &program.display().to_string(), flags)
    }

    /// Starts our API server as a separate process on the cluster's store.
    fn api_server(&self, s: &Session<'_>) -> Background {
        let file = |name: &str| self.file(&format!("pki/{name}"));
        let flags = [
            format!(
                "--advertise-address={}",
                s.field("nodes", "{.items[0].status.addresses[0].address}")
            ),
            "--allow-privileged=true".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--store-dir={}", self.cluster.root().join("var/lib/store").display()),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
            format!("--kubelet-client-certificate={}", file("apiserver-kubelet-client.crt")),
            format!("--kubelet-client-key={}", file("apiserver-kubelet-client.key")),
            format!("--requestheader-client-ca-file={}", file("front-proxy-ca.crt")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        ];
        for role in ["agent", "control-plane"] {
            self.cluster.kill(role);
        }
        let program = format!("{} kube-apiserver", binary().display());
        let server = self.start("kube-apiserver", &program, &flags);
        s.until("get --raw /readyz", |answer| answer == "ok");
        server
    }

    fn controller_manager(&self) -> Background {
        let identity = self.file("controller-manager.conf");
        let file = |name: &str| self.file(&format!("pki/{name}"));
        self.upstream(
            "kube-controller-manager",
            &[
                format!("--kubeconfig={identity}"),
                format!("--authentication-kubeconfig={identity}"),
                format!("--authorization-kubeconfig={identity}"),
                "--use-service-account-credentials=true".to_owned(),
                format!("--root-ca-file={}", file("ca.crt")),
                format!("--cluster-signing-cert-file={}", file("ca.crt")),
                format!("--cluster-signing-key-file={}", file("ca.key")),
                format!("--service-account-private-key-file={}", file("sa.key")),
                "--allocate-node-cidrs=true".to_owned(),
                "--cluster-cidr=10.244.0.0/16".to_owned(),
                "--service-cluster-ip-range=10.96.0.0/12".to_owned(),
            ],
        )
    }

    fn scheduler(&self) -> Background {
        let identity = self.file("scheduler.conf");
        self.upstream(
            "kube-scheduler",
            &[
                format!("--kubeconfig={identity}"),
                format!("--authentication-kubeconfig={identity}"),
                format!("--authorization-kubeconfig={identity}"),
            ],
        )
    }

    fn kubelet(&self, node: &str) -> Background {
        let kubelet = self.cluster.root().join("var/lib/kubelet");
        self.upstream(
            "kubelet",
            &[
                format!("--config={}", kubelet.join("config.yaml").display()),
                format!("--kubeconfig={}", self.file("kubelet.conf")),
                format!("--root-dir={}", kubelet.display()),
                format!("--cert-dir={}", kubelet.join("pki").display()),
                format!("--hostname-override={node}"),
            ],
        )
    }

    /// Starts upstream's kube-proxy in the mode iptables, whose rules are separate from ours. The conntrack limits are
    /// off, because they are the whole machine's.
    fn proxy(&self, node: &str) -> Background {
        let flags = [
            format!("--kubeconfig={}", self.file("kube-proxy.conf")),
            "--proxy-mode=iptables".to_owned(),
            "--cluster-cidr=10.244.0.0/16".to_owned(),
            format!("--hostname-override={node}"),
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ];
        self.upstream("kube-proxy", &flags)
    }
}

#[test]
fn upstreams_components_take_over_and_hand_back() {
    let Some(peer) = peer() else { return };
    let _turn = lock_machine();
    let mut results = Results::new("takeover", &peer, &[TAKEN, WORKS, BACK]);
    let cluster = Cluster::new("interop");
    cluster.up().ok();
    cluster.build_images();
    let s = Session::in_default_namespace(&cluster);
    s.toolbox();
    s.deploy("ours", "app:1", 2);
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let before = containers(&s, "theirs");

    let kubernetes = cluster.root().join("etc/kubernetes");
    let components = Components { cluster: &cluster, kubernetes, peer };
    results.begin(TAKEN);
    cluster.signal("STOP", cluster.pid("supervisor"));
    let server = components.api_server(&s);
    let others = [
        components.controller_manager(),
        components.scheduler(),
        components.kubelet(&node),
        components.proxy(&node),
    ];
    let holder = "get lease -n kube-system kube-scheduler -o jsonpath={.spec.holderIdentity}";
    s.until(holder, |holder| !holder.is_empty());
    let rules = || cluster.run("nft", &["list", "ruleset"]).stdout;
    until("upstream's rules, and none of ours", || {
        let now = rules();
        let theirs = now.contains("chain KUBE-SERVICES") && !now.contains("table ip kube-proxy");
        if theirs { Ok(()) } else { Err(now) }
    });
    results.begin(WORKS);
    s.deploy("theirs", "app:2", 3);
    s.kubectl("expose deployment theirs --port=80 --target-port=8080").ok();
    assert!(s.fetch("theirs", "80").starts_with("version 2 on theirs-"));
    s.kubectl("scale deployment ours --replicas=3").ok();
    s.available("ours");
    s.until("logs --prefix -l app=theirs", |logs| logs.contains("response:200"));
    let assert_unchanged = |now: &BTreeMap<String, String>, before: &BTreeMap<String, String>| {
        let lost = before.iter().filter(|(name, state)| now.get(*name) != Some(state));
        assert_eq!(lost.collect::<Vec<_>>(), Vec::new(), "{now:?}");
    };
    assert_unchanged(&containers(&s, "theirs"), &before);

    results.begin(BACK);
    let before = containers(&s, "none");
    drop(others);
    drop(server);
    cluster.signal("CONT", cluster.pid("supervisor"));
    s.until("get --raw /readyz", |answer| answer == "ok");
    s.kubectl("scale deployment theirs --replicas=4").ok();
    s.available("theirs");
    assert!(s.fetch("theirs", "80").starts_with("version 2 on theirs-"));
    assert_unchanged(&containers(&s, "none"), &before);
    until("our rules, and none of upstream's", || {
        let now = rules();
        let ours = !now.contains("chain KUBE-SERVICES") && now.contains("table ip kube-proxy");
        if ours { Ok(()) } else { Err(now) }
    });
    s.kubectl("delete deployment theirs").ok();
    s.until("get pods -l app=theirs -o name", |pods| pods.trim().is_empty());
}
