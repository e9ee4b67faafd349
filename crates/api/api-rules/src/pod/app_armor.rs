//! AppArmor profiles in annotations, one per container. Kubelets read only the fields.

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use serde_json::{Value, json};

/// The prefix of an annotation's name, which is followed by the container's name.
pub(super) const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const LISTS: [&str; 3] = ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"];

/// Returns the profile for an annotation's value.
pub(super) fn profile(value: &str) -> Option<Value> {
    match value {
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        "unconfined" => Some(json!({"type": "Unconfined"})),
        other => {
            let name = other.strip_prefix("localhost/").filter(|name| !name.is_empty())?;
            Some(json!({"type": "Localhost", "localhostProfile": name}))
        }
    }
}

/// Copies the annotation's profile to containers without one, unless the Pod has the same profile.
pub(super) fn copy_annotations(pod: &mut Value) {
    if pod.text("spec.os.name") == "windows" {
        return;
    }
    let annotations = pod.at("metadata.annotations").as_object();
    let profiles: Vec<(String, Value)> = annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| {
            Some((key.strip_prefix(ANNOTATION)?.to_owned(), profile(value.as_str()?)?))
        })
        .collect();
    if profiles.is_empty() {
        return;
    }
    let of_pod = pod.at("spec.securityContext.appArmorProfile").clone();
    for list in LISTS {
        for container in pod.items_mut(list) {
            let named = profiles.iter().find(|(name, _)| name == container.text("name"));
            if let Some((_, profile)) = named
                && *profile != of_pod
                && !container.has("securityContext.appArmorProfile")
            {
                container.put("securityContext.appArmorProfile", profile.clone());
            }
        }
    }
}

/// Validates the annotations: each names a container of the Pod and has a known form.
pub(super) fn check(pod: &Value, errors: &mut ErrorList) {
    let path = Path::new("metadata").child("annotations");
    for (key, value) in pod.at("metadata.annotations").as_object().into_iter().flatten() {
        let Some(name) = key.strip_prefix(ANNOTATION) else { continue };
        let (path, value) = (path.key(key), value.as_str().unwrap_or_default());
        let mut containers = LISTS.iter().flat_map(|list| pod.items(list));
        if !containers.any(|container| container.text("name") == name) {
            errors.push(FieldError::invalid(&path, name, "container not found"));
        }
        let known = ["", "runtime/default", "unconfined"].contains(&value);
        if !known && !value.starts_with("localhost/") {
            let detail = format!("invalid AppArmor profile name: {}", api_meta::go_quote(value));
            errors.push(FieldError::invalid(&path, value, detail));
        }
    }
}

#[cfg(test)]
mod tests {
    use api_meta::field::aggregate;

    use super::*;

    fn annotated(value: &str, of_pod: Value, own: Value) -> Value {
        json!({
            "metadata": {"annotations": {format!("{ANNOTATION}c"): value}},
            "spec": {"securityContext": {"appArmorProfile": of_pod},
                "containers": [{"name": "c", "securityContext": {"appArmorProfile": own}}, {"name": "d"}]},
        })
    }

    #[test]
    fn copies_profile_of_annotation_to_its_container() {
        let own = json!({"type": "Unconfined"});
        let named = json!({"type": "Localhost", "localhostProfile": "k8s-nginx"});
        let default = json!({"type": "RuntimeDefault"});
        for (value, of_pod, own, copied) in [
            ("localhost/k8s-nginx", Value::Null, Value::Null, named.clone()),
            ("runtime/default", Value::Null, Value::Null, default.clone()),
            ("runtime/default", default.clone(), Value::Null, Value::Null),
            ("unconfined", default.clone(), Value::Null, own.clone()),
            ("runtime/default", Value::Null, own.clone(), own),
            ("localhost/", Value::Null, Value::Null, Value::Null),
        ] {
            let mut pod = annotated(value, of_pod, own);
            copy_annotations(&mut pod);
            let containers = pod.items("spec.containers");
            let profile = |at: usize| containers[at].at("securityContext.appArmorProfile").clone();
            assert_eq!((profile(0), profile(1)), (copied, Value::Null), "{value}");
        }
        let mut windows = annotated("runtime/default", Value::Null, Value::Null);
        windows.put("spec.os.name", "windows");
        copy_annotations(&mut windows);
        assert!(
            windows.items("spec.containers")[0].at("securityContext.appArmorProfile").is_null()
        );
    }

    #[test]
    fn rejects_annotation_of_no_container_or_form() {
        let create_errors = |key: &str, value: &str| {
            let mut pod = annotated("", Value::Null, Value::Null);
            pod["metadata"]["annotations"] = json!({key: value});
            let mut errors = ErrorList::new();
            check(&pod, &mut errors);
            aggregate(&errors)
        };
        let (own, other) = (format!("{ANNOTATION}c"), format!("{ANNOTATION}x"));
        assert_eq!(create_errors(&own, "localhost/a"), "[]");
        assert_eq!(
            create_errors(&own, "local"),
            format!(
                "metadata.annotations[{own}]: Invalid value: \"local\": invalid AppArmor profile name: \"local\""
            )
        );
        assert_eq!(
            create_errors(&other, "runtime/default"),
            format!("metadata.annotations[{other}]: Invalid value: \"x\": container not found")
        );
    }
}
