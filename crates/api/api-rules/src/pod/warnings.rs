//! Warnings for valid fields of Pods and Pod templates that are deprecated or rarely intended.

mod paths;

use std::collections::{HashMap, HashSet};

use api_meta::{Path, Tree as _, Warnings};
use serde_json::Value;

use super::app_armor;
use crate::warnings::{fractional, ip, node_label, selector_term};

/// Annotations that are replaced by fields.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
const POD_SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const CONTAINER_SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";
const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const APPARMOR: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

/// Volume types without a driver, with the releases of their deprecation and removal.
pub(crate) const OLD_VOLUMES: [(&str, &str); 9] = [
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

const BYTES: [&str; 2] = ["memory", "ephemeral-storage"];

/// Returns the warnings for a Pod or for a template at `path`, in upstream's order.
pub(super) fn of(pod: &Value, path: &Path) -> Warnings {
    let mut found = WarningCollector { warnings: Warnings::new() };
    let (spec, at) = (pod.at("spec"), path.child("spec"));
    found.placement(spec, &at);
    found.annotations(pod, path);
    found.volumes(spec, &at);
    paths::of(spec, &mut found.warnings);
    found.warn_about_duplicates(spec, "hostAliases", "ip", &at);
    found.warn_about_duplicates(spec, "imagePullSecrets", "name", &at);
    for (i, secret) in spec.items("imagePullSecrets").iter().enumerate() {
        if secret.blank("name") {
            let path = at.child("imagePullSecrets").index(i).child("name");
            found.warn(&path, "invalid empty name \"\"");
        }
    }
    found.fractions(spec, "overhead", &BYTES, &at);
    found.containers(pod, path);
    found.ports(spec, &at);
    if spec.int("terminationGracePeriodSeconds") < 0 {
        found.warn(
            &at.child("terminationGracePeriodSeconds"),
            "must be >= 0; negative values are invalid and will be treated as 1",
        );
    }
    found.affinity(spec, &at.child("affinity"));
    for (i, server) in spec.items("dnsConfig.nameservers").iter().enumerate() {
        let path = at.child("dnsConfig").child("nameservers").index(i);
        found.warnings.extend(ip(server.as_str().unwrap_or_default(), &path));
    }
    for (i, alias) in spec.items("hostAliases").iter().enumerate() {
        let path = at.child("hostAliases").index(i).child("ip");
        found.warnings.extend(ip(alias.text("ip"), &path));
    }
    found.warnings
}

/// Returns a Pod's containers and their paths, in upstream's order.
fn containers<'a>(spec: &'a Value, path: &Path) -> Vec<(&'a Value, Path)> {
    let mut all = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let path = path.child(list);
        let items = spec.items(list).iter().enumerate();
        all.extend(items.map(|(i, container)| (container, path.index(i))));
    }
    all
}

struct WarningCollector {
    warnings: Warnings,
}

impl WarningCollector {
    fn warn(&mut self, path: &Path, message: impl std::fmt::Display) {
        if !self.warnings.is_full() {
            self.warnings.push(format!("{path}: {message}"));
        }
    }

    fn placement(&mut self, spec: &Value, path: &Path) {
        for (label, _) in spec.pairs("nodeSelector") {
            if let Some(old) = node_label(label) {
                self.warn(&path.child("nodeSelector").key(label), old);
            }
        }
        let node = path.child("affinity").child("nodeAffinity");
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let terms = spec.items(&format!("affinity.nodeAffinity.{required}.nodeSelectorTerms"));
        for (i, term) in terms.iter().enumerate() {
            let path = node.child(required).child("nodeSelectorTerms").index(i);
            self.warnings.extend(selector_term(term, false, &path));
        }
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let terms = spec.items(&format!("affinity.nodeAffinity.{preferred}"));
        for (i, term) in terms.iter().enumerate() {
            let path = node.child(preferred).index(i).child("preference");
            self.warnings.extend(selector_term(term.at("preference"), true, &path));
        }
        for (i, constraint) in spec.items("topologySpreadConstraints").iter().enumerate() {
            let path = path.child("topologySpreadConstraints").index(i);
            let key = constraint.text("topologyKey");
            if let Some(old) = node_label(key) {
                self.warn(&path.child("topologyKey"), format_args!("{key} is {old}"));
            }
            self.selects(constraint, &path);
        }
    }

    /// Warns about an absent selector, which matches no Pod.
    fn selects(&mut self, term: &Value, path: &Path) {
        if !term.has("labelSelector") {
            let message = "a null labelSelector results in matching no pod";
            self.warn(&path.child("labelSelector"), message);
        }
    }

    fn affinity(&mut self, spec: &Value, path: &Path) {
        for kind in ["podAffinity", "podAntiAffinity"] {
            let affinity = spec.at("affinity").at(kind);
            for list in [
                "requiredDuringSchedulingIgnoredDuringExecution",
                "preferredDuringSchedulingIgnoredDuringExecution",
            ] {
                for (i, term) in affinity.items(list).iter().enumerate() {
                    let path = path.child(kind).child(list).index(i);
                    if list.starts_with("preferred") {
                        self.selects(term.at("podAffinityTerm"), &path.child("podAffinityTerm"));
                    } else {
                        self.selects(term, &path);
                    }
                }
            }
        }
    }

    fn annotations(&mut self, pod: &Value, path: &Path) {
        let at = path.child("metadata").child("annotations");
        for (key, message) in OLD_ANNOTATIONS {
            if pod.at("metadata.annotations").get(key).is_some() {
                self.warn(&at.key(key), message);
            }
        }
    }

    fn volumes(&mut self, spec: &Value, path: &Path) {
        for (i, volume) in spec.items("volumes").iter().enumerate() {
            let path = path.child("volumes").index(i);
            for (kind, message) in OLD_VOLUMES {
                if volume.has(kind) {
                    self.warn(&path.child(kind), message);
                }
            }
            let claim = volume.at("ephemeral.volumeClaimTemplate.spec");
            if !claim.is_null() {
                let path = path.child("ephemeral").child("volumeClaimTemplate").child("spec");
                self.warnings.extend(crate::warnings::claim(claim, &path));
            }
        }
    }

    fn warn_about_duplicates(&mut self, spec: &Value, list: &str, field: &str, path: &Path) {
        let mut seen = HashSet::new();
        for (i, item) in spec.items(list).iter().enumerate() {
            let text = item.text(field);
            if !seen.insert(text) {
                let path = path.child(list).index(i).child(field);
                self.warn(&path, format_args!("duplicate {field} {text:?}"));
            }
        }
    }

    fn fractions(&mut self, object: &Value, field: &str, names: &[&str], path: &Path) {
        for name in names {
            let Some(amount) = object.at(field).get(*name) else { continue };
            self.warnings.extend(fractional(amount, &path.child(field).key(name)));
        }
    }

    fn containers(&mut self, pod: &Value, path: &Path) {
        let annotations = pod.at("metadata.annotations");
        let (spec, at) = (pod.at("spec"), path.child("metadata").child("annotations"));
        if annotations.get(POD_SECCOMP).is_some() && !spec.has("securityContext.seccompProfile") {
            self.warn(&at.key(POD_SECCOMP), SECCOMP);
        }
        for (container, path) in containers(spec, &path.child("spec")) {
            for (prefix, field, message) in [
                (CONTAINER_SECCOMP, "securityContext.seccompProfile", SECCOMP),
                (app_armor::ANNOTATION, "securityContext.appArmorProfile", APPARMOR),
            ] {
                let key = format!("{prefix}{}", container.text("name"));
                let Some(value) = annotations.get(&key) else { continue };
                // The Pod's field may have been copied from the annotation.
                let profile = value.as_str().and_then(app_armor::profile);
                let copied = profile.is_some_and(|profile| *container.at(field) == profile);
                if copied || !container.has(field) {
                    self.warn(&at.key(&key), message);
                }
            }
            let (resources, path_of) = (container.at("resources"), path.child("resources"));
            for name in BYTES {
                for amounts in ["limits", "requests"] {
                    self.fractions(resources, amounts, &[name], &path_of);
                }
            }
            self.environment(container, &path);
        }
    }

    /// Warns about redefined variables, unless the new value extends the old one.
    fn environment(&mut self, container: &Value, path: &Path) {
        let mut names = HashSet::new();
        for (i, variable) in container.items("env").iter().enumerate() {
            let name = variable.text("name");
            if names.insert(name) {
                continue;
            }
            let (value, reference) = (variable.text("value"), format!("$({name})"));
            let extends = value != reference && value.contains(&reference);
            if variable.has("valueFrom") || !extends {
                self.warn(
                    &path.child("env").index(i),
                    format_args!(
                        "hides previous definition of {name:?}, which may be dropped when using apply"
                    ),
                );
            }
        }
    }

    fn ports(&mut self, spec: &Value, path: &Path) {
        let mut all: HashMap<(i64, &str), Ports> = HashMap::new();
        for (container, path) in containers(spec, path) {
            for (i, port) in container.items("ports").iter().enumerate() {
                let path = path.child("ports").index(i);
                let (number, host, address) =
                    (port.int("containerPort"), port.int("hostPort"), port.text("hostIP"));
                let protocol = port.text("protocol");
                if !address.is_empty() && host == 0 {
                    let name = port.text("name");
                    self.warn(
                        &path,
                        format_args!(
                            "hostIP set without hostPort: {{Name:{name} \
                            HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{address}}}"
                        ),
                    );
                }
                let others = all.entry((number, protocol)).or_default();
                for at in others.meeting(host, address, self.warnings.room()) {
                    let (other_host, other_address, first) = &others.all[at];
                    let word = if (host, address) == (*other_host, *other_address) {
                        "duplicate"
                    } else if host == 0 || *other_host == 0 {
                        "overlapping"
                    } else {
                        "dangerously ambiguous"
                    };
                    self.warn(&path, format_args!("{word} port definition with {first}"));
                }
                others.add(host, address, path);
            }
        }
        self.port_names(spec, path);
    }

    fn port_names(&mut self, spec: &Value, path: &Path) {
        let mut names: HashMap<&str, Path> = HashMap::new();
        for (container, path) in containers(spec, path) {
            for (i, port) in container.items("ports").iter().enumerate() {
                let (name, path) = (port.text("name"), path.child("ports").index(i));
                match names.get(name) {
                    _ if name.is_empty() => {}
                    Some(first) => self.warn(
                        &path,
                        format_args!(
                            "duplicate port name {name:?} \
                            with {first}, services and probes that select ports by name will use \
                            {first}"
                        ),
                    ),
                    None => {
                        names.insert(name, path);
                    }
                }
            }
        }
    }
}

/// The ports of a Pod with one number and protocol, by host port and address.
#[derive(Default)]
struct Ports<'a> {
    all: Vec<(i64, &'a str, Path)>,
    by_host: HashMap<i64, Vec<usize>>,
    by_address: HashMap<(i64, &'a str), Vec<usize>>,
}

impl<'a> Ports<'a> {
    fn add(&mut self, host: i64, address: &'a str, path: Path) {
        let at = self.all.len();
        self.all.push((host, address, path));
        self.by_host.entry(host).or_default().push(at);
        self.by_address.entry((host, address)).or_default().push(at);
    }

    /// Returns the first `room` ports that conflict with a further port.
    ///
    /// Two ports conflict if either has no host port. With the same host port, they conflict if they have the same
    /// address, or if either has none.
    fn meeting(&self, host: i64, address: &'a str, room: usize) -> Vec<usize> {
        if host == 0 {
            return (0..self.all.len().min(room)).collect();
        }
        let same_host: [Option<&Vec<usize>>; 2] = match address {
            "" => [self.by_host.get(&host), None],
            _ => [self.by_address.get(&(host, "")), self.by_address.get(&(host, address))],
        };
        let lists = [self.by_host.get(&0)].into_iter().chain(same_host).flatten();
        let mut found: Vec<usize> =
            lists.flat_map(|list| list.iter().take(room)).copied().collect();
        found.sort_unstable();
        found.truncate(room);
        found
    }
}
