//! Conversion of a single-stack cluster to dual-stack by a changed configuration.

use e2e::{
    Host, Machines, configuration, fetch_script, init, is_etcd_installed, lock_machine, ready,
    until,
};

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}"#;

/// Starts the Pod `web`, a web server.
fn serve(host: &Host<'_>) {
    let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"nodeName": "alpha", "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "app:1"}]}}"#;
    host.kubectl_with(&["apply", "-f", "-"], pod).ok();
    host.kubectl("wait pod/web --for=condition=Ready --timeout=60s").ok();
}

/// Returns the values of a JSONPath of an object.
fn field(host: &Host<'_>, what: &str, path: &str) -> Vec<String> {
    let text = host.kubectl(&format!("get {what} -o jsonpath={{{path}}}")).ok();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Applies the Pod network's objects for the current configuration of the cluster.
fn network(host: &Host<'_>) {
    let objects = host.windlass("network print").ok();
    host.kubectl_with(&["apply", "-f", "-"], &objects).ok();
}

/// Waits until the Pod `web` gets an answer from its own Service.
fn wait_for_answer(host: &Host<'_>, address: &str) {
    until(&format!("an answer at {address}"), || {
        let script = fetch_script(address, "80");
        let ran = host.kubectl_with(&["exec", "web", "--", "sh", "-c", &script], "");
        if ran.code == Some(0) { Ok(()) } else { Err(ran.to_string()) }
    });
}

#[test]
#[ignore = "takes minutes: a control plane with etcd that changes its configuration"]
fn single_stack_cluster_becomes_dual_stack() {
    let _turn = lock_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("dual");
    let alpha = machines.start("alpha", 1);
    init(&alpha, "");
    network(&alpha);
    ready(&alpha, &[&alpha]);
    alpha.build_app();
    serve(&alpha);
    alpha.kubectl_with(&["apply", "-f", "-"], SERVICE).ok();
    assert_eq!(field(&alpha, "pod web", ".status.podIPs[*].ip").len(), 1);
    wait_for_answer(&alpha, &field(&alpha, "service web", ".spec.clusterIPs[*]")[0]);

    // Configure the ranges of both families for the control plane, kube-proxy, the network and other nodes.
    let both = configuration("").replace(
        "networking: {podSubnet: 10.244.0.0/16}",
        r#"networking: {podSubnet: "10.244.0.0/16,fd44::/56", serviceSubnet: "10.96.0.0/12,fd96::/108"}"#,
    );
    let file = alpha.write("both.yaml", &both);
    for phase in ["upload-config all", "control-plane all", "addon kube-proxy"] {
        alpha.windlass(&format!("init phase {phase} --config {file}")).ok();
    }
    until("the second range of Services", || {
        let ran = alpha.kubectl("get servicecidr kubernetes -o jsonpath={.spec.cidrs}");
        if ran.stdout.contains("fd96::/108") { Ok(()) } else { Err(ran.to_string()) }
    });
    network(&alpha);
    alpha.kubectl("-n kube-system rollout restart daemonset/kube-proxy").ok();
    // A Node keeps its Pod ranges. It gets both families when it is deleted and registers again.
    alpha.kubectl("delete pod web --force").ok();
    alpha.kubectl("delete node alpha").ok();
    alpha.run("sh", &["-c", "kill -9 $(cut -d' ' -f1 /run/windlass/kubelet.pid)"]).ok();
    until("ranges of both families", || {
        let ran = alpha.kubectl("get node alpha -o jsonpath={.spec.podCIDRs[*]}");
        if ran.stdout.contains("fd44::/64") { Ok(()) } else { Err(ran.to_string()) }
    });
    ready(&alpha, &[&alpha]);
    alpha.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=60s").ok();
    until("a Pod of both families", || {
        alpha.kubectl("delete pod web --force --ignore-not-found").ok();
        serve(&alpha);
        let ips = field(&alpha, "pod web", ".status.podIPs[*].ip");
        if ips.len() == 2 { Ok(()) } else { Err(format!("{ips:?}")) }
    });
    // The Service stays single-stack until its ipFamilyPolicy changes.
    assert_eq!(field(&alpha, "service web", ".spec.clusterIPs[*]").len(), 1);
    let wanted = r#"{"spec":{"ipFamilyPolicy":"PreferDualStack"}}"#;
    alpha.kubectl(&format!("patch service web --type merge -p {wanted}")).ok();
    let addresses = field(&alpha, "service web", ".spec.clusterIPs[*]");
    assert!(addresses.len() == 2 && addresses[1].starts_with("fd96::"), "{addresses:?}");
    addresses.iter().for_each(|address| wait_for_answer(&alpha, address));
}
