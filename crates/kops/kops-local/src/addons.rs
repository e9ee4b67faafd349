//! The add-ons of a cluster: their manifests, and the channel that lists them.

use api_config::kubeconfig::Cluster as Server;
use api_meta::Tree as _;
use bootstrap_core::{
    addons::{self, network::RoutingMode},
    images, objects,
};
use data_encoding::HEXLOWER;
use instances::{Fleet, FleetSpec};
use kops_api::{Object, yaml};
use kops_node::{
    API_PORT, ClusterParameters,
    channels::{ADDON_LABEL, PRUNED_KINDS},
    controller::{LEASES, USER},
    nodeup::{APPLIED_HASH, PROXY_LABEL, PROXY_MANIFEST},
};
use kops_store::BOOTSTRAP_CHANNEL;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{dns, error::Error, names::KEEPER};

/// kOps' own version of manifests. Clients detect changes by the hash.
const VERSION: &str = "9.99.0";

/// Returns the objects for the store, as names and contents. `has_proxy_daemon` is `true` while machines of earlier
/// versions need the DaemonSet of kube-proxy.
pub(crate) fn build_objects(
    cluster: &Object,
    has_proxy_daemon: bool,
) -> Result<Vec<(String, String)>, Error> {
    let parameters = ClusterParameters::of(cluster);
    let init = parameters.init(None);
    // Pods read the authority from their service account's volume.
    let api = || Server {
        server: format!("https://{}:{API_PORT}", parameters.api_name()),
        ..Server::default()
    };
    let mut core = access();
    core.push(objects::cluster_admins());
    core.push(objects::api_server_kubelet_client());
    core.extend(objects::node_bootstrap());
    let mut proxy = Vec::new();
    if has_proxy_daemon {
        proxy = addons::kube_proxy(&init.cluster, &init.proxy, false, api(), &[])?;
        proxy.iter_mut().for_each(exclude_static_proxies);
    }
    let mut sets = vec![
        ("kops-controller.addons.k8s.io", "k8s-1.16", core),
        (
            "network.windlass.local",
            "k8s-1.36",
            addons::network::objects(&init.cluster, api(), RoutingMode::Shortest)?,
        ),
        // Without objects, the add-on deletes those that it had.
        ("kube-proxy.addons.k8s.io", "k8s-1.36", proxy),
        ("coredns.addons.k8s.io", "k8s-1.12", addons::coredns(&init.cluster, 2)?),
        ("storage.windlass.local", "k8s-1.36", addons::storage::objects()),
    ];
    let dns = dns::addon(cluster, &images::windlass(&init.cluster));
    sets.extend(dns.map(|objects| ("dns-controller.addons.k8s.io", "k8s-1.12", objects)));
    let mut files = Vec::new();
    let mut entries = Vec::new();
    for (name, id, mut objects) in sets {
        objects.iter_mut().for_each(|object| label(object, name));
        let text: Vec<String> = objects.iter().map(yaml::to_string).collect();
        let text = text.join("---\n");
        let sum = Sha256::digest(text.as_bytes());
        let hash = HEXLOWER.encode(&sum);
        entries.push(json!({
            "name": name, "id": id, "manifest": format!("{name}/{id}.yaml"), "manifestHash": hash,
            "prune": {"kinds": prune_kinds(name)}, "selector": {"k8s-addon": name}, "version": VERSION,
        }));
        files.push((format!("addons/{name}/{id}.yaml"), text));
    }
    let channel = json!({
        "kind": "Addons", "metadata": {"creationTimestamp": Value::Null, "name": "bootstrap"},
        "spec": {"addons": entries},
    });
    files.push((BOOTSTRAP_CHANNEL.to_owned(), yaml::to_string(&channel)));
    Ok(files)
}

/// Excludes Nodes that run kube-proxy as a static Pod from a DaemonSet. The two cannot run on one Node at once anyway:
/// the later one cannot listen on the port of the earlier one.
fn exclude_static_proxies(object: &mut Value) {
    if object.text("kind") != "DaemonSet" {
        return;
    }
    let term = json!({"matchExpressions": [{"key": PROXY_LABEL, "operator": "DoesNotExist"}]});
    let required = json!({"nodeSelectorTerms": [term]});
    object.put(
        "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        required,
    );
}

/// Reports whether a machine of an earlier version runs, which has no static Pod of kube-proxy.
pub fn needs_proxy_daemon(fleet: &Fleet, spec: &FleetSpec) -> bool {
    // A machine that is being configured gets the Pod.
    spec.names()
        .any(|name| fleet.has_file(&name, APPLIED_HASH) && !fleet.has_file(&name, PROXY_MANIFEST))
}

/// Labels an object of an add-on as upstream does, so that it can be found when the add-on no longer has it.
fn label(object: &mut Value, addon: &str) {
    if let Some(labels) = object.map_mut("metadata.labels") {
        labels.insert(ADDON_LABEL.to_owned(), addon.into());
        labels.insert("app.kubernetes.io/managed-by".to_owned(), "kops".into());
        labels.insert("k8s-addon".to_owned(), addon.into());
    }
}

/// Returns the kinds of objects that are deleted once an add-on no longer has them.
fn prune_kinds(addon: &str) -> Vec<Value> {
    let selector = format!("{ADDON_LABEL}={addon},app.kubernetes.io/managed-by=kops");
    let kind = |resource: &client::Resource| {
        let mut kind = json!({"kind": resource.kind, "labelSelector": selector});
        if !resource.group.is_empty() {
            kind.put("group", resource.group.as_ref());
        }
        kind
    };
    PRUNED_KINDS.iter().map(kind).collect()
}

/// Returns the RBAC rules of kOps' components. kops-controller reads Nodes and Leases, and labels Nodes. The keeper of
/// machines reads their health and writes events. The balancer reads where the API is served. They may do nothing else.
fn access() -> Vec<Value> {
    let rule = |group: &str, resources: &str, verbs: &[&str]| {
        json!({
            "apiGroups": [group], "resources": [resources], "verbs": verbs,
        })
    };
    let leases = || rule("coordination.k8s.io", "leases", &["get", "list"]);
    let grant = |user: &str, namespace: &str, rules: Vec<Value>| {
        let rbac = "rbac.authorization.k8s.io";
        let (version, prefix) =
            (format!("{rbac}/v1"), if namespace.is_empty() { "Cluster" } else { "" });
        let mut metadata = json!({"name": user});
        if !namespace.is_empty() {
            metadata.put("namespace", namespace);
        }
        [
            json!({"apiVersion": version, "kind": format!("{prefix}Role"), "metadata": metadata, "rules": rules}),
            json!({
                "apiVersion": version, "kind": format!("{prefix}RoleBinding"), "metadata": metadata,
                "roleRef": {"apiGroup": rbac, "kind": format!("{prefix}Role"), "name": user},
                "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}],
            }),
        ]
    };
    [
        grant(USER, "", vec![rule("", "nodes", &["get", "list", "watch", "patch"])]),
        grant(USER, LEASES, vec![leases()]),
        grant(
            KEEPER,
            "",
            vec![rule("", "nodes", &["get", "list"]), rule("", "events", &["create", "patch"])],
        ),
        grant(KEEPER, LEASES, vec![leases()]),
        grant(KEEPER, "default", vec![rule("", "endpoints", &["get"])]),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use kops_api::Kind;

    use super::*;

    fn proxy_manifest(has_daemon: bool) -> String {
        let mut cluster = Object::new(Kind::Cluster, "a.local");
        cluster.spec = json!({
            "kubernetesVersion": "1.36.2", "clusterDNSDomain": "cluster.local",
            "networking": {"serviceClusterIPRange": "100.64.0.0/13", "podCIDR": "100.96.0.0/11"},
        });
        let objects = build_objects(&cluster, has_daemon).unwrap();
        let found = objects.into_iter().find(|(name, _)| name.contains("kube-proxy"));
        found.unwrap().1
    }

    #[test]
    fn proxy_daemon_leaves_nodes_with_static_pods() {
        assert_eq!(proxy_manifest(false), "");
        let text = proxy_manifest(true);
        let daemon = text.split("---\n").find(|text| text.contains("kind: DaemonSet")).unwrap();
        assert!(daemon.contains(PROXY_LABEL) && daemon.contains("DoesNotExist"), "{daemon}");
    }

    #[test]
    fn proxy_daemon_stays_while_a_machine_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let fleet = Fleet::at(dir.path());
        let numbers = [1, 2].into();
        let group = instances::Group { name: "a".to_owned(), numbers, ..Default::default() };
        let spec = FleetSpec { groups: vec![group], ..FleetSpec::default() };
        let write = |machine: &str, path: &str| {
            let path = fleet.disk(machine).join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        assert!(!needs_proxy_daemon(&fleet, &spec));
        write("a-1", PROXY_MANIFEST);
        write("a-1", APPLIED_HASH);
        assert!(!needs_proxy_daemon(&fleet, &spec));
        write("a-2", APPLIED_HASH);
        assert!(needs_proxy_daemon(&fleet, &spec));
        write("a-2", PROXY_MANIFEST);
        assert!(!needs_proxy_daemon(&fleet, &spec));
    }
}
