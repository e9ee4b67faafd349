//! Validation of the status that controllers and kubelets report.
//!
//! Other components act on a status: endpoints follow the addresses of Pods, and proxies those of load balancers. So a
//! component that may write the status of a kind must not be able to write anything there.

use std::collections::HashSet;

use api_meta::{ErrorList, FieldError, Path, Quantity, Tree as _, validation};
use serde_json::{Value, json};

use super::indexes::count_indexes;
use crate::{
    conditions::validate_conditions, fields::check_ip, meta::check_not_negative,
    pod::validate_amount,
};

fn root() -> Path {
    Path::new("status")
}

/// Reports negative counters, also `observedGeneration`.
fn check_counts(object: &Value, fields: &[&str], errors: &mut ErrorList) {
    for field in ["observedGeneration"].iter().chain(fields) {
        check_not_negative(object.at("status"), field, &root(), errors);
    }
}

/// Reports counters that are larger than another one. `words` names the other one.
fn check_at_most(
    object: &Value,
    fields: &[&str],
    limit: &str,
    words: &str,
    errors: &mut ErrorList,
) {
    let status = object.at("status");
    for field in fields {
        let count = status.int(field);
        if count > status.int(limit) {
            let detail = format!("cannot be greater than {words}");
            errors.push(FieldError::invalid(&root().child(field), count, detail));
        }
    }
}

/// Validates the counters of replicas. `parts` are at most all replicas, and those that are available at most those
/// that are ready, which upstream's message names by `ready`.
fn check_replica_counts(
    object: &Value,
    parts: &[&str],
    others: &[&str],
    ready: &str,
    errors: &mut ErrorList,
) {
    check_counts(object, &[&["replicas"], parts, others].concat(), errors);
    check_at_most(object, parts, "replicas", "status.replicas", errors);
    check_at_most(object, &["availableReplicas"], "readyReplicas", ready, errors);
}

pub(super) fn check_deployment(object: &Value, errors: &mut ErrorList) {
    let parts = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    let others = ["unavailableReplicas", "collisionCount"];
    check_replica_counts(object, &parts, &others, "readyReplicas", errors);
}

/// Validates the status of a ReplicaSet or ReplicationController.
pub(super) fn check_replicas(object: &Value, errors: &mut ErrorList) {
    let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    check_replica_counts(object, &parts, &[], "readyReplicas", errors);
}

pub(super) fn check_stateful_set(object: &Value, errors: &mut ErrorList) {
    let parts = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    let ready = "status.readyReplicas";
    check_replica_counts(object, &parts, &["collisionCount"], ready, errors);
}

pub(super) fn check_daemon_set(object: &Value, errors: &mut ErrorList) {
    let fields = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    check_counts(object, &fields, errors);
}

pub(super) fn check_autoscaler(object: &Value, errors: &mut ErrorList) {
    for field in ["currentReplicas", "desiredReplicas"] {
        check_not_negative(object.at("status"), field, &root(), errors);
    }
}

pub(super) fn check_disruption_budget(object: &Value, errors: &mut ErrorList) {
    let conditions = root().child("conditions");
    validate_conditions(object.items("status.conditions"), &conditions, errors);
    let mut types = HashSet::new();
    for (i, condition) in object.items("status.conditions").iter().enumerate() {
        let kind = condition.text("type");
        if !types.insert(kind) {
            errors.push(FieldError::duplicate(&conditions.index(i).child("type"), kind));
        }
    }
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        check_not_negative(object.at("status"), field, &root(), errors);
    }
}

pub(super) fn check_quota(object: &Value, errors: &mut ErrorList) {
    for field in ["hard", "used"] {
        for (name, amount) in object.at("status").pairs(field) {
            validate_amount(amount, "cpu", &root().child(field).key(name), errors);
        }
    }
}

pub(super) fn check_namespace(object: &Value, errors: &mut ErrorList) {
    let (phase, terminating) =
        (object.text("status.phase"), object.has("metadata.deletionTimestamp"));
    let (wanted, detail) = if terminating {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    if phase != wanted && !phase.is_empty() {
        errors.push(FieldError::invalid(&Path::new("status.Phase"), phase, detail));
    }
}

pub(super) fn check_claim(object: &Value, errors: &mut ErrorList) {
    let status = object.at("status");
    for field in ["capacity", "allocatedResources"] {
        for (name, amount) in status.pairs(field) {
            let amount = amount.as_str().and_then(|text| Quantity::parse(text).ok());
            if let Some(amount) = amount.filter(Quantity::is_negative) {
                let detail = "must be a valid resource quantity";
                let path = root().child(field).key(name);
                errors.push(FieldError::invalid(&path, amount.value(), detail));
            }
        }
    }
    let states = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    for (name, state) in status.pairs("allocatedResourceStatuses") {
        if !states.contains(&state.text("")) {
            let path = root().child("allocatedResourceStatuses");
            errors.push(FieldError::not_supported(&path, name.as_str(), &states));
        }
    }
}

/// Validates the amounts of a Node, which its kubelet may also set at the creation.
pub(super) fn check_node_amounts(object: &Value, errors: &mut ErrorList) {
    for field in ["capacity", "allocatable"] {
        for (name, amount) in object.at("status").pairs(field) {
            validate_amount(amount, "cpu", &root().child(field).child(name), errors);
        }
    }
}

pub(super) fn check_node(object: &Value, errors: &mut ErrorList) {
    let mut addresses = HashSet::new();
    for (i, address) in object.items("status.addresses").iter().enumerate() {
        let (kind, text) = (address.text("type"), address.text("address"));
        if !addresses.insert((kind, text)) {
            let shown = json!({"Type": kind, "Address": text});
            errors.push(FieldError::duplicate(&root().child("addresses").index(i), shown));
        }
    }
    check_node_amounts(object, errors);
}

/// Validates the addresses of a load balancer. Only those of Services have an `ipMode`.
pub(super) fn check_load_balancer(object: &Value, errors: &mut ErrorList) {
    let path = root().child("loadBalancer").child("ingress");
    for (i, ingress) in object.items("status.loadBalancer.ingress").iter().enumerate() {
        let (ip, path) = (ingress.text("ip"), path.index(i));
        if !ip.is_empty() {
            check_ip(ip, &path.child("ip"), errors);
        }
        if let Some(mode) = ingress.at("ipMode").as_str() {
            let (path, modes) = (path.child("ipMode"), ["Proxy", "VIP"]);
            if ip.is_empty() {
                let detail = "may not be specified when `ip` is not set";
                errors.push(FieldError::forbidden(&path, detail));
            } else if !modes.contains(&mode) {
                errors.push(FieldError::not_supported(&path, mode, &modes));
            }
        }
        let (hostname, path) = (ingress.text("hostname"), path.child("hostname"));
        if hostname.is_empty() {
            continue;
        }
        for message in validation::dns1123_subdomain(hostname) {
            errors.push(FieldError::invalid(&path, hostname, message));
        }
        if validation::ip(hostname).is_ok() {
            let detail = "must be a DNS name, not an IP address";
            errors.push(FieldError::invalid(&path, hostname, detail));
        }
    }
}

pub(super) fn check_service(object: &Value, old: &Value, errors: &mut ErrorList) {
    const FIELD: &str = "status.loadBalancer.ingress";
    if object.at(FIELD) == old.at(FIELD) {
        return;
    }
    let path = root().child("loadBalancer").child("ingress");
    if object.text("spec.type") != "LoadBalancer" && !object.blank("status.loadBalancer.ingress") {
        let detail = "may only be used when `spec.type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden(&path, detail));
    } else {
        check_load_balancer(object, errors);
    }
}

pub(super) fn check_job(new: &Value, old: &Value, errors: &mut ErrorList) {
    let status = new.at("status");
    for field in ["active", "ready", "succeeded", "failed", "terminating"] {
        check_not_negative(status, field, &root(), errors);
    }
    if status.int("ready") > status.int("active") {
        let detail = "cannot set more ready pods than active";
        errors.push(FieldError::invalid(&root().child("ready"), status.int("ready"), detail));
    }
    for field in ["succeeded", "failed"] {
        if status.int(field) < old.at("status").int(field) {
            let detail = format!("cannot decrease the {field} counter");
            errors.push(FieldError::invalid(&root().child(field), status.int(field), detail));
        }
    }
    let indexed = new.text("spec.completionMode") == "Indexed";
    for (field, applies, mode) in [
        ("completedIndexes", indexed, "when non-indexed completion mode"),
        ("failedIndexes", new.has("spec.backoffLimitPerIndex"), "with null backoffLimitPerIndex"),
    ] {
        let (text, path) = (status.text(field), root().child(field));
        if text.is_empty() {
            continue;
        }
        if let Err(error) = count_indexes(text, new.int("spec.completions")) {
            let detail = format!("error parsing {field}: {error}");
            errors.push(FieldError::invalid(&path, text, detail));
        }
        if !applies {
            let detail = format!("cannot set non-empty {field} {mode}");
            errors.push(FieldError::invalid(&path, text, detail));
        }
    }
    let mut uids = HashSet::new();
    for list in ["succeeded", "failed"] {
        let path = root().child("uncountedTerminatedPods").child(list);
        for (i, uid) in status.at("uncountedTerminatedPods").items(list).iter().enumerate() {
            let uid = uid.text("");
            if uid.is_empty() {
                errors.push(FieldError::invalid(&path.index(i), uid, "must not be empty"));
            } else if !uids.insert(uid) {
                errors.push(FieldError::duplicate(&path.index(i), uid));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use api_meta::field::aggregate;

    use super::super::{
        strategy,
        tests::{NOW, made},
    };
    use super::*;

    /// Returns the errors of a status update of an object that has the first status.
    fn changed(group: &str, resource: &str, spec: &Value, first: Value, second: Value) -> String {
        let mut old = made(group, resource, json!({ "spec": spec }));
        old["status"] = first;
        let mut new = old.clone();
        new["status"] = second;
        let strategy = strategy(group, resource);
        strategy.prepare_status(&mut new, &old, NOW);
        let namespaced = old["metadata"].get("namespace").is_some();
        aggregate(&strategy.status_errors(&new, &old, namespaced, NOW))
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "one table")]
    fn rejects_what_no_component_reports() {
        let pods = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let workload = json!({"selector": {"matchLabels": {"a": "b"}}, "template": pods});
        let balancer = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
        let pod = json!({"containers": [{"name": "c", "image": "i"}]});
        let bound = json!({"nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
        let job = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
        let none = json!({});
        let zero = "must be greater than or equal to 0";
        let address = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        for (group, resource, spec, status, expected) in [
            ("apps", "deployments", &workload, json!({"replicas": 2, "readyReplicas": 2, "availableReplicas": 1}), "[]".into()),
            ("apps", "deployments", &workload, json!({"replicas": 1, "readyReplicas": 2}),
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas".into()),
            ("apps", "deployments", &workload, json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 2}),
                "status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas".into()),
            ("apps", "replicasets", &workload, json!({"replicas": 1, "fullyLabeledReplicas": 2}),
                "status.fullyLabeledReplicas: Invalid value: 2: cannot be greater than status.replicas".into()),
            ("apps", "statefulsets", &workload, json!({"replicas": 2, "availableReplicas": 1}),
                "status.availableReplicas: Invalid value: 1: cannot be greater than status.readyReplicas".into()),
            ("apps", "daemonsets", &workload, json!({"numberAvailable": -1}), format!("status.numberAvailable: Invalid value: -1: {zero}")),
            ("autoscaling", "horizontalpodautoscalers", &json!({"maxReplicas": 2, "scaleTargetRef": {"kind": "A", "name": "a"}}),
                json!({"desiredReplicas": -1}), format!("status.desiredReplicas: Invalid value: -1: {zero}")),
            ("policy", "poddisruptionbudgets", &none, json!({"expectedPods": -1}), format!("status.expectedPods: Invalid value: -1: {zero}")),
            ("policy", "poddisruptionbudgets", &none, json!({"conditions": [
                {"type": "A", "status": "True", "reason": "R", "lastTransitionTime": NOW},
                {"type": "A", "status": "True", "lastTransitionTime": NOW}]}),
                "[status.conditions[1].reason: Required value, status.conditions[1].type: Duplicate value: \"A\"]".into()),
            ("", "resourcequotas", &none, json!({"used": {"pods": "-5"}}), format!("status.used[pods]: Invalid value: \"-5\": {zero}")),
            ("", "namespaces", &none, json!({"phase": "Terminating"}),
                "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty".into()),
            ("", "persistentvolumeclaims", &none, json!({"capacity": {"storage": "-5"}, "allocatedResourceStatuses": {"storage": "x"}}),
                "[status.capacity[storage]: Invalid value: -5: must be a valid resource quantity, status.allocatedResourceStatuses: \
                Unsupported value: \"storage\": supported values: \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \
                \"NodeResizeInProgress\", \"NodeResizeInfeasible\", \"NodeResizePending\"]".into()),
            ("", "nodes", &none, json!({"capacity": {"cpu": "-1"}, "addresses": [
                {"type": "InternalIP", "address": "1.2.3.4"}, {"type": "InternalIP", "address": "1.2.3.4"}]}),
                format!("[status.addresses[1]: Duplicate value: {{\"Address\":\"1.2.3.4\",\"Type\":\"InternalIP\"}}, \
                status.capacity.cpu: Invalid value: \"-1\": {zero}]")),
            ("", "services", &balancer, json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": "VIP"}, {"hostname": "a.b"}]}}), "[]".into()),
            ("", "services", &balancer, json!({"loadBalancer": {"ingress": [{"ip": "x; drop"}, {"ipMode": "VIP"}, {"hostname": "1.2.3.4"}]}}),
                format!("[status.loadBalancer.ingress[0].ip: Invalid value: \"x; drop\": {address}, status.loadBalancer.ingress[1].ipMode: \
                Forbidden: may not be specified when `ip` is not set, status.loadBalancer.ingress[2].hostname: Invalid value: \
                \"1.2.3.4\": must be a DNS name, not an IP address]")),
            ("", "services", &json!({"ports": [{"port": 80}]}), json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}),
                "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'".into()),
            ("networking.k8s.io", "ingresses", &none, json!({"loadBalancer": {"ingress": [{"ip": "x"}]}}),
                format!("status.loadBalancer.ingress[0].ip: Invalid value: \"x\": {address}")),
            ("", "pods", &pod, json!({"podIP": "10.1.0.5", "hostIP": "1.2.3.4", "hostIPs": [{"ip": "1.2.3.4"}]}), "[]".into()),
            ("", "pods", &pod, json!({"podIP": "x"}), format!("status.podIPs[0]: Invalid value: \"x\": {address}")),
            ("", "pods", &pod, json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]}),
                "status.podIPs: Invalid value: [{\"IP\":\"10.0.0.1\"},{\"IP\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family".into()),
            ("", "pods", &pod, json!({"hostIP": "1.2.3.4", "hostIPs": [{"ip": "1.2.3.5"}], "qosClass": "Guaranteed"}),
                "[status.qosClass: Invalid value: \"Guaranteed\": field is immutable, status.hostIPs[0].ip: Invalid value: \"1.2.3.5\": \
                must be equal to `hostIP`]".into()),
            ("", "pods", &bound, json!({"nominatedNodeName": "m"}),
                "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node".into()),
            ("batch", "jobs", &job, json!({"active": 1, "ready": 2, "failed": 3, "succeeded": 1}),
                "[status.ready: Invalid value: 2: cannot set more ready pods than active, status.succeeded: Invalid value: 1: \
                cannot decrease the succeeded counter]".into()),
            ("batch", "jobs", &job, json!({"succeeded": 2, "completedIndexes": "0", "uncountedTerminatedPods": {"failed": ["a", "a", ""]}}),
                "[status.completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed completion mode, \
                status.uncountedTerminatedPods.failed[1]: Duplicate value: \"a\", status.uncountedTerminatedPods.failed[2]: \
                Invalid value: \"\": must not be empty]".into()),
        ] {
            let first = match resource {
                "jobs" => json!({"succeeded": 2}),
                "pods" => json!({"qosClass": "BestEffort"}),
                _ => json!({}),
            };
            let errors = changed(group, resource, spec, first, status.clone());
            assert_eq!(errors, expected, "{resource} {status}");
        }
    }

    #[test]
    fn keeps_first_address_of_pod_in_both_fields() {
        let pod = made("", "pods", json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}));
        for (status, expected) in [
            (json!({"podIP": "10.0.0.1"}), json!(["10.0.0.1", [{"ip": "10.0.0.1"}]])),
            (json!({"podIPs": [{"ip": "10.0.0.2"}]}), json!(["10.0.0.2", [{"ip": "10.0.0.2"}]])),
            (
                json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fe80::1"}]}),
                json!(["10.0.0.1", [{"ip": "10.0.0.1"}]]),
            ),
            (
                json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fe80::1"}]}),
                json!(["10.0.0.1", [{"ip": "10.0.0.1"}, {"ip": "fe80::1"}]]),
            ),
            (json!({}), json!([null, null])),
        ] {
            let mut new = pod.clone();
            new["status"] = status.clone();
            strategy("", "pods").prepare_status(&mut new, &pod, NOW);
            assert_eq!(
                json!([new["status"]["podIP"], new["status"]["podIPs"]]),
                expected,
                "{status}"
            );
        }
    }
}
