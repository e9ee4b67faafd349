//! kubeadm's chain on several machines: `init` and `join`, the kubelet as a service, static Pods, real etcd.

use std::fs;

use e2e::{Host, Machines, alone, until};

pub(crate) const CONFIGURATION: &str = "
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
nodeRegistration: {ignorePreflightErrors: [SystemVerification]}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
controlPlaneEndpoint: 192.0.2.1:6443
encryptionAlgorithm: ECDSA-P256
networking: {podSubnet: 10.244.0.0/16}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
# The machine may be nearly full, which is not what is tested.
evictionHard: {nodefs.available: 1%, imagefs.available: 1%}
# Images that no registry has would not come back.
imageGCHighThresholdPercent: 100
";

/// Whether there is an etcd to run; says so if not.
pub(crate) fn is_etcd_there() -> bool {
    let there = ["/usr/local/bin/etcd", "/usr/bin/etcd"]
        .iter()
        .any(|path| fs::exists(path).unwrap_or(false));
    if !there {
        eprintln!("skipped: no etcd is installed (Debian: apt-get install etcd-server)");
    }
    there
}

/// The Pod network of a node as an administrator would write it: our plugin, the node's range, a route to each other's.
pub(crate) fn connect(admin: &Host<'_>, hosts: &[&Host<'_>]) {
    let range = |host: &Host<'_>| {
        until("the node's Pod range", || {
            let ran =
                admin.kubectl(&format!("get node {} -o jsonpath={{.spec.podCIDR}}", host.name));
            if ran.code == Some(0) && !ran.stdout.is_empty() {
                Ok(ran.stdout)
            } else {
                Err(ran.to_string())
            }
        })
    };
    for host in hosts {
        let configuration = format!(
            r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{"type":"windlass-cni","bridge":"wl0","mtu":0,"subnets":["{}"],"clusterCIDRs":["10.244.0.0/16"],"dataDir":"/var/lib/windlass/cni","capabilities":{{"portMappings":true}}}}]}}"#,
            range(host)
        );
        let file = host.write(&format!("{}.conflist", host.name), &configuration);
        let script = "mkdir -p /opt/cni/bin /etc/cni/net.d && ln -sf \"$0\" /opt/cni/bin/windlass-cni && \
                      ln -sf \"$0\" /opt/cni/bin/loopback && cp \"$1\" /etc/cni/net.d/10-pods.conflist";
        host.run("sh", &["-c", script, &host.binary(), &file]).ok();
        for other in hosts.iter().filter(|other| other.name != host.name) {
            host.run("ip", &["route", "replace", &range(other), "via", &other.address]).ok();
        }
    }
}

pub(crate) fn ready(admin: &Host<'_>, hosts: &[&Host<'_>]) {
    for host in hosts {
        admin.kubectl(&format!("wait node/{} --for=condition=Ready --timeout=60s", host.name)).ok();
    }
}

#[test]
#[ignore = "not steady yet: cargo xtask test --full runs it"]
fn machines_become_a_cluster_and_are_given_back() {
    let _turn = alone();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("kubeadm");
    let (first, worker) = (machines.start("alpha", 1), machines.start("beta", 2));
    let before = [traces(&first), traces(&worker)];
    let configuration = first.write("kubeadm.yaml", CONFIGURATION);
    let said = first.windlass(&format!("init --config {configuration} --upload-certs")).ok();
    let again = first.windlass(&format!("init --config {configuration}")).refused();
    assert!(again.contains("[ERROR Port-6443]") && again.contains("run reset first"), "{again}");

    // What init prints is what the others run.
    let line = first.windlass("token create --print-join-command").ok();
    let join = line.trim().strip_prefix("windlass ").expect("a command of ours").to_owned();
    let join = format!("{join} --ignore-preflight-errors=SystemVerification");
    worker.windlass(&join).ok();
    connect(&first, &[&first, &worker]);
    ready(&first, &[&first, &worker]);
    first.kubectl("-n kube-system rollout status deployment/coredns --timeout=60s").ok();
    first.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=60s").ok();

    // A Pod on the worker finds the API by cluster DNS, and is heard across machines.
    worker.build_box();
    first.kubectl("run box --image=box:1 --restart=Never").ok();
    first.kubectl("wait pod/box --for=condition=Ready --timeout=60s").ok();
    assert!(first.kubectl("logs box").ok().contains("here is box"));
    until("an answer of cluster DNS", || {
        let ran = first.kubectl("exec box -- nslookup kubernetes.default.svc.cluster.local");
        if ran.stdout.contains("10.96.0.1") { Ok(()) } else { Err(ran.to_string()) }
    });

    let second = machines.start("gamma", 3);
    let key = said.lines().find(|l| l.len() == 64 && l.bytes().all(|b| b.is_ascii_hexdigit()));
    let key = key.expect("init prints the certificate key");
    second.windlass(&format!("{join} --control-plane --certificate-key {key}")).ok();
    connect(&first, &[&first, &worker, &second]);
    ready(&first, &[&second]);
    let members =
        |host: &Host<'_>| host.kubectl("-n kube-system get pods -l component=etcd -o name").ok();
    assert_eq!(members(&second).lines().count(), 2, "the second control plane's own files work");

    second.windlass("reset --force").ok();
    first.kubectl("delete node gamma").ok();
    until("one member of etcd", || {
        let text = members(&first);
        if text.lines().count() == 1 { Ok(()) } else { Err(text) }
    });
    first.kubectl("create configmap written-by-one --from-literal=a=b").ok();

    // The kubelet comes back by itself; Pods do not notice.
    let started =
        first.kubectl("get pod box -o jsonpath={.status.containerStatuses[0].containerID}").ok();
    worker.run("sh", &["-c", "kill -9 $(cut -d' ' -f1 /run/windlass/kubelet.pid)"]).ok();
    until("a kubelet again", || {
        let ran = first.kubectl("logs box");
        if ran.stdout.contains("here is box") { Ok(()) } else { Err(ran.to_string()) }
    });
    let after =
        first.kubectl("get pod box -o jsonpath={.status.containerStatuses[0].containerID}").ok();
    assert_eq!(started, after);

    for (host, before) in [&worker, &first].into_iter().zip(before.into_iter().rev()) {
        host.windlass("reset --force").ok();
        let now = traces(host);
        let left: Vec<&str> =
            now.lines().filter(|line| !before.lines().any(|b| b == *line)).collect();
        assert!(left.is_empty(), "{} keeps {left:#?}", host.name);
    }
}

/// What a machine could keep: interfaces, rules, mounts, control groups, files and processes.
fn traces(host: &Host<'_>) -> String {
    // The administrator's links to the plugin and the routes of `connect` are not ours, and xtables' lock is everybody's.
    let script = "ip -o link | cut -d: -f2; nft list ruleset; cut -d' ' -f5 /proc/self/mountinfo; \
                  find /sys/fs/cgroup -type d; \
                  find /etc/kubernetes /etc/cni /var/lib/kubelet /var/lib/etcd /var/lib/cni /var/lib/windlass /var/log/pods \
                    /var/log/containers /var/log/windlass /run -not -path '/run/containerd/*' -not -path /run/xtables.lock -not -path /var/lib/cni/results; \
                  own=$(readlink /proc/self/ns/uts); \
                  for p in /proc/[0-9]*; do \
                    if [ \"$(readlink $p/ns/uts)\" = \"$own\" ]; then tr '\\0' ' ' <$p/cmdline; echo; fi; \
                  done 2>/dev/null | grep 'keep-kubelet\\|kubelet --\\|shim\\|^kube-\\|^etcd'";
    host.run("sh", &["-c", script]).stdout
}
