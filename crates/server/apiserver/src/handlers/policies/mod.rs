//! Calls admission policies for a request: mutating ones one after another, validating ones all of them.
//! `admission::policy` evaluates them; this module looks up their parameters and converts the objects. Start with
//! [`Policies`].
//!
//! Policies are compiled when they change, not per request. A request that matches no policy only evaluates their
//! rules; without policies it only checks an empty list.

mod metrics;
mod mutate;
mod params;

use std::{collections::BTreeMap, sync::Arc};

use admission::{
    Outcome, Request,
    matching::MatchedResource,
    policy::{self, Annotations, Binding, Denials, Policy, Question},
};
use api_meta::{Changed, GroupResource, GroupVersionKind, Observer, Status};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use telemetry::metrics::Metrics;
use tokio::time::Instant;

use self::metrics::PolicyMetrics;
use super::{
    call::Call,
    webhooks::{equivalents, set_type, shown_as},
};
use crate::watch_cache::WatchCache;

const GROUP: &str = "admissionregistration.k8s.io";

/// A policy with its bindings.
struct Hook {
    policy: Arc<Policy>,
    bindings: Vec<Arc<Binding>>,
}

/// The current policies.
pub(crate) struct Policies {
    /// Mutating policies and bindings, then validating ones.
    resources: [GroupResource; 4],
    mutating: Side,
    validating: Side,
    metrics: PolicyMetrics,
}

#[derive(Default)]
struct Side {
    known: Mutex<Registrations>,
    hooks: RwLock<Arc<[Hook]>>,
}

/// Policies and bindings by name, which is the order of evaluation.
#[derive(Default)]
struct Registrations {
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Binding>>,
}

impl Registrations {
    fn hooks(&self) -> Arc<[Hook]> {
        let mut bound: BTreeMap<&str, Vec<Arc<Binding>>> = BTreeMap::new();
        for binding in self.bindings.values() {
            bound.entry(&binding.policy).or_default().push(binding.clone());
        }
        let hook = |(name, bindings)| {
            let policy = self.policies.get::<str>(name)?.clone();
            Some(Hook { policy, bindings })
        };
        bound.into_iter().filter_map(hook).collect()
    }

    fn set_policy(&mut self, name: &str, policy: Option<&Value>) {
        let Some(policy) = policy else { return drop(self.policies.remove(name)) };
        // Keep the compiled policy if only its status or metadata has changed.
        if !self.policies.get(name).is_some_and(|known| known.is_unchanged(policy)) {
            self.policies.insert(name.to_owned(), Arc::new(Policy::of(policy)));
        }
    }

    fn set_binding(&mut self, name: &str, binding: Option<&Value>) {
        match binding {
            Some(binding) => {
                drop(self.bindings.insert(name.to_owned(), Arc::new(Binding::of(binding))));
            }
            None => drop(self.bindings.remove(name)),
        }
    }
}

impl Side {
    fn hooks(&self) -> Arc<[Hook]> {
        self.hooks.read().clone()
    }

    fn change(&self, change: impl FnOnce(&mut Registrations)) {
        let mut known = self.known.lock();
        change(&mut known);
        *self.hooks.write() = known.hooks();
    }

    /// Returns the policies that may match a request. `None` if the request is exempt or there are none.
    fn of(&self, request: &Request<'_>) -> Option<Arc<[Hook]>> {
        let hooks = self.hooks();
        (!hooks.is_empty() && !policy::is_exempt(request)).then_some(hooks)
    }
}

impl Policies {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let resources = [
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
        ];
        Self {
            resources: resources.map(|plural| GroupResource::new(GROUP, plural)),
            mutating: Side::default(),
            validating: Side::default(),
            metrics: PolicyMetrics::new(metrics),
        }
    }
}

impl Observer for Policies {
    fn resources(&self) -> &[GroupResource] {
        &self.resources
    }

    fn changed(&self, change: Changed<'_>) {
        let at = self.resources.iter().position(|known| known == change.resource);
        let side = if at < Some(2) { &self.mutating } else { &self.validating };
        side.change(|known| match at {
            Some(0 | 2) => known.set_policy(change.name, change.object),
            _ => known.set_binding(change.name, change.object),
        });
    }
}

/// The new and old object of a request in each requested version, converted once.
#[derive(Default)]
struct ConvertedObjects(Vec<(GroupVersionKind, Value, Value)>);

impl ConvertedObjects {
    async fn of(
        &mut self,
        call: &Call,
        request: &Request<'_>,
        object: &Value,
        kind: &GroupVersionKind,
    ) -> Result<(&Value, &Value), Box<Status>> {
        let at = match self.0.iter().position(|(known, ..)| known == kind) {
            Some(at) => at,
            None => {
                let new = shown(call, object, request.kind, kind).await?;
                let old = request.old.unwrap_or(&Value::Null);
                let old = shown(call, old, request.kind, kind).await?;
                self.0.push((kind.clone(), new, old));
                self.0.len() - 1
            }
        };
        let (_, new, old) = &self.0[at];
        Ok((new, old))
    }
}

/// Returns an object of a request in another version, with `kind` and `apiVersion`.
async fn shown(
    call: &Call,
    tree: &Value,
    from: &GroupVersionKind,
    to: &GroupVersionKind,
) -> Result<Value, Box<Status>> {
    let mut tree = shown_as(call, tree, from, to).await?;
    // Upstream's options of connections have no type of their own.
    set_type(&mut tree, to);
    Ok(tree)
}

impl Policies {
    /// Returns `true` if there is any policy with a binding.
    pub(crate) fn any(&self) -> bool {
        !self.mutating.hooks().is_empty() || !self.validating.hooks().is_empty()
    }

    /// Runs the validating policies.
    pub(crate) async fn validate(
        &self,
        cache: &WatchCache,
        call: &Call,
        request: &Request<'_>,
        object: &Value,
        outcome: &mut Outcome,
    ) -> Result<(), Box<Status>> {
        let Some(hooks) = self.validating.of(request) else { return Ok(()) };
        let others = || equivalents(call, request.subresource);
        let (mut denials, mut forms) = (Denials::default(), ConvertedObjects::default());
        for hook in hooks.iter() {
            let shown = match hook.policy.concerns(request, object, &others) {
                Ok(Some(shown)) => shown,
                Ok(None) => continue,
                Err(status) => {
                    denials.record_misconfiguration(&hook.policy, None, &status.message);
                    continue;
                }
            };
            let metrics = &self.metrics;
            let evaluation = Evaluation { cache, call, request, object, shown: &shown, metrics };
            evaluation.run(hook, &mut forms, &mut denials, outcome).await?;
        }
        denials.settle(request, object)
    }
}

/// The evaluation of one policy for a request.
struct Evaluation<'a> {
    cache: &'a WatchCache,
    call: &'a Call,
    request: &'a Request<'a>,
    object: &'a Value,
    shown: &'a MatchedResource,
    metrics: &'a PolicyMetrics,
}

impl Evaluation<'_> {
    /// Evaluates the policy for each binding and each parameter.
    async fn run(
        &self,
        hook: &Hook,
        forms: &mut ConvertedObjects,
        denials: &mut Denials,
        outcome: &mut Outcome,
    ) -> Result<(), Box<Status>> {
        let Self { cache, call, request, object, shown, metrics } = *self;
        let policy = &*hook.policy;
        let kind = match params::kind(cache, policy) {
            Ok(kind) => kind,
            Err(error) => {
                denials.record_misconfiguration(policy, None, error);
                return Ok(());
            }
        };
        let others = || equivalents(call, request.subresource);
        let mut kept = Annotations::default();
        for binding in &hook.bindings {
            match binding.concerns(request, object, &others) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(status) => {
                    denials.record_misconfiguration(policy, Some(binding), &status.message);
                    continue;
                }
            }
            let params = match params::of(kind.as_ref(), binding, request).await {
                Ok(params) => params,
                Err(error) => {
                    denials.record_misconfiguration(policy, Some(binding), error);
                    continue;
                }
            };
            let objects = match forms.of(call, request, object, &shown.kind).await {
                Ok(objects) => objects,
                Err(status) => {
                    let why = format!("failed to convert object version: {}", status.message);
                    denials.record_misconfiguration(policy, Some(binding), why);
                    continue;
                }
            };
            let namespace = Policy::namespace(request)?;
            for params in &params {
                let question = Question { request, shown, objects, namespace: &namespace, params };
                let began = Instant::now();
                let judged = policy.judge(&question, &|| began.elapsed());
                metrics.record_validation(policy, binding, &judged);
                denials.take(policy, binding, judged, outcome, &mut kept);
            }
        }
        kept.publish(policy, outcome);
        Ok(())
    }
}
