//! Validates fields that depend on the Pod's operating system or user namespace.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

const LINUX: &str = "windows options cannot be set for a linux pod";
const WINDOWS: &str = "cannot be set for a windows pod";

/// The fields of a Pod's spec that Windows does not support.
const OF_POD: [&str; 14] = [
    "securityContext.appArmorProfile",
    "securityContext.seLinuxOptions",
    "hostUsers",
    "hostPID",
    "hostIPC",
    "securityContext.seccompProfile",
    "securityContext.fsGroup",
    "securityContext.fsGroupChangePolicy",
    "securityContext.sysctls",
    "shareProcessNamespace",
    "securityContext.runAsUser",
    "securityContext.runAsGroup",
    "securityContext.supplementalGroups",
    "securityContext.supplementalGroupsPolicy",
];

/// The fields of a container's security context that Windows does not support.
const OF_CONTAINER: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Validates the Windows options of a Pod or a container.
fn check_windows_options(context: &Value, path: &Path, errors: &mut ErrorList) {
    const LONGEST_SPEC: usize = 64 << 10;
    const LONGEST_USER: usize = 104;
    const FORBIDDEN: &str = "\"/\\:;|=,+*?<>@[]";
    let (options, path) = (context.at("windowsOptions"), path.child("windowsOptions"));
    if let Some(name) = options.at("gmsaCredentialSpecName").as_str() {
        for message in validation::dns1123_subdomain(name) {
            errors.push(FieldError::invalid(&path.child("gmsaCredentialSpecName"), name, message));
        }
    }
    if let Some(spec) = options.at("gmsaCredentialSpec").as_str() {
        let path = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            let detail = "gmsaCredentialSpec cannot be an empty string";
            errors.push(FieldError::invalid(&path, spec, detail));
        } else if spec.len() > LONGEST_SPEC {
            let detail = "gmsaCredentialSpec size must be under 64 KiB";
            errors.push(FieldError::invalid(&path, spec, detail));
        }
    }
    let Some(name) = options.at("runAsUserName").as_str() else { return };
    let user = name.rsplit('\\').next().unwrap_or_default();
    let detail = if name.is_empty() {
        "runAsUserName cannot be an empty string".to_owned()
    } else if name.chars().any(char::is_control) {
        "runAsUserName cannot contain control characters".to_owned()
    } else if name.matches('\\').count() > 1 {
        "runAsUserName cannot contain more than one backslash".to_owned()
    } else if user.len() > LONGEST_USER {
        format!("runAsUserName's User length must not be longer than {LONGEST_USER} characters")
    } else if user.trim_matches(['.', ' ']).is_empty() {
        "runAsUserName's User cannot contain only periods or spaces".to_owned()
    } else if user.contains(|c| FORBIDDEN.contains(c)) {
        format!("runAsUserName's User cannot contain the following characters: {FORBIDDEN}")
    } else {
        return;
    };
    errors.push(FieldError::invalid(&path.child("runAsUserName"), name, detail));
}

/// Reports Windows containers with the host's rights in a Pod without the host's network.
fn check_host_process(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let of_pod = spec.flag("securityContext.windowsOptions.hostProcess");
    let mut containers =
        ["containers", "initContainers"].into_iter().flat_map(|list| spec.items(list));
    let has_host_process = containers.any(|container| {
        let own = container.at("securityContext.windowsOptions.hostProcess").as_bool();
        own.unwrap_or(of_pod)
    });
    if has_host_process && !spec.flag("hostNetwork") {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&path.child("hostNetwork"), false, detail));
    }
}

/// Validates a Pod's own fields. PodSecurity skips fields that Windows does not support, so they must be absent.
pub(super) fn check_pod(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let context_path = path.child("securityContext");
    check_windows_options(spec.at("securityContext"), &context_path, errors);
    check_host_process(spec, path, errors);
    match spec.text("os.name") {
        "linux" if spec.has("securityContext.windowsOptions") => {
            let path = path.child("securityContext").child("windowsOptions");
            errors.push(FieldError::forbidden(&path, LINUX));
        }
        "windows" => {
            // A false flag and an empty list of sysctls have no effect.
            let nothing = |field| {
                matches!(field, "hostPID" | "hostIPC" | "securityContext.sysctls")
                    && spec.blank(field)
            };
            for field in OF_POD.into_iter().filter(|field| spec.has(field) && !nothing(field)) {
                let path = field.split('.').fold(path.clone(), |path, name| path.child(name));
                errors.push(FieldError::forbidden(&path, WINDOWS));
            }
        }
        _ => {}
    }
}

/// Validates the security context of one container of a Pod.
pub(super) fn check_container(
    spec: &Value,
    container: &Value,
    path: &Path,
    errors: &mut ErrorList,
) {
    let (context, path) = (container.at("securityContext"), path.child("securityContext"));
    check_windows_options(context, &path, errors);
    if context.text("procMount") == "Unmasked" && spec.at("hostUsers") != &Value::Bool(false) {
        let detail = "`hostUsers` must be false to use `Unmasked`";
        errors.push(FieldError::invalid(&path.child("procMount"), "Unmasked", detail));
    }
    match spec.text("os.name") {
        "linux" if context.has("windowsOptions") => {
            errors.push(FieldError::forbidden(&path.child("windowsOptions"), LINUX));
        }
        "windows" => {
            for field in OF_CONTAINER.into_iter().filter(|field| context.has(field)) {
                errors.push(FieldError::forbidden(&path.child(field), WINDOWS));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use api_meta::field::aggregate;
    use serde_json::json;

    use super::super::POD;
    use super::*;

    /// Returns the errors of a Pod with one container and a volume.
    fn errors(spec: Value, container: Value) -> String {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "d"},
            "spec": {
                "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "terminationMessagePolicy": "File",
                    "resources": {}}]},
        });
        for (name, value) in spec.as_object().unwrap() {
            pod["spec"][name] = value.clone();
        }
        for (name, value) in container.as_object().unwrap() {
            pod["spec"]["containers"][0][name] = value.clone();
        }
        POD.defaults(&mut pod);
        POD.prepare_create(&mut pod, "2026-01-01T00:00:00Z");
        aggregate(&POD.create_errors(&pod, true))
    }

    #[test]
    fn rejects_linux_fields_of_windows_pod() {
        let os = |name: &str| json!({"name": name});
        let context =
            json!({"securityContext": {"runAsUser": 0, "capabilities": {"add": ["ALL"]}}});
        assert_eq!(errors(json!({"os": os("linux")}), context.clone()), "[]");
        assert_eq!(errors(json!({"os": os("windows")}), json!({})), "[]");
        assert_eq!(
            errors(json!({"os": os("windows"), "hostPID": true}), context),
            "[spec.containers[0].securityContext.capabilities: Forbidden: cannot be set for a windows pod, \
             spec.containers[0].securityContext.runAsUser: Forbidden: cannot be set for a windows pod, \
             spec.hostPID: Forbidden: cannot be set for a windows pod]"
        );
        let windows = json!({"windowsOptions": {"runAsUserName": "u"}});
        assert_eq!(
            errors(json!({"os": os("linux"), "securityContext": windows}), json!({})),
            "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod"
        );
    }

    #[test]
    fn rejects_unmasked_proc_without_user_namespace() {
        let unmasked = json!({"securityContext": {"procMount": "Unmasked"}});
        let refusal = "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`";
        assert_eq!(errors(json!({}), unmasked.clone()), refusal);
        assert_eq!(errors(json!({"hostUsers": true}), unmasked.clone()), refusal);
        assert_eq!(errors(json!({"hostUsers": false}), unmasked), "[]");
    }

    #[test]
    fn rejects_profile_that_leads_out_of_its_directory() {
        let seccomp = |file: &str| {
            let profile = json!({"type": "Localhost", "localhostProfile": file});
            errors(json!({"securityContext": {"seccompProfile": profile}}), json!({}))
        };
        let path = "spec.securityContext.seccompProfile.localhostProfile";
        assert_eq!(seccomp("operator/a.json"), "[]");
        assert_eq!(
            seccomp("/tmp/a"),
            format!("{path}: Invalid value: \"/tmp/a\": must be a relative path")
        );
        assert_eq!(
            seccomp("a/../../b"),
            format!("{path}: Invalid value: \"a/../../b\": must not contain '..'")
        );
        let app_armor = |name: &str| {
            let profile = json!({"type": "Localhost", "localhostProfile": name});
            errors(json!({}), json!({"securityContext": {"appArmorProfile": profile}}))
        };
        let path = "spec.containers[0].securityContext.appArmorProfile.localhostProfile";
        assert_eq!(app_armor("k8s-nginx"), "[]");
        assert_eq!(
            app_armor(" a"),
            format!("{path}: Invalid value: \" a\": must not be padded with whitespace")
        );
        assert_eq!(
            app_armor(&"a".repeat(4096)),
            format!("{path}: Too long: may not be more than 4095 bytes")
        );
    }

    #[test]
    fn rejects_mount_modes_that_do_not_go_together() {
        let mounted = |more: Value, privileged: bool| {
            let mut mount = json!({"name": "v", "mountPath": "/v"});
            for (name, value) in more.as_object().unwrap() {
                mount[name] = value.clone();
            }
            let context = json!({"privileged": privileged});
            errors(json!({}), json!({"volumeMounts": [mount], "securityContext": context}))
        };
        let path = "spec.containers[0].volumeMounts[0]";
        assert_eq!(mounted(json!({"recursiveReadOnly": "Disabled"}), false), "[]");
        assert_eq!(mounted(json!({"recursiveReadOnly": "Enabled", "readOnly": true}), false), "[]");
        assert_eq!(
            mounted(json!({"recursiveReadOnly": "IfPossible"}), false),
            format!(
                "{path}.recursiveReadOnly: Forbidden: may only be specified when readOnly is true"
            )
        );
        assert_eq!(
            mounted(
                json!({"recursiveReadOnly": "Enabled", "readOnly": true, "mountPropagation": "HostToContainer"}),
                false
            ),
            format!(
                "{path}.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not specified"
            )
        );
        assert_eq!(mounted(json!({"mountPropagation": "Bidirectional"}), true), "[]");
        assert_eq!(
            mounted(json!({"mountPropagation": "Bidirectional"}), false),
            format!(
                "{path}.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"
            )
        );
        assert_eq!(
            mounted(json!({"mountPropagation": "Shared"}), false),
            format!(
                "{path}.mountPropagation: Unsupported value: \"Shared\": supported values: \"Bidirectional\", \"HostToContainer\", \"None\""
            )
        );
    }
}
