use std::sync::Arc;

use api_meta::{GroupResource, Status, Tree as _};
use serde_json::Value;

use crate::request::{AdmissionResult, Outcome, Plugin, Request};

/// Resolves a Pod's priority class to its value, and rejects a second default class.
pub(crate) struct Priority;

const DEFAULT_POLICY: &str = "PreemptLowerPriority";

/// The classes of system Pods.
const SYSTEM: [&str; 2] = ["system-node-critical", "system-cluster-critical"];

impl Plugin for Priority {
    fn precheck(&self, request: &Request<'_>, class: &Value) -> AdmissionResult {
        let deleted = request.on(&GroupResource::PRIORITY_CLASSES) && request.deletes();
        if deleted && SYSTEM.contains(&request.name) {
            let cause = "this is a system priority class and cannot be deleted";
            return Err(request.forbidden(class, cause));
        }
        Ok(())
    }

    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && (request.creates() || request.updates())
    }

    fn mutate(&self, request: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        if request.creates() {
            return resolve(request, pod);
        }
        // An update by a client that does not know the field may leave it out.
        if let Some(old) = request.old {
            for field in ["priority", "preemptionPolicy"] {
                let kept = &old["spec"][field];
                if pod["spec"][field].is_null() && !kept.is_null() {
                    pod.put(&["spec", field], kept.clone());
                }
            }
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, class: &Value, _: &mut Outcome) -> AdmissionResult {
        let relevant = request.is(&GroupResource::PRIORITY_CLASSES)
            && (request.creates() || request.updates());
        if !relevant || class.opt_flag("globalDefault") != Some(true) {
            return Ok(());
        }
        match default_class(request) {
            Some(other) if other.name() != request.object_name(class) => {
                let name = other.name();
                let cause = format!(
                    "PriorityClass {name} is already marked as default. Only one default can exist"
                );
                Err(request.forbidden(class, cause))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the default class. If several were created at the same moment, the one with the lowest value.
fn default_class(request: &Request<'_>) -> Option<Arc<Value>> {
    let classes = request.objects.list(&GroupResource::PRIORITY_CLASSES, "");
    let defaults =
        classes.into_iter().filter(|class| class.opt_flag("globalDefault") == Some(true));
    defaults.min_by_key(|class| class.opt_int("value"))
}

fn resolve(request: &Request<'_>, pod: &mut Value) -> Result<(), Status> {
    let name = pod.text("spec.priorityClassName");
    let class = if name.is_empty() {
        default_class(request)
    } else {
        let found = request.objects.get(&GroupResource::PRIORITY_CLASSES, "", name);
        Some(found.ok_or_else(|| {
            request.forbidden(pod, format!("no PriorityClass with name {name} was found"))
        })?)
    };
    let class = class.as_deref().unwrap_or(&Value::Null);
    let value = class.opt_int("value").unwrap_or(0);
    let policy =
        Some(class.text("preemptionPolicy")).filter(|p| !p.is_empty()).unwrap_or(DEFAULT_POLICY);
    if let Some(given) = pod.opt_int("spec.priority").filter(|given| *given != value) {
        let cause = format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority \
            admission controller computed {value} from the given PriorityClass name"
        );
        return Err(request.forbidden(pod, cause));
    }
    let given = pod.text("spec.preemptionPolicy");
    if !given.is_empty() && given != policy {
        let cause = format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; \
            priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(request.forbidden(pod, cause));
    }
    let class_name = class.name();
    if !class_name.is_empty() {
        pod.put(&["spec", "priorityClassName"], class_name);
    }
    pod.put(&["spec", "priority"], value);
    pod.put(&["spec", "preemptionPolicy"], policy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    fn class(name: &str, value: i64, default: bool) -> Value {
        json!({"metadata": {"name": name}, "value": value, "globalDefault": default, "preemptionPolicy": "Never"})
    }

    #[test]
    fn resolves_classes() {
        let none = Cluster::default();
        let some = Cluster::default()
            .with(&GroupResource::PRIORITY_CLASSES, class("high", 1000, false))
            .with(&GroupResource::PRIORITY_CLASSES, class("usual", 7, true));
        let made = |cluster: &Cluster, spec: Value| {
            let pod = Try::create(cluster, &GroupResource::PODS).admitted(&Priority, pod(spec));
            let spec = &pod["spec"];
            format!(
                "{} {} {}",
                spec.text("priorityClassName"),
                spec["priority"],
                spec.text("preemptionPolicy")
            )
        };
        assert_eq!(made(&none, json!({})), " 0 PreemptLowerPriority");
        assert_eq!(made(&some, json!({})), "usual 7 Never");
        assert_eq!(
            made(&some, json!({"priorityClassName": "high", "priority": 1000})),
            "high 1000 Never"
        );
        let refused =
            |spec: Value| Try::create(&some, &GroupResource::PODS).refusal(&Priority, pod(spec));
        assert_eq!(
            refused(json!({"priorityClassName": "none"})),
            "pods \"p\" is forbidden: no PriorityClass with name none was found"
        );
        assert_eq!(
            refused(json!({"priority": 5})),
            "pods \"p\" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 7 from the given PriorityClass name"
        );
    }

    #[test]
    fn allows_one_default() {
        let cluster =
            Cluster::default().with(&GroupResource::PRIORITY_CLASSES, class("usual", 7, true));
        let create = Try::create(&cluster, &GroupResource::PRIORITY_CLASSES);
        assert!(create.refusal(&Priority, class("other", 1, true)).ends_with(
            "PriorityClass usual is already marked as default. Only one default can exist"
        ));
        assert!(create.refusal(&Priority, class("other", 1, false)).starts_with("admitted"));
        let update =
            Try::update(&cluster, &GroupResource::PRIORITY_CLASSES, class("usual", 7, true));
        assert!(update.refusal(&Priority, class("usual", 7, true)).starts_with("admitted"));
    }

    #[test]
    fn keeps_system_classes() {
        let cluster = Cluster::default();
        let delete = |name: &str| {
            let class = class(name, 1, false);
            Try::delete(&cluster, &GroupResource::PRIORITY_CLASSES, class)
                .refusal(&Priority, Value::Null)
        };
        assert!(delete("system-node-critical").ends_with(
            "\"system-node-critical\" is forbidden: this is a system priority class and cannot be deleted"
        ));
        assert!(delete("usual").starts_with("admitted"));
    }

    #[test]
    fn keeps_the_priority_on_update() {
        let cluster = Cluster::default();
        let old = pod(json!({"priority": 3, "preemptionPolicy": "Never"}));
        let new = Try::update(&cluster, &GroupResource::PODS, old.clone())
            .admitted(&Priority, pod(json!({})));
        assert_eq!(new["spec"], old["spec"]);
    }
}
