//! The chain of authorizers, configured by flags or a file. The file is reloaded when it changes.

use std::{collections::BTreeSet, sync::Arc};

use api_config::{AuthorizationConfiguration, authorization::AuthorizerConfiguration};
use api_meta::{Attributes, Authorizer, Decision};
use auth::{
    authz::{
        abac::Abac,
        node::NodeAuthorizer,
        simple::{AlwaysAllow, AlwaysAllowPaths, AlwaysDeny, Privileged},
        validation,
    },
    rbac::Rbac,
};
use client::Proxy;
use parking_lot::RwLock;

use super::{
    authorization_error::AuthorizationError,
    files::{ConfigFile, ReloadError, SecurityError, text},
    metrics::{SecurityMetrics, hash},
    webhook_authorizer::WebhookAuthorizer,
};
use crate::config::{Config, Network};

/// The authorizers of this server. The first decision in the chain wins; the reasons of authorizers without an opinion
/// are collected. `system:masters` is always allowed, so that a broken chain can be repaired.
pub(crate) struct Authorizers {
    parts: Parts,
    masters: Privileged,
    current: RwLock<Arc<Vec<Link>>>,
    /// The authorizer types of the initial chain without webhooks. A new configuration must contain them.
    required: Vec<String>,
    config_file: Option<ConfigFile>,
    metrics: Arc<SecurityMetrics>,
    /// The proxy to the network of webhooks.
    proxy: Option<Proxy>,
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
    authorizer: LinkAuthorizer,
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
    fn record(&mut self, decision: Decision) -> Option<Decision> {
        let reason = match decision {
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

/// An evaluation of the chain. It pauses at each webhook, because its caller knows whether the thread may block.
struct Evaluation<'a> {
    request: &'a Attributes<'a>,
    links: std::slice::Iter<'a, Link>,
    metrics: &'a SecurityMetrics,
    opinions: Opinions,
    decision: Option<Decision>,
}

impl<'a> Evaluation<'a> {
    /// Evaluates the links up to a decision or to the next webhook. Returns the webhook.
    fn next_webhook(&mut self) -> Option<(&'a Link, &'a WebhookAuthorizer)> {
        while self.decision.is_none() {
            let link = self.links.next()?;
            match &link.authorizer {
                LinkAuthorizer::Local(authorizer) => {
                    self.record(link, authorizer.authorize(self.request));
                }
                LinkAuthorizer::Webhook(webhook) => return Some((link, webhook)),
            }
        }
        None
    }

    /// Records the opinion of a link, and counts it if it is a decision.
    fn record(&mut self, link: &Link, decision: Decision) {
        if let Some(decided) = self.opinions.record(decision) {
            self.metrics.record_decision(&link.kind, &link.name, decided.is_allowed());
            self.decision = Some(decided);
        }
    }

    fn end(self) -> Decision {
        self.decision.unwrap_or_else(|| self.opinions.end())
    }
}

impl Authorizers {
    /// Builds the chain from the configuration. Errors are in upstream's words.
    pub(super) fn new(
        config: &Config,
        node: Arc<NodeAuthorizer>,
        rbac: Arc<Rbac>,
        metrics: &Arc<SecurityMetrics>,
    ) -> Result<Self, SecurityError> {
        let options = &config.authorization;
        let (chain, config_file) = configured(config)?;
        let abac = match (&options.policies, names(&chain).any(|kind| kind == "ABAC")) {
            (Some(path), true) => {
                let policies = Abac::parse(&text("authorization policy file", path)?);
                Some(Arc::new(super::files::with_file(
                    "authorization policy file",
                    path,
                    policies,
                )?))
            }
            (None, true) => {
                return Err(AuthorizationError::NoPolicyFile.into());
            }
            (_, false) => None,
        };
        let health = AlwaysAllowPaths::new(&["/healthz", "/readyz", "/livez"]);
        let rbac = Arc::new(RbacWithHealthPaths(health, rbac));
        let own = names(&chain).filter(|kind| *kind != "Webhook");
        let authorizers = Self {
            parts: Parts { node, rbac, abac },
            masters: Privileged::masters(),
            current: RwLock::default(),
            required: own.map(str::to_owned).collect(),
            config_file,
            metrics: metrics.clone(),
            proxy: config.egress.proxy(Network::ControlPlane),
        };
        let links = authorizers.links_of(&chain)?;
        authorizers.take(links);
        Ok(authorizers)
    }

    fn links_of(
        &self,
        chain: &AuthorizationConfiguration,
    ) -> Result<Vec<Link>, AuthorizationError> {
        chain.authorizers.iter().map(|link| self.link(link)).collect()
    }

    fn link(&self, config: &AuthorizerConfiguration) -> Result<Link, AuthorizationError> {
        let kind = config.kind.as_str();
        let authorizer = match (kind, &config.webhook) {
            ("Webhook", Some(webhook)) => {
                let webhook = {
                    let proxy = self.proxy.clone();
                    WebhookAuthorizer::new(&config.name, webhook, proxy, &self.metrics)?
                };
                LinkAuthorizer::Webhook(Box::new(webhook))
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
                LinkAuthorizer::Local(
                    known
                        .ok_or_else(|| AuthorizationError::NotEnabled { kind: kind.to_owned() })?,
                )
            }
        };
        Ok(Link { kind: kind.to_owned(), name: config.name.clone(), authorizer })
    }

    fn take(&self, links: Vec<Link>) {
        *self.current.write() = Arc::new(links);
    }

    fn links(&self) -> Arc<Vec<Link>> {
        self.current.read().clone()
    }

    fn evaluation<'a>(&'a self, links: &'a [Link], request: &'a Attributes<'a>) -> Evaluation<'a> {
        let is_master = self.masters.authorize(request).is_allowed();
        Evaluation {
            request,
            links: links.iter(),
            metrics: &self.metrics,
            opinions: Opinions::default(),
            decision: is_master.then_some(Decision::Allow(None)),
        }
    }

    /// Evaluates the chain. Webhooks are awaited without blocking a thread.
    pub(crate) async fn decide(&self, request: &Attributes<'_>) -> Decision {
        let links = self.links();
        let mut evaluation = self.evaluation(&links, request);
        while let Some((link, webhook)) = evaluation.next_webhook() {
            evaluation.record(link, webhook.decide(request).await);
        }
        evaluation.end()
    }

    /// Reports whether the chain contains RBAC, and returns the reasons for which a rules review is incomplete.
    pub(crate) fn rules_review_scope(&self) -> (bool, Vec<String>) {
        let links = self.links();
        let has = |kind: &str| links.iter().any(|link| link.kind == kind);
        let gaps = [("Webhook", "webhook"), ("ABAC", "ABAC")];
        let gaps = gaps.into_iter().filter(|(kind, _)| has(kind));
        let reason = |(_, name): (&str, &str)| {
            format!("{name} authorizer does not support user rule resolution")
        };
        (has("RBAC"), gaps.map(reason).collect())
    }

    /// Reloads the configuration file when it changes.
    pub(super) async fn follow(self: Arc<Self>) {
        let Some(config_file) = &self.config_file else { return std::future::pending().await };
        let reload = |text: String| {
            let links = read(&text, &self.required).and_then(|chain| self.links_of(&chain));
            std::future::ready(
                links
                    .map(|links| self.take(links))
                    .map_err(|error| ReloadError::Invalid(error.into())),
            )
        };
        config_file.follow(&self.metrics, reload).await;
    }
}

/// Synchronous authorization in the middle of a request, see [`WebhookAuthorizer::decide_now`].
impl Authorizer for Authorizers {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        let links = self.links();
        let mut evaluation = self.evaluation(&links, request);
        while let Some((link, webhook)) = evaluation.next_webhook() {
            evaluation.record(link, webhook.decide_now(request));
        }
        evaluation.end()
    }
}

/// Returns the chain of the file or, without a file, of the flags.
pub(super) fn configured(
    config: &Config,
) -> Result<(AuthorizationConfiguration, Option<ConfigFile>), SecurityError> {
    let options = &config.authorization;
    let Some(path) = options.file.clone() else { return Ok((options.chain.clone(), None)) };
    let text = text("authorization configuration", &path)?;
    let chain = read(&text, &[])?;
    let server = hash(&config.identity());
    Ok((chain, Some(ConfigFile { purpose: "authorization", path, server, text })))
}

fn names(chain: &AuthorizationConfiguration) -> impl Iterator<Item = &str> {
    chain.authorizers.iter().map(|link| link.kind.as_str())
}

/// Parses and validates a configuration. `required` are the types that it must contain.
fn read(text: &str, required: &[String]) -> Result<AuthorizationConfiguration, AuthorizationError> {
    let chain = AuthorizationConfiguration::parse(text)?;
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
        return Err(AuthorizationError::Invalid(errors));
    }
    let errors: BTreeSet<String> = validation::chain_errors(&chain, required).into_iter().collect();
    if errors.is_empty() {
        return Ok(chain);
    }
    Err(AuthorizationError::Chain(errors.into_iter().collect()))
}
