//! NetworkPolicies, tested with allowed and denied connections between Pods.

use e2e::{Session, shared, until};

/// Reports whether a Pod can open a connection.
fn connects(s: &Session<'_>, from: &str, to: &str, port: &str) -> bool {
    // The standard input is empty, so nc closes the connection as soon as it is open.
    s.kubectl_with(&["exec", from, "--", "nc", "-w", "1", to, port], "").code == Some(0)
}

#[track_caller]
fn expect(s: &Session<'_>, from: &str, to: &str, port: &str, wanted: bool) {
    until(&format!("{from} to {to}:{port} to be {wanted}"), || {
        let seen = connects(s, from, to, port);
        if seen == wanted { Ok(()) } else { Err(format!("it is {seen}")) }
    });
}

/// Creates a server with two open ports, one of them named, and two clients. Returns the server's address.
fn create_pods(s: &Session<'_>) -> String {
    let listen = "httpd -p 8081; exec httpd -f -p 8080";
    for (name, labels, command) in [
        ("server", r#"{"app": "server"}"#, listen),
        ("friend", r#"{"role": "friend"}"#, "trap exit TERM; while :; do sleep 1; done"),
        ("stranger", r#"{"role": "stranger"}"#, "trap exit TERM; while :; do sleep 1; done"),
    ] {
        // A policy must not block the probes of the node's kubelet.
        let probe = if name == "server" {
            r#", "ports": [{"name": "web", "containerPort": 8080}],
               "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1}"#
        } else {
            ""
        };
        s.apply(&format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}", "labels": {labels}}},
                "spec": {{"terminationGracePeriodSeconds": 0, "containers": [{{"name": "c", "image": "box:1",
                    "command": ["sh", "-c", "{command}"]{probe}}}]}}}}"#
        ));
    }
    s.kubectl("wait pod/server pod/friend pod/stranger --for=condition=Ready --timeout=60s").ok();
    s.field("pod server", "{.status.podIP}")
}

fn policy(s: &Session<'_>, name: &str, spec: &str) {
    s.apply(&format!(
        r#"{{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {{"name": "{name}"}}, "spec": {spec}}}"#
    ));
}

#[test]
fn ingress_policy_denies_connections_it_does_not_allow() {
    let s = shared("policy-ingress");
    let server = create_pods(&s);
    for from in ["friend", "stranger"] {
        expect(&s, from, &server, "8080", true);
    }
    policy(
        &s,
        "deny",
        r#"{"podSelector": {"matchLabels": {"app": "server"}}, "policyTypes": ["Ingress"]}"#,
    );
    for from in ["friend", "stranger"] {
        expect(&s, from, &server, "8080", false);
    }
    policy(
        &s,
        "friends",
        r#"{"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"role": "friend"}}}], "ports": [{"port": "web"}]}]}"#,
    );
    expect(&s, "friend", &server, "8080", true);
    assert!(!connects(&s, "friend", &server, "8081"), "only the named port is allowed");
    assert!(!connects(&s, "stranger", &server, "8080"));
    // Allow all Pods of a labelled namespace, on a range of ports.
    policy(
        &s,
        "friends",
        r#"{"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [
            {"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "policy-ingress"}}}],
             "ports": [{"port": 8081, "endPort": 8090}]}]}"#,
    );
    expect(&s, "stranger", &server, "8081", true);
    assert!(!connects(&s, "stranger", &server, "8080"));
    // The probes of the kubelet are allowed.
    s.kubectl("wait pod/server --for=condition=Ready --timeout=60s").ok();
    s.kubectl("delete networkpolicy --all").ok();
    expect(&s, "stranger", &server, "8080", true);
}

#[test]
fn egress_policy_denies_connections_it_does_not_allow() {
    let s = shared("policy-egress");
    let server = create_pods(&s);
    policy(
        &s,
        "out",
        &format!(
            r#"{{"podSelector": {{"matchLabels": {{"role": "friend"}}}}, "policyTypes": ["Egress"], "egress": [
                {{"to": [{{"ipBlock": {{"cidr": "10.0.0.0/8", "except": ["{server}/32"]}}}}]}}]}}"#
        ),
    );
    expect(&s, "friend", &server, "8080", false);
    // The rest of the range is allowed, and others are not isolated.
    expect(&s, "friend", "10.96.0.10", "53", true);
    expect(&s, "stranger", &server, "8080", true);
    policy(
        &s,
        "out",
        r#"{"podSelector": {"matchLabels": {"role": "friend"}}, "policyTypes": ["Egress"], "egress": [
            {"to": [{"podSelector": {"matchLabels": {"app": "server"}}}], "ports": [{"port": 8080}]}]}"#,
    );
    expect(&s, "friend", &server, "8080", true);
    assert!(!connects(&s, "friend", "10.96.0.10", "53"));
}
