//! `KubeSchedulerConfiguration` as in the file. The scheduler validates it and rejects unsupported settings.

use std::path::PathBuf;

use api_meta::GoDuration;
use serde::Deserialize;
use serde_json::Value;

/// The `apiVersion` of a KubeSchedulerConfiguration and of the arguments of its plugins.
pub const SCHEDULER_VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// The configuration of kube-scheduler (`kubescheduler.config.k8s.io/v1`). `None` means the default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeSchedulerConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The number of parallel computations.
    pub parallelism: Option<i64>,
    /// The leader election.
    pub leader_election: LeaderElection,
    /// The connection to the API server.
    pub client_connection: SchedulerConnection,
    /// The percentage of feasible nodes to score.
    pub percentage_of_nodes_to_score: Option<i64>,
    /// The first backoff of an unschedulable Pod, in seconds.
    pub pod_initial_backoff_seconds: Option<i64>,
    /// The longest backoff of an unschedulable Pod, in seconds.
    pub pod_max_backoff_seconds: Option<i64>,
    /// The profiles.
    pub profiles: Vec<SchedulerProfile>,
    /// The extenders.
    pub extenders: Vec<SchedulerExtender>,
}

/// A program beside the scheduler that filters and scores nodes, chooses victims or binds Pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerExtender {
    /// The URL that verbs are appended to.
    pub url_prefix: String,
    /// The verb of the call that filters nodes; empty without one.
    pub filter_verb: String,
    /// The verb of the call that chooses victims of preemption; empty without one.
    pub preempt_verb: String,
    /// The verb of the call that scores nodes; empty without one.
    pub prioritize_verb: String,
    /// The weight of the scores.
    pub weight: i64,
    /// The verb of the call that binds a Pod; empty without one.
    pub bind_verb: String,
    /// `true` to accept any certificate of an `https` URL if no authority is given.
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    /// The certificates of an `https` URL.
    pub tls_config: Option<ExtenderTls>,
    /// The longest duration of a call; 5 s if `None` or 0.
    #[serde(rename = "httpTimeout")]
    pub http_timeout: Option<GoDuration>,
    /// `true` to send the names of nodes and the uids of victims instead of the objects.
    pub node_cache_capable: bool,
    /// The extended resources of the Pods that the extender is called for; empty for all Pods.
    pub managed_resources: Vec<ManagedResource>,
    /// `true` to schedule Pods without the extender while it fails.
    pub ignorable: bool,
}

/// The certificates for connections to an extender. Data has precedence over files.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtenderTls {
    /// `true` to accept any certificate of the server.
    pub insecure: bool,
    /// The name that the server's certificate must contain; the URL's host if empty.
    pub server_name: String,
    /// The file with the client certificate.
    pub cert_file: String,
    /// The file with the key of the client certificate.
    pub key_file: String,
    /// The file with the authorities of the server.
    pub ca_file: String,
    /// The client certificate, as base64 of PEM.
    pub cert_data: String,
    /// The key of the client certificate, as base64 of PEM.
    pub key_data: String,
    /// The authorities of the server, as base64 of PEM.
    pub ca_data: String,
}

/// An extended resource that an extender manages.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedResource {
    /// The name of the resource.
    pub name: String,
    /// `true` if the scheduler itself does not check the resource.
    pub ignored_by_scheduler: bool,
}

/// The leader election of a component (`k8s.io/component-base`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    /// `true` to elect a leader.
    pub leader_elect: Option<bool>,
    /// The time without a renewal after which another contender may take the lease.
    pub lease_duration: Option<GoDuration>,
    /// The time without a renewal after which the leader gives up.
    pub renew_deadline: Option<GoDuration>,
    /// The time between two attempts.
    pub retry_period: Option<GoDuration>,
    /// The kind of the lock object.
    pub resource_lock: Option<String>,
    /// The name of the lock object.
    pub resource_name: Option<String>,
    /// The namespace of the lock object.
    pub resource_namespace: Option<String>,
}

/// The connection to the API server, reduced to the supported fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SchedulerConnection {
    /// The path of the kubeconfig.
    pub kubeconfig: Option<PathBuf>,
}

/// The plugins for the Pods of one scheduler name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerProfile {
    /// The scheduler name in Pods.
    pub scheduler_name: Option<String>,
    /// The percentage of feasible nodes to score.
    pub percentage_of_nodes_to_score: Option<i64>,
    /// The enabled and disabled plugins.
    pub plugins: SchedulerPlugins,
    /// The arguments of plugins.
    pub plugin_config: Vec<PluginConfig>,
}

/// The changes to the default plugins, by extension point.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulerPlugins {
    /// The plugins of all their extension points.
    pub multi_point: PluginSet,
    /// The plugins of the extension point `preEnqueue`.
    pub pre_enqueue: PluginSet,
    /// The plugins of the extension point `queueSort`.
    pub queue_sort: PluginSet,
    /// The plugins of the extension point `preFilter`.
    pub pre_filter: PluginSet,
    /// The plugins of the extension point `filter`.
    pub filter: PluginSet,
    /// The plugins of the extension point `postFilter`.
    pub post_filter: PluginSet,
    /// The plugins of the extension point `preScore`.
    pub pre_score: PluginSet,
    /// The plugins of the extension point `score`.
    pub score: PluginSet,
    /// The plugins of the extension point `reserve`.
    pub reserve: PluginSet,
    /// The plugins of the extension point `permit`.
    pub permit: PluginSet,
    /// The plugins of the extension point `preBind`.
    pub pre_bind: PluginSet,
    /// The plugins of the extension point `bind`.
    pub bind: PluginSet,
    /// The plugins of the extension point `postBind`.
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

/// The plugins that are added to the defaults or removed from them at one extension point.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PluginSet {
    /// The plugins to add.
    pub enabled: Vec<Plugin>,
    /// The plugins to remove.
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

/// A plugin and the weight of its score.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Plugin {
    /// The name.
    pub name: String,
    /// The weight; `None` for the default.
    pub weight: Option<i64>,
}

/// The arguments of one plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PluginConfig {
    /// The name of the plugin.
    pub name: String,
    /// The arguments.
    pub args: Value,
}
