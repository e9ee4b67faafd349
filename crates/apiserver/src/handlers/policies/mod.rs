//! Admission policies as part of a request: those that may change its object one after the other, those that judge it
//! all of them. What they say is decided by `admission::policy`; here are found the objects that they are asked with.
//!
//! Policies are read when they change, not when a request comes: a request that concerns no policy pays for a look at
//! their rules, and with no policy for a look at an empty list.

mod figures;
mod mutate;
mod params;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use admission::{
    Outcome, Request,
    matching::Shown,
    policy::{self, Annotations, Binding, Denials, Policy, Question},
};
use api_meta::{Changed, GroupResource, GroupVersionKind, Observer, Status};
use serde_json::Value;
use telemetry::metrics::Metrics;
use tokio::time::Instant;

use self::figures::Figures;
use super::{
    call::Call,
    webhooks::{equivalents, say_type, shown_as},
};
use crate::watch_cache::WatchCache;

const GROUP: &str = "admissionregistration.k8s.io";

/// A policy that is bound to something, with its bindings.
struct Hook {
    policy: Arc<Policy>,
    bindings: Vec<Arc<Binding>>,
}

/// All policies, as they are now.
pub(crate) struct Policies {
    /// Policies and bindings of the first side, then those of the second.
    resources: [GroupResource; 4],
    mutating: Side,
    validating: Side,
    figures: Figures,
}

#[derive(Default)]
struct Side {
    known: Mutex<Known>,
    hooks: RwLock<Arc<[Hook]>>,
}

/// By name, which gives the order.
#[derive(Default)]
struct Known {
    policies: BTreeMap<String, Arc<Policy>>,
    bindings: BTreeMap<String, Arc<Binding>>,
}

impl Known {
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
        // What a policy was compiled to serves on where only its status or its metadata is another.
        if !self.policies.get(name).is_some_and(|known| known.says(policy)) {
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
        self.hooks.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut known);
        *self.hooks.write().unwrap_or_else(PoisonError::into_inner) = known.hooks();
    }

    /// Those that a request may concern: none where policies are not asked about it.
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
            figures: Figures::new(metrics),
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

/// The objects of a request, new and old, as kinds have them, each made once.
#[derive(Default)]
struct Forms(Vec<(GroupVersionKind, Value, Value)>);

impl Forms {
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

/// An object of a request as a kind has it, and as it says itself.
async fn shown(
    call: &Call,
    tree: &Value,
    from: &GroupVersionKind,
    to: &GroupVersionKind,
) -> Result<Value, Box<Status>> {
    let mut tree = shown_as(call, tree, from, to).await?;
    // Upstream's connections have options without a type of their own.
    say_type(&mut tree, to);
    Ok(tree)
}

impl Policies {
    /// Whether there is a policy at all.
    pub(crate) fn any(&self) -> bool {
        !self.mutating.hooks().is_empty() || !self.validating.hooks().is_empty()
    }

    /// Asks those that judge the object.
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
        let (mut denials, mut forms) = (Denials::default(), Forms::default());
        for hook in hooks.iter() {
            let shown = match hook.policy.concerns(request, object, &others) {
                Ok(Some(shown)) => shown,
                Ok(None) => continue,
                Err(status) => {
                    denials.misconfigured(&hook.policy, None, &status.message);
                    continue;
                }
            };
            let figures = &self.figures;
            let asked = Asked { cache, call, request, object, shown: &shown, figures };
            asked.of_all(hook, &mut forms, &mut denials, outcome).await?;
        }
        denials.settle(request, object)
    }
}

/// A policy's turn.
struct Asked<'a> {
    cache: &'a WatchCache,
    call: &'a Call,
    request: &'a Request<'a>,
    object: &'a Value,
    shown: &'a Shown,
    figures: &'a Figures,
}

impl Asked<'_> {
    /// Asks the policy for each binding, and with each of its parameters.
    async fn of_all(
        &self,
        hook: &Hook,
        forms: &mut Forms,
        denials: &mut Denials,
        outcome: &mut Outcome,
    ) -> Result<(), Box<Status>> {
        let Self { cache, call, request, object, shown, figures } = *self;
        let policy = &*hook.policy;
        let kind = match params::kind(cache, policy) {
            Ok(kind) => kind,
            Err(error) => {
                denials.misconfigured(policy, None, &error);
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
                    denials.misconfigured(policy, Some(binding), &status.message);
                    continue;
                }
            }
            let params = match params::of(kind.as_ref(), binding, request).await {
                Ok(params) => params,
                Err(error) => {
                    denials.misconfigured(policy, Some(binding), &error);
                    continue;
                }
            };
            let objects = match forms.of(call, request, object, &shown.kind).await {
                Ok(objects) => objects,
                Err(status) => {
                    let why = format!("failed to convert object version: {}", status.message);
                    denials.misconfigured(policy, Some(binding), &why);
                    continue;
                }
            };
            let namespace = Policy::namespace(request)?;
            for params in &params {
                let question = Question { request, shown, objects, namespace: &namespace, params };
                let began = Instant::now();
                let judged = policy.judge(&question, &|| began.elapsed());
                figures.judged(policy, binding, &judged);
                denials.take((policy, &**binding), judged, outcome, &mut kept);
            }
        }
        kept.publish(policy, outcome);
        Ok(())
    }
}
