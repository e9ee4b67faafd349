use std::collections::BTreeMap;

use api_meta::GoDuration;
use serde::{Deserialize, Serialize};

/// The authentication of the kubelet's API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authentication {
    /// Client certificates.
    pub x509: X509,
    /// Bearer tokens.
    pub webhook: Webhook,
    /// Requests without credentials.
    pub anonymous: Anonymous,
}

/// The authentication by client certificates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct X509 {
    /// The path of the client CA bundle; empty disables client certificates.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// The authentication by bearer tokens, with a TokenReview of the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Webhook {
    /// `true` to accept bearer tokens; `None` means `true`.
    pub enabled: Option<bool>,
    /// The time for which a TokenReview is cached.
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// The access of requests without credentials, as `system:anonymous`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Anonymous {
    /// `true` to accept anonymous requests; `None` means `false`.
    pub enabled: Option<bool>,
}

/// The authorization of the kubelet's API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authorization {
    /// The mode, `AlwaysAllow` or `Webhook`.
    pub mode: String,
    /// The settings of the mode `Webhook`.
    pub webhook: AuthorizationWebhook,
}

/// The cache of the API server's SubjectAccessReviews.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthorizationWebhook {
    /// The time for which an allowed request is cached.
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    /// The time for which a denied request is cached.
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// The use of swap by Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemorySwap {
    /// The mode, `NoSwap` (default) or `LimitedSwap`.
    pub swap_behavior: String,
}

/// The backoff of crashing containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CrashLoopBackOff {
    /// The longest delay before a restart.
    pub max_container_restart_period: Option<GoDuration>,
}

/// The time to end the Pods of a priority and above at a shutdown of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PriorityGracePeriod {
    /// The lowest priority of these Pods.
    pub priority: i32,
    /// The time, in seconds.
    pub shutdown_grace_period_seconds: i64,
}

/// The memory of a NUMA node that the memory manager does not assign.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemoryReservation {
    /// The number of the NUMA node.
    pub numa_node: i32,
    /// The amounts by memory type, such as `memory` or `hugepages-2Mi`.
    pub limits: BTreeMap<String, String>,
}

/// The export of traces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tracing {
    /// The OTLP gRPC address; `None` for the collector on this machine.
    pub endpoint: Option<String>,
    /// The number of samples per million spans.
    pub sampling_rate_per_million: Option<i32>,
}

/// The settings of user namespaces.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UserNamespaces {
    /// The number of user IDs of each Pod with a user namespace.
    pub ids_per_pod: Option<i64>,
}
