//! Authenticates tokens with external sources: JWT issuers, whose configuration file is reloaded when it changes, and a
//! webhook.

use std::{sync::Arc, time::Duration};

use api_config::{AuthenticationConfiguration, authentication::AnonymousAuth};
use api_meta::{FieldError, Path};
use auth::authn::{
    Anonymous, Authenticated, TokenError,
    oidc::{self, ALGORITHMS, EgressTypes, JwtAuthenticator},
};
use parking_lot::RwLock;

use super::{
    authentication_error::{AuthenticationError, FileError},
    files::{ConfigFile, ReloadError, SecurityError, text},
    issuers::Issuers,
    metrics::{SecurityMetrics, hash},
    webhook_tokens::WebhookTokens,
};
use crate::{
    config::{Config, Network},
    outbound::backends::Backends,
};

/// The time that new issuers have for discovery. After it, the previous ones stay in use.
const PROVEN: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// The external sources of token authentication.
pub(crate) struct ExternalTokens {
    issuers: RwLock<Arc<Issuers>>,
    webhook: Option<WebhookTokens>,
    /// The audiences of tokens from JWT issuers.
    api_audiences: Vec<String>,
    /// Issuers that must not be configured: those of this server's own tokens.
    disallowed: Vec<String>,
    egress: EgressTypes,
    /// The file's configuration of anonymous access, which a reload must not change.
    from_file: Option<AnonymousAuth>,
    config_file: Option<ConfigFile>,
    server: Arc<str>,
    backends: Arc<Backends>,
    metrics: Arc<SecurityMetrics>,
    tasks: rt::Tasks,
}

impl ExternalTokens {
    /// Builds the sources from the configuration, and returns the configuration of anonymous access. Issuers that do
    /// not respond do not prevent the start; their tokens are rejected until they do.
    pub(super) fn new(
        config: &Config,
        audiences: &[String],
        backends: &Arc<Backends>,
        metrics: &Arc<SecurityMetrics>,
        tasks: &rt::Tasks,
    ) -> Result<(Self, Anonymous), SecurityError> {
        let given = &config.authentication;
        let server: Arc<str> = hash(&config.identity()).into();
        let IssuerConfig { read, authenticators, config_file } = configured(config)?;
        let anonymous = anonymous(&read, config)?;
        let algorithms = match &given.oidc {
            Some(oidc) => oidc.signing_algorithms.clone(),
            None => ALGORITHMS.iter().map(|name| (*name).to_owned()).collect(),
        };
        if let Some(unknown) = algorithms.iter().find(|alg| !ALGORITHMS.contains(&alg.as_str())) {
            return Err(AuthenticationError::SigningAlgorithm(unknown.clone()).into());
        }
        let issuers = Issuers::new(authenticators, algorithms, backends, metrics, &server);
        issuers.start_discovery(tasks);
        let webhook = given.webhook.as_ref();
        let external = Self {
            issuers: RwLock::new(issuers),
            webhook: webhook
                .map(|webhook| {
                    let proxy = config.egress.proxy(Network::ControlPlane);
                    WebhookTokens::new(webhook, proxy, audiences)
                })
                .transpose()?,
            api_audiences: audiences.to_vec(),
            disallowed: disallowed(config),
            egress: egress(config),
            from_file: read.anonymous,
            config_file,
            server,
            backends: backends.clone(),
            metrics: metrics.clone(),
            tasks: tasks.clone(),
        };
        Ok((external, anonymous))
    }

    fn issuers(&self) -> Arc<Issuers> {
        self.issuers.read().clone()
    }

    /// Authenticates a token with the issuers and then the webhook.
    pub(crate) async fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Authenticated>, TokenError> {
        let mut refused = None;
        let good: Vec<String> =
            audiences.iter().filter(|a| self.api_audiences.contains(a)).cloned().collect();
        if !good.is_empty() {
            match self.issuers().user(token).await {
                Ok(Some(user)) => return Ok(Some(Authenticated { user, audiences: good })),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        if let Some(webhook) = &self.webhook {
            match webhook.authenticate(token, audiences).await {
                Ok(None) => {}
                Err(error) => refused = refused.or(Some(error)),
                found => return found,
            }
        }
        refused.map_or(Ok(None), Err)
    }

    /// Reloads the configuration file when it changes.
    pub(super) async fn follow(self: Arc<Self>) {
        let Some(config_file) = &self.config_file else { return std::future::pending().await };
        config_file.follow(&self.metrics, |text| self.reload(text)).await;
    }

    async fn reload(&self, text: String) -> Result<(), ReloadError> {
        let authenticators =
            self.parse_reloaded(&text).map_err(|error| ReloadError::Invalid(error.into()))?;
        let algorithms = ALGORITHMS.iter().map(|name| (*name).to_owned()).collect();
        let new =
            Issuers::new(authenticators, algorithms, &self.backends, &self.metrics, &self.server);
        new.start_discovery(&self.tasks);
        let proven = rt::wait_until(PROVEN, LOOK, || new.problem().is_none()).await;
        if !proven {
            return Err(ReloadError::Retry(new.problem().unwrap_or_default()));
        }
        *self.issuers.write() = new;
        Ok(())
    }

    fn parse_reloaded(&self, text: &str) -> Result<Vec<JwtAuthenticator>, FileError> {
        let read = parse(text)?;
        let authenticators = oidc::authenticators(&read, &self.disallowed, self.egress);
        let changed = (read.anonymous != self.from_file).then(|| {
            let detail = "changed from initial configuration file";
            FieldError::forbidden(&Path::new("anonymous"), detail)
        });
        match (authenticators, changed) {
            (Ok(authenticators), None) => Ok(authenticators),
            (authenticators, changed) => {
                let errors = authenticators.err().into_iter().flatten().chain(changed);
                Err(FileError::Invalid(errors.collect()))
            }
        }
    }
}

/// The parsed and compiled configuration of issuers, from the file or the flags.
pub(super) struct IssuerConfig {
    read: AuthenticationConfiguration,
    authenticators: Vec<JwtAuthenticator>,
    config_file: Option<ConfigFile>,
}

/// Returns the egress selectors that issuers may name.
fn egress(config: &Config) -> EgressTypes {
    if config.egress.is_configured { EgressTypes::Configured } else { EgressTypes::None }
}

fn disallowed(config: &Config) -> Vec<String> {
    config.service_account_issuers.clone()
}

/// Parses and validates the configuration.
pub(super) fn configured(config: &Config) -> Result<IssuerConfig, SecurityError> {
    let (read, config_file) = match config.authentication.file.clone() {
        None => (of_flags(config)?, None),
        Some(path) => {
            let text = text("authentication configuration", &path)?;
            let read = parse(&text).map_err(|source| {
                let path = path.display().to_string();
                let source = Box::new(source);
                AuthenticationError::File { path, source }
            })?;
            let server = hash(&config.identity());
            (read, Some(ConfigFile { purpose: "authentication", path, server, text }))
        }
    };
    let authenticators = oidc::authenticators(&read, &disallowed(config), egress(config));
    let authenticators = authenticators.map_err(AuthenticationError::Invalid)?;
    Ok(IssuerConfig { read, authenticators, config_file })
}

fn parse(text: &str) -> Result<AuthenticationConfiguration, FileError> {
    match text {
        "" => Err(FileError::Empty),
        text => Ok(AuthenticationConfiguration::parse(text)?),
    }
}

fn of_flags(config: &Config) -> Result<AuthenticationConfiguration, SecurityError> {
    let mut read = AuthenticationConfiguration::default();
    if let Some(oidc) = &config.authentication.oidc {
        let mut jwt = oidc.jwt.clone();
        if let Some(path) = &oidc.ca_file {
            jwt.issuer.certificate_authority = text("OIDC CA", path)?;
        }
        read.jwt.push(jwt);
    }
    Ok(read)
}

/// Returns the configuration of anonymous access: from the file or else from the flag.
fn anonymous(
    read: &AuthenticationConfiguration,
    config: &Config,
) -> Result<Anonymous, SecurityError> {
    let allows_all = config.authorization.file.is_none()
        && config.authorization.chain.authorizers.iter().any(|a| a.kind == "AlwaysAllow");
    Ok(match &read.anonymous {
        Some(_) if config.authentication.anonymous_given => {
            return Err(AuthenticationError::AnonymousTwice.into());
        }
        Some(file) if !file.enabled => Anonymous::Off,
        Some(file) if file.conditions.is_empty() => Anonymous::On,
        Some(file) => Anonymous::Paths(file.conditions.iter().map(|c| c.path.clone()).collect()),
        None if config.anonymous && allows_all => {
            tracing::warn!(
                "AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting \
                 AnonymousAuth to false. You should use a different authorizer"
            );
            Anonymous::Off
        }
        None if config.anonymous => Anonymous::On,
        None => Anonymous::Off,
    })
}
