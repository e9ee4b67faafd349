//! Configuration of authentication and authorization.

use std::{path::PathBuf, time::Duration};

use api_config::{
    AuthorizationConfiguration,
    authentication::JwtAuthenticator,
    authorization::{AuthorizerConfiguration, ConnectionInfo, WebhookConfiguration},
};

/// Sources of authentication besides certificates, service accounts and tokens in files.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationOptions {
    /// `--authentication-config`, which is reloaded when it changes.
    pub file: Option<PathBuf>,
    /// `--oidc-*`, which configure one issuer.
    pub oidc: Option<OidcOptions>,
    /// `--authentication-token-webhook-*`.
    pub webhook: Option<TokenWebhookOptions>,
    /// `true` if `--anonymous-auth` was given. The file must not configure anonymous access in this case.
    pub anonymous_given: bool,
}

/// The issuer configured by `--oidc-*`.
#[derive(Clone, Debug)]
pub struct OidcOptions {
    /// The issuer as a JWT authenticator.
    pub jwt: JwtAuthenticator,
    /// The file with the authorities of the issuer's certificate. `None` uses the system's.
    pub ca_file: Option<PathBuf>,
    /// The signing algorithms that are accepted.
    pub signing_algorithms: Vec<String>,
}

/// The webhook that authenticates tokens.
#[derive(Clone, Debug)]
pub struct TokenWebhookOptions {
    /// The kubeconfig of the webhook.
    pub kubeconfig: PathBuf,
    /// The version of the TokenReview that is sent.
    pub version: String,
    /// The time that responses are cached.
    pub ttl: Duration,
}

/// The chain of authorizers.
#[derive(Clone, Debug)]
pub struct AuthorizationOptions {
    /// `--authorization-config`, which is reloaded when it changes. It replaces the flags.
    pub file: Option<PathBuf>,
    /// The authorizers in order.
    pub chain: AuthorizationConfiguration,
    /// `--authorization-policy-file`.
    pub policies: Option<PathBuf>,
}

impl AuthorizationOptions {
    /// Builds the chain of `--authorization-mode`. The mode Webhook uses `webhook`.
    pub fn of_modes(modes: &[&str], webhook: Option<&WebhookConfiguration>) -> Self {
        let link = |mode: &&str| AuthorizerConfiguration {
            kind: (*mode).to_owned(),
            name: if *mode == "Webhook" { "default".to_owned() } else { mode.to_lowercase() },
            webhook: webhook.filter(|_| *mode == "Webhook").cloned(),
        };
        let chain = AuthorizationConfiguration::of(modes.iter().map(link).collect());
        Self { file: None, chain, policies: None }
    }

    /// Builds the webhook configuration that the flags describe.
    pub fn webhook(kubeconfig: String) -> WebhookConfiguration {
        WebhookConfiguration {
            timeout: api_config::GoDuration::from_secs(30),
            failure_policy: "NoOpinion".to_owned(),
            subject_access_review_version: "v1beta1".to_owned(),
            connection_info: ConnectionInfo {
                kind: "KubeConfigFile".to_owned(),
                kube_config_file: Some(kubeconfig),
            },
            ..WebhookConfiguration::default()
        }
    }
}

/// Node and RBAC, as kubeadm configures.
impl Default for AuthorizationOptions {
    fn default() -> Self {
        Self::of_modes(&["Node", "RBAC"], None)
    }
}
