//! The chain of authorizers, configured by flags or a file. The file is reloaded when it changes.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use api_config::{AuthorizationConfiguration, authorization::AuthorizerConfiguration};
use api_meta::{Attributes, Authorizer, Decision, aggregate};
use auth::{
    authz::{
        abac::Abac,
        node::NodeAuthorizer,
        simple::{AlwaysAllow, AlwaysAllowPaths, AlwaysDeny, Privileged},
        validation,
    },
    rbac::Rbac,
};

use super::{
    figures::{Figures, hash},
    files::{ConfigFile, ReloadError, SecurityError, text},
    webhook_authorizer::WebhookAuthorizer,
};
use crate::config::Config;

/// The authorizers of this server. The first decision in the chain wins; the reasons of authorizers without an opinion
/// are collected. `system:masters` is always allowed, so that a broken chain can be repaired.
pub(crate) struct Authorizers {
    parts: Parts,
    masters: Privileged,
    current: RwLock<Arc<Vec<Link>>>,
    /// The authorizer types of the initial chain without webhooks. A new configuration must contain them.
    required: Vec<String>,
    followed: Option<ConfigFile>,
    figures: Arc<Figures>,
}

/// Authorizers that all configurations share.
struct Parts {
    node: Arc<NodeAuthorizer>,
    rbac: Arc<RbacWithHealthPaths>,
    abac: Option<Arc<Abac>>,
}

/// RBAC and the paths of probes, which are allowed before RBAC objects exist.
struct RbacWithHealthPaths(AlwaysAllowPaths, Arc<Rbac>);

impl Authorizer for RbacWithHealthPaths {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        match self.0.authorize(request) {
            Decision::NoOpinion(_) => self.1.authorize(request),
            decided => decided,
        }
    }
}

struct Link {
    kind: String,
    name: String,
    how: LinkAuthorizer,
}

enum LinkAuthorizer {
    Local(Arc<dyn Authorizer>),
    Webhook(Box<WebhookAuthorizer>),
}

/// The opinions of the previous links.
#[derive(Default)]
struct Opinions {
    reasons: Vec<String>,
    errors: Vec<String>,
}

impl Opinions {
    /// Records an opinion. Returns it if it is a decision.
    fn record(&mut self, said: Decision) -> Option<Decision> {
        let reason = match said {
            Decision::NoOpinion(reason) => reason,
            Decision::Failed { denied: false, reason, error } => {
                self.errors.push(error.to_string());
                reason
            }
            decided => return Some(decided),
        };
        self.reasons.extend(reason.map(|reason| reason.to_string()));
        None
    }

    fn end(mut self) -> Decision {
        let reason = (!self.reasons.is_empty()).then(|| self.reasons.join("\n").into());
        let error = match self.errors.len() {
            0 => return Decision::NoOpinion(reason),
            1 => self.errors.swap_remove(0),
            _ => format!("[{}]", self.errors.join(", ")),
        };
        Decision::Failed { denied: false, reason, error: error.into() }
    }
}

impl Authorizers {
    /// Builds the chain from the configuration. Errors are in upstream's words.
    pub(super) fn new(
        config: &Config,
        (node, rbac): (Arc<NodeAuthorizer>, Arc<Rbac>),
        figures: &Arc<Figures>,
    ) -> Result<Self, SecurityError> {
        let given = &config.authorization;
        let (chain, followed) = configured(config)?;
        let abac = match (&given.policies, names(&chain).any(|kind| kind == "ABAC")) {
            (Some(path), true) => {
                let policies = Abac::parse(&text("authorization policy file", path)?);
                Some(Arc::new(super::files::used("authorization policy file", path, policies)?))
            }
            (None, true) => {
                let words = "authorization-mode ABAC's authorization policy file not passed";
                return Err(SecurityError::Configuration(words.to_owned()));
            }
            (_, false) => None,
        };
        let health = AlwaysAllowPaths::new(&["/healthz", "/readyz", "/livez"]);
        let rbac = Arc::new(RbacWithHealthPaths(health, rbac));
        let own = names(&chain).filter(|kind| *kind != "Webhook");
        let made = Self {
            parts: Parts { node, rbac, abac },
            masters: Privileged::masters(),
            current: RwLock::default(),
            required: own.map(str::to_owned).collect(),
            followed,
            figures: figures.clone(),
        };
        let links = made.links_of(&chain).map_err(SecurityError::Configuration)?;
        made.take(links);
        Ok(made)
    }

    fn links_of(&self, chain: &AuthorizationConfiguration) -> Result<Vec<Link>, String> {
        chain.authorizers.iter().map(|link| self.link(link)).collect()
    }

    fn link(&self, given: &AuthorizerConfiguration) -> Result<Link, String> {
        let kind = given.kind.as_str();
        let how = match (kind, &given.webhook) {
            ("Webhook", Some(webhook)) => {
                let asked = WebhookAuthorizer::new(&given.name, webhook, &self.figures)?;
                LinkAuthorizer::Webhook(Box::new(asked))
            }
            ("AlwaysAllow", _) => LinkAuthorizer::Local(Arc::new(AlwaysAllow)),
            ("AlwaysDeny", _) => LinkAuthorizer::Local(Arc::new(AlwaysDeny)),
            (kind, _) => {
                let part: Option<Arc<dyn Authorizer>> = match kind {
                    "Node" => Some(self.parts.node.clone()),
                    "RBAC" => Some(self.parts.rbac.clone()),
                    "ABAC" => self.parts.abac.clone().map(|abac| abac as _),
                    _ => None,
                };
                let known = part.filter(|_| self.required.iter().any(|required| required == kind));
                LinkAuthorizer::Local(known.ok_or_else(|| {
                    format!(
                        "authorizer type {kind} is not allowed if it was not enabled at initial \
                         server startup"
                    )
                })?)
            }
        };
        Ok(Link { kind: kind.to_owned(), name: given.name.clone(), how })
    }

    fn take(&self, links: Vec<Link>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(links);
    }

    fn links(&self) -> Arc<Vec<Link>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the opinion of a link. Returns it if it is a decision, and counts it.
    fn record(&self, link: &Link, said: Decision, opinions: &mut Opinions) -> Option<Decision> {
        let decided = opinions.record(said)?;
        self.figures.record_decision(&link.kind, &link.name, decided.is_allowed());
        Some(decided)
    }

    /// Evaluates the chain. Webhooks are awaited without blocking a thread.
    pub(crate) async fn decide(&self, request: &Attributes<'_>) -> Decision {
        if self.masters.authorize(request).is_allowed() {
            return Decision::Allow(None);
        }
        let mut opinions = Opinions::default();
        for link in self.links().iter() {
            let said = match &link.how {
                LinkAuthorizer::Local(authorizer) => authorizer.authorize(request),
                LinkAuthorizer::Webhook(webhook) => webhook.decide(request).await,
            };
            if let Some(decided) = self.record(link, said, &mut opinions) {
                return decided;
            }
        }
        opinions.end()
    }

    /// Reports whether the chain contains RBAC, and returns the reasons for which a rules review is incomplete.
    pub(crate) fn rules_review_scope(&self) -> (bool, Vec<String>) {
        let links = self.links();
        let has = |kind: &str| links.iter().any(|link| link.kind == kind);
        let untold = [("Webhook", "webhook"), ("ABAC", "ABAC")];
        let untold = untold.into_iter().filter(|(kind, _)| has(kind));
        let words = |(_, name): (&str, &str)| {
            format!("{name} authorizer does not support user rule resolution")
        };
        (has("RBAC"), untold.map(words).collect())
    }

    /// Reloads the configuration file when it changes.
    pub(super) async fn follow(self: Arc<Self>) {
        let Some(followed) = &self.followed else { return std::future::pending().await };
        let reload = |text: String| {
            let links = read(&text, &self.required).and_then(|chain| self.links_of(&chain));
            std::future::ready(links.map(|links| self.take(links)).map_err(ReloadError::Invalid))
        };
        followed.follow(&self.figures, reload).await;
    }
}

/// Synchronous authorization in the middle of a request, see [`WebhookAuthorizer::decide_now`].
impl Authorizer for Authorizers {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        if self.masters.authorize(request).is_allowed() {
            return Decision::Allow(None);
        }
        let mut opinions = Opinions::default();
        for link in self.links().iter() {
            let said = match &link.how {
                LinkAuthorizer::Local(authorizer) => authorizer.authorize(request),
                LinkAuthorizer::Webhook(webhook) => webhook.decide_now(request),
            };
            if let Some(decided) = self.record(link, said, &mut opinions) {
                return decided;
            }
        }
        opinions.end()
    }
}

/// Returns the chain of the file or, without a file, of the flags.
pub(super) fn configured(
    config: &Config,
) -> Result<(AuthorizationConfiguration, Option<ConfigFile>), SecurityError> {
    let given = &config.authorization;
    let Some(path) = given.file.clone() else { return Ok((given.chain.clone(), None)) };
    let text = text("authorization configuration", &path)?;
    let chain = read(&text, &[]).map_err(SecurityError::Configuration)?;
    let server = hash(&config.identity());
    Ok((chain, Some(ConfigFile { what: "authorization", path, server, text })))
}

fn names(chain: &AuthorizationConfiguration) -> impl Iterator<Item = &str> {
    chain.authorizers.iter().map(|link| link.kind.as_str())
}

/// Parses and validates a configuration. `required` are the types that it must contain.
fn read(text: &str, required: &[String]) -> Result<AuthorizationConfiguration, String> {
    let chain = AuthorizationConfiguration::parse(text)
        .map_err(|e| format!("failed to load AuthorizationConfiguration from file: {e}"))?;
    let mut errors = validation::errors(&chain);
    let webhooks = chain.authorizers.iter().enumerate();
    for (i, link) in webhooks.filter(|(_, link)| link.kind == "Webhook") {
        let connection = link.webhook.as_ref().map(|webhook| &webhook.connection_info);
        let connection = connection.filter(|connection| connection.kind == "KubeConfigFile");
        let file = connection.and_then(|connection| connection.kube_config_file.as_ref());
        let Some(file) = file.filter(|file| file.starts_with('/')) else { continue };
        let at = api_meta::Path::new("authorizers").index(i);
        let at = at.child("connectionInfo").child("kubeConfigFile");
        let detail = match std::fs::metadata(file) {
            Ok(found) if found.is_file() => continue,
            Ok(_) => "must be a regular file".to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                format!("error loading file: stat {file}: no such file or directory")
            }
            Err(error) => format!("error loading file: stat {file}: {error}"),
        };
        errors.push(api_meta::FieldError::invalid(&at, file.as_str(), detail));
    }
    if !errors.is_empty() {
        return Err(aggregate(&errors));
    }
    let errors: BTreeSet<String> = validation::chain_errors(&chain, required).into_iter().collect();
    let errors: Vec<String> = errors.into_iter().collect();
    match errors.as_slice() {
        [] => Ok(chain),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}
