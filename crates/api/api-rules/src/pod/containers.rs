//! Validation of containers, init containers and ephemeral containers.

use std::collections::{HashMap, HashSet};

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

use super::{
    isolation, probes, resources, security,
    spec::{none_or_one_of, one_of},
    volumes::is_local_path,
};

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
            walk.container(container, sort, &path.child(list).index(i));
        }
    }
    resources::check(spec.at("resources"), &path.child("resources"), errors);
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
        walk.container(container, Sort::Ephemeral, &path);
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
    fn container(&mut self, container: &'a Value, sort: Sort, path: &Path) {
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
        self.image(container, path);
        one_of(
            container,
            "imagePullPolicy",
            &["Always", "IfNotPresent", "Never"],
            path,
            self.errors,
        );
        one_of(
            container,
            "terminationMessagePolicy",
            &["FallbackToLogsOnError", "File"],
            path,
            self.errors,
        );
        self.ports(container, path);
        environment(container, path, self.errors);
        self.mounts(container, path);
        resources::check(container.at("resources"), &path.child("resources"), self.errors);
        self.resource_claims(container, path);
        self.resize_policies(container, path);
        security::check_container(container, path, self.errors);
        isolation::check_container(self.spec, container, path, self.errors);
        self.restarts_and_probes(container, sort, path);
    }

    fn image(&mut self, container: &Value, path: &Path) {
        let (image, path) = (container.text("image"), path.child("image"));
        if image.is_empty() {
            self.errors.push(FieldError::required(&path, ""));
        } else if image.trim() != image {
            let detail = "must not have leading or trailing whitespace";
            self.errors.push(FieldError::invalid(&path, image, detail));
        }
    }

    fn restarts_and_probes(&mut self, container: &Value, sort: Sort, path: &Path) {
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
            one_of(container, "restartPolicy", &allowed, path, self.errors);
        }
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
    }

    fn ports(&mut self, container: &Value, path: &Path) {
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
            one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, self.errors);
        }
    }

    fn mounts(&mut self, container: &'a Value, path: &Path) {
        let mut points = HashMap::new();
        for (i, mount) in container.items("volumeMounts").iter().enumerate() {
            let path = path.child("volumeMounts").index(i);
            self.volume_name(mount, &path);
            let point = mount.text("mountPath");
            if point.is_empty() {
                self.errors.push(FieldError::required(&path.child("mountPath"), ""));
            } else if points.insert(point, ()).is_some() {
                let detail = "must be unique";
                self.errors.push(FieldError::invalid(&path.child("mountPath"), point, detail));
            }
            none_or_one_of(
                mount,
                "recursiveReadOnly",
                &["Disabled", "Enabled", "IfPossible"],
                &path,
                self.errors,
            );
            propagation(container, mount, &path.child("mountPropagation"), self.errors);
            recursive_read_only(mount, &path.child("recursiveReadOnly"), self.errors);
            for field in ["subPath", "subPathExpr"] {
                is_local_path(mount.text(field), &path.child(field), self.errors);
            }
            if !mount.blank("subPath") && !mount.blank("subPathExpr") {
                let detail = "subPathExpr and subPath are mutually exclusive";
                let value = mount.at("subPathExpr").clone();
                self.errors.push(FieldError::invalid(&path.child("subPathExpr"), value, detail));
            }
        }
        self.devices(container, path);
    }

    /// Validates volume devices: a container mounts a volume or uses it as a device, and each path is unique.
    fn devices(&mut self, container: &'a Value, path: &Path) {
        const UNFIT: &str =
            "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
        let mounted = |field: &'static str| -> HashSet<&str> {
            container.items("volumeMounts").iter().map(|mount| mount.text(field)).collect()
        };
        let (mounted_names, mounted_points) = (mounted("name"), mounted("mountPath"));
        let (mut points, mut names) = (HashSet::new(), HashSet::new());
        for (i, device) in container.items("volumeDevices").iter().enumerate() {
            let path = path.child("volumeDevices").index(i);
            self.volume_name(device, &path);
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

    fn volume_name(&mut self, mount: &Value, path: &Path) {
        let (name, path) = (mount.text("name"), path.child("name"));
        if name.is_empty() {
            self.errors.push(FieldError::required(&path, ""));
        } else if !self.volumes.contains_key(name) {
            self.errors.push(FieldError::not_found(&path, name));
        }
    }

    fn resize_policies(&mut self, container: &Value, path: &Path) {
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
            for (given, allowed) in choices {
                if given.is_empty() {
                    self.errors.push(FieldError::required(&path, ""));
                } else if !allowed.contains(&given) {
                    self.errors.push(FieldError::not_supported(&path, given, allowed));
                }
            }
        }
    }

    fn resource_claims(&mut self, container: &Value, path: &Path) {
        for (i, claim) in container.items("resources.claims").iter().enumerate() {
            let path = path.child("resources").child("claims").index(i).child("name");
            let name = claim.text("name");
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
fn propagation(container: &Value, mount: &Value, path: &Path, errors: &mut ErrorList) {
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
fn recursive_read_only(mount: &Value, path: &Path, errors: &mut ErrorList) {
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

fn environment(container: &Value, path: &Path, errors: &mut ErrorList) {
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
            value_from(variable, &path.child("valueFrom"), errors);
        }
    }
    for (i, source) in container.items("envFrom").iter().enumerate() {
        let path = path.child("envFrom").index(i);
        let kinds = ["configMapRef", "secretRef"];
        let found: Vec<&str> = kinds.into_iter().filter(|kind| source.has(kind)).collect();
        match found[..] {
            [] => errors.push(FieldError::invalid(
                &path,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            )),
            [kind] => object_name(source.at(kind), &path.child(kind), errors),
            _ => errors.push(FieldError::invalid(
                &path,
                "",
                "may not have more than one field specified at a time",
            )),
        }
    }
}

fn value_from(variable: &Value, path: &Path, errors: &mut ErrorList) {
    const SOURCES: [&str; 5] =
        ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"];
    let source = variable.at("valueFrom");
    let found: Vec<&str> = SOURCES.into_iter().filter(|kind| source.has(kind)).collect();
    match found[..] {
        [] => errors.push(FieldError::invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
        )),
        [_] if !variable.blank("value") => errors.push(FieldError::invalid(
            path,
            "",
            "may not be specified when `value` is not empty",
        )),
        [kind] => {
            let (source, path) = (source.at(kind), path.child(kind));
            match kind {
                "fieldRef" => field_ref(source, &ENV_FIELDS, &path, errors),
                "resourceFieldRef" => resource_field(source, false, &path, errors),
                "fileKeyRef" => named(source, "key", &path, errors),
                _ => {
                    object_name(source, &path, errors);
                    config_key(source, &path, errors);
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
fn object_name(source: &Value, path: &Path, errors: &mut ErrorList) {
    named(source, "name", path, errors);
    let name = source.text("name");
    if !name.is_empty() {
        for message in validation::dns1123_subdomain(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, message));
        }
    }
}

/// Validates a reference to a container's resource. In a volume it must name the container.
pub(super) fn resource_field(source: &Value, in_volume: bool, path: &Path, errors: &mut ErrorList) {
    const RESOURCES: [&str; 6] = [
        "limits.cpu",
        "limits.ephemeral-storage",
        "limits.memory",
        "requests.cpu",
        "requests.ephemeral-storage",
        "requests.memory",
    ];
    if in_volume && source.blank("containerName") {
        errors.push(FieldError::required(&path.child("containerName"), ""));
        return;
    }
    let resource = source.text("resource");
    let huge = |name: &str| name.contains(".hugepages-");
    if resource.is_empty() {
        errors.push(FieldError::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !huge(resource) {
        errors.push(FieldError::not_supported(&path.child("resource"), resource, &RESOURCES));
    }
    let divisor = source.text("divisor");
    let (what, allowed) = match resource.split_once('.').map(|(_, name)| name) {
        Some("cpu") => ("cpu", &["1m", "1"][..]),
        Some("memory") => ("memory", MEMORY_DIVISORS),
        Some("ephemeral-storage") => ("ephemeral-storage", MEMORY_DIVISORS),
        _ => return,
    };
    if !matches!(divisor, "" | "0") && !allowed.contains(&divisor) {
        let list = match what {
            "cpu" => "1m and 1",
            _ => "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei",
        };
        let detail = match what {
            "ephemeral-storage" => {
                format!(
                    "only divisor's values {list} are supported with the local ephemeral storage resource"
                )
            }
            _ => format!("only divisor's values {list} are supported with the {what} resource"),
        };
        errors.push(FieldError::invalid(&path.child("divisor"), resource, detail));
    }
}

const MEMORY_DIVISORS: &[&str] =
    &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

fn config_key(source: &Value, path: &Path, errors: &mut ErrorList) {
    let (key, path) = (source.text("key"), path.child("key"));
    if key.is_empty() {
        errors.push(FieldError::required(&path, ""));
        return;
    }
    for message in validation::config_map_key(key) {
        errors.push(FieldError::invalid(&path, key, message));
    }
}

/// Reports a missing required string.
pub(super) fn named(object: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    if object.blank(field) {
        errors.push(FieldError::required(&path.child(field), ""));
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

/// Validates a reference to a field of the Pod. `fields` are the fields that are allowed in this place.
pub(super) fn field_ref(source: &Value, fields: &[&str], path: &Path, errors: &mut ErrorList) {
    let (field, path) = (source.text("fieldPath"), path.child("fieldPath"));
    let subscript =
        field.starts_with("metadata.annotations['") || field.starts_with("metadata.labels['");
    if field.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else if !fields.contains(&field) && !subscript {
        errors.push(FieldError::not_supported(&path, field, fields));
    }
}
