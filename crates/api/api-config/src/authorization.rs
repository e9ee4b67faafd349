//! `AuthorizationConfiguration` (apiserver.config.k8s.io): the chain of authorizers.

use api_meta::GoDuration;
use serde::Deserialize;

use crate::{authentication::strict, error::Error};

/// The root of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AuthorizationConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// The authorizers in the order in which they decide.
    pub authorizers: Vec<AuthorizerConfiguration>,
}

impl AuthorizationConfiguration {
    /// Parses a file's text and sets defaults, without validating it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut read: Self = strict("AuthorizationConfiguration", text)?;
        for webhook in read.authorizers.iter_mut().filter_map(|a| a.webhook.as_mut()) {
            // As upstream: a zero TTL means the default. The fields beside it turn caching off.
            let unless_zero = |ttl: &mut GoDuration, default| {
                if ttl.is_zero() {
                    *ttl = default;
                }
            };
            unless_zero(&mut webhook.authorized_ttl, WebhookConfiguration::AUTHORIZED_TTL);
            unless_zero(&mut webhook.unauthorized_ttl, WebhookConfiguration::UNAUTHORIZED_TTL);
        }
        Ok(read)
    }

    /// Creates a configuration from authorizers that flags describe.
    pub fn of(authorizers: Vec<AuthorizerConfiguration>) -> Self {
        Self { authorizers, ..Self::default() }
    }
}

/// An authorizer of the chain.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AuthorizerConfiguration {
    /// The type: `Webhook`, `Node`, `RBAC`, `ABAC`, `AlwaysAllow` or `AlwaysDeny`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The name in metrics.
    pub name: String,
    /// The settings of a webhook.
    pub webhook: Option<WebhookConfiguration>,
}

/// The settings of an authorization webhook.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WebhookConfiguration {
    /// The time for which an allowed request is cached.
    #[serde(rename = "authorizedTTL")]
    pub authorized_ttl: GoDuration,
    /// `true` if allowed requests are cached.
    pub cache_authorized_requests: bool,
    /// The time for which a denied request is cached.
    #[serde(rename = "unauthorizedTTL")]
    pub unauthorized_ttl: GoDuration,
    /// `true` if denied requests are cached.
    pub cache_unauthorized_requests: bool,
    /// The timeout of a call.
    pub timeout: GoDuration,
    /// The version of the SubjectAccessReview that is sent.
    pub subject_access_review_version: String,
    /// The version of the SubjectAccessReview in match conditions.
    pub match_condition_subject_access_review_version: String,
    /// The result of a failed call: `NoOpinion` or `Deny`.
    pub failure_policy: String,
    /// The address of the webhook.
    pub connection_info: ConnectionInfo,
    /// The conditions under which the webhook is called.
    pub match_conditions: Vec<MatchCondition>,
}

/// Upstream's defaults.
impl Default for WebhookConfiguration {
    fn default() -> Self {
        Self {
            authorized_ttl: Self::AUTHORIZED_TTL,
            cache_authorized_requests: true,
            unauthorized_ttl: Self::UNAUTHORIZED_TTL,
            cache_unauthorized_requests: true,
            timeout: GoDuration::default(),
            subject_access_review_version: String::new(),
            match_condition_subject_access_review_version: String::new(),
            failure_policy: String::new(),
            connection_info: ConnectionInfo::default(),
            match_conditions: Vec::new(),
        }
    }
}

impl WebhookConfiguration {
    /// The default time for which an allowed request is cached.
    pub const AUTHORIZED_TTL: GoDuration = GoDuration::from_secs(300);
    /// The default time for which a denied request is cached.
    pub const UNAUTHORIZED_TTL: GoDuration = GoDuration::from_secs(30);
}

/// The address of the webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConnectionInfo {
    /// The type: `KubeConfigFile` or `InClusterConfig`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The path of the kubeconfig file.
    pub kube_config_file: Option<String>,
}

/// A condition under which the webhook is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MatchCondition {
    /// The CEL expression, which must be true.
    pub expression: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_upstream_defaults() {
        let read = AuthorizationConfiguration::parse(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n\
             authorizers:\n- {type: Webhook, name: a, webhook: {unauthorizedTTL: 0s, timeout: 3s, cacheUnauthorizedRequests: false}}\n",
        );
        let webhook = read.unwrap().authorizers.remove(0).webhook.unwrap();
        assert_eq!(webhook.authorized_ttl.to_string(), "5m0s");
        assert!(webhook.cache_authorized_requests && !webhook.cache_unauthorized_requests);
        assert_eq!(webhook.unauthorized_ttl, WebhookConfiguration::UNAUTHORIZED_TTL);
        assert_eq!(webhook.timeout, GoDuration::from_secs(3));
    }
}
