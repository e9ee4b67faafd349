use std::time::Duration;

/// What the controllers run with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of controllers to run, as `--controllers`: `*`, `name`, `-name`.
    pub controllers: Vec<String>,
    pub leader_election: bool,
    /// Unique to this process.
    pub identity: String,
    pub host: String,
    pub cluster_name: String,
    /// Pod address ranges, at most one of each family; empty when nodes are not given ranges.
    pub cluster_cidrs: Vec<String>,
    /// Nodes get no ranges out of these.
    pub service_cidrs: Vec<String>,
    pub node_cidr_mask_v4: u8,
    pub node_cidr_mask_v6: u8,
    pub allocate_node_cidrs: bool,
    /// PEM of the CA that Pods are to trust.
    pub root_ca: Option<String>,
    pub node_monitor_period: Duration,
    pub node_monitor_grace_period: Duration,
    /// Terminated Pods are removed when there are more.
    pub terminated_pod_threshold: usize,
    /// Certificate and key (PEM) that certificate requests are signed with.
    pub signing: Option<(String, String)>,
    pub signing_duration: Duration,
    pub autoscaling: Autoscaling,
    /// A volume that a node says it uses is left to it, however long the node has been unwell.
    pub disable_force_detach: bool,
}

/// How horizontal Pod autoscalers decide.
#[derive(Clone, Debug)]
pub struct Autoscaling {
    /// Autoscalers that are looked at at a time.
    pub workers: usize,
    /// How often each is looked at.
    pub period: Duration,
    /// A target shrinks to the largest size that was recommended within this time.
    pub downscale_stabilization: Duration,
    /// By how much a ratio of usage to target may be off and nothing is changed.
    pub tolerance: f64,
    /// For so long after its start a Pod's processor time counts only once it is ready.
    pub cpu_initialization: Duration,
    /// A Pod that became unready so soon after its start has never been ready.
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
            identity: String::new(),
            host: String::new(),
            cluster_name: "kubernetes".into(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            node_cidr_mask_v4: 24,
            node_cidr_mask_v6: 64,
            allocate_node_cidrs: false,
            root_ca: None,
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace_period: Duration::from_secs(50),
            terminated_pod_threshold: 12_500,
            signing: None,
            signing_duration: Duration::from_secs(365 * 24 * 3600),
            autoscaling: Autoscaling::default(),
            disable_force_detach: false,
        }
    }
}

/// Controllers that `*` does not mean, as upstream's.
const OFF_BY_DEFAULT: &[&str] = &["bootstrap-signer-controller", "token-cleaner-controller"];

/// Names that controllers had before, which flags may still use.
const FORMER: &[(&str, &str)] = &[
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
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
    ("statefulset", "statefulset-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
    ("validatingadmissionpolicy-status", "validatingadmissionpolicy-status-controller"),
];

/// Upstream's controllers that are not here (yet); naming one is no mistake.
const ELSEWHERE: &[&str] = &[
    "legacy-serviceaccount-token-cleaner-controller",
    "node-route-controller",
    "service-lb-controller",
    "serviceaccount-token-controller",
    "ttl-controller",
];

fn full_name(given: &str) -> &str {
    FORMER.iter().find(|(former, _)| *former == given).map_or(given, |(_, name)| name)
}

impl Config {
    pub(crate) fn enables(&self, name: &str) -> bool {
        let given = || self.controllers.iter().map(String::as_str);
        let off = given().any(|c| c.strip_prefix('-').is_some_and(|c| full_name(c) == name));
        let on = given().any(|c| full_name(c) == name);
        on || (!off && given().any(|c| c == "*") && !OFF_BY_DEFAULT.contains(&name))
    }

    /// Fills in what tells this process from others where the caller left it empty.
    pub(crate) fn identified(mut self) -> Self {
        if self.host.is_empty() {
            self.host = rt::hostname();
        }
        if self.identity.is_empty() {
            self.identity = format!("{:032x}", rt::random::<u128>());
        }
        self
    }

    /// The first name in the list that is no controller's.
    pub(crate) fn check_names(&self) -> Result<(), String> {
        let known = |name: &str| {
            name == "*"
                || ELSEWHERE.contains(&name)
                || crate::registry().iter().any(|controller| controller.name == name)
        };
        let plain = |given: &String| full_name(given.strip_prefix('-').unwrap_or(given)).to_owned();
        match self.controllers.iter().find(|given| !known(&plain(given))) {
            Some(unknown) => Err(unknown.clone()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_controllers_is_read_as_upstream_reads_it() {
        let list = |text: &str| Config {
            controllers: text.split(',').map(str::to_owned).collect(),
            ..Config::default()
        };
        assert!(list("*").enables("deployment-controller"));
        assert!(!list("*").enables("token-cleaner-controller"));
        assert!(list("*,token-cleaner-controller").enables("token-cleaner-controller"));
        assert!(!list("*,-deployment-controller").enables("deployment-controller"));
        assert!(!list("job-controller").enables("deployment-controller"));
    }
}
