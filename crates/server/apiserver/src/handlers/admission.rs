//! Runs the admission phases of a request.
//!
//! The phases are those of upstream: mutating plugins, mutating policies and webhooks, validating plugins, validating
//! policies and webhooks, quota. [`admit`] runs the mutating ones and [`validate`] the rest. Between them, the kind's
//! strategy prepares and validates the object. Other effects of the request follow after all phases.

use admission::{Outcome, Rounds};
use api_meta::{GroupResource, Status, Tree as _};
use client::Resource;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    attributes::Attributes,
    call::Call,
    change::{self, Admission},
    state::State,
    steps::Step,
};
use crate::{request::ResourcePath, watch_cache::store_status};

impl Admission for State {
    fn admit<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
        object: &'a mut Value,
    ) -> BoxFuture<'a, Result<bool, Box<Status>>> {
        Box::pin(admit(self, attributes, object))
    }

    fn validate<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
        object: &'a Value,
    ) -> BoxFuture<'a, Result<(), Box<Status>>> {
        Box::pin(validate(self, attributes, object))
    }
}

fn name_of(object: &Value) -> String {
    object.name().to_owned()
}

/// Runs the mutating phases. Returns `true` if they may have changed the object.
pub(crate) async fn admit(
    state: &State,
    attributes: &Attributes<'_>,
    object: &mut Value,
) -> Result<bool, Box<Status>> {
    let mut outcome = Outcome::default();
    let began = Instant::now();
    let admitted = mutate_by_all(state, attributes, object, &mut outcome).await;
    let (operation, rejected) = (attributes.operation, admitted.is_err());
    state.steps.took(Step::Admit, operation, rejected, began.elapsed());
    finish(attributes.call, outcome, admitted)
}

/// Runs plugins, policies and webhooks in this order, and again after a change by a policy or webhook, as `rounds`
/// decides.
async fn mutate_by_all(
    state: &State,
    attributes: &Attributes<'_>,
    object: &mut Value,
    outcome: &mut Outcome,
) -> Result<bool, Box<Status>> {
    let (mut rounds, mut changed) = (Rounds::default(), false);
    if state.chain.is_on("NamespaceAutoProvision") {
        provide_namespace(state, attributes, object).await?;
    }
    loop {
        let name = name_of(object);
        let request = attributes.request(state, &name);
        let mut laps = state.steps.laps(Step::Admit, attributes.operation);
        changed |= state.chain.mutate(&request, object, &mut |at, no| laps.plugin(at, no))?;
        let call = attributes.call;
        if state.chain.is_on("MutatingAdmissionPolicy") {
            let policies = &state.policies;
            let mutation = policies.mutate(&state.cache, call, &request, object, &mut rounds).await;
            laps.named("MutatingAdmissionPolicy", mutation.is_err());
            changed |= mutation?;
        }
        if state.chain.is_on("MutatingAdmissionWebhook") {
            let webhooks = &state.webhooks;
            let mutation = webhooks.mutate(call, &request, object, outcome, &mut rounds).await;
            laps.named("MutatingAdmissionWebhook", mutation.is_err());
            changed |= mutation?;
        }
        if rounds.is_over() {
            return Ok(changed);
        }
    }
}

/// Creates the namespace of a new object if it is missing (NamespaceAutoProvision).
async fn provide_namespace(
    state: &State,
    attributes: &Attributes<'_>,
    object: &Value,
) -> Result<(), Box<Status>> {
    let name = name_of(object);
    let request = attributes.request(state, &name);
    let namespaces = GroupResource::NAMESPACES;
    if !request.creates()
        || request.dry_run
        || request.namespace.is_empty()
        || request.on(&namespaces)
        || request.objects.get(&namespaces, "", request.namespace).is_some()
    {
        return Ok(());
    }
    let namespace = json!({"metadata": {"name": request.namespace}});
    let client = &state.allocators.pool.client;
    match client.create::<_, Value>(&Resource::NAMESPACES, "", &namespace).await {
        Err(error) if !error.is_already_exists() => Err(Box::new(request.forbidden(object, error))),
        // The plugins that follow must find the namespace in the cache.
        _ => state.cache.consistent(&[namespaces]).await.map_err(store_status),
    }
}

/// Runs the validating phases on the final object, and charges quotas.
pub(crate) async fn validate(
    state: &State,
    attributes: &Attributes<'_>,
    object: &Value,
) -> Result<(), Box<Status>> {
    let mut outcome = Outcome::default();
    let began = Instant::now();
    let judged = run_validating_plugins(state, attributes, object, &mut outcome).await;
    let judged = match finish(attributes.call, outcome, judged) {
        Ok(()) => charge(state, attributes, object).await,
        refused => refused,
    };
    let (operation, rejected) = (attributes.operation, judged.is_err());
    state.steps.took(Step::Validate, operation, rejected, began.elapsed());
    judged
}

async fn run_validating_plugins(
    state: &State,
    attributes: &Attributes<'_>,
    object: &Value,
    outcome: &mut Outcome,
) -> Result<(), Box<Status>> {
    let name = name_of(object);
    let request = attributes.request(state, &name);
    let mut laps = state.steps.laps(Step::Validate, attributes.operation);
    state.chain.validate(&request, object, outcome, &mut |at, no| laps.plugin(at, no))?;
    if let Some(policy) = &state.image_policy {
        let judged = policy.validate(attributes.call, &request, object, outcome).await;
        laps.named("ImagePolicyWebhook", judged.is_err());
        judged?;
    }
    if state.chain.is_on("ValidatingAdmissionPolicy") {
        let (policies, call) = (&state.policies, attributes.call);
        let judged = policies.validate(&state.cache, call, &request, object, outcome).await;
        laps.named("ValidatingAdmissionPolicy", judged.is_err());
        judged?;
    }
    if !state.chain.is_on("ValidatingAdmissionWebhook") {
        return Ok(());
    }
    let judged = state.webhooks.validate(attributes.call, &request, object, outcome).await;
    laps.named("ValidatingAdmissionWebhook", judged.is_err());
    judged
}

/// Charges quotas, with retries if other requests have used the same quota concurrently.
async fn charge(
    state: &State,
    attributes: &Attributes<'_>,
    object: &Value,
) -> Result<(), Box<Status>> {
    let (call, name) = (attributes.call, name_of(object));
    let mut turn = None;
    for _ in 0..QUOTA_ATTEMPTS {
        let request = attributes.request(state, &name);
        let quotas = state.chain.charge(&request, object).map_err(Box::new)?;
        if call.dry_run() || spend(state, call, quotas).await? {
            return Ok(());
        }
        // Requests that lost a race retry one at a time. Otherwise most of them would lose again.
        if turn.is_none() {
            turn = Some(state.quota_turn.lock().await);
        }
    }
    Err(Box::new(Status::server_timeout(
        &call.resource.definition.group_resource(),
        "charging the quota of",
        1,
    )))
}

/// Writes the usage that a request adds. Returns `false` if a quota has changed and must be evaluated again.
async fn spend(state: &State, call: &Call, quotas: Vec<Value>) -> Result<bool, Box<Status>> {
    for quota in quotas {
        let kinds = state.cache.kinds();
        let Some((resource, version)) = kinds.find("", "v1", "resourcequotas") else {
            return Ok(true);
        };
        let path = ResourcePath {
            version: "v1".into(),
            resource: "resourcequotas".into(),
            subresource: "status".into(),
            namespace: quota.namespace().to_owned(),
            name: quota.name().to_owned(),
            ..ResourcePath::default()
        };
        let on_quota = call.on(resource.clone(), version, path);
        let change = |_: Option<&Value>| Ok(quota.clone());
        match change::effect(state, &on_quota, &change, false).await {
            Ok(()) => {}
            Err(status) if status.is_conflict() || status.is_not_found() => return Ok(false),
            Err(status) => return Err(status),
        }
    }
    Ok(true)
}

/// Adds the warnings and audit annotations of a phase to the call, whether it failed or not.
fn finish<T>(
    call: &Call,
    outcome: Outcome,
    done: Result<T, Box<Status>>,
) -> Result<T, Box<Status>> {
    outcome.warnings.into_iter().for_each(|warning| call.warn(warning));
    outcome.audit.iter().for_each(|(name, value)| call.annotate(name, value));
    done
}

const QUOTA_ATTEMPTS: usize = 8;
