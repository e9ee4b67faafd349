//! Validating webhooks. All are called at once, so that a request waits only for the slowest one.

use tokio::time::Instant;

use admission::{
    Outcome, Request,
    webhook::{Failure, Verdict},
};
use api_meta::{GroupVersionKind, Status};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use serde_json::Value;

use super::{WebhookCall, Webhooks, matching_version, shown_as, timed_out};
use crate::handlers::call::Call;

const VALIDATION: &str = "validating.webhook.admission.k8s.io";

/// The new and old object of a request, in the version of a kind.
struct ConvertedObjects<'a> {
    kind: &'a GroupVersionKind,
    object: Value,
    old: Value,
}

impl Webhooks {
    /// Calls the matching webhooks and waits for all of them.
    pub(crate) async fn validate(
        &self,
        call: &Call,
        request: &Request<'_>,
        object: &Value,
        outcome: &mut Outcome,
    ) -> Result<(), Box<Status>> {
        let Some(hooks) = self.of(&self.validating, request) else { return Ok(()) };
        let mut questions: Vec<WebhookCall<'_>> = Vec::new();
        for hook in hooks.iter() {
            if let Some(shown) = matching_version(call, hook, request, object).await? {
                questions.push(WebhookCall { hook, shown, request, deadline: call.deadline });
            }
        }
        if questions.iter().any(WebhookCall::is_late) {
            return Err(timed_out());
        }
        let forms = forms(call, &questions, request, object).await?;
        let (mut answers, began) = (FuturesUnordered::new(), Instant::now());
        for (index, question) in questions.iter().enumerate() {
            let form = forms.iter().find(|form| *form.kind == question.shown.kind);
            let as_made = (object, request.old.unwrap_or(&Value::Null));
            let objects = form.map_or(as_made, |form| (&form.object, &form.old));
            answers.push(async move { (index, self.evaluate(question, objects).await) });
        }
        let mut refused = None;
        while let Some((index, (verdict, judged))) = answers.next().await {
            outcome.warnings.extend(verdict.warnings);
            outcome.audit.extend(verdict.audit);
            let Err(failure) = judged else { continue };
            let webhook = &questions[index].hook.webhook;
            match webhook.settle(failure) {
                // The first refusal is returned.
                Err(status) => drop(refused.get_or_insert(status)),
                Ok(()) => {
                    let key = format!("failed-open.{VALIDATION}/round_0_index_{index}");
                    outcome.audit.insert(key, webhook.name.clone());
                }
            }
        }
        call.waited.add(began.elapsed());
        refused.map_or(Ok(()), Err)
    }

    /// Calls one webhook. Returns its verdict, and the failure if it rejects the request.
    async fn evaluate(
        &self,
        question: &WebhookCall<'_>,
        objects: (&Value, &Value),
    ) -> (Verdict, Result<(), Failure>) {
        let began = Instant::now();
        let (mut verdict, mut judged) = match question.send(objects, false).await {
            Ok(verdict) => (verdict, Ok(())),
            Err(failure) => (Verdict::default(), Err(failure)),
        };
        if let Some(status) = verdict.refusal.take() {
            judged = Err(Failure::Rejection(status));
        }
        let webhook = &question.hook.webhook;
        let failure = judged.as_ref().err();
        self.metrics.record(webhook, "validating", question.request, began.elapsed(), failure);
        (verdict, judged)
    }
}

/// Converts the objects to each version that webhooks require other than the request's own. Each version is converted
/// once.
async fn forms<'q>(
    call: &Call,
    questions: &'q [WebhookCall<'_>],
    request: &Request<'_>,
    object: &Value,
) -> Result<Vec<ConvertedObjects<'q>>, Box<Status>> {
    let mut forms: Vec<ConvertedObjects<'_>> = Vec::new();
    for kind in questions.iter().map(|question| &question.shown.kind) {
        if kind != request.kind && !forms.iter().any(|form| form.kind == kind) {
            let old = request.old.unwrap_or(&Value::Null);
            let object = shown_as(call, object, request.kind, kind).await?;
            let old = shown_as(call, old, request.kind, kind).await?;
            forms.push(ConvertedObjects { kind, object, old });
        }
    }
    Ok(forms)
}
