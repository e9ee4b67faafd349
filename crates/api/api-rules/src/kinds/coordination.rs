//! Rules of Leases and LeaseCandidates.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use cel::Version;
use serde_json::Value;

use crate::{
    meta::{NameRule, check_not_negative, immutable},
    strategy::Strategy,
};

/// The strategy of Kubernetes itself. Those of others have a prefix, such as `example.com/mine`.
const OLDEST: &str = "OldestEmulationVersion";

pub(crate) static LEASE: Strategy = Strategy {
    coordinated_fields: &["strategy", "preferredHolder"],
    check: |lease, errors| {
        let (spec, path) = (lease.at("spec"), Path::new("spec"));
        if let Some(seconds) = spec.opt_int("leaseDurationSeconds")
            && seconds <= 0
        {
            let path = path.child("leaseDurationSeconds");
            errors.push(FieldError::invalid(&path, seconds, "must be greater than 0"));
        }
        check_not_negative(spec, "leaseTransitions", &path, errors);
        if spec.has("strategy") {
            check_strategy(spec.text("strategy"), &path.child("strategy"), errors);
        }
        if !spec.blank("preferredHolder") && spec.blank("strategy") {
            let detail = "may only be specified if `strategy` is defined";
            errors.push(FieldError::forbidden(&path.child("preferredHolder"), detail));
        }
    },
    create_on_update: true,
    unconditional_update: false,
    ..Strategy::PLAIN
};

pub(crate) static LEASE_CANDIDATE: Strategy = Strategy {
    name: NameRule::ConfigMapKey,
    check: |candidate, errors| {
        let (spec, path) = (candidate.at("spec"), Path::new("spec"));
        if spec.blank("leaseName") {
            errors.push(FieldError::required(&path.child("leaseName"), ""));
        }
        let emulated = check_versions(spec, &path, errors);
        let (strategy, at) = (spec.text("strategy"), path.child("strategy"));
        if strategy.is_empty() {
            errors.push(FieldError::required(&at, ""));
            return;
        }
        if strategy == OLDEST && emulated == Version::default() {
            let detail = "must be specified when `strategy` is 'OldestEmulationVersion'";
            errors.push(FieldError::required(&path.child("emulationVersion"), detail));
        }
        check_strategy(strategy, &at, errors);
    },
    check_update: |new, old, errors| {
        let name = new.at("spec.leaseName");
        if name != old.at("spec.leaseName") {
            errors.push(immutable(&Path::new("spec").child("leaseName"), name));
        }
    },
    create_on_update: true,
    unconditional_update: false,
    ..Strategy::PLAIN
};

/// Validates the versions of a candidate and returns the one that it emulates: 0.0.0 if it is absent or invalid.
fn check_versions(spec: &Value, path: &Path, errors: &mut ErrorList) -> Version {
    let mut parse = |field: &str| {
        let text = spec.text(field);
        let version = Version::parse(text).ok();
        if !text.is_empty() && version.is_none() {
            let detail = "must be a valid semantic version";
            errors.push(FieldError::invalid(&path.child(field), text, detail));
        }
        version.unwrap_or_default()
    };
    let emulated = parse("emulationVersion");
    let binary = parse("binaryVersion");
    let (text, at) = (spec.text("binaryVersion"), path.child("binaryVersion"));
    if text.is_empty() {
        errors.push(FieldError::required(&at, ""));
    } else if !spec.blank("emulationVersion") && binary < emulated {
        let detail = "must be greater than or equal to `emulationVersion`";
        errors.push(FieldError::invalid(&at, text, detail));
    }
    emulated
}

/// Validates a strategy. As upstream, the path of an error names the field twice.
fn check_strategy(strategy: &str, path: &Path, errors: &mut ErrorList) {
    let path = path.child("strategy");
    if !strategy.contains('/') {
        if strategy != OLDEST {
            errors.push(FieldError::not_supported(&path, strategy, &[OLDEST]));
        }
        return;
    }
    for message in validation::qualified_name(strategy) {
        errors.push(FieldError::invalid(&path, strategy, message));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{
        strategy,
        tests::{errors, updated},
    };

    const GROUP: &str = "coordination.k8s.io";
    /// The text of an empty list of errors.
    const VALID: &str = "[]";

    fn lease(spec: Value) -> String {
        errors(GROUP, "leases", json!({ "spec": spec }))
    }

    #[test]
    fn validates_strategy_of_lease_in_upstreams_words() {
        for valid in [
            json!({}),
            json!({"strategy": OLDEST, "preferredHolder": "a"}),
            json!({"strategy": "a.b/c"}),
            json!({"preferredHolder": ""}),
        ] {
            assert_eq!(lease(valid.clone()), VALID, "{valid}");
        }
        assert_eq!(
            lease(json!({"preferredHolder": "a"})),
            "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined"
        );
        assert_eq!(
            lease(json!({"strategy": "Newest"})),
            "spec.strategy.strategy: Unsupported value: \"Newest\": supported values: \
             \"OldestEmulationVersion\""
        );
        assert!(lease(json!({"strategy": "/x"})).contains("prefix part must be non-empty"));
    }

    fn candidate(change: impl FnOnce(&mut Value)) -> String {
        let mut spec = json!({"leaseName": "l", "strategy": OLDEST,
            "binaryVersion": "1.36.0", "emulationVersion": "1.35.0"});
        change(&mut spec);
        errors(GROUP, "leasecandidates", json!({ "spec": spec }))
    }

    #[test]
    fn validates_candidate_in_upstreams_words() {
        let with =
            |field: &'static str, value: &'static str| candidate(|spec| spec[field] = json!(value));
        assert_eq!(candidate(|_| {}), VALID);
        assert_eq!(with("binaryVersion", "1.36.0-rc.1+build"), VALID);
        assert_eq!(with("strategy", "a.b/c"), VALID);
        for (field, value, words) in [
            ("leaseName", "", "spec.leaseName: Required value"),
            ("strategy", "", "spec.strategy: Required value"),
            ("strategy", "Mine", "spec.strategy.strategy: Unsupported value: \"Mine\""),
            (
                "emulationVersion",
                "",
                "spec.emulationVersion: Required value: must be specified when `strategy` is 'OldestEmulationVersion'",
            ),
            (
                "emulationVersion",
                "v1.35.0",
                "spec.emulationVersion: Invalid value: \"v1.35.0\": must be a valid semantic version",
            ),
            ("binaryVersion", "", "spec.binaryVersion: Required value"),
            (
                "binaryVersion",
                "1.36",
                "spec.binaryVersion: Invalid value: \"1.36\": must be a valid semantic version",
            ),
            (
                "binaryVersion",
                "1.9.0",
                "spec.binaryVersion: Invalid value: \"1.9.0\": must be greater than or equal to `emulationVersion`",
            ),
        ] {
            let found = with(field, value);
            assert!(found.contains(words), "{field}={value}: {found}");
        }
    }

    #[test]
    fn keeps_lease_of_candidate_and_allows_its_renewal() {
        let kind = strategy(GROUP, "leasecandidates");
        let old = json!({"metadata": {"name": "x", "namespace": "d", "uid": "u"}, "spec": {"leaseName": "l",
            "strategy": OLDEST, "binaryVersion": "1.36.0", "emulationVersion": "1.36.0"}});
        let renew = |new: &mut Value| new["spec"]["renewTime"] = json!("2026-01-01T00:00:00.5Z");
        assert_eq!(updated(kind, &old, renew).1, VALID);
        let (_, found) = updated(kind, &old, |new| new["spec"]["leaseName"] = json!("other"));
        assert_eq!(found, "spec.leaseName: Invalid value: \"other\": field is immutable");
    }

    #[test]
    fn accepts_names_of_hosts_with_underscore() {
        let named = |name: &str| NameRule::ConfigMapKey.errors(name);
        assert!(named("host_0123").is_empty());
        assert!(!named("..").is_empty() && !named("a/b").is_empty());
    }
}
