//! AdmissionReview: the request to a webhook and its answer.

use std::{borrow::Cow, collections::BTreeMap};

use api_meta::{
    Budget, GroupVersionKind, JsonError, Status, StatusDetails, StatusReason, Tree as _, go_quote,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    definition::{ReviewVersion, Webhook},
    failure::Failure,
};
use crate::{matching::MatchedResource, request::Request, request_attributes::RequestAttributes};

const KIND: &str = "AdmissionReview";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    kind: &'a str,
    api_version: &'a str,
    request: ReviewRequest<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest<'a> {
    uid: &'a str,
    #[serde(flatten)]
    attributes: RequestAttributes<'a>,
    object: Cow<'a, Value>,
    old_object: Cow<'a, Value>,
}

/// Adds `kind` and `apiVersion` to an object that lacks them, as objects inside the server may.
fn typed<'a>(object: &'a Value, kind: &GroupVersionKind) -> Cow<'a, Value> {
    if !object.is_object() || object["kind"].is_string() && object["apiVersion"].is_string() {
        return Cow::Borrowed(object);
    }
    let version = match &*kind.group {
        "" => kind.version.to_string(),
        group => format!("{group}/{}", kind.version),
    };
    let mut typed = object.clone();
    typed.put(&["kind"], json!(*kind.kind));
    typed.put(&["apiVersion"], json!(version));
    Cow::Owned(typed)
}

/// A review to send to a webhook.
#[derive(Clone, Debug)]
pub struct WebhookReview {
    /// The AdmissionReview, as JSON.
    pub body: Vec<u8>,
    uid: String,
    version: ReviewVersion,
}

impl Webhook {
    /// Builds the review of a request and its new and old object, which are in the version of `shown`.
    pub fn review(
        &self,
        request: &Request<'_>,
        shown: &MatchedResource,
        (object, old): (&Value, &Value),
        uid: String,
    ) -> Result<WebhookReview, Failure> {
        if request.dry_run {
            self.allows_dry_run()?;
        }
        let version = self.review.ok_or_else(|| {
            let cause = "could not create admission objects: webhook does not accept known \
                AdmissionReview versions (v1, v1beta1)";
            Failure::call(cause, 400)
        })?;
        let review = Review {
            kind: KIND,
            api_version: version.api_version(),
            request: ReviewRequest {
                uid: &uid,
                attributes: RequestAttributes::of(request, shown),
                object: typed(object, &shown.kind),
                old_object: typed(old, &shown.kind),
            },
        };
        let body = serde_json::to_vec(&review).map_err(|e| Failure::call(e.to_string(), 400))?;
        Ok(WebhookReview { body, uid, version })
    }
}

/// A parsed answer. Missing fields are `None`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    response: Option<Response>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    #[serde(default)]
    uid: Option<String>,
    #[serde(default)]
    allowed: Option<bool>,
    #[serde(default)]
    status: Option<Denial>,
    #[serde(default)]
    patch: Option<String>,
    #[serde(default)]
    patch_type: Option<String>,
    #[serde(default)]
    audit_annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

/// The Status in a denial.
#[derive(Debug, Default, Deserialize)]
struct Denial {
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    reason: Option<StatusReason>,
    #[serde(default)]
    code: Option<i32>,
    #[serde(default)]
    details: Option<Value>,
}

/// The reason why a webhook's answer is invalid, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("couldn't get version/kind; json parse error: {0}")]
    Json(#[from] JsonError),
    #[error(transparent)]
    Decode(#[from] serde_json::Error),
    #[error("webhook response was absent")]
    NoResponse,
    #[error("expected response.uid={}, got {}", go_quote(.expected), go_quote(.got))]
    Uid { expected: String, got: String },
    #[error("expected webhook response of {expected}, Kind={KIND}, got {version}, Kind={kind}")]
    Kind { expected: &'static str, version: String, kind: String },
}

impl Answer {
    /// Parses a body from an untrusted webhook.
    pub fn read(body: &[u8]) -> Result<Self, AnswerError> {
        Ok(Self::deserialize(Budget::object().json(body)?)?)
    }
}

/// The validated answer of a webhook.
#[derive(Debug, Default, PartialEq)]
pub struct Verdict {
    /// The rejection; `None` if the webhook admits the request.
    pub refusal: Option<Box<Status>>,
    /// A JSON patch.
    pub patch: Option<Vec<u8>>,
    /// The warnings for the client.
    pub warnings: Vec<String>,
    /// The audit annotations. Each key starts with the webhook's name.
    pub audit: BTreeMap<String, String>,
}

impl Webhook {
    /// Validates the answer to a review. `mutating` is `true` if the webhook may change the object.
    pub fn verdict(
        &self,
        review: &WebhookReview,
        answer: Answer,
        mutating: bool,
    ) -> Result<Verdict, Failure> {
        let invalid = |cause: String| {
            Failure::call(format!("received invalid webhook response: {cause}"), 503)
        };
        let response = verify_answer(review, answer).map_err(|error| invalid(error.to_string()))?;
        let typed = response.patch_type.is_some();
        let patch = response.patch.filter(|patch| !patch.is_empty());
        let is_v1 = review.version == ReviewVersion::V1;
        let checked = match (mutating, patch.is_some(), typed) {
            (true, true, false) if is_v1 => {
                Err("webhook returned response.patch but not response.patchType")
            }
            (true, false, true) if is_v1 => {
                Err("webhook returned response.patchType but not response.patch")
            }
            (false, true, _) if is_v1 => Err("validating webhook may not return response.patch"),
            (false, _, true) if is_v1 => {
                Err("validating webhook may not return response.patchType")
            }
            _ => Ok(()),
        };
        checked.map_err(|cause| invalid(cause.to_owned()))?;
        if is_v1 && response.patch_type.as_deref() == Some("") {
            return Err(invalid("webhook returned invalid response.patchType of \"\"".to_owned()));
        }
        if let Some(other) = response.patch_type.filter(|t| is_v1 && t != "JSONPatch") {
            return Err(Failure::call(format!("unsupported patch type {}", go_quote(&other)), 400));
        }
        let patch = patch.filter(|_| mutating).map(|patch| STANDARD.decode(patch)).transpose();
        let patch =
            patch.map_err(|e| Failure::call(format!("failed to call webhook: {e}"), 503))?;
        let annotations = response.audit_annotations.unwrap_or_default();
        Ok(Verdict {
            refusal: (response.allowed != Some(true))
                .then(|| Box::new(self.refusal(response.status.unwrap_or_default()))),
            patch,
            warnings: response.warnings.unwrap_or_default(),
            audit: annotations
                .into_iter()
                .map(|(key, value)| (format!("{}/{key}", self.name), value))
                .collect(),
        })
    }

    /// Builds the rejection in upstream's words. The webhook's status code is kept if it is an error code.
    fn refusal(&self, denial: Denial) -> Status {
        let denied = format!("admission webhook {} denied the request", go_quote(&self.name));
        let reason = denial.reason.unwrap_or_default();
        let message = match denial.message.filter(|message| !message.is_empty()) {
            Some(message) => format!("{denied}: {message}"),
            None if !reason.as_str().is_empty() => format!("{denied}: {}", reason.as_str()),
            None => format!("{denied} without explanation"),
        };
        let code = denial.code.and_then(|code| u16::try_from(code).ok());
        let code = code.filter(|code| (400..1000).contains(code)).unwrap_or(400);
        let status = Status::failure(code, reason, message);
        let details = denial.details.and_then(|tree| StatusDetails::deserialize(tree).ok());
        match details {
            Some(details) => status.with_details(details),
            None => status,
        }
    }
}

/// Returns the response if it answers this review. v1beta1 does not require a matching `uid` and kind.
fn verify_answer(review: &WebhookReview, answer: Answer) -> Result<Response, AnswerError> {
    let response = answer.response.ok_or(AnswerError::NoResponse)?;
    if review.version == ReviewVersion::V1beta1 {
        return Ok(response);
    }
    let uid = response.uid.as_deref().unwrap_or_default();
    if uid != review.uid {
        return Err(AnswerError::Uid { expected: review.uid.clone(), got: uid.to_owned() });
    }
    let version = answer.api_version.unwrap_or_default();
    let kind = answer.kind.unwrap_or_default();
    let expected = review.version.api_version();
    if version != expected || kind != KIND {
        // Go prints a version without a group like this.
        let version = if version.contains('/') { version } else { format!("/{version}") };
        return Err(AnswerError::Kind { expected, version, kind });
    }
    Ok(response)
}
