//! `AuthorizationConfiguration` (apiserver.config.k8s.io): who decides what may be done, one after another.

use serde::Deserialize;

use crate::{Error, GoDuration, authentication::strict};

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AuthorizationConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    /// In the order in which they are asked.
    pub authorizers: Vec<AuthorizerConfiguration>,
}

impl AuthorizationConfiguration {
    /// Reads a file's text and fills in what it leaves out; what it means is not yet judged.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut read: Self = strict("AuthorizationConfiguration", text)?;
        for webhook in read.authorizers.iter_mut().filter_map(|a| a.webhook.as_mut()) {
            // As upstream: who wants no memory says so by the fields beside.
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

    /// What flags say of the chain.
    pub fn of(authorizers: Vec<AuthorizerConfiguration>) -> Self {
        Self { authorizers, ..Self::default() }
    }
}

/// One link of the chain.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AuthorizerConfiguration {
    /// `Webhook`, `Node`, `RBAC`, `ABAC`, `AlwaysAllow` or `AlwaysDeny`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What metrics call it.
    pub name: String,
    pub webhook: Option<WebhookConfiguration>,
}

/// Whom to ask, about what, and what it means that he does not answer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WebhookConfiguration {
    #[serde(rename = "authorizedTTL")]
    pub authorized_ttl: GoDuration,
    pub cache_authorized_requests: bool,
    #[serde(rename = "unauthorizedTTL")]
    pub unauthorized_ttl: GoDuration,
    pub cache_unauthorized_requests: bool,
    pub timeout: GoDuration,
    pub subject_access_review_version: String,
    pub match_condition_subject_access_review_version: String,
    /// `NoOpinion` or `Deny`.
    pub failure_policy: String,
    pub connection_info: ConnectionInfo,
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
    /// How long an allowance is remembered unless a file or a flag says otherwise.
    pub const AUTHORIZED_TTL: GoDuration = GoDuration::from_secs(300);
    /// How long a refusal is.
    pub const UNAUTHORIZED_TTL: GoDuration = GoDuration::from_secs(30);
}

/// Where the webhook is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConnectionInfo {
    /// `KubeConfigFile` or `InClusterConfig`.
    #[serde(rename = "type")]
    pub kind: String,
    pub kube_config_file: Option<String>,
}

/// An expression that must be true of a request for the webhook to be asked about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MatchCondition {
    pub expression: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_as_upstream_has_it() {
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
