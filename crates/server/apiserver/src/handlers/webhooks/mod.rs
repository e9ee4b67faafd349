//! Calls admission webhooks for a request: mutating ones one after another, validating ones all at once.
//! `admission::webhook` decides which are called, and evaluates their responses. Start with [`Webhooks`].
//!
//! Configurations are parsed when they change, not per request. A request that matches no webhook only evaluates their
//! rules; without webhooks it only checks an empty list.

mod metrics;
pub(super) mod patch;
mod validate;

use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

use admission::{
    MutatorKind, Outcome, Request, Rounds,
    matching::MatchedResource,
    webhook::{self, Answer, Failure, Verdict},
};
use api_meta::{
    Changed, GroupResource, GroupVersionKind, GroupVersionResource, Observer, Status, Tree as _,
};
use otlp::{Span, SpanKind};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use telemetry::metrics::Metrics;

use self::metrics::WebhookMetrics;
use super::call::Call;
use crate::{
    outbound::{
        backends::Backends,
        users::WebhookUsers,
        webhook::{CallLimits, Webhook},
    },
    registry::definition::{ServedVersion, api_version},
};

const GROUP: &str = "admissionregistration.k8s.io";
/// The timeout of a call if neither the webhook nor the request has one: upstream's maximum.
const LONGEST: Duration = Duration::from_secs(30);
/// The maximum size of a response. A patch of the largest object fits, and a few concurrent responses do not exhaust
/// the memory.
const ANSWER_LIMIT: usize = 16 << 20;
const MUTATION: &str = "mutation.webhook.admission.k8s.io";

/// A webhook and its backend.
pub(crate) struct Hook {
    webhook: webhook::Webhook,
    backend: Webhook,
}

/// The current webhooks.
pub(crate) struct Webhooks {
    resources: [GroupResource; 2],
    mutating: Side,
    validating: Side,
    backends: Arc<Backends>,
    /// The credentials for mutating and for validating webhooks.
    users: [Option<Arc<WebhookUsers>>; 2],
    metrics: WebhookMetrics,
}

#[derive(Default)]
struct Side {
    /// The webhooks by configuration, whose names define the order.
    configurations: Mutex<BTreeMap<String, Vec<Arc<Hook>>>>,
    all: RwLock<Arc<[Arc<Hook>]>>,
}

impl Side {
    fn set(&self, name: &str, hooks: Option<Vec<Arc<Hook>>>) {
        let mut configurations = self.configurations.lock();
        match hooks {
            Some(hooks) => drop(configurations.insert(name.to_owned(), hooks)),
            None => drop(configurations.remove(name)),
        }
        let all = configurations.values().flatten().cloned().collect();
        *self.all.write() = all;
    }

    fn all(&self) -> Arc<[Arc<Hook>]> {
        self.all.read().clone()
    }
}

impl Webhooks {
    pub(crate) fn new(
        backends: Arc<Backends>,
        users: [Option<Arc<WebhookUsers>>; 2],
        metrics: &Metrics,
    ) -> Self {
        let resource = |plural| GroupResource::new(GROUP, plural);
        Self {
            resources: ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
                .map(resource),
            mutating: Side::default(),
            validating: Side::default(),
            backends,
            users,
            metrics: WebhookMetrics::new(metrics),
        }
    }

    /// Returns `true` if there is any webhook.
    pub(crate) fn any(&self) -> bool {
        !self.mutating.all().is_empty() || !self.validating.all().is_empty()
    }

    /// Returns the webhooks that may match a request. `None` if the request is exempt or there are none.
    fn of(&self, side: &Side, request: &Request<'_>) -> Option<Arc<[Arc<Hook>]>> {
        let all = side.all();
        (!all.is_empty() && !webhook::is_exempt(request)).then_some(all)
    }
}

impl Observer for Webhooks {
    fn resources(&self) -> &[GroupResource] {
        &self.resources
    }

    fn changed(&self, change: Changed<'_>) {
        let mutating = *change.resource == self.resources[0];
        let side = if mutating { &self.mutating } else { &self.validating };
        let users = &self.users[usize::from(!mutating)];
        let made = change.object.map(|configuration| {
            let all = webhook::Webhook::all(configuration).into_iter();
            let hook = |webhook: webhook::Webhook| {
                let backend =
                    Webhook::new(&webhook.client, self.backends.clone()).with_users(users.clone());
                Arc::new(Hook { webhook, backend })
            };
            all.map(hook).collect()
        });
        side.set(change.name, made);
    }
}

/// A call of a webhook, with the object in the version of `shown`.
struct WebhookCall<'a> {
    hook: &'a Hook,
    shown: MatchedResource,
    request: &'a Request<'a>,
    deadline: Option<Instant>,
}

impl WebhookCall<'_> {
    async fn send(&self, objects: (&Value, &Value), mutating: bool) -> Result<Verdict, Failure> {
        let webhook = &self.hook.webhook;
        let uid = rt::id();
        let mut review = webhook.review(self.request, &self.shown, objects, uid)?;
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let time = webhook.timeout.into_iter().chain(left).min().unwrap_or(LONGEST);
        let limits = CallLimits { timeout: time, response_bytes: ANSWER_LIMIT };
        let failed = |cause: &dyn std::fmt::Display, code: Option<u16>| {
            Failure::call(format!("failed to call webhook: {cause}"), code.unwrap_or(503))
        };
        let span = self.span(mutating);
        let call = self.hook.backend.call(std::mem::take(&mut review.body), limits);
        let answer = span.within(call).await;
        let answer = answer.map_err(|e| failed(&e, e.code))?;
        let answer = Answer::read(&answer).map_err(|e| failed(&e, None))?;
        webhook.verdict(&review, answer, mutating)
    }

    /// Starts the span of the call, with upstream's name and attributes.
    fn span(&self, mutating: bool) -> Span {
        let name = if mutating { "Call mutating webhook" } else { "Call validating webhook" };
        let mut span = otlp::span(|| name, SpanKind::Internal);
        if span.is_recording() {
            let (webhook, request) = (&self.hook.webhook, self.request);
            span.set("webhook", webhook.name.as_str());
            span.set("resource", &*self.shown.resource.resource);
            span.set("subresource", request.subresource);
        }
        span
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }
}

/// Returns the other versions of a request's resource and kind.
pub(super) fn equivalents(call: &Call, subresource: &str) -> Vec<MatchedResource> {
    let definition = &call.resource.definition;
    let of = |served: &ServedVersion| {
        let (group, version) = (served.group.to_string(), served.version.to_string());
        let kind = match served.subresource(subresource) {
            Some(sub) => {
                let (group, version) = (sub.group.to_string(), sub.version.to_string());
                GroupVersionKind::new(group, version, sub.kind.to_string())
            }
            None if !subresource.is_empty() => return None,
            None => GroupVersionKind::new(group.clone(), version.clone(), served.kind.to_string()),
        };
        let plural = definition.plural.to_string();
        Some(MatchedResource { resource: GroupVersionResource::new(group, version, plural), kind })
    };
    definition.served.iter().filter(|served| served.enabled).filter_map(of).collect()
}

/// Returns the version in which a webhook is to see the object, if it matches the request.
async fn matching_version(
    call: &Call,
    hook: &Hook,
    request: &Request<'_>,
    object: &Value,
) -> Result<Option<MatchedResource>, Box<Status>> {
    let others = || equivalents(call, request.subresource);
    let found = hook.webhook.concerns(request, object, others)?;
    let Some(shown) = found else { return Ok(None) };
    if !hook.webhook.is_conditional() {
        return Ok(Some(shown));
    }
    let seen = shown_as(call, object, request.kind, &shown.kind).await?;
    let old = request.old.unwrap_or(&Value::Null);
    let old = shown_as(call, old, request.kind, &shown.kind).await?;
    let held = hook.webhook.conditions_hold(request, &shown, (&seen, &old))?;
    Ok(held.then_some(shown))
}

/// Converts an object of the request to another version of its kind.
pub(super) async fn shown_as(
    call: &Call,
    tree: &Value,
    from: &GroupVersionKind,
    to: &GroupVersionKind,
) -> Result<Value, Box<Status>> {
    if from == to || tree.is_null() {
        return Ok(tree.clone());
    }
    let (from, to) = (api_version(&from.group, &from.version), api_version(&to.group, &to.version));
    let converted = call.resource.definition.in_version(tree.clone(), &from, &to).await;
    converted.map_err(|status| Box::new(Status::internal(status.message)))
}

impl Webhooks {
    /// Runs a round of mutating webhooks. Returns `true` if one has changed the object.
    pub(crate) async fn mutate(
        &self,
        call: &Call,
        request: &Request<'_>,
        object: &mut Value,
        outcome: &mut Outcome,
        rounds: &mut Rounds,
    ) -> Result<bool, Box<Status>> {
        let Some(hooks) = self.of(&self.mutating, request) else { return Ok(false) };
        let mut changed = false;
        rounds.begin(MutatorKind::Webhooks, object);
        for (index, hook) in hooks.iter().enumerate() {
            let Some(shown) = matching_version(call, hook, request, object).await? else {
                continue;
            };
            if !rounds.includes(MutatorKind::Webhooks, &hook.webhook.id) {
                continue;
            }
            let question = WebhookCall { hook, shown, request, deadline: call.deadline };
            let place = format!("round_{}_index_{index}", rounds.number());
            let done = self.mutate_by(call, &question, object, outcome, &place);
            let touched = done.await?;
            changed |= touched;
            let (id, reinvocable) = (&hook.webhook.id, hook.webhook.reinvocable);
            rounds.record_call(MutatorKind::Webhooks, id, reinvocable, touched);
        }
        rounds.end(MutatorKind::Webhooks, object);
        Ok(changed)
    }

    /// Calls one webhook. Returns `true` if it has changed the object.
    async fn mutate_by(
        &self,
        call: &Call,
        question: &WebhookCall<'_>,
        object: &mut Value,
        outcome: &mut Outcome,
        place: &str,
    ) -> Result<bool, Box<Status>> {
        let (webhook, own, shown) =
            (&question.hook.webhook, question.request.kind, &question.shown.kind);
        set_type(object, own);
        let seen = shown_as(call, object, own, shown).await?;
        let old = question.request.old.unwrap_or(&Value::Null);
        let old = shown_as(call, old, own, shown).await?;
        let began = Instant::now();
        let answered = question.send((&seen, &old), true).await;
        let made = answered.and_then(|verdict| {
            outcome.warnings.extend(verdict.warnings);
            outcome.audit.extend(verdict.audit);
            match (verdict.refusal, verdict.patch) {
                (Some(status), _) => Err(Failure::Rejection(status)),
                (None, Some(patch)) => patch::apply(call, webhook, shown, &seen, &patch),
                (None, None) => Ok(None),
            }
        });
        let (took, failure) = (began.elapsed(), made.as_ref().err());
        call.waited.add(took);
        self.metrics.record(webhook, "admit", question.request, took, failure);
        let changed = match made {
            Ok(Some(new)) => {
                let mut new = shown_as(call, &new, shown, own).await?;
                patch::keep_owners(call, object, &mut new);
                *object = new;
                true
            }
            Ok(None) => false,
            Err(failure) => {
                webhook.settle(failure)?;
                let key = format!("failed-open.{MUTATION}/{place}");
                outcome.audit.insert(key, webhook.name.clone());
                // The failure was ignored, but the request has timed out anyway.
                if question.is_late() {
                    return Err(timed_out());
                }
                false
            }
        };
        let annotation = json!({
            "configuration": webhook.configuration,
            "webhook": webhook.name,
            "mutated": changed,
        });
        outcome.audit.insert(format!("{MUTATION}/{place}"), annotation.to_string());
        Ok(changed)
    }
}

fn timed_out() -> Box<Status> {
    Box::new(Status::timeout("request did not complete within requested timeout", 0))
}

/// Sets `kind` and `apiVersion` if missing, so that the object is comparable to the patched one.
pub(super) fn set_type(object: &mut Value, kind: &GroupVersionKind) {
    if object.is_object() && !object["kind"].is_string() {
        object.put(&["kind"], json!(*kind.kind));
        object.put(&["apiVersion"], json!(api_version(&kind.group, &kind.version)));
    }
}
