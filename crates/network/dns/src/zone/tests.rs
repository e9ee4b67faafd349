use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn index() -> Index {
    let mut index = Index::default();
    for namespace in ["default", "kube-system"] {
        index.set_namespace(namespace, Some([("team".to_owned(), namespace.to_owned())].into()));
    }
    let mut service = |name: &str, spec: Value| {
        let value = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        index.set_service(&format!("default/{name}"), Some(object(value)));
    };
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    service(
        "web",
        json!({"clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5", "fd96::5"], "ports": ports}),
    );
    service("db", json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": []}));
    service("empty", json!({"clusterIP": "None", "clusterIPs": ["None"]}));
    service("out", json!({"type": "ExternalName", "externalName": "example.com"}));
    let slice = json!({
        "metadata": {"name": "db-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "db"}},
        "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": ["10.1.0.2"], "hostname": "db-0", "targetRef": {"kind": "Pod", "name": "db-0"}},
            {"addresses": ["10.1.0.3"], "targetRef": {"kind": "Pod", "name": "db-x"}},
            {"addresses": ["10.1.0.4"], "conditions": {"ready": false}},
        ],
    });
    index.set_slice("default/db-1", None, Some(object(slice)));
    let pod = object(
        json!({"metadata": {"namespace": "default"}, "status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.7"}]}}),
    );
    index.set_pod(None, Some(&pod));
    index
}

fn options(pods: PodMode) -> KubernetesOptions {
    let zones = ["cluster.local.", "in-addr.arpa.", "ip6.arpa."];
    let zones = zones.map(|zone| Name::from_ascii(zone).unwrap()).to_vec();
    KubernetesOptions { zones, pods, ttl: 30, ..KubernetesOptions::default() }
}

/// The answer as text: the records' data, `-` for no records of the type, `!` for no such name.
fn ask_with(options: &KubernetesOptions, name: &str, kind: RecordType) -> String {
    let index = index();
    let name = Name::from_ascii(name).unwrap();
    let origin = options.zones.iter().find(|zone| zone.zone_of(&name)).unwrap();
    match (Zone { options, origin, index: &index }).answer(&name, kind) {
        Answer::NoSuchName => "!".to_owned(),
        Answer::Alias(alias) => format!("alias {}", alias.target),
        Answer::Records { answers, .. } if answers.is_empty() => "-".to_owned(),
        Answer::Records { answers, .. } => {
            assert!(
                answers.iter().all(|record| record.name.eq_case(&name)),
                "answers begin with the name as asked"
            );
            answers.iter().map(|record| record.data.to_string()).collect::<Vec<_>>().join(", ")
        }
    }
}

#[test]
fn answers_names_of_cluster() {
    use RecordType::{A, AAAA, MX, NS, PTR, SOA, SRV, TXT};
    let options = options(PodMode::Insecure);
    for (name, kind, expected) in [
        ("web.default.svc.cluster.local.", A, "10.96.0.5"),
        ("WEB.Default.svc.cluster.local.", A, "10.96.0.5"),
        ("web.default.svc.cluster.local.", AAAA, "fd96::5"),
        ("web.default.svc.cluster.local.", MX, "-"),
        (
            "_http._tcp.web.default.svc.cluster.local.",
            SRV,
            "0 100 80 web.default.svc.cluster.local.",
        ),
        ("_http._udp.web.default.svc.cluster.local.", SRV, "!"),
        ("http.tcp.web.default.svc.cluster.local.", SRV, "!"),
        ("_dns._udp.web.default.svc.cluster.local.", A, "10.96.0.5"),
        ("db.default.svc.cluster.local.", A, "10.1.0.2, 10.1.0.3"),
        ("db.default.svc.cluster.local.", AAAA, "-"),
        ("db-0.db.default.svc.cluster.local.", A, "10.1.0.2"),
        ("10-1-0-3.db.default.svc.cluster.local.", A, "10.1.0.3"),
        ("10-1-0-4.db.default.svc.cluster.local.", A, "!"),
        (
            "_sql._tcp.db.default.svc.cluster.local.",
            SRV,
            "0 100 5432 db-0.db.default.svc.cluster.local., 0 100 5432 10-1-0-3.db.default.svc.cluster.local.",
        ),
        ("empty.default.svc.cluster.local.", A, "!"),
        ("out.default.svc.cluster.local.", A, "alias example.com."),
        ("x.out.default.svc.cluster.local.", A, "!"),
        ("none.default.svc.cluster.local.", A, "!"),
        ("default.svc.cluster.local.", A, "-"),
        ("nowhere.svc.cluster.local.", A, "!"),
        ("svc.cluster.local.", A, "-"),
        ("cluster.local.", A, "-"),
        ("cluster.local.", NS, "ns.dns.cluster.local."),
        (
            "cluster.local.",
            SOA,
            "ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 30",
        ),
        ("dns-version.cluster.local.", TXT, "1.1.0"),
        ("other.cluster.local.", A, "!"),
        ("10-1-0-9.default.pod.cluster.local.", A, "10.1.0.9"),
        ("10-1-0-9.nowhere.pod.cluster.local.", A, "!"),
        ("ten.default.pod.cluster.local.", A, "!"),
        ("fd01--9.default.pod.cluster.local.", AAAA, "fd01::9"),
        ("5.0.96.10.in-addr.arpa.", PTR, "web.default.svc.cluster.local."),
        ("2.0.1.10.in-addr.arpa.", PTR, "db-0.db.default.svc.cluster.local."),
        ("3.0.1.10.in-addr.arpa.", PTR, "10-1-0-3.db.default.svc.cluster.local."),
        ("4.0.1.10.in-addr.arpa.", PTR, "!"),
        ("1.10.in-addr.arpa.", PTR, "!"),
        (
            "5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.d.f.ip6.arpa.",
            PTR,
            "web.default.svc.cluster.local.",
        ),
    ] {
        assert_eq!(ask_with(&options, name, kind), expected, "{name} {kind}");
    }
}

#[test]
fn answers_pod_records_by_mode() {
    for (mode, name, expected) in [
        (PodMode::Disabled, "10-1-0-7.default.pod.cluster.local.", "!"),
        (PodMode::Disabled, "default.pod.cluster.local.", "!"),
        (PodMode::Verified, "10-1-0-7.default.pod.cluster.local.", "10.1.0.7"),
        (PodMode::Verified, "10-1-0-8.default.pod.cluster.local.", "!"),
        (PodMode::Verified, "10-1-0-7.kube-system.pod.cluster.local.", "!"),
    ] {
        assert_eq!(ask_with(&options(mode), name, RecordType::A), expected, "{mode:?} {name}");
    }
    let named = KubernetesOptions { endpoint_pod_names: true, ..options(PodMode::Disabled) };
    assert_eq!(ask_with(&named, "db-x.db.default.svc.cluster.local.", RecordType::A), "10.1.0.3");
}

#[test]
fn srv_answers_carry_addresses() {
    let (index, options) = (index(), options(PodMode::Disabled));
    let name = Name::from_ascii("web.default.svc.cluster.local.").unwrap();
    let zone = Zone { options: &options, origin: &options.zones[0], index: &index };
    let Answer::Records { answers, additionals } = zone.answer(&name, RecordType::SRV) else {
        panic!()
    };
    assert_eq!(answers.len(), 2, "one for each port: {answers:?}");
    let ips: Vec<_> = additionals.iter().map(|record| record.data.to_string()).collect();
    assert_eq!(ips, ["10.96.0.5", "fd96::5"]);
}

#[test]
fn hides_what_options_exclude() {
    use RecordType::{A, PTR};
    let exposed = |options: KubernetesOptions, name: &str, kind| ask_with(&options, name, kind);
    let base = || options(PodMode::Insecure);
    let (web, db) = ("web.default.svc.cluster.local.", "db.default.svc.cluster.local.");
    let other = || KubernetesOptions { namespaces: vec!["kube-system".into()], ..base() };
    for (name, kind) in [
        (web, A),
        ("default.svc.cluster.local.", A),
        ("5.0.96.10.in-addr.arpa.", PTR),
        ("2.0.1.10.in-addr.arpa.", PTR),
        ("10-1-0-9.default.pod.cluster.local.", A),
    ] {
        assert_eq!(exposed(other(), name, kind), "!", "{name}");
        let labels = KubernetesOptions {
            namespace_labels: Some("team=kube-system".parse().unwrap()),
            ..base()
        };
        assert_eq!(exposed(labels, name, kind), "!", "{name}");
        let labels = KubernetesOptions {
            namespace_labels: Some("team in (default)".parse().unwrap()),
            ..base()
        };
        assert_ne!(exposed(labels, name, kind), "!", "{name}");
    }
    let labels = KubernetesOptions { labels: Some("app=x".parse().unwrap()), ..base() };
    assert_eq!(exposed(labels, web, A), "!");
    let no_endpoints = || KubernetesOptions { no_endpoints: true, ..base() };
    for (name, kind, expected) in [
        (web, A, "10.96.0.5"),
        (db, A, "!"),
        ("db-0.db.default.svc.cluster.local.", A, "!"),
        ("2.0.1.10.in-addr.arpa.", PTR, "!"),
    ] {
        assert_eq!(exposed(no_endpoints(), name, kind), expected, "{name}");
    }
    let empty = || KubernetesOptions { ignores_empty_services: true, ..base() };
    assert_eq!(exposed(empty(), web, A), "!", "it has no endpoints");
    assert_eq!(exposed(empty(), db, A), "10.1.0.2, 10.1.0.3");
}
