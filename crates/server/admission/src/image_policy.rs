//! ImagePolicyWebhook: builds the ImageReview for a Pod and evaluates the backend's answer. The API server makes the
//! call.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use api_config::{Decoded, GoDuration, decode};
use api_meta::{GroupResource, Tree as _};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    configuration::ConfigurationError,
    request::{Outcome, Request},
};

const GROUP: &str = ".image-policy.k8s.io/";
const VERSION: &str = "imagepolicy.k8s.io/v1alpha1";
/// The prefix of this plugin's audit annotations.
const AUDIT: &str = "imagepolicywebhook.image-policy.k8s.io/";

/// The plugin's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The kubeconfig file of the image policy backend.
    pub kubeconfig: PathBuf,
    /// The cache lifetimes of an allowed and of a denied review; zero disables the cache.
    pub cache_ttl: (Duration, Duration),
    /// The backoff before a failed call is retried.
    pub retry: Duration,
    /// `true` if a Pod is admitted when the backend cannot be reached.
    pub default_allow: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Configuration {
    image_policy: ImagePolicy,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ImagePolicy {
    kube_config_file: PathBuf,
    #[serde(rename = "allowTTL")]
    allow_ttl: i64,
    #[serde(rename = "denyTTL")]
    deny_ttl: i64,
    retry_backoff: i64,
    default_allow: bool,
}

/// The largest number of milliseconds that an error message shows.
const LONGEST: i64 = 1 << 40;

/// Converts a configured number to a duration. Zero means upstream's default, and -1 means zero.
fn duration(
    value: i64,
    unit: i64,
    bounds: (i64, i64),
    default: i64,
) -> Result<Duration, ConfigurationError> {
    let scaled = match value {
        -1 => 0,
        0 => default,
        // Saturate at the largest value that a duration can show.
        value => value.saturating_mul(unit).clamp(-LONGEST, LONGEST),
    };
    if !matches!(value, -1 | 0) && !(bounds.0..=bounds.1).contains(&scaled) {
        let [least, most, got] = [bounds.0, bounds.1, scaled].map(GoDuration::from_millis);
        return Err(ConfigurationError::Duration { least, most, got });
    }
    Ok(Duration::from_millis(u64::try_from(scaled).unwrap_or_default()))
}

impl Settings {
    /// Reads the plugin's configuration, which is mandatory.
    pub fn read(configuration: &Value) -> Result<Self, ConfigurationError> {
        if configuration.is_null() {
            return Err(ConfigurationError::Missing);
        }
        let read: Decoded<Configuration> = decode("imagePolicy", configuration.clone())?;
        let read = read.value.image_policy;
        const MINUTE: i64 = 60_000;
        let ttl = |value, default| duration(value, 1000, (1000, 30 * MINUTE), default);
        Ok(Self {
            kubeconfig: read.kube_config_file,
            retry: duration(read.retry_backoff, 1, (1, 5 * MINUTE), 500)?,
            cache_ttl: (ttl(read.allow_ttl, 5 * MINUTE)?, ttl(read.deny_ttl, MINUTE / 2)?),
            default_allow: read.default_allow,
        })
    }
}

/// Builds the ImageReview spec for a Pod. Returns `None` if the request sets no images.
pub fn review_spec(request: &Request<'_>, pod: &Value) -> Option<Value> {
    let lists: &[&str] = match request.subresource {
        "" => &["spec.containers", "spec.initContainers"],
        "ephemeralcontainers" => &["spec.ephemeralContainers"],
        _ => return None,
    };
    if !request.on(&GroupResource::PODS) || !(request.creates() || request.updates()) {
        return None;
    }
    let images = lists.iter().flat_map(|list| pod.items(list));
    let images: Vec<Value> = images.map(|c| json!({"image": c.text("image")})).collect();
    let annotations = pod.at("metadata.annotations").as_object();
    let ours: Map<String, Value> = annotations
        .into_iter()
        .flatten()
        .filter(|(key, _)| key.contains(GROUP))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut spec = json!({"containers": images, "namespace": request.namespace});
    if !ours.is_empty() {
        spec.put(&["annotations"], ours);
    }
    Some(spec)
}

/// Wraps a spec in an ImageReview.
pub fn review(spec: &Value) -> Value {
    json!({"kind": "ImageReview", "apiVersion": VERSION, "metadata": {}, "spec": spec, "status": {"allowed": false}})
}

/// The backend's answer about the images of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Verdict {
    /// `true` if the backend admits all images.
    pub allowed: bool,
    reason: String,
    audit_annotations: BTreeMap<String, String>,
}

/// The reason why a backend's answer is invalid.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error("couldn't read the answer as an ImageReview: {0}")]
    Json(#[from] serde_json::Error),
    #[error("expected an ImageReview of {VERSION}, got {kind:?} of {version:?}")]
    Kind { kind: String, version: String },
    #[error(transparent)]
    Status(#[from] api_config::Error),
}

/// The denial of a Pod's images by the backend, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum ImageDenial {
    #[error("one or more images rejected by webhook backend")]
    Unexplained,
    #[error("image policy webhook backend denied one or more images: {reason}")]
    Explained { reason: String },
}

impl Verdict {
    /// Parses the body of an answer.
    pub fn read(answer: &[u8]) -> Result<Self, AnswerError> {
        let tree: Map<String, Value> = serde_json::from_slice(answer)?;
        let tree = Value::Object(tree);
        let (kind, version) = (tree.text("kind"), tree.text("apiVersion"));
        if kind != "ImageReview" || version != VERSION {
            let (kind, version) = (kind.to_owned(), version.to_owned());
            return Err(AnswerError::Kind { kind, version });
        }
        let read: Decoded<Self> = decode("ImageReview", tree.at("status").clone())?;
        Ok(read.value)
    }

    /// Records the audit annotations and returns an error if the images are denied.
    pub fn settle(&self, outcome: &mut Outcome) -> Result<(), ImageDenial> {
        for (name, value) in &self.audit_annotations {
            outcome.audit.insert(format!("{AUDIT}{name}"), value.clone());
        }
        match (self.allowed, self.reason.as_str()) {
            (true, _) => Ok(()),
            (false, "") => Err(ImageDenial::Unexplained),
            (false, reason) => Err(ImageDenial::Explained { reason: reason.to_owned() }),
        }
    }
}

/// Records in the audit log that a Pod was admitted without an answer from the backend.
pub fn record_fail_open(outcome: &mut Outcome) {
    outcome.audit.insert(format!("{AUDIT}failed-open"), "true".to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, Try, pod};

    fn settings(configuration: Value) -> Result<Settings, ConfigurationError> {
        Settings::read(&json!({"imagePolicy": configuration}))
    }

    #[test]
    fn reads_durations_with_upstream_units_and_bounds() {
        let seconds = Duration::from_secs;
        let usual = settings(json!({"kubeConfigFile": "/k"})).unwrap();
        assert_eq!(usual.cache_ttl, (seconds(300), seconds(30)));
        assert_eq!((usual.retry, usual.default_allow), (Duration::from_millis(500), false));
        let own = json!({"allowTTL": 60, "denyTTL": -1, "retryBackoff": 20, "defaultAllow": true});
        let own = settings(own).unwrap();
        assert_eq!(own.cache_ttl, (seconds(60), Duration::ZERO));
        assert_eq!((own.retry, own.default_allow), (Duration::from_millis(20), true));
        assert_eq!(
            settings(json!({"allowTTL": 1801})).unwrap_err().to_string(),
            "valid value is between 1s and 30m0s, got 30m1s"
        );
        for wrong in [json!({"denyTTL": -2}), json!({"retryBackoff": i64::MAX}), json!(5)] {
            assert!(settings(wrong.clone()).is_err(), "{wrong}");
        }
        assert_eq!(Settings::read(&Value::Null).unwrap_err().to_string(), "no config specified");
    }

    #[test]
    fn builds_review_of_images_and_annotations() {
        let cluster = Cluster::default();
        let mut asked = pod(
            json!({"containers": [{"name": "a", "image": "one"}], "initContainers": [{"name": "b", "image": "two"}], "ephemeralContainers": [{"name": "c", "image": "three"}]}),
        );
        asked["metadata"]["annotations"] =
            json!({"x.image-policy.k8s.io/ticket": "1", "other": "2"});
        let of = |create: Try<'_>| create.asked(&asked, review_spec);
        let create = || Try::create(&cluster, &GroupResource::PODS);
        let expected = json!({"containers": [{"image": "one"}, {"image": "two"}], "namespace": "ns", "annotations": {"x.image-policy.k8s.io/ticket": "1"}});
        assert_eq!(of(create()), Some(expected));
        let ephemeral = of(create().sub("ephemeralcontainers")).unwrap();
        assert_eq!(ephemeral["containers"], json!([{"image": "three"}]));
        assert_eq!(of(create().sub("status")), None);
        assert_eq!(of(Try::create(&cluster, &GroupResource::SERVICES)), None);
    }

    #[test]
    fn rejects_answer_that_is_not_a_review() {
        for garbage in ["", "[]", "{}", "{\"kind\": \"Pod\"}", "{\"status\": {\"allowed\": true}}"]
        {
            assert!(Verdict::read(garbage.as_bytes()).is_err(), "{garbage}");
        }
        let mut answer = review(&json!({}));
        answer["status"] = json!({"allowed": "yes"});
        assert!(Verdict::read(answer.to_string().as_bytes()).is_err());
        answer["status"] = json!({"reason": "old", "auditAnnotations": {"who": "me"}});
        let mut outcome = Outcome::default();
        let said = Verdict::read(answer.to_string().as_bytes()).unwrap().settle(&mut outcome);
        assert!(said.unwrap_err().to_string().ends_with("denied one or more images: old"));
        assert_eq!(outcome.audit["imagepolicywebhook.image-policy.k8s.io/who"], "me");
    }
}
