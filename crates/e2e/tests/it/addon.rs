//! The Pod network as an add-on of a cluster of `init`: a DaemonSet that an administrator applies.

use e2e::{Host, Machines, alone, is_etcd_there, ready, until};

const CONFIGURATION: &str = "
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.1}
nodeRegistration: {ignorePreflightErrors: [SystemVerification], taints: []}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
nodeBalancer: {port: 7445}
encryptionAlgorithm: ECDSA-P256
networking: {podSubnet: 10.244.0.0/16}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
evictionHard: {nodefs.available: 1%, imagefs.available: 1%}
";

/// As Flannel leaves it on a node, with our plugin in the place of the bridge's that it hands on to.
const FLANNEL: &str = r#"{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"windlass-cni","bridge":"cni0","mtu":1450,
    "subnets":["10.244.77.0/24"],"clusterCIDRs":["10.244.0.0/16"],"dataDir":"/var/lib/windlass/flannel",
    "capabilities":{"portMappings":true}}]}"#;

fn web(admin: &Host<'_>, host: &Host<'_>) -> String {
    let name = &host.name;
    let pod = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}", "labels": {{"app": "{name}"}}}},
            "spec": {{"nodeName": "{name}", "terminationGracePeriodSeconds": 0, "containers": [
                {{"name": "c", "image": "box:1", "command": ["httpd", "-f", "-p", "8080", "-h", "/etc"]}}]}}}}"#
    );
    admin.kubectl_with(&["apply", "-f", "-"], &pod).ok();
    admin.kubectl(&format!("wait pod/{name} --for=condition=Ready --timeout=60s")).ok();
    admin.kubectl(&format!("get pod {name} -o jsonpath={{.status.podIP}}")).ok()
}

/// What the Pod of one machine gets from an address, if anything.
fn get(admin: &Host<'_>, from: &Host<'_>, address: &str) -> Result<(), String> {
    let ask = format!("exec {} -- wget -T 2 -q -O - http://{address}:8080/hostname", from.name);
    let ran = admin.kubectl(&ask);
    if ran.code == Some(0) { Ok(()) } else { Err(ran.to_string()) }
}

fn routes(host: &Host<'_>) -> String {
    host.run("ip", &["route", "show", "proto", "87"]).stdout
}

#[test]
#[ignore = "takes minutes: three machines with etcd"]
fn pods_meet_through_the_tunnel_and_another_network_is_left_alone() {
    let _turn = alone();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("addon");
    let [alpha, beta, gamma] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let configuration = alpha.write("kubeadm.yaml", CONFIGURATION);
    alpha.windlass(&format!("init --config {configuration}")).ok();
    let line = alpha.windlass("token create --print-join-command").ok();
    let join = line.trim().strip_prefix("windlass ").expect("a command of ours").to_owned();
    let join = format!("{join} --ignore-preflight-errors=SystemVerification");
    // Somebody put another network on this one before.
    let foreign = gamma.write("10-flannel.conflist", FLANNEL);
    let script = "mkdir -p /opt/cni/bin /etc/cni/net.d && ln -sf \"$0\" /opt/cni/bin/windlass-cni && \
                  ln -sf \"$0\" /opt/cni/bin/loopback && cp \"$1\" /etc/cni/net.d/10-flannel.conflist";
    gamma.run("sh", &["-c", script, &gamma.binary(), &foreign]).ok();
    beta.windlass(&join).ok();
    gamma.windlass(&join).ok();

    let objects = alpha.windlass("network print --tunnel").ok();
    assert!(objects.contains("server: https://127.0.0.1:7445"), "{objects}");
    alpha.kubectl_with(&["apply", "-f", "-"], &objects).ok();
    ready(&alpha, &[&alpha, &beta, &gamma]);
    let rollout = "-n kube-system rollout status daemonset/windlass-network --timeout=60s";
    alpha.kubectl(rollout).ok();
    [&alpha, &beta, &gamma].iter().for_each(|host| host.build_box());
    let (_, there) = (web(&alpha, &alpha), web(&alpha, &beta));
    until("an answer across machines", || get(&alpha, &alpha, &there));
    assert!(routes(&alpha).contains(" dev wx0"), "{}", routes(&alpha));

    let policy = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "none"},
        "spec": {"podSelector": {"matchLabels": {"app": "beta"}}, "policyTypes": ["Ingress"]}}"#;
    alpha.kubectl_with(&["apply", "-f", "-"], policy).ok();
    until("silence", || match get(&alpha, &alpha, &there) {
        Ok(()) => Err("it still answers".to_owned()),
        Err(_) => Ok(()),
    });
    alpha.kubectl("delete networkpolicy none").ok();
    until("an answer without the policy", || get(&alpha, &alpha, &there));

    // The machine that had a network has it still, and nothing of ours.
    let own = web(&alpha, &gamma);
    assert!(own.starts_with("10.244.77."), "{own}");
    let configured = gamma.run("ls", &["/etc/cni/net.d"]).ok();
    assert_eq!(configured.trim(), "10-flannel.conflist");
    assert_eq!(routes(&gamma), "");
    gamma.run("ip", &["link", "show", "wx0"]).refused();
    // When that goes, ours comes.
    gamma.run("rm", &["/etc/cni/net.d/10-flannel.conflist"]).ok();
    alpha.kubectl("delete pod gamma --force").ok();
    until("the add-on's configuration", || {
        let configured = gamma.run("ls", &["/etc/cni/net.d"]).stdout;
        if configured.contains("10-windlass.conflist") { Ok(()) } else { Err(configured) }
    });
    web(&alpha, &gamma);
    until("an answer to the third machine", || get(&alpha, &gamma, &there));
}
