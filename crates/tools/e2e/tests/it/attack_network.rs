//! Attacks on a node's network by users who may write Services.

use e2e::{shared, until};

/// CVE-2020-8554: a Service with the address of the API server would disconnect the node.
#[test]
fn cve_2020_8554_services_take_no_address_of_the_node() {
    let s = shared("attack-network");
    let external = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"external"},
        "spec":{"externalIPs":["203.0.113.7"],"ports":[{"port":80}]}}"#;
    let refused = s.kubectl_with(&["create", "-f", "-"], external).refused();
    assert!(refused.contains("Use of external IPs is denied by admission control"), "{refused}");

    // The addresses of load balancers are in the status, which admission does not check. The cluster's own controller
    // leaves the class of another alone.
    let server = s.kubectl("config view --raw -o jsonpath={.clusters[0].cluster.server}").ok();
    let port = server.trim().rsplit(':').next().unwrap_or_default();
    let node = s.field("nodes", "{.items[0].status.addresses[?(@.type=='InternalIP')].address}");
    for (name, port) in [("api", port), ("kubelet", "10250"), ("free", "8443")] {
        s.apply(&format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}"}},
            "spec":{{"type":"LoadBalancer","loadBalancerClass":"example.com/other","selector":{{"app":"nobody"}},
            "ports":[{{"port":{port}}}]}}}}"#
        ));
        let status =
            format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{node}"}}]}}}}}}"#);
        s.kubectl_with(
            &["patch", "service", name, "--subresource=status", "--type=merge", "-p", &status],
            "",
        )
        .ok();
    }
    let reasons = "get events --field-selector=reason=AddressInUse -o jsonpath={.items[*].involvedObject.name}";
    s.until(reasons, |names| names.contains("api") && names.contains("kubelet"));
    // The proxy writes the free port's rules at most a second later than the others.
    until("the rules of the free port", || {
        s.cluster
            .run("nft", &["list", "table", "ip", "kube-proxy"])
            .ok_if(|rules| rules.contains(&format!("{node} . tcp . 8443")))
    });
    assert!(!s.kubectl(reasons).ok().contains("free"), "the port is not in use on the node");
    // These connections would be refused if the Services, which have no endpoints, received them.
    s.kubectl("get --raw /readyz").ok();
    let name = s.field("nodes", "{.items[0].metadata.name}");
    s.kubectl(&format!("get --raw /api/v1/nodes/{name}/proxy/healthz")).ok();
}
