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
        }
    }
}

/// Controllers that `*` does not mean, as upstream's.
const OFF_BY_DEFAULT: &[&str] = &["bootstrap-signer-controller", "token-cleaner-controller"];

impl Config {
    pub(crate) fn enables(&self, name: &str) -> bool {
        let named = |wanted: &str| self.controllers.iter().any(|c| c == wanted);
        if named(name) {
            return true;
        }
        !named(&format!("-{name}")) && named("*") && !OFF_BY_DEFAULT.contains(&name)
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
