//! Rules of PriorityClasses.

use api_meta::{FieldError, Path, Tree as _};

use crate::{fields::validate_one_of, meta::check_immutable, strategy::Strategy};

/// The highest priority of a user-defined class.
const MAX_USER: i64 = 1_000_000_000;
/// The built-in classes, whose values exceed the users' maximum.
const SYSTEM: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

pub(crate) static PRIORITY_CLASS: Strategy = Strategy {
    generation: true,
    check: |class, errors| {
        let (name, value) = (class.name(), class.int("value"));
        if name.starts_with("system-") {
            if !SYSTEM.contains(&(name, value)) {
                let path = Path::new("metadata").child("name");
                let cause = match SYSTEM.iter().find(|(known, _)| *known == name) {
                    Some((_, value)) => format!("value of {name} PriorityClass must be {value}"),
                    None => format!("{name} is not a known system priority class"),
                };
                let detail = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. \
                    error: {cause}"
                );
                errors.push(FieldError::forbidden(&path, detail));
            }
        } else if value > MAX_USER {
            let detail = format!("maximum allowed value of a user defined priority is {MAX_USER}");
            errors.push(FieldError::forbidden(&Path::new("value"), detail));
        }
        let policies = ["Never", "PreemptLowerPriority"];
        validate_one_of(class, "preemptionPolicy", &policies, &Path::new(""), errors);
    },
    check_update: |new, old, errors| {
        if new.at("value") != old.at("value") {
            let detail = "may not be changed in an update.";
            errors.push(FieldError::forbidden(&Path::new("value"), detail));
        }
        check_immutable(new, old, "preemptionPolicy", errors);
    },
    ..Strategy::PLAIN
};
