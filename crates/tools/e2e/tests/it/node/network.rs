//! The network and the resolver of a Pod.

use e2e::{fetch_script, shared, until};

use super::{exec, ready};

#[test]
fn resolv_conf_follows_the_dns_policy() {
    let s = shared("node-resolver");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: cluster}
spec: {dnsConfig: {searches: [example.test], options: [{name: ndots, value: "2"}, {name: edns0}]}, containers: [{name: c, image: box:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: none}
spec: {dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.53], searches: [a.test, b.test]}, containers: [{name: c, image: box:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: default}
spec: {dnsPolicy: Default, containers: [{name: c, image: box:1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec: {hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet, containers: [{name: c, image: box:1}]}
"#,
    );
    let lines = |pod: &str| {
        ready(&s, pod);
        let mut lines: Vec<String> =
            exec(&s, pod, "cat /etc/resolv.conf").lines().map(|l| l.trim().to_owned()).collect();
        lines.retain(|line| !line.is_empty());
        lines.sort();
        lines
    };
    let searches = "node-resolver.svc.cluster.local svc.cluster.local cluster.local";
    let cluster = lines("cluster");
    assert!(cluster.contains(&"nameserver 10.96.0.10".to_owned()), "{cluster:?}");
    assert!(cluster.contains(&"options ndots:2 edns0".to_owned()), "{cluster:?}");
    assert!(
        cluster
            .iter()
            .any(|l| l.starts_with(&format!("search {searches}")) && l.ends_with("example.test")),
        "{cluster:?}"
    );
    assert_eq!(lines("none"), ["nameserver 192.0.2.53", "search a.test b.test"]);
    assert!(lines("host").contains(&"nameserver 10.96.0.10".to_owned()));
    assert!(!lines("default").iter().any(|l| l.contains("cluster.local") || l.contains("ndots:5")));
}

#[test]
fn cluster_dns_serves_every_kind_of_record() {
    let s = shared("node-records");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: member, labels: {app: set}}
spec: {hostname: m0, subdomain: set, containers: [{name: c, image: app:1}]}
---
apiVersion: v1
kind: Service
metadata: {name: set}
spec: {clusterIP: None, selector: {app: set}, ports: [{name: web, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: plain}
spec: {selector: {app: set}, ports: [{name: web, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: plain.node-records.svc.cluster.local}
"#,
    );
    s.toolbox();
    ready(&s, "member");
    let ip = s.field("pod member", "{.status.podIP}");
    let service = s.field("service plain", "{.spec.clusterIP}");
    let dashed = ip.replace('.', "-");
    let zone = "node-records.svc.cluster.local";
    let reversed = |ip: &str| {
        let parts: Vec<&str> = ip.rsplit('.').collect();
        format!("{}.in-addr.arpa", parts.join("."))
    };
    for (kind, name, answer) in [
        ("a", format!("plain.{zone}"), service.clone()),
        ("a", format!("set.{zone}"), ip.clone()),
        ("a", format!("m0.set.{zone}"), ip.clone()),
        ("a", format!("{dashed}.node-records.pod.cluster.local"), ip.clone()),
        ("srv", format!("_web._tcp.plain.{zone}"), format!("80 plain.{zone}")),
        ("srv", format!("_web._tcp.set.{zone}"), format!("8080 m0.set.{zone}")),
        ("ptr", reversed(&service), format!("plain.{zone}")),
        ("ptr", reversed(&ip), format!("m0.set.{zone}")),
        ("cname", format!("alias.{zone}"), format!("plain.{zone}")),
    ] {
        let query = format!("nslookup -type={kind} {name}");
        until(&query, || {
            let ran = s.kubectl_with(&["exec", "box", "--", "sh", "-c", &query], "");
            if ran.stdout.contains(&answer) { Ok(()) } else { Err(ran.to_string()) }
        });
    }
    // Names with fewer than five dots use the search path.
    for name in ["plain", "plain.node-records", "plain.node-records.svc"] {
        assert!(s.fetch(name, "80").starts_with("version 1"), "{name}");
    }
}

#[test]
fn host_port_reaches_its_pod_until_deletion() {
    let s = shared("node-hostport");
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: open}
spec: {containers: [{name: c, image: app:1, ports: [{containerPort: 8080, hostPort: 8098}]}]}
"#,
    );
    ready(&s, "open");
    s.toolbox();
    assert!(s.fetch("192.0.2.10", "8098").starts_with("version 1 on open"));
    s.kubectl("delete pod open --now").ok();
    let script = "nc -w 2 192.0.2.10 8098 </dev/null";
    until("a closed port", || {
        let ran = s.kubectl_with(&["exec", "box", "--", "sh", "-c", script], "");
        if ran.code == Some(0) { Err(ran.to_string()) } else { Ok(()) }
    });
}

#[test]
fn services_keep_client_affinity_and_local_traffic_policy() {
    let s = shared("node-affinity");
    s.deploy("web", "app:1", 3);
    s.apply(
        r#"
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {sessionAffinity: ClientIP, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: near}
spec: {type: NodePort, internalTrafficPolicy: Local, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
"#,
    );
    s.toolbox();
    let first = s.fetch("sticky", "80");
    for _ in 0..8 {
        assert_eq!(s.fetch("sticky", "80"), first);
    }
    s.fetch("near", "80");
    let port = s.field("service near", "{.spec.ports[0].nodePort}");
    s.fetch("192.0.2.10", &port);
    // A Pod reaches itself through its Service.
    s.apply(
        r#"
apiVersion: v1
kind: Pod
metadata: {name: self, labels: {app: self}}
spec: {containers: [{name: c, image: app:1}]}
---
apiVersion: v1
kind: Service
metadata: {name: mirror}
spec: {selector: {app: self}, ports: [{port: 80, targetPort: 8080}]}
"#,
    );
    ready(&s, "self");
    let ask = fetch_script("mirror", "80");
    until("an answer from the Pod itself", || {
        let ran = s.kubectl_with(&["exec", "self", "--", "sh", "-c", &ask], "");
        if ran.stdout.starts_with("version 1 on self") { Ok(()) } else { Err(ran.to_string()) }
    });
}
