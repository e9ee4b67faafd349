//! `upgrade plan`: which components an upgrade changes, and from which version.

use std::collections::BTreeMap;

use bootstrap_core::{
    images::{self, version_tag},
    manifests::Component as StaticPod,
    upgrade::image_tag,
};

use super::{cluster_state::ClusterState, context::Ctx, preflight::check_cluster};
use crate::Error;

/// A component of the cluster, or a part of it on one Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// The name, such as kube-apiserver.
    pub name: &'static str,
    /// The Node; empty for components that all nodes share.
    pub node: String,
    /// The version that runs.
    pub current: String,
    /// The version after the upgrade.
    pub target: String,
}

/// A group of component configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigVersion {
    /// The API group.
    pub group: &'static str,
    /// The version in the cluster, which is also the one that this program writes.
    pub version: &'static str,
}

/// The outcome of `upgrade plan`.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The version of the API server.
    pub cluster: String,
    /// The version of the upgrade.
    pub target: String,
    /// The components that `upgrade apply` and `upgrade node` upgrade.
    pub upgraded: Vec<Component>,
    /// The kubelets, whose programs the administrator replaces.
    pub manual: Vec<Component>,
    /// The component configurations of the cluster.
    pub configs: Vec<ConfigVersion>,
}

impl Component {
    /// Reports whether the versions differ in more than build metadata.
    fn is_outdated(&self) -> bool {
        let release = |version: &str| version.split('+').next().map(str::to_owned);
        release(&self.current) != release(&self.target)
    }
}

impl Plan {
    /// Returns `true` if a component has another version than the target.
    pub fn has_upgrade(&self) -> bool {
        self.upgraded.iter().chain(&self.manual).any(Component::is_outdated)
    }
}

/// Checks the cluster's health and compares the versions that run with the target's.
pub async fn plan(ctx: &mut Ctx) -> Result<Plan, Error> {
    let client = ctx.node.client().await?;
    let state = ClusterState::read(&client).await?;
    check_cluster(ctx, &client, &state).await?;
    Ok(compare(ctx, &state))
}

fn compare(ctx: &Ctx, state: &ClusterState) -> Plan {
    let cluster = &ctx.node.config.cluster;
    let target = version_tag(&cluster.kubernetes_version);
    let manual = state.kubelets.iter().map(|(node, version)| Component {
        name: "kubelet",
        node: node.clone(),
        current: version.clone(),
        target: target.clone(),
    });
    let mut upgraded = Vec::new();
    for component in StaticPod::CONTROL_PLANE {
        upgraded.extend(of_nodes(component.name(), &state.static_pods, &target));
    }
    let shared = |name, current: &Option<String>, target: String| {
        let current = current.clone()?;
        Some(Component { name, node: String::new(), current, target })
    };
    upgraded.extend(shared("kube-proxy", &state.proxy, target.clone()));
    let dns = image_tag(&images::coredns(cluster)).to_owned();
    upgraded.extend(shared("CoreDNS", &state.dns, dns));
    if ctx.options.etcd && cluster.etcd.local.is_some() {
        let etcd = image_tag(&images::etcd(cluster)).to_owned();
        upgraded.extend(of_nodes(StaticPod::Etcd.name(), &state.static_pods, &etcd));
    }
    let mut configs = vec![ConfigVersion { group: "kubelet.config.k8s.io", version: "v1beta1" }];
    if state.proxy.is_some() {
        configs.insert(0, ConfigVersion { group: "kubeproxy.config.k8s.io", version: "v1alpha1" });
    }
    Plan {
        cluster: format!("v{}", state.cluster),
        target: target.clone(),
        upgraded,
        manual: manual.collect(),
        configs,
    }
}

fn of_nodes(
    name: &'static str,
    pods: &BTreeMap<&'static str, BTreeMap<String, String>>,
    target: &str,
) -> Vec<Component> {
    let nodes = pods.get(name).into_iter().flatten();
    let component = |(node, tag): (&String, &String)| Component {
        name,
        node: node.clone(),
        current: tag.clone(),
        target: target.to_owned(),
    };
    nodes.map(component).collect()
}
