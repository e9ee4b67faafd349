//! Admission webhooks: which of them a request concerns, what each is asked, and what its answer comes to. Calls
//! themselves are the API server's.
//!
//! A call that fails is no answer, and the webhook's `failurePolicy` says what follows; a webhook that refuses, and a patch
//! that cannot be carried out, refuse the request whatever the policy.

mod review;

use std::time::Duration;

use api_meta::{Status, Tree as _, go_quote};
use api_rules::expressions::Scope;
use serde_json::Value;

pub(crate) use self::review::head;
pub use self::review::{Answer, Asked, Verdict};
use crate::{
    Request,
    conditions::Conditions,
    expressions::Seen,
    matching::{Rule, Selectors, Shown, first_match},
};

/// The kinds that webhooks are never asked about: whoever makes a webhook that refuses everything must be able to take
/// it away.
const EXEMPT: [&str; 6] = [
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Whether no webhook is asked about a request.
pub fn is_exempt(request: &Request<'_>) -> bool {
    request.kind.group == "admissionregistration.k8s.io" && EXEMPT.contains(&&*request.kind.kind)
}

/// A version of AdmissionReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReviewVersion {
    V1,
    V1beta1,
}

/// One webhook of a configuration, read once for all requests.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// The name of the configuration that it is in.
    pub configuration: String,
    pub name: String,
    /// Where it is, as `clientConfig` says.
    pub client: Value,
    /// The longest that a call may take.
    pub timeout: Option<Duration>,
    /// Tells it from others of one name.
    pub id: String,
    rules: Vec<Rule>,
    selectors: Selectors,
    /// `matchPolicy: Equivalent`: it is also asked about what its rules name otherwise.
    equivalent: bool,
    conditions: Conditions,
    fails_open: bool,
    /// The first version in its list that is known here.
    review: Option<ReviewVersion>,
    side_effects: SideEffects,
    /// `reinvocationPolicy: IfNeeded`
    pub reinvocable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SideEffects {
    Unsaid,
    /// `None` and `NoneOnDryRun`.
    NotInDryRuns,
    /// `Some` and `Unknown`, which v1 does not take any more.
    Possible,
}

/// Why a webhook did not let a request pass.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// It was not asked, or its answer is none. `code` is the HTTP status that it comes to.
    Call { cause: String, code: u16 },
    /// It refused.
    Rejection(Box<Status>),
    /// What it wants cannot be done.
    Server(Box<Status>),
}

impl Failure {
    /// A call that did not come to an answer.
    pub fn call(cause: impl Into<String>, code: u16) -> Self {
        Self::Call { cause: cause.into(), code }
    }

    /// As metrics tell them apart: the type of error, and the status.
    pub fn kind(&self) -> (&'static str, u16) {
        match self {
            Self::Call { code, .. } => ("calling_webhook_error", *code),
            Self::Rejection(status) => ("no_error", status.code),
            Self::Server(_) => ("apiserver_internal_error", 0),
        }
    }
}

impl Webhook {
    /// The webhooks of a MutatingWebhookConfiguration or ValidatingWebhookConfiguration, in its order.
    pub fn all(configuration: &Value) -> Vec<Self> {
        let name = configuration.name();
        let mut all: Vec<Self> = Vec::new();
        for webhook in configuration.items("webhooks") {
            let mut made = Self::of(name, webhook);
            let namesakes = all.iter().filter(|known| known.name == made.name).count();
            made.id = format!("{name}/{}/{namesakes}", made.name);
            all.push(made);
        }
        all
    }

    fn of(configuration: &str, webhook: &Value) -> Self {
        let versions = webhook.texts("admissionReviewVersions");
        let known = |version| match version {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1beta1),
            _ => None,
        };
        Self {
            configuration: configuration.to_owned(),
            name: webhook.text("name").to_owned(),
            client: webhook["clientConfig"].clone(),
            timeout: webhook["timeoutSeconds"].as_u64().map(Duration::from_secs),
            id: String::new(),
            rules: Rule::all(webhook, "rules"),
            selectors: Selectors::of(webhook),
            equivalent: webhook.text("matchPolicy") == "Equivalent",
            conditions: Conditions::of(
                webhook,
                &Scope { params: false, authorizer: true, composition: None },
            ),
            fails_open: webhook.text("failurePolicy") == "Ignore",
            review: versions.into_iter().find_map(known),
            side_effects: match webhook.text("sideEffects") {
                "" => SideEffects::Unsaid,
                "None" | "NoneOnDryRun" => SideEffects::NotInDryRuns,
                _ => SideEffects::Possible,
            },
            reinvocable: webhook.text("reinvocationPolicy") == "IfNeeded",
        }
    }

    /// Whether it is asked about a request, its conditions apart, and as what. `equivalents` are the other names of the request's resource.
    pub fn concerns(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: impl FnOnce() -> Vec<Shown>,
    ) -> Result<Option<Shown>, Status> {
        let others = || if self.equivalent { equivalents() } else { Vec::new() };
        let Some(shown) = first_match(&self.rules, request, others) else { return Ok(None) };
        Ok(self.selectors.match_request(request, object)?.then_some(shown))
    }

    /// Whether it has `matchConditions`, which see objects as it is shown them.
    pub fn is_conditional(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Whether its `matchConditions` hold. Where that cannot be said, the request is refused, or the webhook not asked, as
    /// its failure policy has it.
    pub fn conditions_hold(
        &self,
        request: &Request<'_>,
        shown: &Shown,
        objects: (&Value, &Value),
    ) -> Result<bool, Status> {
        let seen = Seen::new(request, shown, objects, &Value::Null);
        let held = self.conditions.hold(&seen, None);
        match held {
            Err(_) if self.fails_open => Ok(false),
            Err(cause) => {
                let resource = request.resource.group_resource();
                Err(Status::forbidden(&resource, request.name, cause))
            }
            Ok(held) => Ok(held),
        }
    }

    /// Whether it may be asked about a rehearsal.
    fn allows_dry_run(&self) -> Result<(), Failure> {
        match self.side_effects {
            SideEffects::NotInDryRuns => Ok(()),
            SideEffects::Unsaid => Err(Failure::call("Webhook SideEffects is nil", 400)),
            SideEffects::Possible => {
                let name = go_quote(&self.name);
                let message = format!("admission webhook {name} does not support dry run");
                Err(Failure::Server(Box::new(Status::bad_request(message))))
            }
        }
    }

    /// What a failure comes to: nothing, if it is one of a call that the webhook lets pass.
    pub fn settle(&self, failure: Failure) -> Result<(), Box<Status>> {
        match failure {
            Failure::Call { .. } if self.fails_open => Ok(()),
            Failure::Call { cause, .. } => {
                let name = go_quote(&self.name);
                let message = format!("failed calling webhook {name}: {cause}");
                Err(Box::new(Status::internal(message)))
            }
            Failure::Rejection(status) | Failure::Server(status) => Err(status),
        }
    }
}

#[cfg(test)]
mod tests;
