//! A webhook of a configuration: the requests that it applies to, and its failure policy.

use std::time::Duration;

use api_meta::{Status, Tree as _, go_quote};
use api_rules::expressions::Scope;
use serde_json::Value;

use super::failure::Failure;
use crate::{
    conditions::Conditions,
    expressions::ExpressionInput,
    matching::{MatchedResource, Rule, Selectors, first_match},
    request::Request,
};

/// A supported version of AdmissionReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewVersion {
    V1,
    V1beta1,
}

impl ReviewVersion {
    pub(super) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// A webhook of a configuration, parsed once for all requests.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// The name of its configuration.
    pub configuration: String,
    /// The webhook's name.
    pub name: String,
    /// The `clientConfig`.
    pub client: Value,
    /// The timeout of one call.
    pub timeout: Option<Duration>,
    /// The configuration, the name, and a number that distinguishes webhooks of the same name.
    pub id: String,
    rules: Vec<Rule>,
    selectors: Selectors,
    /// `matchPolicy: Equivalent`: rules also match the other versions and groups of a resource.
    equivalent: bool,
    conditions: Conditions,
    fails_open: bool,
    /// The first supported version of `admissionReviewVersions`.
    pub(super) review: Option<ReviewVersion>,
    side_effects: SideEffects,
    /// `true` for `reinvocationPolicy: IfNeeded`.
    pub reinvocable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SideEffects {
    Unset,
    /// `None` and `NoneOnDryRun`.
    NotInDryRuns,
    /// `Some` and `Unknown`, which v1 no longer accepts.
    Possible,
}

impl Webhook {
    /// Reads the webhooks of a MutatingWebhookConfiguration or ValidatingWebhookConfiguration, in order.
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
                "" => SideEffects::Unset,
                "None" | "NoneOnDryRun" => SideEffects::NotInDryRuns,
                _ => SideEffects::Possible,
            },
            reinvocable: webhook.text("reinvocationPolicy") == "IfNeeded",
        }
    }

    /// Returns the resource as which the request matches the webhook, or `None`. Match conditions are not evaluated.
    /// `equivalents` returns the other names of the request's resource.
    pub fn concerns(
        &self,
        request: &Request<'_>,
        object: &Value,
        equivalents: impl FnOnce() -> Vec<MatchedResource>,
    ) -> Result<Option<MatchedResource>, Status> {
        let others = || if self.equivalent { equivalents() } else { Vec::new() };
        let Some(shown) = first_match(&self.rules, request, others) else { return Ok(None) };
        Ok(self.selectors.match_request(request, object)?.then_some(shown))
    }

    /// Reports whether the webhook has `matchConditions`. They see the objects in the matched version.
    pub fn is_conditional(&self) -> bool {
        !self.conditions.is_empty()
    }

    /// Reports whether the `matchConditions` are true. On an error, the failure policy decides between a rejection and
    /// skipping the webhook.
    pub fn conditions_hold(
        &self,
        request: &Request<'_>,
        shown: &MatchedResource,
        objects: (&Value, &Value),
    ) -> Result<bool, Status> {
        let input = ExpressionInput::new(request, shown, objects, &Value::Null);
        let held = self.conditions.hold(&input, None);
        match held {
            Err(_) if self.fails_open => Ok(false),
            Err(cause) => {
                let resource = request.resource.group_resource();
                Err(Status::forbidden(&resource, request.name, cause))
            }
            Ok(held) => Ok(held),
        }
    }

    /// Returns an error if the webhook may have side effects in a dry run.
    pub(super) fn allows_dry_run(&self) -> Result<(), Failure> {
        match self.side_effects {
            SideEffects::NotInDryRuns => Ok(()),
            SideEffects::Unset => Err(Failure::call("Webhook SideEffects is nil", 400)),
            SideEffects::Possible => {
                let name = go_quote(&self.name);
                let message = format!("admission webhook {name} does not support dry run");
                Err(Failure::Server(Box::new(Status::bad_request(message))))
            }
        }
    }

    /// Turns a failure into a rejection. A failed call is ignored if the failure policy is `Ignore`.
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
