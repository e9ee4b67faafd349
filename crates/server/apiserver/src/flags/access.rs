//! The flags of authentication and authorization by issuers, webhooks and configuration files.

use std::path::PathBuf;

use api_config::{
    GoDuration,
    authentication::{ClaimValidationRule, JwtAuthenticator, PrefixedClaimOrExpression},
    authorization::WebhookConfiguration,
};
use auth::authz::validation::TYPES;

use crate::config::{
    AuthenticationOptions, AuthorizationOptions, OidcOptions, TokenWebhookOptions,
};

/// Upstream's flags of authentication and authorization
#[derive(clap::Args, Clone, Debug)]
pub struct AccessFlags {
    /// Token issuers and anonymous access: an AuthenticationConfiguration, reloaded when it changes
    #[arg(long)]
    pub authentication_config: Option<PathBuf>,
    /// The kubeconfig of the webhook that authenticates tokens
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The version of the TokenReview that is sent: v1 or v1beta1
    #[arg(long, default_value = "v1beta1")]
    pub authentication_token_webhook_version: String,
    /// The time that responses of the webhook are cached
    #[arg(long, default_value = "2m0s")]
    pub authentication_token_webhook_cache_ttl: GoDuration,
    /// Flags of an OIDC issuer
    #[command(flatten)]
    pub oidc: OidcFlags,
    /// The chain of authorizers: an AuthorizationConfiguration, reloaded when it changes
    #[arg(long)]
    pub authorization_config: Option<PathBuf>,
    /// Authorizers in order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny
    #[arg(long, value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// The policies of the mode ABAC, one JSON object per line
    #[arg(long)]
    pub authorization_policy_file: Option<PathBuf>,
    /// The kubeconfig of the webhook of the mode Webhook
    #[arg(long)]
    pub authorization_webhook_config_file: Option<String>,
    /// The version of the SubjectAccessReview that is sent: v1 or v1beta1 [default: v1beta1]
    #[arg(long)]
    pub authorization_webhook_version: Option<String>,
    /// The time that allowing responses are cached [default: 5m0s]
    #[arg(long)]
    pub authorization_webhook_cache_authorized_ttl: Option<GoDuration>,
    /// The time that other responses are cached [default: 30s]
    #[arg(long)]
    pub authorization_webhook_cache_unauthorized_ttl: Option<GoDuration>,
}

/// Flags of an OIDC issuer
#[derive(clap::Args, Clone, Debug)]
pub struct OidcFlags {
    /// The https URL of the issuer
    #[arg(long)]
    pub oidc_issuer_url: Option<String>,
    /// The audience that its tokens must have
    #[arg(long)]
    pub oidc_client_id: Option<String>,
    /// Authorities that verify its certificate [default: the system's]
    #[arg(long)]
    pub oidc_ca_file: Option<PathBuf>,
    /// The claim with the user name [default: sub]
    #[arg(long)]
    pub oidc_username_claim: Option<String>,
    /// The prefix of user names; - for none [default: the issuer's URL and #, unless the claim is email]
    #[arg(long)]
    pub oidc_username_prefix: Option<String>,
    /// The claim with the groups
    #[arg(long)]
    pub oidc_groups_claim: Option<String>,
    /// The prefix of groups
    #[arg(long)]
    pub oidc_groups_prefix: Option<String>,
    /// A claim that tokens must have, as KEY=VALUE; may be given several times
    #[arg(long)]
    pub oidc_required_claim: Vec<String>,
    /// The signing algorithms that are accepted [default: RS256]
    #[arg(long, value_delimiter = ',')]
    pub oidc_signing_algs: Vec<String>,
}

/// The error for invalid flags, in upstream's words.
#[derive(Debug, thiserror::Error)]
pub enum AccessFlagError {
    #[error("authentication-config file and oidc-* flags are mutually exclusive")]
    IssuersTwice,
    #[error(
        "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"
    )]
    IncompleteIssuer,
    #[error(
        "invalid argument {0:?} for \"--oidc-required-claim\" flag: malformed pair, expect string=string"
    )]
    RequiredClaim(String),
    #[error(
        "unsupported authentication webhook version {0:?}, supported versions are \"v1\", \"v1beta1\""
    )]
    TokenWebhookVersion(String),
    #[error(
        "--authorization-config can not be specified when --authorization-mode or \
         --authorization-webhook-* flags are defined"
    )]
    AuthorizersTwice,
    #[error("authorization-mode {0:?} is not a valid mode")]
    UnknownMode(String),
    #[error("authorization-mode [{}] has mode specified more than once", .0.join(" "))]
    RepeatedMode(Vec<String>),
    #[error("authorization-mode {mode}'s authorization {file} file not passed")]
    NoFile { mode: &'static str, file: &'static str },
    #[error("cannot specify --authorization-{file}-file without mode {mode}")]
    UnusedFile { mode: &'static str, file: &'static str },
    #[error(
        "unsupported webhook authorizer version {0:?}, supported versions are \"v1\", \"v1beta1\""
    )]
    AuthorizationWebhookVersion(String),
}

const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

impl AccessFlags {
    /// Returns the configuration of authentication.
    pub(super) fn authentication(
        &self,
        anonymous_given: bool,
    ) -> Result<AuthenticationOptions, AccessFlagError> {
        let oidc = self.oidc.options()?;
        if self.authentication_config.is_some() && self.oidc.is_set() {
            return Err(AccessFlagError::IssuersTwice);
        }
        let version = self.authentication_token_webhook_version.clone();
        let webhook = match self.authentication_token_webhook_config_file.clone() {
            None => None,
            Some(_) if !VERSIONS.contains(&version.as_str()) => {
                return Err(AccessFlagError::TokenWebhookVersion(version));
            }
            Some(kubeconfig) => {
                let ttl = self.authentication_token_webhook_cache_ttl.to_std();
                Some(TokenWebhookOptions { kubeconfig, version, ttl })
            }
        };
        let file = self.authentication_config.clone();
        Ok(AuthenticationOptions { file, oidc, webhook, anonymous_given })
    }

    /// Returns the configuration of authorization.
    pub(super) fn authorization(&self) -> Result<AuthorizationOptions, AccessFlagError> {
        let older = !self.authorization_mode.is_empty()
            || self.authorization_webhook_config_file.is_some()
            || self.authorization_webhook_version.is_some()
            || self.authorization_webhook_cache_authorized_ttl.is_some()
            || self.authorization_webhook_cache_unauthorized_ttl.is_some();
        let policies = self.authorization_policy_file.clone();
        let file = self.authorization_config.clone();
        if file.is_some() {
            return if older {
                Err(AccessFlagError::AuthorizersTwice)
            } else {
                Ok(AuthorizationOptions { file, policies, ..AuthorizationOptions::default() })
            };
        }
        let modes: Vec<&str> = match self.authorization_mode.as_slice() {
            [] => vec!["Node", "RBAC"],
            given => given.iter().map(String::as_str).collect(),
        };
        self.check_modes(&modes)?;
        let webhook = self.authorization_webhook()?;
        Ok(AuthorizationOptions {
            policies,
            ..AuthorizationOptions::of_modes(&modes, webhook.as_ref())
        })
    }

    fn check_modes(&self, modes: &[&str]) -> Result<(), AccessFlagError> {
        let has = |mode: &str| modes.contains(&mode);
        if let Some(mode) = modes.iter().find(|mode| !TYPES.contains(mode)) {
            return Err(AccessFlagError::UnknownMode((*mode).to_owned()));
        }
        let policies = self.authorization_policy_file.is_some();
        let webhook = self.authorization_webhook_config_file.is_some();
        if has("ABAC") && !policies {
            return Err(AccessFlagError::NoFile { mode: "ABAC", file: "policy" });
        }
        if has("Webhook") && !webhook {
            return Err(AccessFlagError::NoFile { mode: "Webhook", file: "config" });
        }
        if policies && !has("ABAC") {
            return Err(AccessFlagError::UnusedFile { mode: "ABAC", file: "policy" });
        }
        if webhook && !has("Webhook") {
            return Err(AccessFlagError::UnusedFile { mode: "Webhook", file: "webhook-config" });
        }
        if modes.iter().enumerate().any(|(i, mode)| modes[..i].contains(mode)) {
            let shown = modes.iter().map(|mode| format!("{mode:?}")).collect();
            return Err(AccessFlagError::RepeatedMode(shown));
        }
        Ok(())
    }

    fn authorization_webhook(&self) -> Result<Option<WebhookConfiguration>, AccessFlagError> {
        let Some(kubeconfig) = self.authorization_webhook_config_file.clone() else {
            return Ok(None);
        };
        let mut webhook = AuthorizationOptions::webhook(kubeconfig);
        if let Some(version) = self.authorization_webhook_version.clone() {
            if !VERSIONS.contains(&version.as_str()) {
                return Err(AccessFlagError::AuthorizationWebhookVersion(version));
            }
            webhook.subject_access_review_version = version;
        }
        if let Some(ttl) = self.authorization_webhook_cache_authorized_ttl {
            webhook.authorized_ttl = ttl;
            webhook.cache_authorized_requests = !ttl.is_zero();
        }
        if let Some(ttl) = self.authorization_webhook_cache_unauthorized_ttl {
            webhook.unauthorized_ttl = ttl;
            webhook.cache_unauthorized_requests = !ttl.is_zero();
        }
        Ok(Some(webhook))
    }
}

impl OidcFlags {
    fn is_set(&self) -> bool {
        let texts = [
            &self.oidc_issuer_url,
            &self.oidc_client_id,
            &self.oidc_username_claim,
            &self.oidc_username_prefix,
            &self.oidc_groups_claim,
            &self.oidc_groups_prefix,
        ];
        texts.iter().any(|text| text.is_some())
            || self.oidc_ca_file.is_some()
            || !self.oidc_required_claim.is_empty()
            || !self.oidc_signing_algs.is_empty()
    }

    fn options(&self) -> Result<Option<OidcOptions>, AccessFlagError> {
        if !self.is_set() {
            return Ok(None);
        }
        let given = |text: &Option<String>| text.clone().unwrap_or_default();
        let (url, client) = (given(&self.oidc_issuer_url), given(&self.oidc_client_id));
        if url.is_empty() || client.is_empty() {
            return Err(AccessFlagError::IncompleteIssuer);
        }
        let mut jwt = JwtAuthenticator::default();
        let claim = self.oidc_username_claim.clone().unwrap_or_else(|| "sub".to_owned());
        let prefix = match given(&self.oidc_username_prefix).as_str() {
            "-" => String::new(),
            "" if claim != "email" => format!("{url}#"),
            prefix => prefix.to_owned(),
        };
        let expression = String::new();
        jwt.claim_mappings.username =
            PrefixedClaimOrExpression { claim, prefix: Some(prefix), expression };
        if let Some(claim) = self.oidc_groups_claim.clone().filter(|claim| !claim.is_empty()) {
            let prefix = Some(given(&self.oidc_groups_prefix));
            jwt.claim_mappings.groups =
                PrefixedClaimOrExpression { claim, prefix, ..Default::default() };
        }
        for text in &self.oidc_required_claim {
            let pair = text.split_once('=');
            let (claim, value) =
                pair.ok_or_else(|| AccessFlagError::RequiredClaim(text.clone()))?;
            let (claim, value) = (claim.trim().to_owned(), value.trim().to_owned());
            // As in upstream's map, the last value of a claim counts.
            jwt.claim_validation_rules.retain(|rule| rule.claim != claim);
            jwt.claim_validation_rules.push(ClaimValidationRule {
                claim,
                required_value: value,
                ..ClaimValidationRule::default()
            });
        }
        jwt.issuer.url = url;
        jwt.issuer.audiences = vec![client];
        let signing_algorithms = match self.oidc_signing_algs.as_slice() {
            [] => vec!["RS256".to_owned()],
            given => given.to_vec(),
        };
        Ok(Some(OidcOptions { jwt, ca_file: self.oidc_ca_file.clone(), signing_algorithms }))
    }
}
