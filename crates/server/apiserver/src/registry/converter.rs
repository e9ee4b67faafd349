//! Converts custom objects with the webhook of their definition, by ConversionReviews. Results are cached, so that a
//! webhook converts an object once for all readers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use api_meta::{Budget, Path, Status, StatusReason, Tree as _, validation};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::object::Object;
use crate::outbound::{
    backends::Backends,
    webhook::{Bounds, Webhook},
};

/// Upstream's timeout of a call, and the maximum size of a response.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(30), answer: 64 << 20 };
/// The nesting depth of the objects in a review.
const REVIEW_DEPTH: usize = 3;
/// The size of the cache in bytes.
const KEPT_BYTES: usize = 16 << 20;
const GROUP: &str = "apiextensions.k8s.io";

pub(crate) struct Converter {
    webhook: Webhook,
    /// The newest common version of ConversionReview, as `apiVersion`.
    review: Option<String>,
    kept: Mutex<ConvertedObjects>,
    /// Watches of the same event take turns, so that the first conversion serves all.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

/// The target version of a conversion.
#[derive(Clone, Copy)]
pub(crate) struct Version<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
}

#[derive(Default)]
struct ConvertedObjects {
    /// Converted objects by version, key and source. Watches are at different positions, so that older states are
    /// needed as well.
    objects: HashMap<(usize, Arc<str>, Bytes), Arc<Object>>,
    bytes: usize,
}

impl Converter {
    /// Returns the converter of a definition with a conversion webhook.
    pub(crate) fn of(crd: &Value, backends: &Arc<Backends>) -> Option<Self> {
        let conversion = &crd["spec"]["conversion"];
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let webhook = &conversion["webhook"];
        let mut versions = webhook.texts("conversionReviewVersions");
        let known = versions.find(|v| matches!(*v, "v1" | "v1beta1"));
        Some(Self {
            webhook: Webhook::new(&webhook["clientConfig"], backends.clone()),
            review: known.map(|version| format!("{GROUP}/{version}")),
            kept: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, ConvertedObjects> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cached conversion of an object.
    pub(crate) fn known(&self, version: usize, object: &Object) -> Option<Arc<Object>> {
        let kept = self.kept();
        let shown = kept.objects.get(&(version, object.key.clone(), object.bytes.clone()))?;
        if shown.revision == object.revision {
            Some(shown.clone())
        } else {
            // A deletion has another revision than the object.
            Some(Arc::new(Object { revision: object.revision, ..Object::clone(shown) }))
        }
    }

    pub(crate) fn keep(&self, version: usize, source: &Object, shown: &Arc<Object>) {
        let mut kept = self.kept();
        if kept.bytes > KEPT_BYTES {
            *kept = ConvertedObjects::default();
        }
        kept.bytes += source.bytes.len() + shown.bytes.len();
        let source = (version, source.key.clone(), source.bytes.clone());
        kept.objects.insert(source, shown.clone());
    }

    /// Converts objects of the same version to another one.
    pub(crate) async fn convert(
        &self,
        objects: Vec<Value>,
        to: Version<'_>,
    ) -> Result<Vec<Value>, Box<Status>> {
        let Some(first) = objects.first() else { return Ok(objects) };
        let from = format!("{}, Kind={}", first.text("apiVersion"), first.text("kind"));
        let failed = |cause: String| {
            let message = format!("conversion webhook for {from} {cause}");
            Box::new(Status::failure(500, StatusReason::Unknown, message))
        };
        let Some(review) = &self.review else {
            let message = "no supported conversion review versions";
            return Err(Box::new(Status::failure(500, StatusReason::Unknown, message)));
        };
        let uid = rt::id();
        let request = json!({"kind": "ConversionReview", "apiVersion": review, "request": {
            "uid": uid, "desiredAPIVersion": to.api_version, "objects": objects,
        }});
        let request = serde_json::to_vec(&request).map_err(|e| failed(format!("failed: {e}")))?;
        let answer = self.webhook.call(request, BOUNDS).await.map_err(|e| e.to_string());
        let answer = answer.and_then(|answer| {
            let tree = Budget::objects(usize::MAX, REVIEW_DEPTH).json(&answer);
            tree.map_err(|e| format!("reading the answer: {e}"))
        });
        let converted = answer.and_then(|answer| converted(answer, review, &uid));
        let converted = converted.map_err(|cause| failed(format!("failed: {cause}")))?;
        if converted.len() != objects.len() {
            let (got, wanted) = (converted.len(), objects.len());
            return Err(failed(format!("returned {got} objects, expected {wanted}")));
        }
        let pairs = objects.iter().zip(converted);
        let checked = pairs.map(|(original, converted)| restore_metadata(original, converted, to));
        checked.collect::<Result<_, _>>().map_err(failed)
    }
}

/// Returns the objects of a response.
fn converted(mut answer: Value, review: &str, uid: &str) -> Result<Vec<Value>, String> {
    let given = (answer.text("apiVersion"), answer.text("kind"));
    if given.0 != review || given.1 != "ConversionReview" {
        return Err(format!(
            "expected webhook response of kind \"ConversionReview\" for version {review:?}, \
             got {:?} for version {:?}",
            given.1, given.0
        ));
    }
    let mut response = answer.take_at(&["response"]);
    if !response.is_object() {
        return Err("no response provided".to_owned());
    }
    let given = response.text("uid").to_owned();
    if given != uid {
        return Err(format!("expected response.uid={uid:?}, got {given:?}"));
    }
    let result = &response["result"];
    if result["status"] != "Success" {
        let (message, status) =
            (result.text("message").to_owned(), result.text("status").to_owned());
        if message.is_empty() {
            return Err(format!("response.result.status was '{status}', not 'Success'"));
        }
        return Err(message);
    }
    match response.take_at(&["convertedObjects"]) {
        Value::Array(objects) => Ok(objects),
        _ => Ok(Vec::new()),
    }
}

/// Validates a converted object and restores its metadata. A webhook may only change labels and annotations.
fn restore_metadata(
    original: &Value,
    mut converted: Value,
    to: Version<'_>,
) -> Result<Value, String> {
    let invalid = |what: &str, wanted: &str, got: &str| {
        Err(format!(
            "returned invalid object at index 0: invalid {what} (expected {wanted}, received {got})"
        ))
    };
    let given = (converted.text("apiVersion").to_owned(), converted.text("kind").to_owned());
    if given.0 != to.api_version {
        return invalid("groupVersion", to.api_version, &given.0);
    }
    if given.1 != to.kind {
        return invalid("kind", to.kind, &given.1);
    }
    for (field, name) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let wanted = original.text(&["metadata", field]).to_owned();
        let got = converted.text(&["metadata", field]).to_owned();
        if wanted != got {
            return Err(format!(
                "returned invalid object: must have the same {name}: {wanted} != {got}"
            ));
        }
    }
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    let result = copy_labels_and_annotations(&mut metadata, &converted["metadata"]);
    result.map_err(|cause| format!("returned invalid metadata: {cause}"))?;
    converted.put(&["metadata"], Value::Object(metadata));
    Ok(converted)
}

/// Copies the labels and annotations.
fn copy_labels_and_annotations(
    metadata: &mut Map<String, Value>,
    converted: &Value,
) -> Result<(), String> {
    let Some(converted) = converted.as_object() else {
        return Err("missing metadata in converted object".to_owned());
    };
    for field in ["labels", "annotations"] {
        let given = match converted.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
                continue;
            }
            Some(Value::Object(given)) => given,
            Some(other) => {
                return Err(format!(
                    "invalid metadata.{field} of type {other} in converted object"
                ));
            }
        };
        if let Some((name, other)) = given.iter().find(|(_, v)| !v.is_string()) {
            return Err(format!(
                "metadata.{field}[{name}] must be a string, but is {other} in converted object"
            ));
        }
        let same = metadata.get(field).and_then(Value::as_object) == Some(given);
        if !same {
            check_words(field, given)?;
        }
        metadata.insert(field.to_owned(), Value::Object(given.clone()));
    }
    Ok(())
}

fn check_words(field: &str, given: &Map<String, Value>) -> Result<(), String> {
    let given =
        given.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect();
    let path = Path::new("metadata").child(field);
    let errors = match field {
        "labels" => validation::labels(&given, &path),
        _ => validation::annotations(&given, &path),
    };
    if errors.is_empty() { Ok(()) } else { Err(api_meta::aggregate(&errors)) }
}
