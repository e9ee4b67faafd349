//! Rules of Namespaces, ServiceAccounts, Events, and ComponentStatuses.

use api_meta::{FieldError, Path, Tree as _, validation};
use serde_json::{Value, json};

use super::{event, status};
use crate::{
    meta::{NameRule, check_finalizer_owner},
    strategy::{Strategy, Subresource},
};

pub(crate) static NAMESPACE: Strategy = Strategy {
    scope: true,
    name: NameRule::Label,
    status: Some(|| json!({"phase": "Active"})),
    own_defaults: name_label,
    own_create: |namespace, _| {
        name_label(namespace);
        let list = namespace.items("spec.finalizers");
        if !list.iter().any(|f| f == "kubernetes") {
            let mut list = list.to_vec();
            list.push("kubernetes".into());
            namespace.set("spec.finalizers", list);
        }
    },
    own_update: |new, old, _| {
        name_label(new);
        new.keep(old, "spec.finalizers");
    },
    check: |namespace, errors| {
        let path = Path::new("spec").child("finalizers");
        for finalizer in namespace.items("spec.finalizers") {
            let name = finalizer.as_str().unwrap_or_default();
            for message in validation::qualified_name(name) {
                errors.push(FieldError::invalid(&path, name, message));
            }
            check_finalizer_owner(name, &path, errors);
        }
    },
    check_status: |new, _, _, errors| status::check_namespace(new, errors),
    subresources: &[Subresource {
        name: "finalize",
        prepare: |new, old, _| {
            let finalizers = new.at("spec.finalizers").clone();
            let version = new.at("metadata.resourceVersion").clone();
            *new = old.clone();
            new.set("spec.finalizers", finalizers);
            new.set("metadata.resourceVersion", version);
        },
        validate: |_, _, _| {},
    }],
    selectable: &[
        ("name", |namespace| namespace.name().to_owned()),
        ("status.phase", |namespace| namespace.text("status.phase").to_owned()),
    ],
    ..Strategy::PLAIN
};

/// Sets the label with the Namespace's name, so that selectors can select a Namespace by name.
fn name_label(namespace: &mut Value) {
    let name = namespace.at("metadata.name").clone();
    if !namespace.blank("metadata.name")
        && let Some(labels) = namespace.map_mut("metadata.labels")
    {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name);
    }
}

const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

pub(crate) static SERVICE_ACCOUNT: Strategy = Strategy {
    warnings: |new, old| {
        let has = |o: &Value| o.at("metadata.annotations").get(MOUNTABLE_SECRETS).is_some();
        let words = || {
            format!(
                "metadata.annotations[{MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate \
                namespaces to isolate access to mounted secrets"
            )
        };
        (has(new) && !old.is_some_and(has)).then(words).into_iter().collect()
    },
    ..Strategy::PLAIN
};

pub(crate) static COMPONENT_STATUS: Strategy = Strategy {
    computed: true,
    deprecation: Some("v1 ComponentStatus is deprecated in v1.19+"),
    ..Strategy::PLAIN
};

pub(crate) static EVENT: Strategy = Strategy {
    expires: true,
    name: NameRule::PathSegment,
    check_create: event::check_create,
    check_update: event::check_update,
    selectable: &[
        ("involvedObject.kind", |e| about(e, "kind")),
        ("involvedObject.namespace", |e| about(e, "namespace")),
        ("involvedObject.name", |e| about(e, "name")),
        ("involvedObject.uid", |e| about(e, "uid")),
        ("involvedObject.apiVersion", |e| about(e, "apiVersion")),
        ("involvedObject.resourceVersion", |e| about(e, "resourceVersion")),
        ("involvedObject.fieldPath", |e| about(e, "fieldPath")),
        ("regarding.kind", |e| about(e, "kind")),
        ("regarding.namespace", |e| about(e, "namespace")),
        ("regarding.name", |e| about(e, "name")),
        ("regarding.uid", |e| about(e, "uid")),
        ("regarding.apiVersion", |e| about(e, "apiVersion")),
        ("regarding.resourceVersion", |e| about(e, "resourceVersion")),
        ("regarding.fieldPath", |e| about(e, "fieldPath")),
        ("reason", |e| e.text("reason").to_owned()),
        ("reportingComponent", reporter),
        ("reportingController", reporter),
        ("source", |e| {
            let source = [e.text("source.component"), e.text("deprecatedSource.component")];
            let source = source.into_iter().find(|s| !s.is_empty());
            source.map_or_else(|| reporter(e), str::to_owned)
        }),
        ("type", |e| e.text("type").to_owned()),
    ],
    create_on_update: true,
    ..Strategy::PLAIN
};

/// Returns a field of the object that an Event is about, for core/v1 and events.k8s.io/v1.
fn about(event: &Value, field: &str) -> String {
    let holder = if event.has("regarding") { "regarding" } else { "involvedObject" };
    event.at(holder).text(field).to_owned()
}

fn reporter(event: &Value) -> String {
    let controller = event.text("reportingController");
    if controller.is_empty() { event.text("reportingComponent") } else { controller }.to_owned()
}
