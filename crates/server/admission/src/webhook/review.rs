//! AdmissionReview: the request to a webhook and its answer.

use std::{borrow::Cow, collections::BTreeMap};

use api_meta::{
    Budget, GroupVersionKind, GroupVersionResource, Status, StatusDetails, StatusReason, Tree as _,
    UserInfo, go_quote,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, ReviewVersion, Webhook};
use crate::{Request, matching::MatchedResource};

const KIND: &str = "AdmissionReview";

impl ReviewVersion {
    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

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
    head: Head<'a>,
    object: Cow<'a, Value>,
    old_object: Cow<'a, Value>,
}

/// The fields of the review's request other than the objects.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Head<'a> {
    kind: Kind<'a>,
    resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sub_resource: &'a str,
    request_kind: Kind<'a>,
    request_resource: Resource<'a>,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_sub_resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    operation: &'a str,
    user_info: &'a UserInfo,
    dry_run: bool,
    options: &'a Value,
}

#[derive(Serialize)]
struct Kind<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
}

#[derive(Serialize)]
struct Resource<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
}

impl<'a> From<&'a GroupVersionKind> for Kind<'a> {
    fn from(of: &'a GroupVersionKind) -> Self {
        Self { group: &of.group, version: &of.version, kind: &of.kind }
    }
}

impl<'a> From<&'a GroupVersionResource> for Resource<'a> {
    fn from(of: &'a GroupVersionResource) -> Self {
        Self { group: &of.group, version: &of.version, resource: &of.resource }
    }
}

pub(crate) fn head<'a>(request: &Request<'a>, shown: &'a MatchedResource) -> Head<'a> {
    Head {
        kind: (&shown.kind).into(),
        resource: (&shown.resource).into(),
        sub_resource: request.subresource,
        request_kind: request.kind.into(),
        request_resource: request.resource.into(),
        request_sub_resource: request.subresource,
        name: request.name,
        namespace: request.namespace,
        operation: request.operation.name(),
        user_info: request.user,
        dry_run: request.dry_run,
        options: request.options,
    }
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
    pub fn question(
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
                head: head(request, shown),
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

impl Answer {
    /// Parses a body from an untrusted webhook.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let tree = Budget::object()
            .json(body)
            .map_err(|e| format!("couldn't get version/kind; json parse error: {e}"))?;
        Self::deserialize(tree).map_err(|e| e.to_string())
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
        asked: &WebhookReview,
        answer: Answer,
        mutating: bool,
    ) -> Result<Verdict, Failure> {
        let invalid = |cause: String| {
            Failure::call(format!("received invalid webhook response: {cause}"), 503)
        };
        let response = verify_answer(asked, answer).map_err(invalid)?;
        let typed = response.patch_type.is_some();
        let patch = response.patch.filter(|patch| !patch.is_empty());
        let is_v1 = asked.version == ReviewVersion::V1;
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
fn verify_answer(asked: &WebhookReview, answer: Answer) -> Result<Response, String> {
    let response = answer.response.ok_or("webhook response was absent")?;
    if asked.version == ReviewVersion::V1beta1 {
        return Ok(response);
    }
    let uid = response.uid.as_deref().unwrap_or_default();
    if uid != asked.uid {
        let (wanted, got) = (go_quote(&asked.uid), go_quote(uid));
        return Err(format!("expected response.uid={wanted}, got {got}"));
    }
    let version = answer.api_version.unwrap_or_default();
    let kind = answer.kind.unwrap_or_default();
    let wanted = asked.version.api_version();
    if version != wanted || kind != KIND {
        // Go prints a version without a group like this.
        let version = if version.contains('/') { version } else { format!("/{version}") };
        return Err(format!(
            "expected webhook response of {wanted}, Kind={KIND}, got {version}, Kind={kind}"
        ));
    }
    Ok(response)
}
