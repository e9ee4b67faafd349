//! Authentication, impersonation and authorization of requests ([`Security`]). The algorithms are in the crate `auth`;
//! this module configures them, reloads their files, feeds them from the caches and calls external issuers and
//! webhooks.

mod authentication_error;
mod authorization_error;
mod authorizers;
mod external_signer;
mod files;
mod issuers;
pub(crate) mod metrics;
mod signing;
mod tokens;
mod webhook_authorizer;
mod webhook_tokens;

use std::{sync::Arc, time::Duration};

use api_meta::{Attributes, Authorizer, Decision, FieldSelector, Selector, Status, UserInfo};
use auth::{
    authn::{
        Authenticated, Authentication, AuthenticationResult, BearerToken, PeerCertificate,
        RequestCredentials, TokenAuthenticator, TokenError,
        bootstrap_token::BootstrapTokens,
        certificate::ClientCa,
        forwarding::forget_identity,
        front_proxy::FrontProxy,
        impersonation,
        keys::{self, KeyRing},
        legacy_token::LegacyTokens,
        service_account::{Issue, ServiceAccountTokens, TokenIssuer},
        token_file::TokenFile,
    },
    authz::node::NodeAuthorizer,
    rbac::Rbac,
};
use client::WorkQueue;
use http::HeaderMap;
use serve::{Connection, Standing};
use telemetry::metrics::Metrics;

pub use self::external_signer::ExternalSignerError;
pub use self::files::SecurityError;
pub(crate) use self::signing::Signing;
use self::{
    authorizers::Authorizers,
    files::{read, with_file},
    metrics::SecurityMetrics,
    tokens::ExternalTokens,
};
use crate::{
    config::Config,
    outbound::backends::Backends,
    request::RequestInfo,
    watch_cache::{Observer, Snapshot, following},
};

/// The authentication and authorization of requests.
pub(crate) struct Security {
    pub(crate) authentication: Authentication,
    /// Sources for tokens that the local authenticators do not know.
    external: Arc<ExternalTokens>,
    pub(crate) authorizers: Arc<Authorizers>,
    /// The same chain, for synchronous checks in the middle of a request.
    pub(crate) authorizer: Arc<dyn Authorizer>,
    pub(crate) rbac: Arc<Rbac>,
    pub(crate) tokens: TokenIssuer,
    signing: Signing,
    issuer: String,
    jwks_uri: Option<String>,
    pub(crate) objects: Arc<Snapshot>,
    /// The subjects of the client authorities, as hints in TLS handshakes.
    pub(crate) client_authorities: Vec<Vec<u8>>,
    /// Secrets by namespace and name whose legacy token was used.
    pub(crate) used_tokens: WorkQueue<(String, String)>,
    metrics: Arc<SecurityMetrics>,
}

/// Validates the configurations of authentication and authorization, before the server waits for its store.
pub fn check(config: &Config) -> Result<(), SecurityError> {
    authorizers::configured(config)?;
    tokens::configured(config).map(drop)
}

/// Returns the local authenticators of tokens. The Secrets of legacy tokens in requests are added to `used_tokens`.
fn token_authenticators(
    config: &Config,
    keys: &KeyRing,
    audiences: &[String],
    used_tokens: WorkQueue<(String, String)>,
) -> Result<Vec<Box<dyn TokenAuthenticator>>, SecurityError> {
    let mut tokens: Vec<Box<dyn TokenAuthenticator>> = Vec::new();
    if let Some(path) = &config.token_auth_file {
        let text = files::text("token file", path)?;
        tokens.push(Box::new(with_file("token file", path, TokenFile::parse(&text))?));
    }
    // Authenticators of frequent tokens come first: they cache results, while the others read a token each time.
    let issuers = config.service_account_issuers.clone();
    tokens.push(Box::new(ServiceAccountTokens::new(issuers, keys.clone())));
    tokens.push(Box::new(LegacyTokens {
        keys: keys.clone(),
        api_audiences: audiences.to_vec(),
        used: Some(Box::new(move |namespace, name| {
            used_tokens.add((namespace.to_owned(), name.to_owned()));
        })),
    }));
    if config.bootstrap_tokens {
        tokens.push(Box::new(BootstrapTokens));
    }
    Ok(tokens)
}

impl Security {
    /// Loads keys, CAs and configurations. Adds the indexes that must follow the caches to `observers`.
    pub(crate) fn new(
        config: &Config,
        signing: Signing,
        observers: &mut Vec<Observer>,
        objects: Arc<Snapshot>,
        backends: &Arc<Backends>,
        metrics: &Metrics,
        tasks: &rt::Tasks,
    ) -> Result<Self, SecurityError> {
        let (rbac, node) =
            (Arc::new(Rbac::new()), Arc::new(NodeAuthorizer::with_features(&config.features)));
        observers.push(following(rbac.clone()));
        observers.push(following(node.clone()));
        let metrics = Arc::new(SecurityMetrics::new(metrics));
        let authorizers = Arc::new(Authorizers::new(config, node, rbac.clone(), &metrics)?);
        let issuer = config.service_account_issuers.first().cloned().unwrap_or_default();
        let audiences = match config.api_audiences.as_slice() {
            [] => config.service_account_issuers.clone(),
            audiences => audiences.to_vec(),
        };
        let used_tokens = WorkQueue::<(String, String)>::default();
        let tokens = token_authenticators(config, &signing.keys, &audiences, used_tokens.clone())?;
        let client_ca = config.client_ca.as_ref().map(|path| {
            with_file("client CA", path, ClientCa::from_pem(&read("client CA", path)?))
        });
        let client_ca = client_ca.transpose()?;
        let client_authorities = client_ca.as_ref().map(ClientCa::authorities).unwrap_or_default();
        let (external, anonymous) =
            ExternalTokens::new(config, &audiences, backends, &metrics, tasks)?;
        let external = Arc::new(external);
        let (tokens_followed, chain_followed) = (external.clone(), authorizers.clone());
        tasks.keep("authentication configuration", move || tokens_followed.clone().follow());
        tasks.keep("authorization configuration", move || chain_followed.clone().follow());
        let authentication = Authentication {
            client_ca,
            front_proxy: config.front_proxy.as_ref().map(front_proxy).transpose()?,
            tokens,
            api_audiences: audiences.clone(),
            anonymous,
        };
        let tokens = TokenIssuer {
            issuer: issuer.clone(),
            api_audiences: audiences,
            max_expiration: signing.max_expiration(config),
            extend: config.extend_token_expiration,
        };
        Ok(Self {
            authentication,
            external,
            authorizer: authorizers.clone(),
            authorizers,
            rbac,
            tokens,
            signing,
            issuer,
            jwks_uri: config.jwks_uri.clone(),
            objects,
            client_authorities,
            used_tokens,
            metrics,
        })
    }

    pub(crate) async fn authenticate(
        &self,
        connection: Option<&Arc<Connection>>,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Arc<UserInfo>, Box<Status>> {
        let now = rt::now();
        let unknown = PeerCertificate::default();
        // A connection's certificates are verified once.
        let judged = connection.map(|connection| {
            connection.verification.get_or_init(|| {
                Arc::new(self.authentication.peer(&connection.client_certificates, now))
            })
        });
        let peer = judged.and_then(|j| j.downcast_ref()).unwrap_or(&unknown);
        let presented = RequestCredentials { peer, headers, path, now };
        let mut result = self.authentication.authenticate(&presented, &*self.objects);
        if let Ok(AuthenticationResult::UnknownToken(unknown)) = &result
            && unknown.names_unknown_key()
            && self.signing.look_up_key().await
        {
            result = self.authentication.authenticate(&presented, &*self.objects);
        }
        let found = match result {
            Ok(AuthenticationResult::Authenticated(found)) => Ok(found),
            Ok(AuthenticationResult::UnknownToken(unknown)) => {
                let audiences = &self.authentication.api_audiences;
                let found = self.external.authenticate(&unknown.token, audiences).await;
                unknown.settle(found)
            }
            Err(error) => Err(error),
        };
        match found {
            Ok(found) => {
                if let Some(end) = peer.not_after() {
                    self.metrics.record_certificate(end.duration_since(now).unwrap_or_default());
                }
                if let Some(connection) = connection {
                    connection.raise_standing(standing(&found.user));
                }
                Ok(Arc::new(found.user))
            }
            Err(error) => {
                tracing::debug!(%error, path, "unauthenticated request");
                Err(Box::new(Status::unauthorized()))
            }
        }
    }

    /// Authenticates a token for any of the audiences.
    pub(crate) async fn by_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<Authenticated>, TokenError> {
        let objects = &*self.objects;
        let bearer = BearerToken { token, audiences, now: rt::now().into(), objects };
        let local = || self.authentication.by_token(bearer);
        let mut known = local();
        if known.as_ref().is_err_and(TokenError::is_unknown_key) && self.signing.look_up_key().await
        {
            known = local();
        }
        if let Ok(Some(known)) = known {
            return Ok(Some(known));
        }
        match self.external.authenticate(token, audiences).await {
            Ok(None) => known,
            found => found,
        }
    }

    /// Returns the impersonated user, or `None` without impersonation.
    pub(crate) fn impersonate(
        &self,
        attributes: &Attributes<'_>,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<UserInfo>>, Box<Status>> {
        let user = impersonation::impersonate(headers, attributes, &*self.authorizer);
        Ok(user.map_err(Box::new)?.map(Arc::new))
    }

    /// Removes the headers with credentials and identities.
    pub(crate) fn forget_identity(&self, headers: &mut HeaderMap) {
        forget_identity(headers, self.authentication.front_proxy.as_ref());
    }

    pub(crate) async fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        self.authorizers.decide(attributes).await
    }

    /// Converts a decision to the result for the caller.
    pub(crate) fn permit(
        attributes: &Attributes<'_>,
        decision: &Decision,
    ) -> Result<(), Box<Status>> {
        if decision.is_allowed() {
            return Ok(());
        }
        Err(Box::new(auth::forbidden(attributes, decision.reason())))
    }

    /// Signs a service account token.
    pub(crate) async fn sign(&self, issue: &Issue) -> Result<String, Box<Status>> {
        let signed = self.signing.sign(issue).await;
        signed.map_err(|error| {
            Box::new(Status::internal(format!("failed to generate token: {error}")))
        })
    }

    /// Returns the time for which clients may cache the documents of the keys.
    pub(crate) fn keys_max_age(&self) -> Duration {
        self.signing.max_age()
    }

    pub(crate) fn jwks(&self) -> String {
        keys::jwks(&self.signing.keys.current()).to_string()
    }

    pub(crate) fn openid_configuration(&self) -> String {
        let own = || format!("{}/openid/v1/jwks", self.issuer.trim_end_matches('/'));
        let uri = self.jwks_uri.clone().unwrap_or_else(own);
        keys::openid_configuration(&self.issuer, &uri, &self.signing.keys.current()).to_string()
    }
}

/// The selectors of a request, which authorizers may evaluate.
pub(crate) struct Selectors {
    fields: Option<FieldSelector>,
    labels: Option<Selector>,
}

impl Selectors {
    pub(crate) fn of(info: &RequestInfo) -> Self {
        Self {
            fields: info.query.get("fieldSelector").and_then(|s| s.parse().ok()),
            labels: info.query.get("labelSelector").and_then(|s| s.parse().ok()),
        }
    }

    /// Returns the attributes of a request for authorization and flow control.
    pub(crate) fn attributes<'a>(
        &'a self,
        user: &'a UserInfo,
        info: &'a RequestInfo,
    ) -> Attributes<'a> {
        match &info.resource {
            None => Attributes::path(user, info.verb, &info.path),
            Some(path) => Attributes {
                version: &path.version,
                subresource: &path.subresource,
                namespace: &path.namespace,
                name: &path.name,
                field_selector: self.fields.as_ref(),
                label_selector: self.labels.as_ref(),
                ..Attributes::resource(user, info.verb, &path.group, &path.resource)
            },
        }
    }
}

/// Returns the standing of a user's connection. If there are too many connections, those that the cluster needs are
/// closed last.
fn standing(user: &UserInfo) -> Standing {
    const ESSENTIAL: [&str; 3] =
        ["system:nodes", "system:masters", "system:serviceaccounts:kube-system"];
    if ESSENTIAL.iter().any(|group| user.in_group(group)) || user.name.starts_with("system:kube-") {
        Standing::Essential
    } else if user.name == api_meta::user::ANONYMOUS {
        Standing::Unknown
    } else {
        Standing::Known
    }
}

fn front_proxy(config: &crate::config::FrontProxy) -> Result<FrontProxy, SecurityError> {
    let pem = read("front-proxy CA", &config.ca)?;
    Ok(FrontProxy {
        ca: with_file("front-proxy CA", &config.ca, ClientCa::from_pem(&pem))?,
        allowed_names: config.allowed_names.clone(),
        username_headers: config.username_headers.clone(),
        uid_headers: config.uid_headers.clone(),
        group_headers: config.group_headers.clone(),
        extra_prefixes: config.extra_prefixes.clone(),
    })
}
