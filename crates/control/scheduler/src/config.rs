//! The configuration of the scheduler, from flags and a KubeSchedulerConfiguration.

use std::{path::PathBuf, sync::Arc, time::Duration};

use api_config::{
    FeatureGates, GoFlag as _, KubeSchedulerConfiguration, LeaderElectionFlags, PageFlags,
    Strictness, decode, gvk,
    known::{Field, take_ignored},
    scheduler::SCHEDULER_VERSION,
};
use api_meta::{ErrorList, FieldError, GoDuration, Path, aggregate};
use client::LeaderElectionConfig;
use serde_json::{Value, json};
use telemetry::metrics::Metrics;

use crate::{
    extenders::{self, Extender},
    feed::has_gangs,
    metrics::ResourcePage,
    profile::Profile,
    profile_config::{self, percentage},
};

/// The scheduler's configuration, from flags and file.
#[derive(Clone, Debug)]
pub struct Config {
    /// The profiles, at least one.
    pub profiles: Vec<Profile>,
    /// `true` if Pods are scheduled only while the process holds the lease.
    pub leader_election: bool,
    /// The extenders, in the order of calls.
    pub extenders: Vec<Arc<Extender>>,
    /// The settings of the leader's lease. The identity is set when the scheduler starts.
    pub lease: LeaderElectionConfig,
    /// The backoff after the first failure.
    pub first_backoff: Duration,
    /// The longest backoff.
    pub max_backoff: Duration,
    /// The largest number of concurrent bindings and other writes.
    pub parallel_writes: usize,
    /// The seed for the choice between nodes of equal score.
    pub seed: u64,
    /// The kubeconfig in the file, unless a flag or the embedding process names another one.
    pub kubeconfig: Option<PathBuf>,
    /// The feature gates.
    pub features: FeatureGates,
    /// The registry of the scheduler's metrics. Each running scheduler needs its own.
    pub metrics: Metrics,
    /// The page of Pods' resources, which the scheduler fills.
    pub resources: ResourcePage,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            profiles: vec![Profile::default()],
            extenders: Vec::new(),
            leader_election: false,
            lease: LeaderElectionConfig::new("kube-system", "kube-scheduler", String::new()),
            first_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            parallel_writes: 64,
            seed: 1,
            kubeconfig: None,
            features: FeatureGates::default(),
            metrics: Metrics::default(),
            resources: ResourcePage::default(),
        }
    }
}

/// An error in the file of `--config`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading the scheduler's configuration {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("decoding the scheduler's configuration {path}: {source}")]
    Decode { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(
        "the scheduler's configuration {path} cannot be acted on: {}; correct it, or leave it out",
        aggregate(errors)
    )]
    Invalid { path: PathBuf, errors: ErrorList },
    #[error(
        "the configuration {path} is a {kind}, not a kubescheduler.config.k8s.io/v1 \
         KubeSchedulerConfiguration; write one, or leave --config out"
    )]
    Kind { path: PathBuf, kind: String },
    #[error("using the flags --leader-elect-*: {}; correct them", aggregate(.0))]
    LeaderElection(ErrorList),
}

/// The flags of kube-scheduler that have an effect.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A file with a KubeSchedulerConfiguration
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Kubeconfig file with the address and credentials of the API server
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Schedule only while holding the lease kube-system/kube-scheduler
    #[arg(long, go_bool())]
    pub leader_elect: Option<bool>,
    /// Flags of the lease
    #[command(flatten)]
    pub lease: LeaderElectionFlags,
    /// Flags of the pages for operators
    #[command(flatten)]
    pub pages: PageFlags,
    /// Port to serve metrics and health checks on
    #[arg(long, default_value_t = 10259)]
    pub secure_port: u16,
}

impl Config {
    /// Returns the profiles as the core uses them, without the plugins of features that are off.
    pub(crate) fn core_profiles(&self) -> Vec<sched_core::Profile> {
        let declares = self.features.is_enabled("NodeDeclaredFeatures");
        let mut profiles: Vec<_> = self.profiles.iter().map(|p| p.core.clone()).collect();
        for profile in profiles.iter_mut().filter(|_| !declares) {
            profile.set_filter("NodeDeclaredFeatures", false);
        }
        profiles
    }

    /// Returns the effective settings as `/configz` shows them, by the field names of KubeSchedulerConfiguration.
    pub fn configz(&self) -> Value {
        let profiles: Vec<Value> = self
            .profiles
            .iter()
            .map(|profile| {
                let Profile { core, .. } = profile;
                json!({"SchedulerName": core.scheduler_name,
                    "PercentageOfNodesToScore": core.percentage_of_nodes_to_score})
            })
            .collect();
        json!({"componentconfig": {
            "Parallelism": self.parallel_writes / 4,
            "PodInitialBackoffSeconds": self.first_backoff.as_secs(),
            "PodMaxBackoffSeconds": self.max_backoff.as_secs(),
            "LeaderElection": {
                "LeaderElect": self.leader_election,
                "LeaseDuration": GoDuration::from(self.lease.lease_duration),
                "RenewDeadline": GoDuration::from(self.lease.renew_deadline),
                "RetryPeriod": GoDuration::from(self.lease.retry_period),
                "ResourceNamespace": self.lease.namespace,
                "ResourceName": self.lease.name,
            },
            "Profiles": profiles,
            "Extenders": self.extenders.iter().map(|e| e.configz()).collect::<Vec<_>>(),
        }})
    }
}

/// Fields of the file that are accepted without effect, each with the reason why that is harmless.
const WITHOUT_EFFECT: &[Field] = &[
    ("delayCacheUntilActive", "caches are filled at once"),
    ("enableContentionProfiling", "there is no Go profiler here"),
    ("enableProfiling", "there is no Go profiler here"),
];

/// Fields of `clientConnection` that are accepted without effect, with reasons.
const CONNECTION_WITHOUT_EFFECT: &[Field] = &[
    ("acceptContentTypes", "JSON is what the informers decode"),
    ("burst", "the API server protects itself"),
    ("contentType", "JSON is what the informers decode"),
    ("qps", "the API server protects itself"),
];

impl Args {
    /// Returns the configuration of a separate process. Flags override the file, as upstream's deprecated ones do.
    pub fn config(&self, features: FeatureGates) -> Result<Config, ConfigError> {
        let mut config = Config { leader_election: true, features, ..Config::default() };
        if let Some(path) = &self.config {
            apply_file(&mut config, path)?;
        }
        config.leader_election = self.leader_elect.unwrap_or(config.leader_election);
        config.kubeconfig = self.kubeconfig.clone().or(config.kubeconfig);
        let mut errors = ErrorList::new();
        config.lease.apply(&self.lease.settings(), &Path::new("leaderElection"), &mut errors);
        if errors.is_empty() { Ok(config) } else { Err(ConfigError::LeaderElection(errors)) }
    }
}

fn apply_file(config: &mut Config, path: &PathBuf) -> Result<(), ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    let undecodable = |source| ConfigError::Decode { path: path.clone(), source };
    let mut value = api_config::yaml::parse(&text).map_err(|error| undecodable(error.into()))?;
    let (version, kind) = gvk(&value);
    if (version, kind) != (SCHEDULER_VERSION, "KubeSchedulerConfiguration") {
        return Err(ConfigError::Kind { path: path.clone(), kind: format!("{version} {kind}") });
    }
    for warning in without_effect(&mut value) {
        tracing::warn!("{warning}");
    }
    let file = decode::<KubeSchedulerConfiguration>("KubeSchedulerConfiguration", value)
        .and_then(|decoded| decoded.checked(Strictness::Refuse))
        .map_err(|error| undecodable(error.into()))?;
    let errors = apply(config, file.value);
    if errors.is_empty() {
        return Ok(());
    }
    Err(ConfigError::Invalid { path: path.clone(), errors })
}

/// Removes the fields without effect from a file, and returns a warning for each one that is set.
fn without_effect(file: &mut serde_json::Value) -> Vec<String> {
    let Some(whole) = file.as_object_mut() else { return Vec::new() };
    let mut warnings = take_ignored(whole, WITHOUT_EFFECT);
    let connection = whole.get_mut("clientConnection").and_then(|value| value.as_object_mut());
    if let Some(connection) = connection {
        warnings.extend(take_ignored(connection, CONNECTION_WITHOUT_EFFECT));
    }
    warnings
}

/// Applies a file and returns its errors, including settings that are not supported.
fn apply(config: &mut Config, file: KubeSchedulerConfiguration) -> ErrorList {
    let mut errors = ErrorList::new();
    let compiled = extenders::compile(&file.extenders, &mut errors);
    if !file.extenders.is_empty() && has_gangs(&config.features) {
        let detail = "extenders are not called for Pods of a PodGroup; switch off GangScheduling";
        errors.push(FieldError::forbidden(&Path::new("extenders"), detail));
    }
    config.extenders = compiled.extenders;
    config.leader_election = file.leader_election.leader_elect.unwrap_or(config.leader_election);
    config.lease.apply(&file.leader_election, &Path::new("leaderElection"), &mut errors);
    config.kubeconfig = file.client_connection.kubeconfig;
    let parallelism = file.parallelism.unwrap_or(16);
    match usize::try_from(parallelism) {
        Ok(workers @ 1..=100_000) => config.parallel_writes = workers * 4,
        _ => errors.push(FieldError::invalid(
            &Path::new("parallelism"),
            parallelism,
            "should be an integer value greater than zero",
        )),
    }
    backoff(config, file.pod_initial_backoff_seconds, file.pod_max_backoff_seconds, &mut errors);
    let share = percentage(
        file.percentage_of_nodes_to_score,
        &Path::new("percentageOfNodesToScore"),
        &mut errors,
    );
    // A file without profiles has the default profile.
    let profiles = if file.profiles.is_empty() { vec![Default::default()] } else { file.profiles };
    let mut all: Vec<Profile> = Vec::new();
    for (i, source) in profiles.iter().enumerate() {
        let path = Path::new("profiles").index(i);
        let mut profile = profile_config::compile(source, &path, &mut errors);
        if source.percentage_of_nodes_to_score.is_none() {
            profile.core.percentage_of_nodes_to_score = share;
        }
        // Resources that extenders manage replace those in the arguments of NodeResourcesFit.
        if !compiled.ignored_resources.is_empty() {
            profile.core.ignored_resources.clone_from(&compiled.ignored_resources);
        }
        let name = &profile.core.scheduler_name;
        if all.iter().any(|other| other.core.scheduler_name == *name) {
            errors.push(FieldError::duplicate(&path.child("schedulerName"), &**name));
        }
        all.push(profile);
    }
    config.profiles = all;
    errors
}

fn backoff(config: &mut Config, first: Option<i64>, most: Option<i64>, errors: &mut ErrorList) {
    let (first, most) = (first.unwrap_or(1), most.unwrap_or(10));
    if first <= 0 {
        let path = Path::new("podInitialBackoffSeconds");
        errors.push(FieldError::invalid(&path, first, "must be greater than 0"));
    }
    if most < first {
        let path = Path::new("podMaxBackoffSeconds");
        let detail = "must be greater than or equal to PodInitialBackoffSeconds";
        errors.push(FieldError::invalid(&path, most, detail));
    }
    let seconds = |number: i64| Duration::from_secs(u64::try_from(number).unwrap_or(0));
    (config.first_backoff, config.max_backoff) = (seconds(first), seconds(most));
}

#[cfg(test)]
mod tests;
