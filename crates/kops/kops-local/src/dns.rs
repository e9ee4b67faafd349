//! DNS of cloud local: the zone that a spec names, and the add-on that publishes the cluster's names in it.
//!
//! `spec.dnsZone` is `NAME@SERVER` or `NAME@SERVER:PORT`: a zone and its primary server, which accepts updates by RFC
//! 2136. The key for updates is the entry `tsig.key` of the Secret `kube-system/dns-controller`, because specs are no
//! place for secrets.

use std::net::IpAddr;

use api_meta::Tree as _;
use bootstrap_core::constants::CONTROL_PLANE_LABEL;
use kops_api::Object;
use kops_core::{Cluster as _, Dns, dns::Zone};
use serde_json::{Value, json};

use crate::error::Error;

const NAME: &str = "dns-controller";
/// The user of the add-on's process, as upstream's image has it.
const USER: u32 = 10_001;
/// The directory of the key in the add-on's container.
const KEY_DIRECTORY: &str = "/etc/dns-controller";

/// A zone and the server that accepts its updates.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UpdateZone {
    zone: Zone,
    server: String,
}

impl UpdateZone {
    /// Parses `NAME@SERVER[:PORT]`.
    fn parse(text: &str) -> Option<Self> {
        let (name, server) = text.split_once('@')?;
        let zone = Zone::new(name, name).filter(|zone| zone.name.contains('.'))?;
        let host = match server.rsplit_once(':') {
            _ if server.parse::<IpAddr>().is_ok() => {
                return Some(Self { zone, server: server.into() });
            }
            _ if server.ends_with(']') => server,
            Some((host, port)) if port.parse::<u16>().is_ok_and(|port| port != 0) => host,
            Some(_) => return None,
            None => server,
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_ip = bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == (bare != host));
        let is_name = host.contains('.') && Zone::new("", host).is_some();
        (is_ip || is_name).then(|| Self { zone, server: server.to_owned() })
    }
}

fn unsupported(setting: &str) -> Error {
    Error::Unsupported { setting: setting.to_owned() }
}

/// Rejects settings of DNS that would not act. The cluster must not be completed.
pub(crate) fn check_dns(cluster: &Object) -> Result<(), Error> {
    let (zone, published) = (cluster.spec.text("dnsZone"), cluster.dns() == Dns::Public);
    if zone.is_empty() {
        if cluster.spec.text("networking.topology.dns") == "Public" {
            return Err(unsupported("spec.topology.dns.type Public without spec.dnsZone"));
        }
        if cluster.spec.has("externalDNS") {
            return Err(unsupported("spec.externalDNS without spec.dnsZone"));
        }
        return Ok(());
    }
    if !published {
        return Err(unsupported("spec.dnsZone without spec.topology.dns.type Public"));
    }
    let parsed = UpdateZone::parse(zone).ok_or_else(|| {
        unsupported("spec.dnsZone other than NAME@SERVER or NAME@SERVER:PORT, a zone and its server for RFC 2136")
    })?;
    if !format!(".{}", cluster.name()).ends_with(&format!(".{}", parsed.zone.name)) {
        return Err(unsupported("spec.dnsZone that does not contain the cluster's name"));
    }
    Ok(())
}

/// Returns the objects of the add-on that publishes names; `None` if the complete spec has none.
pub(crate) fn addon(cluster: &Object, image: &str) -> Option<Vec<Value>> {
    let spec = &cluster.spec;
    let wanted = UpdateZone::parse(spec.text("dnsZone"))?;
    if cluster.dns() != Dns::Public || spec.text("externalDNS.provider") != NAME {
        return None;
    }
    let ingresses = spec.flag("externalDNS.watchIngress");
    let mut args = vec![
        "--dns=rfc2136".to_owned(),
        format!("--rfc2136-server={}", wanted.server),
        format!("--rfc2136-tsig-key-file={KEY_DIRECTORY}/tsig.key"),
        format!("--zone={}", wanted.zone.name),
        format!("--watch-ingress={ingresses}"),
        // Machines have no external addresses.
        "--internal-as-external".to_owned(),
    ];
    let namespace = spec.text("externalDNS.watchNamespace");
    if !namespace.is_empty() {
        args.push(format!("--watch-namespace={namespace}"));
    }
    let mut objects = vec![deployment(image, &args)];
    objects.extend(access(ingresses));
    Some(objects)
}

fn deployment(image: &str, args: &[String]) -> Value {
    let command: Vec<&str> = ["/usr/local/bin/windlass", NAME]
        .into_iter()
        .chain(args.iter().map(String::as_str))
        .collect();
    let tolerated = ["node.kubernetes.io/not-ready", CONTROL_PLANE_LABEL];
    let tolerations = tolerated.map(|key| json!({"key": key, "operator": "Exists"}));
    let term = json!({"matchExpressions": [{"key": CONTROL_PLANE_LABEL, "operator": "Exists"}]});
    let labels = json!({"k8s-app": NAME});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": "kube-system", "labels": labels},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels}, "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "affinity": {"nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
                    }},
                    "containers": [{
                        "name": NAME, "image": image, "imagePullPolicy": "IfNotPresent", "command": command,
                        "env": [{"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"}],
                        "resources": {"requests": {"cpu": "50m", "memory": "50Mi"}},
                        "securityContext": {"runAsNonRoot": true, "runAsUser": USER},
                        "volumeMounts": [{"name": "key", "mountPath": KEY_DIRECTORY, "readOnly": true}],
                    }],
                    "dnsPolicy": "Default", "hostNetwork": true,
                    "priorityClassName": "system-cluster-critical", "serviceAccountName": NAME,
                    "tolerations": tolerations,
                    // The cluster is valid before its administrator can create the Secret.
                    "volumes": [{"name": "key", "secret": {"secretName": NAME, "optional": true}}],
                },
            },
        },
    })
}

/// Returns the account of the add-on and its right to watch objects.
fn access(ingresses: bool) -> [Value; 3] {
    let rbac = "rbac.authorization.k8s.io";
    let verbs = ["get", "list", "watch"];
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["services", "pods", "nodes"], "verbs": verbs}),
    ];
    if ingresses {
        rules.push(json!({
            "apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": verbs,
        }));
    }
    let role = "kops:dns-controller";
    [
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": NAME, "namespace": "kube-system"},
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules,
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": role},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": "kube-system"}],
        }),
    ]
}

#[cfg(test)]
mod tests {
    use kops_api::Kind;

    use super::*;

    fn cluster(spec: Value) -> Object {
        let mut cluster = Object::new(Kind::Cluster, "demo.example.test");
        cluster.spec = spec;
        cluster
    }

    #[test]
    fn parses_zone_and_server() {
        for (text, zone, server) in [
            ("example.test@192.0.2.53", "example.test", "192.0.2.53"),
            ("Example.Test.@192.0.2.53:5353", "example.test", "192.0.2.53:5353"),
            ("example.test@ns.example.test:53", "example.test", "ns.example.test:53"),
            ("example.test@2001:db8::53", "example.test", "2001:db8::53"),
            ("example.test@[2001:db8::53]:53", "example.test", "[2001:db8::53]:53"),
            ("example.test@[2001:db8::53]", "example.test", "[2001:db8::53]"),
        ] {
            let parsed = UpdateZone::parse(text).unwrap();
            assert_eq!((parsed.zone.name.as_str(), parsed.server.as_str()), (zone, server));
        }
        for text in [
            "",
            "example.test",
            "@192.0.2.53",
            "example.test@",
            "test@192.0.2.53",
            "example.test@a b",
            "example.test@192.0.2.53:0",
            "example.test@192.0.2.53:x",
            "example.test@192.0.2.53:70000",
            "example.test@--flag",
            "a@b@c",
            "example.test@[192.0.2.53]:53",
            "example.test@[192.0.2.53]",
            "example.test@[2001:db8::53",
            "example.test@]",
            "*.example.test@192.0.2.53",
        ] {
            assert_eq!(UpdateZone::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn rejects_settings_that_do_not_act() {
        let zone = "example.test@192.0.2.53";
        let dns = |kind: &str| json!({"topology": {"dns": kind}});
        for (spec, expected) in [
            (json!({"networking": dns("None")}), "accepted"),
            (json!({}), "accepted"),
            (json!({"networking": dns("Public"), "dnsZone": zone}), "accepted"),
            (
                json!({"networking": dns("Public"), "dnsZone": zone, "externalDNS": {"watchIngress": true}}),
                "accepted",
            ),
            (json!({"networking": dns("Public")}), "without spec.dnsZone:"),
            (json!({"networking": dns("None"), "externalDNS": {}}), "spec.externalDNS without"),
            (json!({"networking": dns("None"), "dnsZone": zone}), "spec.dnsZone without"),
            (json!({"networking": dns("Public"), "dnsZone": "Z1"}), "spec.dnsZone other than"),
            (
                json!({"networking": dns("Public"), "dnsZone": "ample.test@192.0.2.53"}),
                "does not contain the cluster's name",
            ),
        ] {
            let result = check_dns(&cluster(spec.clone()));
            let text = result.map_or_else(|error| error.to_string(), |()| "accepted".to_owned());
            assert!(text.contains(expected), "{spec}: {text}");
        }
    }

    #[test]
    fn addon_has_the_settings_of_the_spec() {
        let spec = |external: Value| {
            json!({
                "networking": {"topology": {"dns": "Public"}}, "dnsZone": "example.test@192.0.2.53:5353",
                "externalDNS": external,
            })
        };
        let objects = addon(
            &cluster(spec(json!({"provider": "dns-controller", "watchNamespace": "kube-system"}))),
            "image",
        );
        let text = Value::from(objects.unwrap()).to_string();
        for part in [
            "--rfc2136-server=192.0.2.53:5353",
            "--zone=example.test",
            "--watch-ingress=false",
            "--watch-namespace=kube-system",
            "\"optional\":true,\"secretName\":\"dns-controller\"",
        ] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains("ingresses"));
        let watching = spec(json!({"provider": "dns-controller", "watchIngress": true}));
        let text = Value::from(addon(&cluster(watching), "image").unwrap()).to_string();
        assert!(text.contains("ingresses") && text.contains("--watch-ingress=true"));
        assert!(addon(&cluster(spec(json!({"provider": "none"}))), "image").is_none());
        assert!(
            addon(&cluster(json!({"networking": {"topology": {"dns": "None"}}})), "i").is_none()
        );
    }
}
