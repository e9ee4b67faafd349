//! Converts custom objects with the webhook of their definition, by ConversionReviews. Results are cached, so that a
//! webhook converts an object once for all readers.

use std::{collections::HashMap, sync::Arc, time::Duration};

use api_meta::{Budget, ErrorList, Path, Status, StatusReason, Tree as _, validation};
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Map, Value, json};

use super::object::Object;
use crate::outbound::{
    backends::Backends,
    webhook::{CallError, CallLimits, Webhook},
};

/// Upstream's timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum size of a response in bytes, and the size that every response may have. Between them it may be four
/// times the size of the request, because a webhook that answers too much must not fill the memory.
const RESPONSE_BYTES: usize = 64 << 20;
const ANY_RESPONSE_BYTES: usize = 3 << 20;
/// The nesting depth of the objects in a review.
const REVIEW_DEPTH: usize = 3;
/// The size of the cache in bytes.
const KEPT_BYTES: usize = 16 << 20;
const GROUP: &str = "apiextensions.k8s.io";

/// The conversion webhook of a custom kind, with a cache of converted objects.
pub(crate) struct Converter {
    webhook: Webhook,
    /// The newest common version of ConversionReview, as `apiVersion`.
    review: Option<String>,
    cache: Mutex<ConvertedObjects>,
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
        let conversion = crd.at("spec.conversion");
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let webhook = &conversion["webhook"];
        let mut versions = webhook.texts("conversionReviewVersions");
        let known = versions.find(|v| matches!(*v, "v1" | "v1beta1"));
        Some(Self {
            webhook: Webhook::new(&webhook["clientConfig"], backends.clone()),
            review: known.map(|version| format!("{GROUP}/{version}")),
            cache: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        })
    }

    fn cache(&self) -> MutexGuard<'_, ConvertedObjects> {
        self.cache.lock()
    }

    /// Returns the cached conversion of an object.
    pub(crate) fn cached(&self, version: usize, object: &Object) -> Option<Arc<Object>> {
        let cache = self.cache();
        let shown = cache.objects.get(&(version, object.key.clone(), object.bytes.clone()))?;
        if shown.revision == object.revision {
            Some(shown.clone())
        } else {
            // A deletion has another revision than the object.
            Some(Arc::new(Object { revision: object.revision, ..Object::clone(shown) }))
        }
    }

    pub(crate) fn insert(&self, version: usize, source: &Object, shown: &Arc<Object>) {
        let mut cache = self.cache();
        if cache.bytes > KEPT_BYTES {
            *cache = ConvertedObjects::default();
        }
        cache.bytes += source.bytes.len() + shown.bytes.len();
        let source = (version, source.key.clone(), source.bytes.clone());
        cache.objects.insert(source, shown.clone());
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
        let converted = self.call(request, review, &uid).await;
        let converted = converted.map_err(|error| failed(format!("failed: {error}")))?;
        if converted.len() != objects.len() {
            let (got, expected) = (converted.len(), objects.len());
            return Err(failed(format!("returned {got} objects, expected {expected}")));
        }
        let pairs = objects.iter().zip(converted);
        let checked = pairs.map(|(original, converted)| restore_metadata(original, converted, to));
        checked.collect::<Result<_, _>>().map_err(|error: ObjectError| failed(error.to_string()))
    }

    async fn call(
        &self,
        request: Vec<u8>,
        review: &str,
        uid: &str,
    ) -> Result<Vec<Value>, ReviewError> {
        let response_bytes = (4 * request.len()).clamp(ANY_RESPONSE_BYTES, RESPONSE_BYTES);
        let limits = CallLimits { timeout: TIMEOUT, response_bytes };
        let response = self.webhook.call(request, limits).await?;
        let response = Budget::objects(usize::MAX, REVIEW_DEPTH).json(&response);
        converted(response.map_err(ReviewError::Decode)?, review, uid)
    }
}

/// The reason why a review has no converted objects.
#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("reading the answer: {0}")]
    Decode(api_meta::JsonError),
    #[error(
        "expected webhook response of kind \"ConversionReview\" for version {expected:?}, got {kind:?} for version \
         {version:?}"
    )]
    Kind { expected: String, kind: String, version: String },
    #[error("no response provided")]
    NoResponse,
    #[error("expected response.uid={expected:?}, got {got:?}")]
    Uid { expected: String, got: String },
    #[error("response.result.status was '{0}', not 'Success'")]
    Status(String),
    /// The webhook's own message.
    #[error("{0}")]
    Failure(String),
}

/// The reason why a converted object is rejected.
#[derive(Debug, thiserror::Error)]
enum ObjectError {
    #[error(
        "returned invalid object at index 0: invalid {field} (expected {expected}, received {got})"
    )]
    Kind { field: &'static str, expected: String, got: String },
    #[error("returned invalid object: must have the same {field}: {expected} != {got}")]
    Identity { field: &'static str, expected: String, got: String },
    #[error("returned invalid metadata: {0}")]
    Metadata(#[from] MetadataError),
}

/// The reason why the metadata of a converted object is rejected.
#[derive(Debug, thiserror::Error)]
enum MetadataError {
    #[error("missing metadata in converted object")]
    Missing,
    #[error("invalid metadata.{field} of type {value} in converted object")]
    Type { field: &'static str, value: Value },
    #[error("metadata.{field}[{name}] must be a string, but is {value} in converted object")]
    NotString { field: &'static str, name: String, value: Value },
    #[error("{}", api_meta::aggregate(.0))]
    Invalid(ErrorList),
}

/// Returns the objects of a response.
fn converted(mut answer: Value, review: &str, uid: &str) -> Result<Vec<Value>, ReviewError> {
    let (version, kind) = (answer.text("apiVersion"), answer.text("kind"));
    if version != review || kind != "ConversionReview" {
        return Err(ReviewError::Kind {
            expected: review.to_owned(),
            kind: kind.to_owned(),
            version: version.to_owned(),
        });
    }
    let mut response = answer.take_at(&["response"]);
    if !response.is_object() {
        return Err(ReviewError::NoResponse);
    }
    let got = response.text("uid");
    if got != uid {
        return Err(ReviewError::Uid { expected: uid.to_owned(), got: got.to_owned() });
    }
    let result = &response["result"];
    if result["status"] != "Success" {
        return Err(match result.text("message") {
            "" => ReviewError::Status(result.text("status").to_owned()),
            message => ReviewError::Failure(message.to_owned()),
        });
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
) -> Result<Value, ObjectError> {
    for (name, field, expected) in
        [("apiVersion", "groupVersion", to.api_version), ("kind", "kind", to.kind)]
    {
        let got = converted.text(name);
        if got != expected {
            let (expected, got) = (expected.to_owned(), got.to_owned());
            return Err(ObjectError::Kind { field, expected, got });
        }
    }
    for (name, field) in [("name", "name"), ("namespace", "namespace"), ("uid", "UID")] {
        let expected = original.text(&["metadata", name]);
        let got = converted.text(&["metadata", name]);
        if expected != got {
            let (expected, got) = (expected.to_owned(), got.to_owned());
            return Err(ObjectError::Identity { field, expected, got });
        }
    }
    let mut metadata = original["metadata"].as_object().cloned().unwrap_or_default();
    copy_labels_and_annotations(&mut metadata, &converted["metadata"])?;
    converted.put(&["metadata"], Value::Object(metadata));
    Ok(converted)
}

/// Copies the labels and annotations.
fn copy_labels_and_annotations(
    metadata: &mut Map<String, Value>,
    converted: &Value,
) -> Result<(), MetadataError> {
    let Some(converted) = converted.as_object() else { return Err(MetadataError::Missing) };
    for field in ["labels", "annotations"] {
        let entries = match converted.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
                continue;
            }
            Some(Value::Object(entries)) => entries,
            Some(value) => return Err(MetadataError::Type { field, value: value.clone() }),
        };
        if let Some((name, value)) = entries.iter().find(|(_, v)| !v.is_string()) {
            let (name, value) = (name.clone(), value.clone());
            return Err(MetadataError::NotString { field, name, value });
        }
        let same = metadata.get(field).and_then(Value::as_object) == Some(entries);
        if !same {
            validate_entries(field, entries)?;
        }
        metadata.insert(field.to_owned(), Value::Object(entries.clone()));
    }
    Ok(())
}

/// Validates labels or annotations.
fn validate_entries(field: &str, entries: &Map<String, Value>) -> Result<(), MetadataError> {
    let entries =
        entries.iter().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect();
    let path = Path::new("metadata").child(field);
    let errors = match field {
        "labels" => validation::labels(&entries, &path),
        _ => validation::annotations(&entries, &path),
    };
    if errors.is_empty() { Ok(()) } else { Err(MetadataError::Invalid(errors)) }
}
