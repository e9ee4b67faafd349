//! Validation of containers, init containers and ephemeral containers.

use std::collections::{HashMap, HashSet};

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

use super::{
    isolation,
    paths::validate_local_path,
    probes,
    references::{validate_field_ref, validate_resource_field},
    resources, security,
};
use crate::fields::{validate_one_of, validate_optional_one_of, validate_present};

/// The sort of a container, which decides which fields are allowed.
#[derive(Clone, Copy, PartialEq)]
enum Sort {
    Main,
    Init,
    Ephemeral,
}

/// A Pod's volumes by name.
type Volumes<'a> = HashMap<&'a str, &'a Value>;

/// Validates the containers and init containers of a Pod, which may mount `volumes`.
pub(super) fn check(spec: &Value, volumes: &Volumes<'_>, path: &Path, errors: &mut ErrorList) {
    if spec.items("containers").is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    let claims: HashSet<&str> =
        spec.items("resourceClaims").iter().map(|c| c.text("name")).collect();
    let mut walk = Walk {
        spec,
        volumes,
        claims,
        names: HashSet::new(),
        host: spec.flag("hostNetwork"),
        errors,
    };
    for (list, sort) in [
        ("containers", Sort::Main),
        ("initContainers", Sort::Init),
        ("ephemeralContainers", Sort::Ephemeral),
    ] {
        for (i, container) in spec.items(list).iter().enumerate() {
            walk.validate_container(container, sort, &path.child(list).index(i));
        }
    }
    resources::check(spec.at("resources"), &path.child("resources"), errors);
    if spec.has("resources") {
        resources::check_pod_level(spec, &path.child("resources"), errors);
    }
}

/// Validates the ephemeral containers of a Pod. `path` is the path of their list.
pub(super) fn check_ephemeral(spec: &Value, path: &Path, errors: &mut ErrorList) {
    let volumes = spec.items("volumes").iter().map(|v| (v.text("name"), v)).collect();
    let others = ["containers", "initContainers"];
    let names: HashSet<&str> =
        others.iter().flat_map(|list| spec.items(list)).map(|c| c.text("name")).collect();
    let targets = names.clone();
    let mut walk =
        Walk { spec, volumes: &volumes, claims: HashSet::new(), names, host: false, errors };
    for (i, container) in spec.items("ephemeralContainers").iter().enumerate() {
        let (path, target) = (path.index(i), container.text("targetContainerName"));
        walk.validate_container(container, Sort::Ephemeral, &path);
        if !target.is_empty() && !targets.contains(target) {
            walk.errors.push(FieldError::not_found(&path.child("targetContainerName"), target));
        }
    }
}

struct Walk<'a> {
    spec: &'a Value,
    volumes: &'a Volumes<'a>,
    claims: HashSet<&'a str>,
    names: HashSet<&'a str>,
    host: bool,
    errors: &'a mut ErrorList,
}

impl<'a> Walk<'a> {
    fn validate_container(&mut self, container: &'a Value, sort: Sort, path: &Path) {
        let name = container.text("name");
        let name_path = path.child("name");
        if name.is_empty() {
            self.errors.push(FieldError::required(&name_path, ""));
        } else {
            for message in validation::dns1123_label(name) {
                self.errors.push(FieldError::invalid(&name_path, name, message));
            }
            if !self.names.insert(name) {
                self.errors.push(FieldError::duplicate(&name_path, name));
            }
        }
        self.validate_image(container, path);
        validate_one_of(
            container,
            "imagePullPolicy",
            &["Always", "IfNotPresent", "Never"],
            path,
            self.errors,
        );
        validate_one_of(
            container,
            "terminationMessagePolicy",
            &["FallbackToLogsOnError", "File"],
            path,
            self.errors,
        );
        self.validate_ports(container, path);
        validate_environment(container, path, self.errors);
        self.validate_environment_files(container, path);
        self.validate_mounts(container, path);
        resources::check(container.at("resources"), &path.child("resources"), self.errors);
        self.validate_resource_claims(container, path);
        self.validate_resize_policies(container, path);
        security::check_container(container, path, self.errors);
        isolation::check_container(self.spec, container, path, self.errors);
        self.validate_restarts_and_probes(container, sort, path);
    }

    fn validate_image(&mut self, container: &Value, path: &Path) {
        let (image, path) = (container.text("image"), path.child("image"));
        if image.is_empty() {
            self.errors.push(FieldError::required(&path, ""));
        }
    }

    fn validate_restarts_and_probes(&mut self, container: &Value, sort: Sort, path: &Path) {
        let policy = container.text("restartPolicy");
        if sort == Sort::Ephemeral {
            for field in [
                "lifecycle",
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
                "ports",
                "resources",
                "restartPolicy",
                "restartPolicyRules",
            ] {
                if !container.blank(field) {
                    let detail = "cannot be set for an Ephemeral Container";
                    self.errors.push(FieldError::forbidden(&path.child(field), detail));
                }
            }
            return;
        }
        if !policy.is_empty() {
            let allowed = ["Always", "Never", "OnFailure"];
            validate_one_of(container, "restartPolicy", &allowed, path, self.errors);
        }
        self.validate_restart_rules(container, path);
        if sort == Sort::Init && policy != "Always" {
            for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if container.has(field) {
                    let detail = "may not be set for init containers without restartPolicy=Always";
                    self.errors.push(FieldError::forbidden(&path.child(field), detail));
                }
            }
            return;
        }
        probes::check(container, path, self.errors);
        probes::check_sleep(container, self.spec, path, self.errors);
    }

    fn validate_restart_rules(&mut self, container: &Value, path: &Path) {
        const MAX_RULES: usize = 20;
        const MAX_CODES: usize = 255;
        let (field, rules) =
            (path.child("restartPolicyRules"), container.items("restartPolicyRules"));
        if !rules.is_empty() && container.blank("restartPolicy") {
            let detail = "must specify restartPolicy when restart rules are used";
            self.errors.push(FieldError::required(&path.child("restartPolicy"), detail));
        }
        if rules.len() > MAX_RULES {
            self.errors.push(FieldError::too_many(&field, rules.len(), MAX_RULES));
            return;
        }
        for (i, rule) in rules.iter().enumerate() {
            let field = field.index(i);
            let actions = ["Restart", "RestartAllContainers"];
            validate_one_of(rule, "action", &actions, &field, self.errors);
            let codes = field.child("exitCodes");
            if !rule.has("exitCodes") {
                self.errors.push(FieldError::required(&codes, "must be specified"));
                continue;
            }
            let exit_codes = rule.at("exitCodes");
            validate_one_of(exit_codes, "operator", &["In", "NotIn"], &codes, self.errors);
            let count = exit_codes.items("values").len();
            if count > MAX_CODES {
                let values = codes.child("values");
                self.errors.push(FieldError::too_many(&values, count, MAX_CODES));
            }
        }
    }

    fn validate_ports(&mut self, container: &Value, path: &Path) {
        let mut names = HashSet::new();
        for (i, port) in container.items("ports").iter().enumerate() {
            let path = path.child("ports").index(i);
            let name = port.text("name");
            if !name.is_empty() {
                for message in validation::port_name(name) {
                    self.errors.push(FieldError::invalid(&path.child("name"), name, message));
                }
                if !names.insert(name) {
                    self.errors.push(FieldError::duplicate(&path.child("name"), name));
                }
            }
            let number = port.int("containerPort");
            if number == 0 {
                self.errors.push(FieldError::required(&path.child("containerPort"), ""));
            } else {
                for message in validation::port_number(number) {
                    self.errors.push(FieldError::invalid(
                        &path.child("containerPort"),
                        number,
                        message,
                    ));
                }
            }
            let host = port.int("hostPort");
            if host != 0 {
                for message in validation::port_number(host) {
                    self.errors.push(FieldError::invalid(&path.child("hostPort"), host, message));
                }
                if self.host && host != number {
                    let detail = "must match `containerPort` when `hostNetwork` is true";
                    self.errors.push(FieldError::invalid(&path.child("hostPort"), host, detail));
                }
            }
            validate_one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, self.errors);
        }
    }

    fn validate_mounts(&mut self, container: &'a Value, path: &Path) {
        let mut points = HashMap::new();
        for (i, mount) in container.items("volumeMounts").iter().enumerate() {
            let path = path.child("volumeMounts").index(i);
            self.validate_volume_name(mount, &path);
            let point = mount.text("mountPath");
            if point.is_empty() {
                self.errors.push(FieldError::required(&path.child("mountPath"), ""));
            } else if points.insert(point, ()).is_some() {
                let detail = "must be unique";
                self.errors.push(FieldError::invalid(&path.child("mountPath"), point, detail));
            }
            validate_optional_one_of(
                mount,
                "recursiveReadOnly",
                &["Disabled", "Enabled", "IfPossible"],
                &path,
                self.errors,
            );
            validate_propagation(container, mount, &path.child("mountPropagation"), self.errors);
            validate_recursive_read_only(mount, &path.child("recursiveReadOnly"), self.errors);
            for field in ["subPath", "subPathExpr"] {
                validate_local_path(mount.text(field), &path.child(field), self.errors);
            }
            if !mount.blank("subPath") && !mount.blank("subPathExpr") {
                let detail = "subPathExpr and subPath are mutually exclusive";
                let value = mount.at("subPathExpr").clone();
                self.errors.push(FieldError::invalid(&path.child("subPathExpr"), value, detail));
            }
        }
        self.validate_devices(container, path);
    }

    /// Validates volume devices: a container mounts a volume or uses it as a device, and each path is unique.
    fn validate_devices(&mut self, container: &'a Value, path: &Path) {
        const UNFIT: &str =
            "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
        let mounted = |field: &'static str| -> HashSet<&str> {
            container.items("volumeMounts").iter().map(|mount| mount.text(field)).collect()
        };
        let (mounted_names, mounted_points) = (mounted("name"), mounted("mountPath"));
        let (mut points, mut names) = (HashSet::new(), HashSet::new());
        for (i, device) in container.items("volumeDevices").iter().enumerate() {
            let path = path.child("volumeDevices").index(i);
            self.validate_volume_name(device, &path);
            let (name, point) = (device.text("name"), device.text("devicePath"));
            if point.is_empty() {
                self.errors.push(FieldError::required(&path.child("devicePath"), ""));
            }
            let claimed = |v: &&Value| v.has("persistentVolumeClaim") || v.has("ephemeral");
            let unfit = self.volumes.get(name).is_some_and(|volume| !claimed(volume));
            let outside = point.split('/').any(|part| part == "..");
            for (field, text, wrong, detail) in [
                ("name", name, unfit, UNFIT),
                ("name", name, !names.insert(name), "must be unique"),
                ("devicePath", point, !points.insert(point), "must be unique"),
                ("devicePath", point, outside, "can not contain backsteps ('..')"),
                (
                    "name",
                    name,
                    mounted_names.contains(name),
                    "must not already exist in volumeMounts",
                ),
                (
                    "devicePath",
                    point,
                    mounted_points.contains(point),
                    "must not already exist as a path in volumeMounts",
                ),
            ] {
                if wrong && !text.is_empty() {
                    self.errors.push(FieldError::invalid(&path.child(field), text, detail));
                }
            }
        }
    }

    fn validate_volume_name(&mut self, mount: &Value, path: &Path) {
        let (name, path) = (mount.text("name"), path.child("name"));
        if name.is_empty() {
            self.errors.push(FieldError::required(&path, ""));
        } else if !self.volumes.contains_key(name) {
            self.errors.push(FieldError::not_found(&path, name));
        }
    }

    /// Reports environment variables from files of volumes that the Pod does not have.
    fn validate_environment_files(&mut self, container: &Value, path: &Path) {
        for (i, variable) in container.items("env").iter().enumerate() {
            let volume = variable.text("valueFrom.fileKeyRef.volumeName");
            if !volume.is_empty() && !self.volumes.contains_key(volume) {
                let path = path.child("env").index(i).child("valueFrom").child("fileKeyRef");
                self.errors.push(FieldError::not_found(&path.child("volumeName"), volume));
            }
        }
    }

    fn validate_resize_policies(&mut self, container: &Value, path: &Path) {
        let path = path.child("resizePolicy");
        let mut seen = HashSet::new();
        for (i, policy) in container.items("resizePolicy").iter().enumerate() {
            let (resource, restart) = (policy.text("resourceName"), policy.text("restartPolicy"));
            if !seen.insert(resource) {
                self.errors.push(FieldError::duplicate(&path.index(i), resource));
            }
            let choices = [
                (resource, &["cpu", "memory"][..]),
                (restart, &["NotRequired", "RestartContainer"]),
            ];
            for (value, allowed) in choices {
                if value.is_empty() {
                    self.errors.push(FieldError::required(&path, ""));
                } else if !allowed.contains(&value) {
                    self.errors.push(FieldError::not_supported(&path, value, allowed));
                }
            }
        }
    }

    fn validate_resource_claims(&mut self, container: &Value, path: &Path) {
        let mut seen = HashSet::new();
        for (i, claim) in container.items("resources.claims").iter().enumerate() {
            let path = path.child("resources").child("claims").index(i);
            let (name, request) = (claim.text("name"), claim.text("request"));
            if !request.is_empty() {
                for message in validation::dns1123_label(request) {
                    self.errors.push(FieldError::invalid(&path.child("request"), request, message));
                }
            }
            if !seen.insert((name, request)) {
                let separator = if request.is_empty() { "" } else { "/" };
                let shown = format!("{name}{separator}{request}");
                self.errors.push(FieldError::duplicate(&path, shown));
            }
            let path = path.child("name");
            if name.is_empty() {
                self.errors.push(FieldError::required(&path, ""));
            } else if !self.claims.contains(name) {
                let detail = "must be one of the names in pod.spec.resourceClaims";
                self.errors.push(FieldError::invalid(&path, name, detail));
            }
        }
    }
}

/// Rejects bidirectional mount propagation for unprivileged containers.
fn validate_propagation(container: &Value, mount: &Value, path: &Path, errors: &mut ErrorList) {
    const MODES: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
    let Some(mode) = mount.at("mountPropagation").as_str() else { return };
    if !MODES.contains(&mode) {
        errors.push(FieldError::not_supported(path, mode, &MODES));
    }
    if mode == "Bidirectional" && !container.at("securityContext").flag("privileged") {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(path, detail));
    }
}

/// Validates recursive read-only mounts: they must be read-only and must not receive mounts from the host.
fn validate_recursive_read_only(mount: &Value, path: &Path, errors: &mut ErrorList) {
    if !["Enabled", "IfPossible"].contains(&mount.text("recursiveReadOnly")) {
        return;
    }
    if !mount.flag("readOnly") {
        errors.push(FieldError::forbidden(path, "may only be specified when readOnly is true"));
    }
    if !["", "None"].contains(&mount.text("mountPropagation")) {
        let detail = "may only be specified when mountPropagation is None or not specified";
        errors.push(FieldError::forbidden(path, detail));
    }
}

fn validate_environment(container: &Value, path: &Path, errors: &mut ErrorList) {
    for (i, variable) in container.items("env").iter().enumerate() {
        let path = path.child("env").index(i);
        let name = variable.text("name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            for message in validation::env_var_name(name) {
                errors.push(FieldError::invalid(&path.child("name"), name, message));
            }
        }
        if variable.has("valueFrom") {
            validate_value_from(variable, &path.child("valueFrom"), errors);
        }
    }
    let all = path.child("envFrom");
    for (i, source) in container.items("envFrom").iter().enumerate() {
        let path = all.index(i);
        let kinds = ["configMapRef", "secretRef"];
        let found: Vec<&str> = kinds.into_iter().filter(|kind| source.has(kind)).collect();
        match found[..] {
            // As upstream, which reports the path of the list.
            [] => errors.push(FieldError::invalid(
                &all,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            )),
            [kind] => validate_object_name(source.at(kind), &path.child(kind), errors),
            _ => errors.push(FieldError::invalid(
                &all,
                "",
                "may not have more than one field specified at a time",
            )),
        }
    }
}

fn validate_value_from(variable: &Value, path: &Path, errors: &mut ErrorList) {
    const SOURCES: [&str; 5] =
        ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let source = variable.at("valueFrom");
    let found: Vec<&str> = SOURCES.into_iter().filter(|kind| source.has(kind)).collect();
    match found[..] {
        [] => errors.push(FieldError::invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        )),
        [_] if !variable.blank("value") => errors.push(FieldError::invalid(
            path,
            "",
            "may not be specified when `value` is not empty",
        )),
        [kind] => {
            let (source, path) = (source.at(kind), path.child(kind));
            match kind {
                "fieldRef" => validate_field_ref(source, &ENV_FIELDS, &path, errors),
                "resourceFieldRef" => validate_resource_field(source, false, &path, errors),
                "fileKeyRef" => validate_present(source, "key", &path, errors),
                _ => {
                    validate_object_name(source, &path, errors);
                    validate_config_key(source, &path, errors);
                }
            }
        }
        _ => errors.push(FieldError::invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        )),
    }
}

/// Validates the name of a ConfigMap or Secret, also of an optional one.
fn validate_object_name(source: &Value, path: &Path, errors: &mut ErrorList) {
    validate_present(source, "name", path, errors);
    let name = source.text("name");
    if !name.is_empty() {
        for message in validation::dns1123_subdomain(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, message));
        }
    }
}

fn validate_config_key(source: &Value, path: &Path, errors: &mut ErrorList) {
    let (key, path) = (source.text("key"), path.child("key"));
    if key.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    for message in validation::config_map_key(key) {
        errors.push(FieldError::invalid(&path, key, message));
    }
}

/// The fields that environment variables may refer to.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
