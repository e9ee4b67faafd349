//! Who is believed to be who he says, and who decides what he may do, as flags and files say it.

use std::{path::PathBuf, time::Duration};

use api_config::{
    AuthorizationConfiguration,
    authentication::JwtAuthenticator,
    authorization::{AuthorizerConfiguration, ConnectionInfo, WebhookConfiguration},
};

/// Where credentials are judged besides the files of the configuration.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationOptions {
    /// `--authentication-config`, which is read again when it changes.
    pub file: Option<PathBuf>,
    /// `--oidc-*`, which say the same of one issuer.
    pub oidc: Option<OidcOptions>,
    /// `--authentication-token-webhook-*`.
    pub webhook: Option<TokenWebhookOptions>,
    /// Whether `--anonymous-auth` was given, which a file may not speak of then.
    pub anonymous_given: bool,
}

/// The issuer of `--oidc-*`.
#[derive(Clone, Debug)]
pub struct OidcOptions {
    pub jwt: JwtAuthenticator,
    /// The authorities of its certificate; the system's if absent.
    pub ca_file: Option<PathBuf>,
    pub signing_algorithms: Vec<String>,
}

/// The webhook that knows tokens.
#[derive(Clone, Debug)]
pub struct TokenWebhookOptions {
    pub kubeconfig: PathBuf,
    /// Of the TokenReview that it is sent.
    pub version: String,
    /// How long its answers are remembered.
    pub ttl: Duration,
}

/// Who decides, one after another.
#[derive(Clone, Debug)]
pub struct AuthorizationOptions {
    /// `--authorization-config`, which is read again when it changes; what flags say counts where it is absent.
    pub file: Option<PathBuf>,
    pub chain: AuthorizationConfiguration,
    /// `--authorization-policy-file`.
    pub policies: Option<PathBuf>,
}

impl AuthorizationOptions {
    /// The chain of `--authorization-mode`; `webhook` is asked in the mode Webhook.
    pub fn of_modes(modes: &[&str], webhook: Option<&WebhookConfiguration>) -> Self {
        let link = |mode: &&str| AuthorizerConfiguration {
            kind: (*mode).to_owned(),
            name: if *mode == "Webhook" { "default".to_owned() } else { mode.to_lowercase() },
            webhook: webhook.filter(|_| *mode == "Webhook").cloned(),
        };
        let chain = AuthorizationConfiguration::of(modes.iter().map(link).collect());
        Self { file: None, chain, policies: None }
    }

    /// A webhook as flags describe it.
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

/// Node and RBAC, as kubeadm's.
impl Default for AuthorizationOptions {
    fn default() -> Self {
        Self::of_modes(&["Node", "RBAC"], None)
    }
}
