//! The configuration of the controllers.

use std::{collections::BTreeMap, time::Duration};

use api_config::FeatureGates;
use api_meta::{Cidr, GoDuration};
use client::LeaderElectionConfig;
use serde_json::{Value, json};
use telemetry::metrics::Metrics;

/// The configuration of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// The controllers to run, in the syntax of `--controllers`: `*`, `name`, `-name`.
    pub controllers: Vec<String>,
    /// `true` if the controllers run only while the process holds the lease.
    pub leader_election: bool,
    /// The settings of the lease. The identity is set at the start.
    pub lease: LeaderElectionConfig,
    /// The value of `--cluster-name`.
    pub cluster_name: String,
    /// Pod CIDRs, at most one of each family; empty if nodes get no ranges.
    pub cluster_cidrs: Vec<String>,
    /// Service CIDRs, from which nodes get no ranges.
    pub service_cidrs: Vec<String>,
    /// The prefix length of a node's IPv4 Pod CIDR.
    pub node_cidr_mask_v4: u8,
    /// The prefix length of a node's IPv6 Pod CIDR.
    pub node_cidr_mask_v6: u8,
    /// `true` if the controllers allocate Pod CIDRs to nodes.
    pub allocate_node_cidrs: bool,
    /// The CA certificate in PEM that Pods are to trust; `None` publishes none.
    pub root_ca: Option<String>,
    /// The private key in PEM that signs the tokens of Secrets; `None` fills no Secrets.
    pub token_key: Option<String>,
    /// The time after the last use of an unused token of a former release after which it is invalidated, and after that
    /// until it is deleted.
    pub token_clean_up_period: Duration,
    /// The interval between two checks of node health.
    pub node_monitor_period: Duration,
    /// The time without a heartbeat after which a node is unhealthy.
    pub node_monitor_grace_period: Duration,
    /// The same for a node whose kubelet has not reported yet.
    pub node_startup_grace_period: Duration,
    /// The number of terminated Pods above which the oldest are deleted; 0 for no limit.
    pub terminated_pod_threshold: usize,
    /// The CA certificate and key in PEM that sign certificate requests; `None` signs none.
    pub signing: Option<(String, String)>,
    /// The CA certificate and key in PEM of single signers, by the signers' names. They come before `signing`.
    pub signers: BTreeMap<&'static str, (String, String)>,
    /// The longest validity of a signed certificate.
    pub signing_duration: Duration,
    /// The settings of the horizontal Pod autoscaler.
    pub autoscaling: Autoscaling,
    /// `true` if a volume in use is never detached by force, however long its node has been unhealthy.
    pub disable_force_detach: bool,
    /// The rates at which nodes are tainted for eviction.
    pub eviction: EvictionRates,
    /// The number of endpoints in a slice.
    pub max_endpoints_per_slice: usize,
    /// The number of addresses of a subset of Endpoints that are mirrored.
    pub max_mirrored_per_subset: usize,
    /// `false` if no controller collects the dependents of deleted objects.
    pub garbage_collection: bool,
    /// `false` if claims are bound only to existing volumes.
    pub dynamic_provisioning: bool,
    /// The feature gates.
    pub features: FeatureGates,
    /// The source of the addresses of LoadBalancer Services.
    pub load_balancer: LoadBalancerSource,
    /// The registry of the controllers' metrics. Each running controller manager needs its own.
    pub metrics: Metrics,
}

/// The source of the addresses of LoadBalancer Services (service-lb-controller).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancerSource {
    /// The nodes' own addresses. A Service gets those on which its ports are free, as k3s's ServiceLB does.
    #[default]
    Nodes,
    /// These ranges. A Service gets an address of its own in each family, which a node announces.
    Ranges(Vec<Cidr>),
}

/// The rates at which unhealthy nodes are tainted for eviction, in each zone.
#[derive(Clone, Copy, Debug)]
pub struct EvictionRates {
    /// The number of nodes per second.
    pub usual: f64,
    /// The number of nodes per second in a large zone whose nodes are mostly unhealthy. In a small one it is zero.
    pub secondary: f64,
    /// The number of nodes above which a zone is large.
    pub large: usize,
    /// The share of unhealthy nodes from which a zone is mostly unhealthy.
    pub threshold: f64,
}

impl Default for EvictionRates {
    fn default() -> Self {
        Self { usual: 0.1, secondary: 0.01, large: 50, threshold: 0.55 }
    }
}

/// The settings of the horizontal Pod autoscaler.
#[derive(Clone, Debug)]
pub struct Autoscaling {
    /// The number of autoscalers that are reconciled at the same time.
    pub workers: usize,
    /// The interval between two evaluations of an autoscaler.
    pub period: Duration,
    /// The window in which a target shrinks only to the largest recommended size.
    pub downscale_stabilization: Duration,
    /// The deviation from the target ratio that causes no scaling.
    pub tolerance: f64,
    /// The time after a Pod's start in which its CPU usage counts only if the Pod is ready.
    pub cpu_initialization: Duration,
    /// A Pod that became unready within this time after its start counts as never ready.
    pub initial_readiness: Duration,
}

impl Default for Autoscaling {
    fn default() -> Self {
        Self {
            workers: 5,
            period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            tolerance: 0.1,
            cpu_initialization: Duration::from_secs(300),
            initial_readiness: Duration::from_secs(30),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            controllers: vec!["*".into()],
            leader_election: false,
            lease: LeaderElectionConfig::new(
                "kube-system",
                "kube-controller-manager",
                String::new(),
            ),
            cluster_name: "kubernetes".into(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            node_cidr_mask_v4: 24,
            node_cidr_mask_v6: 64,
            allocate_node_cidrs: false,
            root_ca: None,
            token_key: None,
            token_clean_up_period: Duration::from_secs(8760 * 3600),
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_secs(60),
            terminated_pod_threshold: 12_500,
            signing: None,
            signers: BTreeMap::new(),
            signing_duration: Duration::from_secs(365 * 24 * 3600),
            autoscaling: Autoscaling::default(),
            disable_force_detach: false,
            eviction: EvictionRates::default(),
            max_endpoints_per_slice: 100,
            max_mirrored_per_subset: 1000,
            garbage_collection: true,
            dynamic_provisioning: true,
            features: FeatureGates::default(),
            load_balancer: LoadBalancerSource::default(),
            metrics: Metrics::default(),
        }
    }
}

impl Config {
    /// Returns the effective settings as `/configz` shows them. The keys that sign certificates are left out.
    pub fn configz(&self) -> Value {
        let Autoscaling { workers, period, downscale_stabilization, tolerance, .. } =
            self.autoscaling;
        json!({"kubecontrollermanager.config.k8s.io": {
            "Generic": {
                "Controllers": self.controllers,
                "LeaderElection": {"LeaderElect": self.leader_election},
            },
            "KubeCloudShared": {
                "ClusterName": self.cluster_name,
                "ClusterCIDR": self.cluster_cidrs.join(","),
                "AllocateNodeCIDRs": self.allocate_node_cidrs,
                "NodeMonitorPeriod": GoDuration::from(self.node_monitor_period),
            },
            "NodeIPAMController": {
                "ServiceCIDR": self.service_cidrs.join(","),
                "NodeCIDRMaskSizeIPv4": self.node_cidr_mask_v4,
                "NodeCIDRMaskSizeIPv6": self.node_cidr_mask_v6,
            },
            "NodeLifecycleController": {
                "NodeMonitorGracePeriod": GoDuration::from(self.node_monitor_grace_period),
                "NodeStartupGracePeriod": GoDuration::from(self.node_startup_grace_period),
            },
            "PodGCController": {"TerminatedPodGCThreshold": self.terminated_pod_threshold},
            "CSRSigningController": {"ClusterSigningDuration": GoDuration::from(self.signing_duration)},
            "HPAController": {
                "ConcurrentHorizontalPodAutoscalerSyncs": workers,
                "HorizontalPodAutoscalerSyncPeriod": GoDuration::from(period),
                "HorizontalPodAutoscalerDownscaleStabilizationWindow":
                    GoDuration::from(downscale_stabilization),
                "HorizontalPodAutoscalerTolerance": tolerance,
            },
        }})
    }
}

/// The controllers that `*` does not include, as upstream's. Upstream runs service-lb-controller only with a cloud.
const OFF_BY_DEFAULT: &[&str] =
    &["bootstrap-signer-controller", "service-lb-controller", "token-cleaner-controller"];

/// Former names of controllers, which flags may still use.
const FORMER: &[(&str, &str)] = &[
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("service", "service-lb-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("job", "job-controller"),
    ("namespace", "namespace-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resourcequota", "resourcequota-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", "serviceaccount-token-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("statefulset", "statefulset-controller"),
    ("ttl", "ttl-controller"),
    ("route", "node-route-controller"),
    ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
    ("validatingadmissionpolicy-status", "validatingadmissionpolicy-status-controller"),
];

/// Upstream's controllers that do nothing without a cloud, or without a feature gate that is rejected here. Naming one
/// is not an error.
const INERT: &[&str] = &[
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "storageversion-garbage-collector-controller",
];

/// Upstream's controllers that are not implemented. They can only be switched off.
const LACKING: &[&str] =
    &["selinux-warning-controller", "service-ca-certificate-publisher-controller"];

fn full_name(name: &str) -> &str {
    FORMER.iter().find(|(former, _)| *former == name).map_or(name, |(_, name)| name)
}

impl Config {
    pub(crate) fn enables(&self, name: &str) -> bool {
        if name == "garbage-collector-controller" && !self.garbage_collection {
            return false;
        }
        let controllers = || self.controllers.iter().map(String::as_str);
        let off = controllers().any(|c| c.strip_prefix('-').is_some_and(|c| full_name(c) == name));
        let on = controllers().any(|c| full_name(c) == name);
        on || (!off && controllers().any(|c| c == "*") && !OFF_BY_DEFAULT.contains(&name))
    }

    /// Returns the first name in the list that is neither one of `names` nor known otherwise.
    pub(crate) fn unknown_controller(&self, names: &[&str]) -> Option<&str> {
        let unknown = |listed: &&String| {
            let off = listed.strip_prefix('-').map(full_name);
            let name = off.unwrap_or_else(|| full_name(listed));
            let is_lacking = off.is_some_and(|name| LACKING.contains(&name));
            name != "*" && !INERT.contains(&name) && !is_lacking && !names.contains(&name)
        };
        self.controllers.iter().find(unknown).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enables_controllers_like_upstream() {
        let list = |text: &str| Config {
            controllers: text.split(',').map(str::to_owned).collect(),
            ..Config::default()
        };
        assert!(list("*").enables("deployment-controller"));
        assert!(!list("*").enables("token-cleaner-controller"));
        assert!(list("*,token-cleaner-controller").enables("token-cleaner-controller"));
        assert!(!list("*,-deployment-controller").enables("deployment-controller"));
        assert!(!list("job-controller").enables("deployment-controller"));
        let collector = "garbage-collector-controller";
        assert!(list("*").enables(collector));
        assert!(!Config { garbage_collection: false, ..list(collector) }.enables(collector));
        let unknown = |text: &str| list(text).unknown_controller(&[]).map(str::to_owned);
        assert_eq!(unknown("*,-route,cloud-node-lifecycle,-selinux-warning-controller"), None);
        for name in ["selinux-warning-controller", "-nonsense", "nonsense"] {
            assert_eq!(unknown(name).as_deref(), Some(name));
        }
    }
}
