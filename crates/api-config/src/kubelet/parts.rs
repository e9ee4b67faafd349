use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::GoDuration;

/// Who may be a user at the kubelet's own API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authentication {
    pub x509: X509,
    pub webhook: Webhook,
    pub anonymous: Anonymous,
}

/// Users by client certificates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct X509 {
    /// The file of authorities that sign them; empty turns client certificates off.
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// Users by bearer tokens, which the API server is asked about (TokenReview).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Webhook {
    /// True where it is not set.
    pub enabled: Option<bool>,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// Whether requests without credentials are those of `system:anonymous`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Anonymous {
    /// False where it is not set.
    pub enabled: Option<bool>,
}

/// What users may do at the kubelet's own API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Authorization {
    /// `AlwaysAllow` or `Webhook`.
    pub mode: String,
    pub webhook: AuthorizationWebhook,
}

/// How long the API server's answers (SubjectAccessReview) are believed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthorizationWebhook {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// Whether Pods use the machine's swap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemorySwap {
    /// `NoSwap`, which is the default, or `LimitedSwap`.
    pub swap_behavior: String,
}

/// How long a container that keeps ending waits at most for its next start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: Option<GoDuration>,
}

/// How long Pods of a priority and above have to end when the machine shuts down.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PriorityGracePeriod {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

/// Memory of a NUMA node that the memory manager gives to nobody.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MemoryReservation {
    pub numa_node: i32,
    pub limits: BTreeMap<String, String>,
}

/// Where the kubelet's traces go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tracing {
    /// An OTLP gRPC address; the collector of this machine where it is not set.
    pub endpoint: Option<String>,
    pub sampling_rate_per_million: Option<i32>,
}

/// How many user IDs each Pod with a user namespace gets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UserNamespaces {
    pub ids_per_pod: Option<i64>,
}
