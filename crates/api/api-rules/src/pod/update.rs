//! Validation of Pod updates: the mutable fields, and the subresources that write a part.

use std::collections::{HashMap, HashSet};

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

use super::{containers, spec};

const MUTABLE: &str = "pod updates may not change fields other than \
    `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` \
    (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be \
    set to 1 if it was previously negative)";

pub(super) fn check(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    for list in ["containers", "initContainers"] {
        if new.items(&format!("spec.{list}")).len() != old.items(&format!("spec.{list}")).len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(list), detail));
            return;
        }
    }
    validate_deadline(new, old, &path, errors);
    validate_tolerations(new, old, &path, errors);
    validate_gates(new, old, &path, errors);
    let mut allowed = new.clone();
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        allowed.keep(old, &format!("spec.{field}"));
    }
    let grace = "spec.terminationGracePeriodSeconds";
    if old.int(grace) < 0 && new.int(grace) == 1 {
        allowed.keep(old, grace);
    }
    for list in ["spec.containers", "spec.initContainers"] {
        for (new, old) in allowed.items_mut(list).zip(old.items(list)) {
            new.keep(old, "image");
        }
    }
    if !old.blank("spec.schedulingGates") {
        gated_placement(&mut allowed, old);
    }
    if allowed.at("spec") != old.at("spec") {
        errors.push(FieldError::forbidden(&path, MUTABLE));
    }
}

/// Allows narrower node selection and affinity for a Pod with scheduling gates.
fn gated_placement(allowed: &mut Value, old: &Value) {
    let unchanged = old
        .pairs("spec.nodeSelector")
        .all(|(name, value)| allowed.at("spec.nodeSelector").get(name) == Some(value));
    if unchanged {
        allowed.keep(old, "spec.nodeSelector");
    }
    let affinity = "spec.affinity.nodeAffinity";
    if narrows_affinity(allowed.at(affinity), old.at(affinity)) {
        allowed.keep(old, affinity);
        if !old.has("spec.affinity") && allowed.blank("spec.affinity") {
            allowed.remove(&["spec", "affinity"]);
        }
    }
}

/// Reports whether a node affinity selects no node that the old one does not select: it only adds requirements.
/// Preferences may change.
fn narrows_affinity(new: &Value, old: &Value) -> bool {
    let terms = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let (new, old) = (new.items(terms), old.items(terms));
    let keeps = |new: &Value, old: &Value, list: &str| {
        let new: HashSet<&Value> = new.items(list).iter().collect();
        old.items(list).iter().all(|requirement| new.contains(requirement))
    };
    // A term without requirements selects no node, so that more requirements would select nodes.
    let narrows = |new: &Value, old: &Value| {
        let empty = old.blank("matchExpressions") && old.blank("matchFields");
        (!empty || new == old)
            && keeps(new, old, "matchExpressions")
            && keeps(new, old, "matchFields")
    };
    old.is_empty()
        || new.len() == old.len() && new.iter().zip(old).all(|(new, old)| narrows(new, old))
}

fn validate_deadline(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let field = "spec.activeDeadlineSeconds";
    let path = path.child("activeDeadlineSeconds");
    match (new.opt_int(field), old.opt_int(field)) {
        (None, Some(_)) => errors.push(FieldError::invalid(
            &path,
            Value::Null,
            "must not update from a positive integer to nil value",
        )),
        (Some(new), Some(old)) if new > old => errors.push(FieldError::invalid(
            &path,
            new,
            "must be less than or equal to previous value",
        )),
        _ => {}
    }
}

fn validate_tolerations(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let without_time = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if toleration.text("effect") == "NoExecute" {
            toleration.set("tolerationSeconds", Value::Null);
        }
        toleration
    };
    let new: HashSet<Value> = new.items("spec.tolerations").iter().map(without_time).collect();
    let unchanged = old.items("spec.tolerations").iter().all(|t| new.contains(&without_time(t)));
    if !unchanged {
        errors.push(FieldError::forbidden(
            &path.child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

fn validate_gates(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let old: HashSet<&Value> = old.items("spec.schedulingGates").iter().collect();
    for gate in new.items("spec.schedulingGates") {
        if !old.contains(gate) {
            errors.push(FieldError::forbidden(
                &path.child("schedulingGates").child("[]"),
                "only deletion is allowed, but found new scheduling gate",
            ));
            return;
        }
    }
}

/// Restores everything but the given fields of the spec, for a subresource.
pub(super) fn only(new: &mut Value, old: &Value, fields: &[&str]) {
    let sent = new.take();
    *new = old.clone();
    new.set("metadata.resourceVersion", sent.at("metadata.resourceVersion").clone());
    new.keep(&sent, "metadata.managedFields");
    for field in fields {
        new.keep(&sent, &format!("spec.{field}"));
    }
}

/// Returns the first container of each name.
fn by_name(containers: &[Value]) -> HashMap<&str, &Value> {
    let mut first = HashMap::with_capacity(containers.len());
    for container in containers {
        first.entry(container.text("name")).or_insert(container);
    }
    first
}

/// Restores everything but the Pod's and the containers' resources and the resize policies, for `resize`. The resize
/// policies are validated: they may not change.
pub(super) fn only_resources(new: &mut Value, old: &Value) {
    let sent = new.clone();
    only(new, old, &["resources"]);
    for list in ["spec.containers", "spec.initContainers"] {
        if names(&sent, list).ne(names(old, list)) {
            // Validation rejects other containers.
            new.keep(&sent, list);
            continue;
        }
        let sent = by_name(sent.items(list));
        for container in new.items_mut(list) {
            if let Some(sent) = sent.get(container.text("name")) {
                container.keep(sent, "resources");
                container.keep(sent, "resizePolicy");
            }
        }
    }
}

fn names<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a str> {
    pod.items(list).iter().map(|container| container.text("name"))
}

/// Rejects added, removed, renamed and moved containers. Returns `true` if there are any.
fn check_resized_containers(new: &Value, old: &Value, errors: &mut ErrorList) -> bool {
    let mut found = false;
    for list in ["containers", "initContainers"] {
        let (path, full) = (Path::new("spec").child(list), format!("spec.{list}"));
        if names(new, &full).count() != names(old, &full).count() {
            found = true;
            let detail = format!("{list} may not be added or removed on resize");
            errors.push(FieldError::forbidden(&path, detail));
            continue;
        }
        for (i, (now, before)) in names(new, &full).zip(names(old, &full)).enumerate() {
            if now != before {
                found = true;
                let detail = format!("{list} may not be renamed or reordered on resize");
                errors.push(FieldError::forbidden(&path.index(i).child("name"), detail));
            }
        }
    }
    found
}

pub(super) fn check_ephemeral(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("ephemeralContainers");
    containers::check_ephemeral(new.at("spec"), &path, errors);
    let now = by_name(new.items("spec.ephemeralContainers"));
    for before in old.items("spec.ephemeralContainers") {
        match now.get(before.text("name")) {
            None => errors.push(FieldError::forbidden(
                &path,
                format!(
                    "existing ephemeral containers {:?} may not be removed\n",
                    before.text("name")
                ),
            )),
            Some(now) if *now != before => errors.push(FieldError::forbidden(
                &path,
                format!(
                    "existing ephemeral containers {:?} may not be changed\n",
                    before.text("name")
                ),
            )),
            Some(_) => {}
        }
    }
}

/// The path of errors that upstream reports for a Pod as a whole.
const WHOLE: &str = "[]";

/// The annotation of mirror Pods, which represent static Pods.
const MIRROR: [&str; 3] = ["metadata", "annotations", "kubernetes.io/config.mirror"];

/// Validates an update of `resize`. The kubelet decides later if the node has room; it reports this by the conditions
/// `PodResizePending` and `PodResizeInProgress`, and what it has applied by `status.resources`.
pub(super) fn check_resize(new: &Value, old: &Value, errors: &mut ErrorList) {
    let (path, whole) = (Path::new("spec"), Path::new(WHOLE));
    spec::check(new.at("spec"), &path, errors);
    if old.has(&MIRROR) {
        errors.push(FieldError::forbidden(&whole, "static pods cannot be resized"));
        return;
    }
    if old.text("spec.os.name") == "windows" {
        errors.push(FieldError::forbidden(&whole, "windows pods cannot be resized"));
        return;
    }
    let mut fresh = new.clone();
    super::status::on_create(&mut fresh, "");
    if fresh.text("status.qosClass") != old.text("status.qosClass") {
        errors.push(FieldError::invalid(
            &path,
            old.text("status.qosClass"),
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    if check_resized_containers(new, old, errors) {
        return;
    }
    let running = old.items("status.containerStatuses").iter().find(|c| c.has("state.running"));
    if running.is_some_and(|container| !container.has("resources")) {
        let detail = "Pod running on node without support for resize";
        errors.push(FieldError::forbidden(&path, detail));
    }
    check_pod_level(new.at("spec"), old.at("spec"), errors);
    for list in ["initContainers", "containers"] {
        let full = format!("spec.{list}");
        for (i, (new, old)) in new.items(&full).iter().zip(old.items(&full)).enumerate() {
            check_container_resize(new, old, &path.child(list).index(i), errors);
            if list == "initContainers" {
                check_init_restart(new, old, &path.child(list).index(i), errors);
            }
        }
    }
}

/// Validates a change of the resources that the containers of a Pod share.
fn check_pod_level(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let resources = path.child("resources");
    if old.has("resources") && !new.has("resources") {
        let detail = "pod-level resources cannot be removed";
        errors.push(FieldError::forbidden(&resources, detail));
        return;
    }
    for (list, detail) in [
        ("requests", "pod-level resource requests cannot be removed"),
        ("limits", "pod-level resource limits cannot be removed"),
    ] {
        if removes_amount(new, old, list) {
            errors.push(FieldError::forbidden(&resources.child(list), detail));
        }
    }
    if changes_other_than_amounts(new, old) {
        let detail = "only cpu and memory resources are mutable at pod-level";
        errors.push(FieldError::forbidden(&path, detail));
    }
}

/// Validates a change of a container's resources.
fn check_container_resize(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    for (list, detail) in [
        ("requests", "resource requests cannot be removed"),
        ("limits", "resource limits cannot be removed"),
    ] {
        if removes_amount(new, old, list) {
            errors.push(FieldError::forbidden(&path.child("resources").child(list), detail));
        }
    }
    if changes_other_than_amounts(new, old)
        || new.items("resizePolicy") != old.items("resizePolicy")
    {
        let detail = "only cpu and memory resources are mutable";
        errors.push(FieldError::forbidden(&Path::new("spec"), detail));
    }
}

/// Rejects a resize of an init container that would have to restart.
fn check_init_restart(new: &Value, old: &Value, path: &Path, errors: &mut ErrorList) {
    let mut policies = new.items("resizePolicy").iter();
    let restarts = policies.any(|policy| policy.text("restartPolicy") == "RestartContainer");
    if restarts && new.text("restartPolicy") != "Always" && new != old {
        let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        errors.push(FieldError::forbidden(path, detail));
    }
}

/// Reports whether the new list of requests or limits lacks a resource of the old one.
fn removes_amount(new: &Value, old: &Value, list: &str) -> bool {
    let way = ["resources", list];
    old.pairs(&way).any(|(name, _)| new.at(&way).get(name).is_none())
}

/// Reports whether resources differ in more than the amounts of CPU and memory. An absent list equals an empty one.
fn changes_other_than_amounts(new: &Value, old: &Value) -> bool {
    fn fixed<'a>(holder: &'a Value, list: &str) -> Vec<(&'a String, &'a Value)> {
        let way = ["resources", list];
        let all = holder.pairs(&way);
        all.filter(|(name, _)| *name != "cpu" && *name != "memory").collect()
    }
    let differs = |list: &str| fixed(new, list) != fixed(old, list);
    differs("requests")
        || differs("limits")
        || new.items("resources.claims") != old.items("resources.claims")
}
