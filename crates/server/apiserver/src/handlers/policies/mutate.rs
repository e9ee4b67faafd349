//! Mutating admission policies. They run one after another, each on the result of the previous one.

use admission::{
    MutatorKind, Request, Rounds,
    matching::MatchedResource,
    policy::{Binding, Change, Mutation, MutationError, Policy, Question, Refusals},
};
use api_meta::{GroupVersionKind, Status, Tree as _};
use api_patch::{ConfigurationError, PatchError};
use serde_json::Value;
use tokio::time::Instant;

use super::{Hook, Policies, metrics::PolicyMetrics, params, shown};
use crate::{
    handlers::{
        call::Call,
        webhooks::{
            equivalents,
            patch::{keep_owners, read_with_findings, schema_of},
            set_type,
        },
    },
    watch_cache::WatchCache,
};

/// A call of a policy for one binding and one parameter.
struct Invocation<'h> {
    policy: &'h Policy,
    binding: &'h Binding,
    shown: MatchedResource,
    params: Value,
}

impl Invocation<'_> {
    /// Returns the key of the invocation within a request.
    fn id(&self) -> String {
        let (namespace, name) = (self.params.namespace(), self.params.name());
        format!("{}/{}/{namespace}/{name}", self.policy.name, self.binding.name)
    }
}

/// The error of a mutation.
enum Failure {
    /// Handled according to the policy's failure policy.
    Policy(PolicyError),
    Server(Box<Status>),
}

/// The reason why a policy's mutation cannot be applied.
#[derive(Debug, thiserror::Error)]
enum PolicyError {
    #[error(transparent)]
    Mutation(#[from] MutationError),
    #[error("JSON Patch: {0}")]
    Patch(PatchError),
    #[error("error applying patch: {0}")]
    Configuration(ConfigurationError),
}

impl Policies {
    /// Runs a round of mutating policies. Returns `true` if one has changed the object.
    pub(crate) async fn mutate(
        &self,
        cache: &WatchCache,
        call: &Call,
        request: &Request<'_>,
        object: &mut Value,
        rounds: &mut Rounds,
    ) -> Result<bool, Box<Status>> {
        let Some(hooks) = self.mutating.of(request) else { return Ok(false) };
        let mut refusals = Refusals::default();
        let mut invocations = Vec::new();
        for hook in hooks.iter() {
            let found = invocations_of(hook, cache, call, request, object, &mut refusals);
            invocations.extend(found.await);
        }
        let mut changed = false;
        if !invocations.is_empty() {
            rounds.begin(MutatorKind::Policies, object);
            let (refusals, metrics) = (&mut refusals, &self.metrics);
            let mut round = Round { call, request, rounds, refusals, metrics };
            changed = round.invoke(&invocations, object).await?;
            rounds.end(MutatorKind::Policies, object);
        }
        refusals.settle(request, object)?;
        Ok(changed)
    }
}

async fn invocations_of<'h>(
    hook: &'h Hook,
    cache: &WatchCache,
    call: &Call,
    request: &Request<'_>,
    object: &Value,
    refusals: &mut Refusals,
) -> Vec<Invocation<'h>> {
    let (policy, mut invocations) = (&*hook.policy, Vec::new());
    let others = || equivalents(call, request.subresource);
    let shown = match policy.concerns(request, object, &others) {
        Ok(Some(shown)) => shown,
        Ok(None) => return invocations,
        Err(status) => {
            refusals.record_misconfiguration(policy, None, &status.message);
            return invocations;
        }
    };
    let kind = match params::kind(cache, policy) {
        Ok(kind) => kind,
        Err(error) => {
            refusals.record_misconfiguration(policy, None, error);
            return invocations;
        }
    };
    for binding in &hook.bindings {
        match binding.concerns(request, object, &others) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(status) => {
                refusals.record_misconfiguration(policy, Some(binding), &status.message);
                continue;
            }
        }
        match params::of(kind.as_ref(), binding, request).await {
            Ok(params) => invocations.extend(params.into_iter().map(|params| Invocation {
                policy,
                binding,
                shown: shown.clone(),
                params,
            })),
            Err(error) => refusals.record_misconfiguration(policy, Some(binding), error),
        }
    }
    invocations
}

struct Round<'r> {
    call: &'r Call,
    request: &'r Request<'r>,
    rounds: &'r mut Rounds,
    refusals: &'r mut Refusals,
    metrics: &'r PolicyMetrics,
}

impl Round<'_> {
    async fn invoke(
        &mut self,
        invocations: &[Invocation<'_>],
        object: &mut Value,
    ) -> Result<bool, Box<Status>> {
        let before = object.clone();
        set_type(object, self.request.kind);
        let mut done = false;
        for invocation in invocations {
            done |= self.one(invocation, object).await?;
        }
        if done {
            // As upstream: the called policies run again, whether they changed the object or not.
            self.rounds.record_change(MutatorKind::Policies);
        }
        Ok(done && *object != before)
    }

    /// Runs one invocation. Returns `true` if a mutation was applied, even without a change.
    async fn one(
        &mut self,
        invocation: &Invocation<'_>,
        object: &mut Value,
    ) -> Result<bool, Box<Status>> {
        let Invocation { policy, binding, shown: as_kind, params } = invocation;
        let (own, target) = (self.request.kind, &as_kind.kind);
        let mut new = shown(self.call, object, own, target).await?;
        let old = self.request.old.unwrap_or(&Value::Null);
        let old = shown(self.call, old, own, target).await?;
        let namespace = Policy::namespace(self.request)?;
        let about = Question {
            request: self.request,
            shown: as_kind,
            objects: (&Value::Null, &old),
            namespace: &namespace,
            params,
        };
        let mutations = match policy.mutations(&Question { objects: (&new, &old), ..about }) {
            Ok(mutations) => mutations,
            Err(error) => {
                self.refusals.record_failure(policy, binding, error);
                return Ok(false);
            }
        };
        let id = invocation.id();
        if mutations.is_empty() || !self.rounds.includes(MutatorKind::Policies, &id) {
            return Ok(false);
        }
        let (mut done, before) = (false, new.clone());
        // A deleted object cannot be changed.
        for mutation in mutations.iter().filter(|_| !before.is_null()) {
            let question = Question { objects: (&new, &old), ..about };
            let began = Instant::now();
            let mutated = apply_mutation(self.call, policy, mutation, &question, target);
            self.metrics.record_mutation(policy, binding, mutated.is_err(), began.elapsed());
            match mutated {
                Ok(mutated) => (new, done) = (mutated, true),
                Err(Failure::Policy(error)) => self.refusals.record_failure(policy, binding, error),
                Err(Failure::Server(status)) => return Err(status),
            }
        }
        let changed = new != before;
        if changed {
            new = shown(self.call, &new, target, own).await?;
            keep_owners(self.call, object, &mut new);
            *object = new;
        }
        self.rounds.record_call(MutatorKind::Policies, &id, policy.reinvocable, changed);
        Ok(done)
    }
}

/// Applies a mutation. The result is decoded like a body, so that a policy can set only what a client can.
fn apply_mutation(
    call: &Call,
    policy: &Policy,
    mutation: &Mutation,
    question: &Question<'_>,
    kind: &GroupVersionKind,
) -> Result<Value, Failure> {
    let object = question.objects.0;
    let internal = |cause: String| Failure::Server(Box::new(Status::internal(cause)));
    let change = policy.change(mutation, question);
    let change = change.map_err(|error| Failure::Policy(error.into()))?;
    let patched = matches!(change, Change::Patch(_));
    let mutated = match change {
        Change::Patch(patch) => match api_patch::json_patch(object, &patch) {
            Ok(mutated) => mutated,
            Err(PatchError::TestFailed) => return Ok(object.clone()),
            Err(error) => return Err(Failure::Policy(PolicyError::Patch(error))),
        },
        Change::Configuration(configuration) => {
            let Some((schema, node)) = schema_of(call, kind) else {
                let unknown = format!(
                    "Resource kind {}/{}, Kind={} not found. There can be a delay between when \
                     CustomResourceDefinitions are created and when they are available.",
                    kind.group, kind.version, kind.kind
                );
                return Err(Failure::Server(Box::new(Status::service_unavailable(unknown))));
            };
            api_patch::merge_configuration(schema, node, object.clone(), &configuration)
                .map_err(|error| Failure::Policy(PolicyError::Configuration(error)))?
        }
    };
    // Fields added by a patch must be known. Custom kinds prune unknown fields instead, as they do for clients.
    let strict = patched && call.resource.definition.custom.is_none();
    match read_with_findings(call, kind, mutated) {
        Ok((_, findings)) if strict && !findings.is_empty() => {
            let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
            Err(internal(format!("strict decoding error: {}", findings.join(", "))))
        }
        Ok((mutated, _)) => Ok(mutated),
        Err(error) => Err(internal(error.to_string())),
    }
}
