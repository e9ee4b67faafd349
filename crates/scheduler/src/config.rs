use std::{path::PathBuf, time::Duration};

use api_config::{
    decode, gvk,
    known::{Field, take_ignored},
};
use serde::Deserialize;

/// What the scheduler runs with, after flags and file.
#[derive(Clone, Debug)]
pub struct Config {
    pub scheduler_names: Vec<String>,
    pub leader_election: bool,
    /// Unique to this process.
    pub identity: String,
    pub host: String,
    pub first_backoff: Duration,
    pub max_backoff: Duration,
    /// Bindings and other writes under way at once.
    pub parallel_writes: usize,
    /// Breaks ties between equal nodes.
    pub seed: u64,
    /// From the file: where the API server is, unless a flag or the embedding process says so.
    pub kubeconfig: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scheduler_names: vec!["default-scheduler".into()],
            leader_election: false,
            identity: String::new(),
            host: String::new(),
            first_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            parallel_writes: 64,
            seed: 1,
            kubeconfig: None,
        }
    }
}

impl Config {
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
}

/// What is wrong with the file of `--config`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading the scheduler's configuration {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("decoding the scheduler's configuration {path}: {reason}")]
    Decode { path: PathBuf, reason: String },
    #[error(
        "the configuration {path} is a {found}, not a kubescheduler.config.k8s.io/v1 \
         KubeSchedulerConfiguration; write one, or leave --config out"
    )]
    Kind { path: PathBuf, found: String },
}

/// kube-scheduler's flags that are acted on.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A file with a KubeSchedulerConfiguration.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// How to reach the API server.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Work only while holding the lease kube-system/kube-scheduler.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub leader_elect: Option<bool>,
    /// How to reach the API server to authenticate those who ask for metrics and health.
    #[arg(long)]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// How to reach the API server to authorize those who ask for metrics and health.
    #[arg(long)]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// The address to serve metrics and health on.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: std::net::IpAddr,
    /// The port to serve metrics and health on.
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
}

/// Fields of the file that are accepted, and why nothing is done about them.
const WITHOUT_EFFECT: &[Field] = &[
    ("delayCacheUntilActive", "caches are filled at once"),
    ("percentageOfNodesToScore", "the share adapts to the cluster"),
];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    leader_election: FileLeader,
    client_connection: FileConnection,
    pod_initial_backoff_seconds: Option<u64>,
    pod_max_backoff_seconds: Option<u64>,
    parallelism: Option<usize>,
    profiles: Vec<FileProfile>,
    extenders: Vec<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileLeader {
    leader_elect: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileConnection {
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileProfile {
    scheduler_name: Option<String>,
}

impl Args {
    /// The configuration of a process of its own; flags win over the file, as upstream's deprecated ones do.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut config = Config { leader_election: true, ..Config::default() };
        if let Some(path) = &self.config {
            apply_file(&mut config, path)?;
        }
        config.leader_election = self.leader_elect.unwrap_or(config.leader_election);
        config.kubeconfig = self.kubeconfig.clone().or(config.kubeconfig);
        Ok(config)
    }
}

fn apply_file(config: &mut Config, path: &PathBuf) -> Result<(), ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    let bad = |reason: String| ConfigError::Decode { path: path.clone(), reason };
    let mut value = api_config::yaml::parse(&text).map_err(|error| bad(error.to_string()))?;
    let (version, kind) = gvk(&value);
    if (version, kind) != ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration") {
        return Err(ConfigError::Kind { path: path.clone(), found: format!("{version} {kind}") });
    }
    let ignored = value.as_object_mut().map(|whole| take_ignored(whole, WITHOUT_EFFECT));
    for warning in ignored.unwrap_or_default() {
        tracing::warn!("{warning}");
    }
    let decoded = decode::<File>("KubeSchedulerConfiguration", value)
        .map_err(|error| bad(error.to_string()))?;
    if !decoded.unknown.is_empty() {
        tracing::warn!(fields = ?decoded.unknown, "these fields of the configuration are not acted on");
    }
    let file = decoded.value;
    if !file.extenders.is_empty() {
        // Without those who may forbid a node, Pods would go where they must not.
        return Err(bad("extenders are not called; leave them out".to_owned()));
    }
    config.leader_election = file.leader_election.leader_elect.unwrap_or(config.leader_election);
    config.kubeconfig = file.client_connection.kubeconfig;
    let seconds = |value: Option<u64>, default| value.map_or(default, Duration::from_secs);
    config.first_backoff = seconds(file.pod_initial_backoff_seconds, config.first_backoff);
    config.max_backoff = seconds(file.pod_max_backoff_seconds, config.max_backoff);
    config.parallel_writes = file.parallelism.map_or(config.parallel_writes, |p| p.max(1) * 4);
    let names: Vec<_> = file.profiles.into_iter().filter_map(|p| p.scheduler_name).collect();
    if !names.is_empty() {
        config.scheduler_names = names;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_extenders_is_refused() {
        let path = std::env::temp_dir().join(format!("scheduler-file-{}", std::process::id()));
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        for (rest, taken) in [("", true), ("extenders: [{urlPrefix: https://a}]\n", false)] {
            std::fs::write(&path, format!("{head}{rest}")).unwrap();
            assert_eq!(apply_file(&mut Config::default(), &path).is_ok(), taken, "{rest}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
