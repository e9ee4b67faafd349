//! The fields of specs that act on cloud local. Each other field that is set is rejected, because machines would
//! ignore it.

use kops_api::{Kind, Object};
use kops_node::nodeup::KUBELET_FIELDS;
use serde_json::Value;

use crate::error::Error;

/// The supported values of a field.
enum Values {
    /// Every value; the validation of kOps' API has the limits.
    Any,
    /// Only these. An empty structure is supported, too.
    Only(&'static [&'static str]),
    /// The kubelet's settings that nodeup passes on.
    Kubelet,
}

/// A field that acts, by its path in the hub. List items have the path of their list.
type Row = (&'static str, Values);

/// The ranges of all clients. No other range is enforced on the API's address.
const EVERYWHERE: Values = Values::Only(&["0.0.0.0/0", "::/0"]);
/// A structure without settings.
const EMPTY: Values = Values::Only(&[]);

/// The fields of a cluster. Machines run no SSH server, so every restriction of `sshAccess` holds. A subnet only names
/// a zone: all machines share one link, and the host chooses its range.
const CLUSTER: [Row; 45] = [
    ("api.access", EVERYWHERE),
    ("api.additionalSANs", Values::Any),
    ("api.dns", EMPTY),
    ("api.publicName", Values::Any),
    ("authorization.rbac", EMPTY),
    ("channel", Values::Any),
    // A change of a single field writes all structures that Go's type always has.
    ("cloudProvider", EMPTY),
    ("clusterDNSDomain", Values::Any),
    ("configStore.base", Values::Any),
    ("controlPlaneKubelet", Values::Kubelet),
    ("dnsZone", Values::Any),
    ("encryptionConfig", Values::Any),
    // `check_etcd` accepts one of them for each cluster.
    ("etcdClusters.cpuRequest", Values::Only(&["200m", "100m"])),
    ("etcdClusters.etcdMembers.instanceGroup", Values::Any),
    ("etcdClusters.etcdMembers.name", Values::Any),
    ("etcdClusters.manager.backupInterval", Values::Any),
    ("etcdClusters.manager.backupRetentionDays", Values::Any),
    ("etcdClusters.memoryRequest", Values::Only(&["100Mi"])),
    ("etcdClusters.name", Values::Only(&["main", "events"])),
    ("externalDNS.provider", Values::Only(&["dns-controller", "none"])),
    ("externalDNS.watchIngress", Values::Any),
    ("externalDNS.watchNamespace", Values::Any),
    ("fileAssets", Values::Any),
    ("iam.allowContainerRegistry", Values::Any),
    ("iam.legacy", Values::Only(&["false"])),
    ("kubeAPIServer.anonymousAuth", Values::Any),
    ("kubeProxy.cpuLimit", Values::Any),
    ("kubeProxy.cpuRequest", Values::Any),
    ("kubeProxy.enabled", Values::Only(&["true"])),
    ("kubeProxy.memoryLimit", Values::Any),
    ("kubeProxy.memoryRequest", Values::Any),
    ("kubeProxy.proxyMode", Values::Only(&["iptables", "nftables"])),
    ("kubelet", Values::Kubelet),
    ("kubernetesVersion", Values::Any),
    ("networking.cni", EMPTY),
    ("networking.nonMasqueradeCIDR", Values::Any),
    ("networking.podCIDR", Values::Any),
    ("networking.serviceClusterIPRange", Values::Any),
    ("networking.subnets.cidr", Values::Any),
    ("networking.subnets.name", Values::Any),
    ("networking.subnets.type", Values::Any),
    ("networking.subnets.zone", Values::Any),
    ("networking.topology.dns", Values::Only(&["None", "Public"])),
    ("rollingUpdate", Values::Any),
    ("sshAccess", Values::Any),
];

/// The fields of an instance group.
const GROUP: [Row; 9] = [
    ("fileAssets", Values::Any),
    ("kubelet", Values::Kubelet),
    ("manager", Values::Only(&["CloudGroup"])),
    ("maxSize", Values::Any),
    ("minSize", Values::Any),
    ("nodeLabels", Values::Any),
    ("rollingUpdate", Values::Any),
    ("subnets", Values::Any),
    ("taints", Values::Any),
];

/// The fields that both kinds have. Machines never update their packages, as `external` demands.
const BOTH: [Row; 2] = [
    ("role", Values::Only(&["ControlPlane", "Node"])),
    ("updatePolicy", Values::Only(&["external"])),
];

/// The fields of the kubelet beside [`KUBELET_FIELDS`]: registration and authentication.
const KUBELET: [Row; 3] = [
    ("anonymousAuth", Values::Only(&["false"])),
    ("nodeLabels", Values::Any),
    ("taints", Values::Any),
];

/// Rejects a field of a cluster or of an instance group that does not act on cloud local. The object must not be
/// completed.
pub(crate) fn check_fields(object: &Object) -> Result<(), Error> {
    let (own, of) = match object.kind {
        Kind::Cluster => (&CLUSTER[..], String::new()),
        _ => (&GROUP[..], format!(" of instance group {}", object.name())),
    };
    let rows: Vec<&Row> = own.iter().chain(&BOTH).collect();
    check_value(&rows, &object.spec, "", "spec").map_err(|setting| match setting {
        Setting { place, value: None } => Error::Unsupported { setting: format!("{place}{of}") },
        Setting { place, value: Some(value) } => {
            Error::Unsupported { setting: format!("{place}{of} other than {value}") }
        }
    })
}

/// A setting that does not act: its place, and the supported values if there are some.
struct Setting {
    place: String,
    value: Option<String>,
}

/// Checks a value at a path of the table. `place` is its path with the indices of lists.
fn check_value(rows: &[&Row], value: &Value, path: &str, place: &str) -> Result<(), Setting> {
    let rejected = |place: &str| Setting { place: place.to_owned(), value: None };
    let row = rows.iter().find(|(known, _)| *known == path).map(|(_, values)| values);
    let prefix = format!("{path}.");
    let leads_to_rows = path.is_empty() || rows.iter().any(|(known, _)| known.starts_with(&prefix));
    match (row, value) {
        (_, Value::Null) | (Some(Values::Any), _) => Ok(()),
        (_, Value::Array(items)) if items.is_empty() => Ok(()),
        // An empty structure may select a feature, too.
        (None, _) if !leads_to_rows => Err(rejected(place)),
        (_, Value::Array(items)) => items.iter().enumerate().try_for_each(|(index, item)| {
            check_value(rows, item, path, &format!("{place}[{index}]"))
        }),
        (Some(Values::Kubelet), value) => check_kubelet(value, place),
        (Some(Values::Only(_)), Value::Object(members)) => match members.keys().next() {
            None => Ok(()),
            Some(name) => Err(rejected(&format!("{place}.{name}"))),
        },
        (Some(Values::Only(values)), value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            if values.contains(&text.as_str()) {
                return Ok(());
            }
            Err(Setting { place: place.to_owned(), value: Some(values.join(" or ")) })
        }
        (None, Value::Object(members)) => members.iter().try_for_each(|(name, value)| {
            let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            check_value(rows, value, &inner, &format!("{place}.{name}"))
        }),
        (None, _) => Err(rejected(place)),
    }
}

fn check_kubelet(value: &Value, place: &str) -> Result<(), Setting> {
    let members = value.as_object().into_iter().flatten();
    let rows: Vec<&Row> = KUBELET.iter().collect();
    members
        .filter(|(name, _)| !KUBELET_FIELDS.contains(&name.as_str()))
        .try_for_each(|(name, value)| check_value(&rows, value, name, &format!("{place}.{name}")))
}

#[cfg(test)]
mod tests {
    use kops_api::has_field;
    use serde_json::json;

    use super::*;

    fn rejection(kind: Kind, spec: Value) -> String {
        let mut object = Object::new(kind, "a");
        object.spec = spec;
        check_fields(&object).map_or_else(|error| error.to_string(), |()| "accepted".to_owned())
    }

    #[test]
    fn table_names_fields_of_the_schema() {
        for (kind, rows) in [(Kind::Cluster, &CLUSTER[..]), (Kind::InstanceGroup, &GROUP[..])] {
            for (path, _) in rows {
                assert!(has_field(kind, &format!("spec.{path}")), "{kind:?} {path}");
            }
        }
        for name in KUBELET_FIELDS.iter().chain(KUBELET.iter().map(|(name, _)| name)) {
            assert!(has_field(Kind::Cluster, &format!("spec.kubelet.{name}")), "{name}");
        }
    }

    #[test]
    fn rejects_fields_that_do_not_act() {
        let accepted = json!({
            "api": {"access": ["0.0.0.0/0", "::/0"], "publicName": "api.example.com", "dns": {}},
            "authorization": {"rbac": {}}, "iam": {"legacy": false, "allowContainerRegistry": true},
            "etcdClusters": [{"name": "main", "cpuRequest": "200m", "etcdMembers": [{"name": "a"}]}],
            "kubeProxy": {"cpuRequest": "50m", "proxyMode": "nftables", "enabled": true},
            "kubelet": {"anonymousAuth": false, "maxPods": 5, "systemReserved": {"cpu": "100m"}},
            "networking": {"cni": {}, "topology": {"dns": "None"}, "subnets": []},
            "cloudProvider": {}, "updatePolicy": "external", "fileAssets": [{"name": "a", "content": "b"}], "hooks": null,
        });
        assert_eq!(rejection(Kind::Cluster, accepted), "accepted");
        for (spec, setting) in [
            (
                json!({"api": {"access": ["10.0.0.0/8"]}}),
                "spec.api.access[0] other than 0.0.0.0/0 or ::/0:",
            ),
            (json!({"api": {"loadBalancer": {"type": "Public"}}}), "spec.api.loadBalancer:"),
            (json!({"authorization": {"alwaysAllow": {}}}), "spec.authorization.alwaysAllow:"),
            (json!({"networking": {"calico": {}}}), "spec.networking.calico:"),
            (
                json!({"networking": {"cni": {"usesSecondaryIP": true}}}),
                "spec.networking.cni.usesSecondaryIP:",
            ),
            (
                json!({"networking": {"topology": {"dns": "Private"}}}),
                "spec.networking.topology.dns other than None or Public:",
            ),
            (
                json!({"etcdClusters": [{"name": "main"}, {"name": "events"}, {"name": "cilium"}]}),
                "spec.etcdClusters[2].name other than main or events:",
            ),
            (
                json!({"etcdClusters": [{"name": "main", "etcdMembers": [{"name": "a", "volumeSize": 1}]}]}),
                "spec.etcdClusters[0].etcdMembers[0].volumeSize:",
            ),
            (json!({"kubelet": {"cgroupRoot": "/x"}}), "spec.kubelet.cgroupRoot:"),
            (
                json!({"kubelet": {"anonymousAuth": true}}),
                "spec.kubelet.anonymousAuth other than false:",
            ),
            (json!({"kubeAPIServer": {"auditLogPath": "/a"}}), "spec.kubeAPIServer.auditLogPath:"),
            (json!({"updatePolicy": "automatic"}), "spec.updatePolicy other than external:"),
            (json!({"cloudLabels": {"a": "b"}}), "spec.cloudLabels:"),
            (json!({"cloudProvider": {"aws": {}}}), "spec.cloudProvider.aws:"),
            (json!({"sysctlParameters": ["a=b"]}), "spec.sysctlParameters:"),
            (json!({"kubeProxy": {"enabled": false}}), "spec.kubeProxy.enabled other than true:"),
            (
                json!({"kubeProxy": {"proxyMode": "ipvs"}}),
                "spec.kubeProxy.proxyMode other than iptables or nftables:",
            ),
            (json!({"kubeProxy": {"logLevel": 4}}), "spec.kubeProxy.logLevel:"),
            (json!({"kubeProxy": {"featureGates": {"A": "true"}}}), "spec.kubeProxy.featureGates:"),
            (
                json!({"externalDNS": {"provider": "external-dns"}}),
                "spec.externalDNS.provider other than dns-controller or none:",
            ),
            (json!({"externalDNS": {"disable": true}}), "spec.externalDNS.disable:"),
            (json!({"dnsControllerGossipConfig": {}}), "spec.dnsControllerGossipConfig:"),
        ] {
            let text = rejection(Kind::Cluster, spec);
            assert!(text.starts_with(setting), "{setting} {text}");
        }
    }

    #[test]
    fn rejects_fields_of_groups_that_do_not_act() {
        for (spec, setting) in [
            (json!({"hooks": [{"manifest": "x"}]}), "spec.hooks of instance group a:"),
            (json!({"machineType": "m5"}), "spec.machineType of instance group a:"),
            (
                json!({"additionalUserData": [{"name": "x"}]}),
                "spec.additionalUserData of instance group a:",
            ),
            (json!({"rootVolume": {"size": 5}}), "spec.rootVolume of instance group a:"),
            (
                json!({"kubelet": {"evictionHard": "x"}}),
                "spec.kubelet.evictionHard of instance group a:",
            ),
            (
                json!({"manager": "Karpenter"}),
                "spec.manager of instance group a other than CloudGroup:",
            ),
            (
                json!({"role": "Bastion"}),
                "spec.role of instance group a other than ControlPlane or Node:",
            ),
        ] {
            let text = rejection(Kind::InstanceGroup, spec);
            assert!(text.starts_with(setting), "{setting} {text}");
        }
    }
}
