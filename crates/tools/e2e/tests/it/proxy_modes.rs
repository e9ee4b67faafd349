//! kube-proxy in each of its modes, selected in its ConfigMap and by a restart of its Pods.

use e2e::{
    Host, Machines, connect, fetch_script, init, is_etcd_installed, ready, share_machine, until,
};

const NODE: &str = "192.0.2.1";

/// Two web servers behind a Service and one with session affinity, and a Service without endpoints.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: web}}
spec: {nodeName: alpha, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "app:1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: two, labels: {app: web}}
spec: {nodeName: alpha, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "app:1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, clusterIP: 10.96.0.77, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30077}]}
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {clusterIP: 10.96.0.78, sessionAffinity: ClientIP, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody}
spec: {clusterIP: 10.96.0.79, selector: {app: nobody}, ports: [{port: 80}]}
"#;

/// Restarts kube-proxy in another mode.
fn set_mode(host: &Host<'_>, mode: &str) {
    let text = host.kubectl("-n kube-system get configmap kube-proxy -o yaml").ok();
    let chosen = format!("    mode: {mode}");
    let lines =
        text.lines().map(|line| if line.starts_with("    mode: ") { &*chosen } else { line });
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(text.contains(&chosen), "{text}");
    host.kubectl_with(&["replace", "-f", "-"], &text).ok();
    host.kubectl("-n kube-system rollout restart daemonset/kube-proxy").ok();
    host.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=60s").ok();
    until(&format!("mode {mode}"), || {
        let ran = host.run("sh", &["-c", &request_script("127.0.0.1", "10249", "/proxyMode")]);
        if ran.stdout.trim_end().ends_with(mode) { Ok(()) } else { Err(ran.to_string()) }
    });
}

fn request_script(address: &str, port: &str, path: &str) -> String {
    format!("printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 5 {address} {port}")
}

/// Fetches the page at an address from a Pod.
fn fetch(host: &Host<'_>, address: &str) -> Result<String, String> {
    let ran =
        host.kubectl_with(&["exec", "one", "--", "sh", "-c", &fetch_script(address, "80")], "");
    if ran.code == Some(0) { Ok(ran.stdout) } else { Err(ran.to_string()) }
}

fn services_work(machines: &Machines, host: &Host<'_>) {
    let mut seen = std::collections::BTreeSet::new();
    until("both servers by the cluster's address", || {
        seen.insert(fetch(host, "10.96.0.77")?);
        if seen.len() == 2 { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    let first = until("the Service with affinity", || fetch(host, "10.96.0.78"));
    for _ in 0..8 {
        assert_eq!(fetch(host, "10.96.0.78").as_ref(), Ok(&first), "the client moved");
    }
    until("the node's port from another machine", || {
        let script = request_script(NODE, "30077", "/");
        let output =
            machines.bridge_command("sh", &["-c", &script]).output().map_err(|e| e.to_string())?;
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
        if page.contains("version 1 on ") { Ok(()) } else { Err(page) }
    });
    // A connection to a Service without endpoints is refused at once.
    let script = "nc -w 20 10.96.0.79 80 </dev/null; echo ended";
    let begun = std::time::Instant::now();
    host.kubectl_with(&["exec", "one", "--", "sh", "-c", script], "").ok();
    assert!(
        begun.elapsed().as_secs() < 15,
        "the Service without endpoints took {:?}",
        begun.elapsed()
    );
}

/// Reports whether rules of the mode nftables exist, and of the mode iptables.
fn rules(host: &Host<'_>) -> (bool, bool) {
    let rules = host.run("nft", &["list", "ruleset"]).ok();
    (rules.contains("table ip kube-proxy"), rules.contains("chain KUBE-SVC-"))
}

#[test]
fn kube_proxy_switches_modes_and_removes_the_other_ones_rules() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("modes");
    let alpha = machines.start("alpha", 1);
    init(&alpha, "");
    connect(&alpha, &[&alpha]);
    ready(&alpha, &[&alpha]);
    alpha.build_app();
    alpha.kubectl_with(&["apply", "-f", "-"], OBJECTS).ok();
    alpha.kubectl("wait pod one two --for=condition=Ready --timeout=60s").ok();
    for (mode, expected) in [("iptables", (false, true)), ("nftables", (true, false))] {
        set_mode(&alpha, mode);
        services_work(&machines, &alpha);
        assert_eq!(rules(&alpha), expected, "in mode {mode}");
    }
    set_mode(&alpha, "iptables");
    until("the rules of the mode iptables", || match rules(&alpha) {
        (false, true) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    alpha.windlass("reset --force").ok();
    assert_eq!(rules(&alpha), (false, false));
}
