//! Rules of StorageVersionMigrations.

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::{Value, json};

use crate::{conditions::is_true, strategy::Strategy};

pub(crate) static STORAGE_VERSION_MIGRATION: Strategy = Strategy {
    status: Some(|| json!({})),
    generation: true,
    check: |migration, errors| {
        if migration.blank("spec.resource.resource") {
            let path = Path::new("spec").child("resource").child("resource");
            errors.push(FieldError::required(&path, "resource is required"));
        }
    },
    check_update: |new, old, errors| {
        for field in ["group", "resource"] {
            let value = new.at("spec.resource").text(field);
            if value != old.at("spec.resource").text(field) {
                errors.push(FieldError::invalid(&Path::new(field), value, "field is immutable"));
            }
        }
    },
    check_status: |new, old, _, errors| check_status(new, old, errors),
    ..Strategy::PLAIN
};

/// Validates a status: a migration ends once, and its resourceVersion stays.
fn check_status(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("status");
    let (before, version) =
        (old.text("status.resourceVersion"), new.text("status.resourceVersion"));
    let field = path.child("resourceVersion");
    match version {
        "" => {}
        text => match text.parse::<i64>() {
            Ok(0..) => {}
            Ok(number) => {
                let detail = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(&field, number, detail));
            }
            Err(_) => {
                let detail = format!("failed to parse resource version {text:?}");
                errors.push(FieldError::invalid(&field, text, detail));
            }
        },
    }
    if !before.is_empty() && before != version {
        errors.push(FieldError::invalid(&field, version, "cannot be updated"));
    }
    let field = path.child("conditions");
    let (succeeded, failed) = (is_true(new, "Succeeded"), is_true(new, "Failed"));
    let running = is_true(new, "Running");
    let contradictions = [
        (succeeded && failed, "Both success and failed conditions cannot be true at the same time"),
        (succeeded && running, "Running condition cannot be true when success condition is true"),
        (failed && running, "Running condition cannot be true when failed condition is true"),
        (
            is_true(old, "Succeeded") && !succeeded,
            "Success condition cannot be set to false once it is true",
        ),
        (
            is_true(old, "Failed") && !failed,
            "Failed condition cannot be set to false once it is true",
        ),
    ];
    for (_, detail) in contradictions.into_iter().filter(|(is_wrong, _)| *is_wrong) {
        let value = new.at("status.conditions").clone();
        errors.push(FieldError::invalid(&field, value, detail));
    }
}

#[cfg(test)]
mod tests {
    use api_meta::field::aggregate;

    use super::*;

    #[test]
    fn rejects_contradictory_status() {
        let status = |version: &str, conditions: &[(&str, &str)]| {
            let conditions: Vec<_> = conditions
                .iter()
                .map(|(kind, status)| json!({"type": kind, "status": status}))
                .collect();
            json!({"status": {"resourceVersion": version, "conditions": conditions}})
        };
        let errors = |new: &Value, old: &Value| {
            let mut errors = ErrorList::new();
            check_status(new, old, &mut errors);
            if errors.is_empty() { String::new() } else { aggregate(&errors) }
        };
        let running = status("7", &[("Running", "True")]);
        let done = status("7", &[("Running", "False"), ("Succeeded", "True")]);
        assert_eq!(errors(&running, &status("", &[])), "");
        assert_eq!(errors(&done, &running), "");
        assert!(errors(&running, &done).contains("once it is true"));
        let both = status("7", &[("Failed", "True"), ("Succeeded", "True")]);
        assert!(errors(&both, &running).contains("at the same time"));
        let early = status("7", &[("Running", "True"), ("Succeeded", "True")]);
        assert!(errors(&early, &running).contains("when success condition is true"));
        assert!(errors(&status("8", &[]), &running).contains("cannot be updated"));
        assert!(errors(&status("x", &[]), &status("", &[])).contains("failed to parse"));
        assert!(errors(&status("-1", &[]), &status("", &[])).contains("greater than or equal"));
    }

    #[test]
    fn rejects_change_of_resource() {
        let migration =
            |plural: &str| json!({"spec": {"resource": {"group": "apps", "resource": plural}}});
        let mut errors = ErrorList::new();
        (STORAGE_VERSION_MIGRATION.check_update)(
            &migration("deployments"),
            &migration("replicasets"),
            &mut errors,
        );
        assert_eq!(
            aggregate(&errors),
            "resource: Invalid value: \"deployments\": field is immutable"
        );
        let missing = STORAGE_VERSION_MIGRATION.create_errors(&migration(""), false);
        assert!(aggregate(&missing).contains("resource is required"));
    }
}
