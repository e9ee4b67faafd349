//! EventRateLimit: limits the rate of Event writes, so that Events do not fill the store.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use api_config::{Strictness, versioned};
use api_meta::{FieldError, Path, Status, StatusReason, Timestamp, TokenBucket, Tree as _};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    configuration::ConfigurationError,
    request::{AdmissionResult, Outcome, Plugin, Request},
};

const SERVED: [&str; 1] = ["eventratelimit.admission.k8s.io/v1alpha1"];
const TYPES: [&str; 4] = ["Namespace", "Server", "SourceAndObject", "User"];
/// Upstream's default for the number of buckets of a limit.
const BUCKETS: usize = 4096;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Configuration {
    limits: Vec<Limit>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Limit {
    #[serde(rename = "type")]
    kind: String,
    qps: i32,
    burst: i32,
    cache_size: i32,
}

impl Configuration {
    fn errors(&self) -> Vec<FieldError> {
        let (mut errors, limits) = (Vec::new(), Path::new("limits"));
        if self.limits.is_empty() {
            errors.push(FieldError::invalid(
                &limits,
                Value::Array(Vec::new()),
                "must not be empty",
            ));
        }
        for (index, limit) in self.limits.iter().enumerate() {
            let at = limits.index(index);
            if !TYPES.contains(&limit.kind.as_str()) {
                errors.push(FieldError::not_supported(
                    &at.child("type"),
                    limit.kind.as_str(),
                    &TYPES,
                ));
            }
            for (field, value) in [("burst", limit.burst), ("qps", limit.qps)] {
                if value <= 0 {
                    errors.push(FieldError::invalid(&at.child(field), value, "must be positive"));
                }
            }
            if limit.kind != "Server" && limit.cache_size < 0 {
                let (at, size) = (at.child("cacheSize"), limit.cache_size);
                errors.push(FieldError::invalid(&at, size, "must not be negative"));
            }
        }
        errors
    }
}

/// The EventRateLimit plugin with its limits.
pub(crate) struct EventRateLimit {
    limits: Vec<RateLimiter>,
    /// The keyed hash that maps keys to buckets. Writers of Events cannot choose colliding keys, and a long key takes
    /// no more memory than a short one.
    hash: RandomState,
}

struct RateLimiter {
    limit: Limit,
    /// Recently used buckets and older ones. When the first map is full, the second is dropped and the first replaces
    /// it.
    buckets: Mutex<[HashMap<u64, Bucket>; 2]>,
}

/// A token bucket and the time of its last refill.
type Bucket = (TokenBucket, Timestamp);

impl EventRateLimit {
    /// Reads a `Configuration`, which is mandatory.
    pub(crate) fn configured(configuration: &Value) -> Result<Self, ConfigurationError> {
        let read: Configuration = match configuration {
            Value::Null => Configuration::default(),
            given => versioned("Configuration", given.clone(), &SERVED, Strictness::Warn)?,
        };
        let errors = read.errors();
        if !errors.is_empty() {
            return Err(ConfigurationError::Invalid(errors));
        }
        let enforced = |limit| RateLimiter { limit, buckets: Mutex::default() };
        let limits = read.limits.into_iter().map(enforced).collect();
        Ok(Self { limits, hash: RandomState::new() })
    }
}

impl RateLimiter {
    /// Takes a token from the key's bucket. Returns `false` if the bucket is empty.
    fn take(&self, key: u64, now: Timestamp) -> bool {
        let capacity = match self.limit.cache_size {
            0 => BUCKETS,
            size => usize::try_from(size).unwrap_or(1),
        };
        let burst = f64::from(self.limit.burst);
        let mut buckets = self.buckets.lock();
        let known = buckets[0].get(&key).copied().or_else(|| buckets[1].remove(&key));
        let (mut bucket, at) = known.unwrap_or_else(|| (TokenBucket::new(burst), now));
        // A clock that was set back refills nothing.
        bucket.refill(now.since(at), f64::from(self.limit.qps));
        let taken = bucket.take();
        if !buckets[0].contains_key(&key) && buckets[0].len() >= capacity {
            buckets.swap(0, 1);
            buckets[0].clear();
        }
        buckets[0].insert(key, (bucket, now));
        taken
    }
}

/// Returns the key of an Event under a limit of type `kind`. Events with the same key share a bucket.
fn key(kind: &str, request: &Request<'_>, event: &Value) -> String {
    match kind {
        "Namespace" => request.namespace.to_owned(),
        "User" => request.user.name.clone(),
        "SourceAndObject" => {
            let fields = [
                "source.component",
                "source.host",
                "involvedObject.kind",
                "involvedObject.namespace",
                "involvedObject.name",
                "involvedObject.uid",
                "involvedObject.apiVersion",
            ];
            fields.map(|field| event.text(field)).concat()
        }
        _ => String::new(),
    }
}

impl Plugin for EventRateLimit {
    fn validate(&self, request: &Request<'_>, event: &Value, _: &mut Outcome) -> AdmissionResult {
        // As upstream: only Events that are written through the core group.
        let concerned = request.resource.group.is_empty() && request.resource.resource == "events";
        if !concerned || request.dry_run || !(request.creates() || request.updates()) {
            return Ok(());
        }
        let mut reached = Vec::new();
        for enforced in &self.limits {
            let kind = enforced.limit.kind.as_str();
            let key = key(kind, request, event);
            if !enforced.take(self.hash.hash_one(&key), request.now) {
                reached.push(format!("limit reached on type {kind} for key {key}"));
            }
        }
        let message = match reached.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("Too many requests: {message}");
        Err(Status::failure(429, StatusReason::TooManyRequests, message))
    }
}

#[cfg(test)]
mod tests {
    use api_meta::{GroupResource, UserInfo};
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try};

    fn configured(limits: Value) -> Result<EventRateLimit, ConfigurationError> {
        EventRateLimit::configured(
            &json!({"apiVersion": SERVED[0], "kind": "Configuration", "limits": limits}),
        )
    }

    fn event(name: &str) -> Value {
        json!({"metadata": {"name": "e", "namespace": "ns"}, "source": {"component": "c"}, "involvedObject": {"name": name}})
    }

    fn refusal(plugin: &EventRateLimit, user: &str, event: Value) -> String {
        let cluster = Cluster::default();
        let events = GroupResource::new("", "events");
        let create = Try::create(&cluster, &events).by(UserInfo::new(user, &[]));
        create.refusal(plugin, event)
    }

    #[test]
    fn limits_each_key_separately() {
        let limits = json!([{"type": "User", "qps": 1, "burst": 2}, {"type": "SourceAndObject", "qps": 1, "burst": 1}]);
        let plugin = configured(limits).unwrap();
        assert!(refusal(&plugin, "a", event("x")).starts_with("admitted"));
        assert_eq!(
            refusal(&plugin, "a", event("x")),
            "Too many requests: limit reached on type SourceAndObject for key cx"
        );
        let told = refusal(&plugin, "a", event("y"));
        assert_eq!(told, "Too many requests: limit reached on type User for key a");
        assert!(refusal(&plugin, "b", event("z")).starts_with("admitted"));
        let cluster = Cluster::default();
        let pods = Try::create(&cluster, &GroupResource::PODS).by(UserInfo::new("a", &[]));
        assert!(pods.refusal(&plugin, event("x")).starts_with("admitted"), "no Event");
    }

    #[test]
    fn refills_bucket_up_to_its_burst() {
        let plugin = configured(json!([{"type": "Server", "qps": 2, "burst": 3}])).unwrap();
        let took = |seconds, nanos| {
            let now = Timestamp::from_unix(seconds, nanos);
            (0..9).take_while(|_| plugin.limits[0].take(0, now)).count()
        };
        assert_eq!(
            [took(100, 0), took(100, 0), took(100, 500_000_000), took(1000, 0), took(5, 0)],
            [3, 0, 1, 3, 0]
        );
    }

    /// Many distinct keys evict the buckets of others, but memory use stays within `cacheSize`.
    #[test]
    fn bounds_number_of_buckets() {
        let limits = json!([{"type": "Namespace", "qps": 1, "burst": 1, "cacheSize": 10}]);
        let plugin = configured(limits).unwrap();
        for key in 0..10_000 {
            assert!(plugin.limits[0].take(key, Timestamp::from_unix(1, 0)));
        }
        let kept = plugin.limits[0].buckets.lock().iter().map(HashMap::len).sum::<usize>();
        assert!(kept <= 20, "{kept}");
    }

    #[test]
    fn rejects_configuration_without_limits() {
        let told = |limits| configured(limits).err().unwrap().to_string();
        assert_eq!(told(json!([])), "limits: Invalid value: []: must not be empty");
        let wrong = told(json!([{"type": "Pod", "qps": 0, "burst": -1}]));
        assert!(wrong.contains("limits[0].type: Unsupported value: \"Pod\""), "{wrong}");
        assert!(wrong.contains("limits[0].burst: Invalid value: -1: must be positive"), "{wrong}");
        assert!(EventRateLimit::configured(&Value::Null).is_err());
        assert!(EventRateLimit::configured(&json!({"limits": []})).is_err());
    }
}
