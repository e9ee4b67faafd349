//! The Pod network as an add-on: an administrator applies the DaemonSet of `network print` to a cluster of `init`.

use std::path::Path;

use e2e::{Host, Machines, fetch_script, init, is_etcd_installed, lock_machine, ready, until};

/// The CNI configuration in kube-flannel.yml.
const FLANNEL: &str = r#"{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
"#;
/// The file that flanneld writes on a node.
const SUBNET: &str = "FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.77.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
";
/// A replacement of Flannel's CNI plugin, which Debian does not package. It reads [`SUBNET`] and calls `bridge`.
const PLUGIN: &str = r#"#!/bin/sh
. /run/flannel/subnet.env
exec /opt/cni/bin/bridge <<END
{"name": "cbr0", "cniVersion": "0.3.1", "type": "bridge", "mtu": $FLANNEL_MTU, "isGateway": true, "ipMasq": false,
 "hairpinMode": true, "isDefaultGateway": true,
 "ipam": {"type": "host-local", "subnet": "${FLANNEL_SUBNET%.*}.0/24", "routes": [{"dst": "$FLANNEL_NETWORK"}]}}
END
"#;
/// Debian's directory of the shared CNI plugins.
const PLUGINS: &str = "/usr/lib/cni";

fn install_flannel(host: &Host<'_>) {
    assert!(Path::new(PLUGINS).join("bridge").exists(), "install containernetworking-plugins");
    let files = [("10-flannel.conflist", FLANNEL), ("subnet.env", SUBNET), ("flannel", PLUGIN)]
        .map(|(name, text)| host.write(name, text));
    let script = "mkdir -p /opt/cni/bin /etc/cni/net.d /run/flannel && cp \"$0\"/* /opt/cni/bin && \
                  cp \"$1\" /etc/cni/net.d && cp \"$2\" /run/flannel && install \"$3\" /opt/cni/bin";
    let [conflist, subnet, plugin] = &files;
    host.run("sh", &["-c", script, PLUGINS, conflist, subnet, plugin]).ok();
}

fn web(admin: &Host<'_>, host: &Host<'_>) -> String {
    let name = &host.name;
    let pod = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}", "labels": {{"app": "{name}"}}}},
            "spec": {{"nodeName": "{name}", "terminationGracePeriodSeconds": 0, "containers": [
                {{"name": "c", "image": "app:1"}}]}}}}"#
    );
    admin.kubectl_with(&["apply", "-f", "-"], &pod).ok();
    admin.kubectl(&format!("wait pod/{name} --for=condition=Ready --timeout=60s")).ok();
    admin.kubectl(&format!("get pod {name} -o jsonpath={{.status.podIP}}")).ok()
}

/// Fetches the page at an address from the Pod of one machine.
fn get(admin: &Host<'_>, from: &Host<'_>, address: &str) -> Result<(), String> {
    let script = fetch_script(address, "8080");
    let ran = admin.kubectl_with(&["exec", &from.name, "--", "sh", "-c", &script], "");
    if ran.code == Some(0) { Ok(()) } else { Err(ran.to_string()) }
}

fn routes(host: &Host<'_>) -> String {
    host.run("ip", &["route", "show", "proto", "87"]).stdout
}

#[test]
#[ignore = "takes minutes: three machines with etcd"]
fn add_on_tunnels_pods_and_keeps_a_foreign_network() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("addon");
    let [alpha, beta, gamma] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let join = init(&alpha, "nodeBalancer: {port: 7445}").worker;
    // The administrator installed another network on this machine before.
    install_flannel(&gamma);
    beta.windlass(&join).ok();
    gamma.windlass(&join).ok();

    let objects = alpha.windlass("network print --tunnel").ok();
    assert!(objects.contains("server: https://127.0.0.1:7445"), "{objects}");
    alpha.kubectl_with(&["apply", "-f", "-"], &objects).ok();
    ready(&alpha, &[&alpha, &beta, &gamma]);
    let rollout = "-n kube-system rollout status daemonset/windlass-network --timeout=60s";
    alpha.kubectl(rollout).ok();
    [&alpha, &beta, &gamma].iter().for_each(|host| host.build_app());
    let (_, there) = (web(&alpha, &alpha), web(&alpha, &beta));
    until("an answer across machines", || get(&alpha, &alpha, &there));
    assert!(routes(&alpha).contains(" dev wx0"), "{}", routes(&alpha));

    let policy = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "none"},
        "spec": {"podSelector": {"matchLabels": {"app": "beta"}}, "policyTypes": ["Ingress"]}}"#;
    alpha.kubectl_with(&["apply", "-f", "-"], policy).ok();
    until("no answer", || match get(&alpha, &alpha, &there) {
        Ok(()) => Err("it still answers".to_owned()),
        Err(_) => Ok(()),
    });
    alpha.kubectl("delete networkpolicy none").ok();
    until("an answer without the policy", || get(&alpha, &alpha, &there));

    // The machine with the other network keeps it, and the add-on configures nothing there.
    let own = web(&alpha, &gamma);
    assert!(own.starts_with("10.244.77."), "{own}");
    let configured = gamma.run("ls", &["/etc/cni/net.d"]).ok();
    assert_eq!(configured.trim(), "10-flannel.conflist");
    assert_eq!(routes(&gamma), "");
    gamma.run("ip", &["link", "show", "wx0"]).refused();
    // Once the other network is removed, the add-on configures the machine.
    gamma.run("rm", &["/etc/cni/net.d/10-flannel.conflist"]).ok();
    alpha.kubectl("delete pod gamma --force").ok();
    until("the add-on's configuration", || {
        let configured = gamma.run("ls", &["/etc/cni/net.d"]).stdout;
        if configured.contains("10-windlass.conflist") { Ok(()) } else { Err(configured) }
    });
    web(&alpha, &gamma);
    until("an answer to the third machine", || get(&alpha, &gamma, &there));
}
