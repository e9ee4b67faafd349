//! `KubeSchedulerConfiguration` as a file states it. The scheduler validates it and refuses what it cannot act on.

use std::path::PathBuf;

use api_meta::GoDuration;
use serde::Deserialize;
use serde_json::Value;

/// The `apiVersion` of a KubeSchedulerConfiguration and of the arguments of its plugins.
pub const SCHEDULER_VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// The configuration of kube-scheduler (`kubescheduler.config.k8s.io/v1`). A field that is `None` has its default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeSchedulerConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    pub parallelism: Option<i64>,
    pub leader_election: LeaderElection,
    pub client_connection: SchedulerConnection,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub pod_initial_backoff_seconds: Option<i64>,
    pub pod_max_backoff_seconds: Option<i64>,
    pub profiles: Vec<SchedulerProfile>,
    pub extenders: Vec<Value>,
}

/// The election of the one component that works (`k8s.io/component-base`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    pub leader_elect: Option<bool>,
    pub lease_duration: Option<GoDuration>,
    pub renew_deadline: Option<GoDuration>,
    pub retry_period: Option<GoDuration>,
    pub resource_lock: Option<String>,
    pub resource_name: Option<String>,
    pub resource_namespace: Option<String>,
}

/// The connection to the API server, as far as it acts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SchedulerConnection {
    pub kubeconfig: Option<PathBuf>,
}

/// The plugins for the Pods that name one scheduler.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerProfile {
    pub scheduler_name: Option<String>,
    pub percentage_of_nodes_to_score: Option<i64>,
    pub plugins: SchedulerPlugins,
    pub plugin_config: Vec<PluginConfig>,
}

/// Changes to the default plugins, by extension point.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerPlugins {
    pub multi_point: PluginSet,
    pub pre_enqueue: PluginSet,
    pub queue_sort: PluginSet,
    pub pre_filter: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub pre_score: PluginSet,
    pub score: PluginSet,
    pub reserve: PluginSet,
    pub permit: PluginSet,
    pub pre_bind: PluginSet,
    pub bind: PluginSet,
    pub post_bind: PluginSet,
}

impl SchedulerPlugins {
    /// Returns each extension point's field, the name of its plugins' type in upstream's messages, and its set.
    pub fn points(&self) -> [(&'static str, &'static str, &PluginSet); 12] {
        [
            ("preEnqueue", "PreEnqueuePlugin", &self.pre_enqueue),
            ("queueSort", "QueueSortPlugin", &self.queue_sort),
            ("preFilter", "PreFilterPlugin", &self.pre_filter),
            ("filter", "FilterPlugin", &self.filter),
            ("postFilter", "PostFilterPlugin", &self.post_filter),
            ("preScore", "PreScorePlugin", &self.pre_score),
            ("score", "ScorePlugin", &self.score),
            ("reserve", "ReservePlugin", &self.reserve),
            ("permit", "PermitPlugin", &self.permit),
            ("preBind", "PreBindPlugin", &self.pre_bind),
            ("bind", "BindPlugin", &self.bind),
            ("postBind", "PostBindPlugin", &self.post_bind),
        ]
    }
}

/// The plugins that are added to the defaults or taken from them at one extension point.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PluginSet {
    pub enabled: Vec<Plugin>,
    pub disabled: Vec<Plugin>,
}

impl PluginSet {
    /// Returns the entry that enables a plugin.
    pub fn enables(&self, name: &str) -> Option<&Plugin> {
        self.enabled.iter().find(|plugin| plugin.name == name)
    }

    /// Reports whether a plugin is disabled, by its name or by `*`.
    pub fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|plugin| plugin.name == name || plugin.name == "*")
    }
}

/// A plugin by its name; the weight counts for its score.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Plugin {
    pub name: String,
    pub weight: Option<i64>,
}

/// The arguments of one plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PluginConfig {
    pub name: String,
    pub args: Value,
}
