//! The static Pod of an etcd cluster beside the main one, whose Pod `init` writes.

use api_config::kubeadm::LocalEtcd;
use api_meta::Tree as _;
use bootstrap_core::{
    Layout,
    config::Init,
    manifests::{self, Component},
};
use serde_json::Value;

use super::{context::NodeContext, etcd_cluster::EtcdCluster, manifest::write_pod};
use crate::error::Error;

/// Writes the static Pod of a member of an etcd cluster beside the main one.
pub(super) fn write_etcd_pod(
    context: &NodeContext,
    init: &Init,
    etcd: &EtcdCluster,
    local: LocalEtcd,
) -> Result<(), Error> {
    let machine = &context.machine;
    let pod = etcd_pod(&machine.name, init, etcd, local)?;
    write_pod(&format!("etcd-{}-{}", etcd.name, machine.group), &pod)
}

/// Returns the static Pod of a member of an etcd cluster beside the main one. It has the certificates of the main one.
fn etcd_pod(
    node_name: &str,
    init: &Init,
    etcd: &EtcdCluster,
    local: LocalEtcd,
) -> Result<Value, Error> {
    let (mut cluster, layout) = (init.cluster.clone(), Layout::default());
    cluster.etcd.local = Some(local);
    let endpoint = &init.init.local_api_endpoint;
    let machine = manifests::Machine::new(&cluster, endpoint, node_name, &layout);
    let mut pod = manifests::manifest(Component::Etcd, &machine)?;
    let name = format!("etcd-{}", etcd.name);
    pod.put("metadata.name", name.as_str());
    pod.put("metadata.labels.component", name.as_str());
    // The annotation of kubeadm names the client URL of the main cluster, by which members find each other.
    pod.remove("metadata.annotations");
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use api_config::kubeadm::Arg;
    use serde_json::json;

    use super::*;
    use crate::parameters::ClusterParameters;

    #[test]
    fn members_of_the_events_cluster_have_ports_and_data_of_their_own() {
        let parameters = ClusterParameters {
            name: "a.local".to_owned(),
            version: "1.36.2".to_owned(),
            services: "100.64.0.0/13".to_owned(),
            pods: "100.96.0.0/11".to_owned(),
            domain: "cluster.local".to_owned(),
        };
        let init = parameters.init(Some(("cp-1", "172.29.0.2".parse().unwrap())));
        let all = EtcdCluster::all_of(&json!({"EtcdClusterNames": ["events", "main"]})).unwrap();
        assert_eq!(all.iter().map(|etcd| etcd.name).collect::<Vec<_>>(), ["main", "events"]);
        assert_eq!(EtcdCluster::all_of(&json!({})).unwrap().len(), 1);
        let unknown = EtcdCluster::all_of(&json!({"EtcdClusterNames": ["main", "leases"]}));
        assert!(unknown.unwrap_err().to_string().contains("\"leases\""));
        let own = "etcd-events-172.29.0.2=https://172.29.0.2:2381";
        let mut extra_args = vec![Arg::new("initial-cluster", own)];
        extra_args.extend(all[1].urls("172.29.0.2"));
        let data_dir = "/mnt/master-a-etcd-events/data".to_owned();
        let local = LocalEtcd { data_dir, extra_args, ..LocalEtcd::default() };
        let pod = etcd_pod("cp-1", &init, &all[1], local).unwrap();
        assert_eq!(pod.text("metadata.name"), "etcd-events");
        let text = pod.to_string();
        for part in [
            "--advertise-client-urls=https://172.29.0.2:4002",
            "--listen-client-urls=https://127.0.0.1:4002,https://172.29.0.2:4002",
            "--listen-peer-urls=https://172.29.0.2:2381",
            "--initial-cluster=etcd-events-172.29.0.2=https://172.29.0.2:2381",
            "--listen-metrics-urls=http://127.0.0.1:2382",
            "--data-dir=/mnt/master-a-etcd-events/data",
        ] {
            assert_eq!(text.matches(&format!("\"{part}\"")).count(), 1, "{part}: {text}");
        }
        assert!(!text.contains(":2379") && !text.contains(":2380"), "{text}");
    }
}
