//! The checks of the restricted level.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use serde_json::Value;

use super::{
    check::{Check, Violation, violation},
    containers::{
        containers, forbidden_values, name, name_containers, name_setters, plural, quoted,
    },
};

/// The checks of the restricted level, in the order in which they are reported.
pub(crate) const RESTRICTED: &[Check] = &[
    Check {
        name: "allowPrivilegeEscalation",
        since: 8,
        replaces: None,
        find: privilege_escalation,
    },
    Check {
        name: "capabilities_restricted",
        since: 22,
        replaces: Some("capabilities_baseline"),
        find: capabilities,
    },
    Check { name: "restrictedVolumes", since: 0, replaces: Some("hostPathVolumes"), find: volumes },
    Check { name: "runAsNonRoot", since: 0, replaces: None, find: run_as_non_root },
    Check { name: "runAsUser", since: 23, replaces: None, find: run_as_user },
    Check {
        name: "seccompProfile_restricted",
        since: 19,
        replaces: Some("seccompProfile_baseline"),
        find: seccomp,
    },
];

/// Reports whether the Pod runs on Windows, where these controls do not apply since 1.25.
fn on_windows(pod: &Value, minor: u32) -> bool {
    minor >= 25 && pod.text("spec.os.name") == "windows"
}

fn privilege_escalation(pod: &Value, minor: u32) -> Option<Violation> {
    let bad = |c: &&Value| c.opt_flag("securityContext.allowPrivilegeEscalation") != Some(false);
    let names: Vec<&str> = containers(pod).filter(bad).map(name).collect();
    if names.is_empty() || on_windows(pod, minor) {
        return None;
    }
    let detail = format!(
        "{} must set securityContext.allowPrivilegeEscalation=false",
        name_containers(&names)
    );
    violation("allowPrivilegeEscalation != false", detail)
}

fn capabilities(pod: &Value, minor: u32) -> Option<Violation> {
    if on_windows(pod, minor) {
        return None;
    }
    let (mut keep, mut adding, mut added) = (Vec::new(), Vec::new(), BTreeSet::new());
    for container in containers(pod) {
        if container.items("securityContext.capabilities.drop").iter().all(|c| c != "ALL") {
            keep.push(name(container));
        }
        let bad: Vec<&str> = container
            .texts("securityContext.capabilities.add")
            .filter(|capability| *capability != "NET_BIND_SERVICE")
            .collect();
        if !bad.is_empty() {
            adding.push(name(container));
            added.extend(bad);
        }
    }
    let mut details = Vec::new();
    if !keep.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            name_containers(&keep)
        ));
    }
    if !adding.is_empty() {
        let added = quoted(added);
        details.push(format!(
            "{} must not include {added} in securityContext.capabilities.add",
            name_containers(&adding)
        ));
    }
    if details.is_empty() {
        None
    } else {
        violation("unrestricted capabilities", details.join("; "))
    }
}

const ALLOWED_VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn volumes(pod: &Value, _: u32) -> Option<Violation> {
    let (mut names, mut kinds) = (Vec::new(), BTreeSet::new());
    for volume in pod.items("spec.volumes") {
        if ALLOWED_VOLUMES.iter().any(|kind| volume.has(kind)) {
            continue;
        }
        let kind = volume
            .as_object()
            .and_then(|fields| fields.iter().find(|(key, v)| *key != "name" && !v.is_null()));
        names.push(volume.text("name"));
        kinds.insert(kind.map_or("unknown", |(key, _)| key.as_str()));
    }
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", names.len()),
        quoted(&names),
        plural("uses", "use", names.len()),
        plural("restricted volume type", "restricted volume types", kinds.len()),
        quoted(&kinds)
    );
    violation("restricted volume types", detail)
}

fn run_as_non_root(pod: &Value, _: u32) -> Option<Violation> {
    let of = |holder: &Value| holder.opt_flag("securityContext.runAsNonRoot");
    let of_pod = of(&pod["spec"]);
    let (mut explicit, mut implicit) = (Vec::new(), Vec::new());
    for container in containers(pod) {
        match of(container) {
            Some(false) => explicit.push(name(container)),
            None if of_pod != Some(true) => implicit.push(name(container)),
            _ => {}
        }
    }
    // `runAsNonRoot: false` of the Pod is a violation only if a container inherits it.
    let pod_at_fault = of_pod == Some(false) && !implicit.is_empty();
    let who = name_setters(pod_at_fault, &explicit);
    let reason = "runAsNonRoot != true";
    if !who.is_empty() {
        return violation(reason, format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    if implicit.is_empty() {
        return None;
    }
    violation(
        reason,
        format!("pod or {} must set securityContext.runAsNonRoot=true", name_containers(&implicit)),
    )
}

fn run_as_user(pod: &Value, _: u32) -> Option<Violation> {
    let root = |holder: &Value| holder.opt_int("securityContext.runAsUser") == Some(0);
    let names: Vec<&str> = containers(pod).filter(|c| root(c)).map(name).collect();
    let who = name_setters(root(&pod["spec"]), &names);
    if who.is_empty() {
        None
    } else {
        violation("runAsUser=0", format!("{who} must not set runAsUser=0"))
    }
}

fn seccomp(pod: &Value, minor: u32) -> Option<Violation> {
    if on_windows(pod, minor) {
        return None;
    }
    const TYPE: &str = "securityContext.seccompProfile.type";
    let allowed = |profile: &str| ["RuntimeDefault", "Localhost"].contains(&profile);
    let (who, profiles) = forbidden_values(pod, TYPE, allowed);
    if !who.is_empty() {
        let detail = format!(
            "{who} must not set securityContext.seccompProfile.type to {}",
            quoted(profiles)
        );
        return violation("seccompProfile", detail);
    }
    if !pod["spec"].text(TYPE).is_empty() {
        return None;
    }
    let names: Vec<&str> = containers(pod).filter(|c| c.text(TYPE).is_empty()).map(name).collect();
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        name_containers(&names)
    );
    violation("seccompProfile", detail)
}
