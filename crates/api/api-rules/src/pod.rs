//! Rules of Pods, and of the Pod templates in workloads. The tables of Pods are in `table::pods`.

mod app_armor;
mod claims;
mod containers;
mod defaults;
mod image;
mod isolation;
mod label_keys;
mod paths;
mod placement;
mod probes;
mod references;
mod resources;
pub(crate) mod security;
mod spec;
mod status;
#[cfg(test)]
mod tests;
mod update;
mod volumes;
mod warnings;

use api_meta::{ErrorList, FieldError, Path, Selector, Tree as _, Warnings};
use serde_json::Value;

pub(crate) use claims::check_volume_claim_spec;
pub(crate) use defaults::template as template_defaults;
pub use placement::check_node_affinity;
pub(crate) use placement::{check_effect, check_toleration, validate_node_selector};
pub(crate) use probes::check_port;
pub use resources::is_extended_resource;
pub(crate) use resources::{
    is_standard, validate_amount, validate_container_resource_name, validate_standard_or_qualified,
};
pub(crate) use volumes::check_fields as check_volume_source;
pub(crate) use warnings::OLD_VOLUMES;

use crate::{
    strategy::{Selectable, Strategy, Subresource},
    warnings::name_as_host,
};

pub(crate) static POD: Strategy = Strategy {
    status: Some(status::initial),
    generation: true,
    own_defaults: defaults::pod,
    own_create: |pod, now| {
        status::on_create(pod, now);
        label_keys::merge(pod);
        app_armor::copy_annotations(pod);
    },
    own_status: |new, old, _| status::on_status_update(new, old),
    check_status: |new, old, _, errors| status::check(new, old, errors),
    check: check_pod,
    check_create: |pod, errors| {
        app_armor::check(pod, errors);
        if !pod.blank("spec.ephemeralContainers") {
            let path = Path::new("spec").child("ephemeralContainers");
            errors.push(FieldError::forbidden(&path, "cannot be set on create"));
        }
    },
    check_update: update::check,
    // Skip updates: most of them come from kubelets.
    warnings: |pod, old| match old {
        Some(_) => Warnings::new(),
        None => {
            let mut found = Warnings::from_iter(name_as_host(pod, "the Pod's hostname"));
            found.extend(warnings::of(pod, &Path::new("")));
            found
        }
    },
    subresources: &[
        Subresource {
            name: "ephemeralcontainers",
            prepare: |new, old, _| update::only(new, old, &["ephemeralContainers"]),
            validate: update::check_ephemeral,
        },
        Subresource {
            name: "resize",
            prepare: |new, old, _| update::only_resources(new, old),
            validate: update::check_resize,
        },
    ],
    selectable: &SELECTABLE,
    graceful_delete: true,
    has_account: true,
    pod_spec: "spec",
    ..Strategy::PLAIN
};

const SELECTABLE: [Selectable; 9] = [
    ("spec.nodeName", |pod| pod.text("spec.nodeName").to_owned()),
    ("spec.restartPolicy", |pod| pod.text("spec.restartPolicy").to_owned()),
    ("spec.schedulerName", |pod| pod.text("spec.schedulerName").to_owned()),
    ("spec.serviceAccountName", |pod| pod.text("spec.serviceAccountName").to_owned()),
    ("spec.hostNetwork", |pod| pod.flag("spec.hostNetwork").to_string()),
    ("status.phase", |pod| pod.text("status.phase").to_owned()),
    ("status.podIP", |pod| pod.text("status.podIP").to_owned()),
    ("status.podIPs", |pod| pod.text("status.podIP").to_owned()),
    ("status.nominatedNodeName", |pod| pod.text("status.nominatedNodeName").to_owned()),
];

fn check_pod(pod: &Value, errors: &mut ErrorList) {
    spec::check(pod.at("spec"), &Path::new("spec"), errors);
    check_tokens(pod.at("spec"), errors);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in pod.at("spec").items(list).iter().enumerate() {
            let image = container.text("image");
            if image.trim() != image {
                let path = Path::new("spec").child(list).index(i).child("image");
                let detail = "must not have leading or trailing whitespace";
                errors.push(FieldError::invalid(&path, image, detail));
            }
        }
    }
}

/// Reports projected tokens of a Pod without a service account. Pods of a template receive an account later.
fn check_tokens(spec: &Value, errors: &mut ErrorList) {
    if !spec.blank("serviceAccountName") {
        return;
    }
    for (i, volume) in spec.items("volumes").iter().enumerate() {
        for (j, source) in volume.items("projected.sources").iter().enumerate() {
            if source.has("serviceAccountToken") {
                let path = Path::new("spec").child("volumes").index(i).child("projected");
                let path = path.child("sources").index(j).child("serviceAccountToken");
                let detail = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
    }
}

/// Validates a workload's Pod template, whose labels must match the workload's selector.
pub(crate) fn check_template(
    template: &Value,
    selector: Option<&Selector>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let labels = crate::meta::strings(template.at("metadata.labels"));
    let metadata = path.child("metadata");
    if let Some(selector) = selector
        && !selector.matches(&labels)
    {
        errors.push(labels_differ(&metadata.child("labels"), template.at("metadata.labels")));
    }
    errors.append(&mut api_meta::validation::labels(&labels, &metadata.child("labels")));
    errors.append(&mut api_meta::validation::annotations(
        &crate::meta::strings(template.at("metadata.annotations")),
        &metadata.child("annotations"),
    ));
    let spec_path = path.child("spec");
    if !template.blank("spec.ephemeralContainers") {
        errors.push(FieldError::forbidden(
            &spec_path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        ));
    }
    spec::check(template.at("spec"), &spec_path, errors);
}

/// Builds the error for a template whose labels do not match the selector.
pub(crate) fn labels_differ(path: &Path, labels: &Value) -> FieldError {
    FieldError::invalid(path, labels.clone(), "`selector` does not match template `labels`")
}

/// Returns the warnings for a workload whose template at `path` is new or changed.
pub(crate) fn template_warnings(object: &Value, old: Option<&Value>, path: &str) -> Warnings {
    let generation = |object: &Value| object.int("metadata.generation");
    if old.is_some_and(|old| generation(old) == generation(object)) {
        return Warnings::new();
    }
    warnings::of(object.at(path), &Path::new(path))
}

/// Returns [`template_warnings`], and a warning about the name of a workload whose Pods have it in their names.
pub(crate) fn workload_warnings(object: &Value, old: Option<&Value>, path: &str) -> Warnings {
    let name = name_as_host(object, "Pod names and hostnames").filter(|_| old.is_none());
    let mut found = Warnings::from_iter(name);
    found.extend(template_warnings(object, old, path));
    found
}

/// Reports a restart policy that the workload does not allow in its template.
pub(crate) fn check_template_restart(
    template: &Value,
    allowed: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    let policy = template.text("spec.restartPolicy");
    if !allowed.contains(&policy) {
        let path = path.child("spec").child("restartPolicy");
        errors.push(FieldError::not_supported(&path, policy, allowed));
    }
}
