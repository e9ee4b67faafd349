//! The checks of the baseline level.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use serde_json::Value;

use super::{
    check::{Check, Violation, violation},
    containers::{
        containers, forbidden_values, name, name_containers, name_setters, plural, quoted,
    },
};

const fn check(
    name: &'static str,
    since: u32,
    find: fn(&Value, u32) -> Option<Violation>,
) -> Check {
    Check { name, since, replaces: None, find }
}

/// The checks of the baseline level, in the order in which they are reported.
pub(crate) const BASELINE: &[Check] = &[
    check("appArmorProfile", 0, app_armor),
    check("capabilities_baseline", 0, capabilities),
    check("hostNamespaces", 0, host_namespaces),
    check("hostPathVolumes", 0, host_path),
    check("hostPorts", 0, host_ports),
    check("hostProbesAndHostLifecycle", 34, probe_hosts),
    check("privileged", 0, privileged),
    check("procMount", 0, proc_mount),
    check("seLinuxOptions", 0, se_linux),
    check("seccompProfile_baseline", 0, seccomp),
    check("sysctls", 0, sysctls),
    check("windowsHostProcess", 0, host_process),
];

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

fn app_armor(pod: &Value, _: u32) -> Option<Violation> {
    let allowed = |profile: &str| ["RuntimeDefault", "Localhost"].contains(&profile);
    let (who, profiles) = forbidden_values(pod, "securityContext.appArmorProfile.type", allowed);
    let annotated: Vec<String> = pod
        .pairs("metadata.annotations")
        .filter(|(key, _)| key.starts_with(APP_ARMOR_ANNOTATION))
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(_, value)| {
            !value.is_empty() && *value != "runtime/default" && !value.starts_with("localhost/")
        })
        .map(|(key, value)| format!("{key}={}", api_meta::go_quote(value)))
        .collect();
    let mut details = Vec::new();
    if !who.is_empty() {
        details.push(format!("{who} must not set AppArmor profile type to {}", quoted(&profiles)));
    }
    if !annotated.is_empty() {
        let noun = plural("annotation", "annotations", annotated.len());
        details.push(format!("{noun} {}", annotated.join(", ")));
    }
    if details.is_empty() {
        return None;
    }
    let count = profiles.len() + annotated.len();
    violation(
        plural("forbidden AppArmor profile", "forbidden AppArmor profiles", count),
        details.join("; "),
    )
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn capabilities(pod: &Value, _: u32) -> Option<Violation> {
    let (mut names, mut added) = (Vec::new(), BTreeSet::new());
    for container in containers(pod) {
        let bad: Vec<&str> = container
            .texts("securityContext.capabilities.add")
            .filter(|capability| !DEFAULT_CAPABILITIES.contains(capability))
            .collect();
        if !bad.is_empty() {
            names.push(name(container));
            added.extend(bad);
        }
    }
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must not include {} in securityContext.capabilities.add",
        name_containers(&names),
        quoted(added)
    );
    violation("non-default capabilities", detail)
}

fn host_namespaces(pod: &Value, _: u32) -> Option<Violation> {
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|field| pod["spec"][field] == true)
        .map(|field| format!("{field}=true"))
        .collect();
    if shared.is_empty() { None } else { violation("host namespaces", shared.join(", ")) }
}

fn host_path(pod: &Value, _: u32) -> Option<Violation> {
    let volumes: Vec<&str> = pod
        .items("spec.volumes")
        .iter()
        .filter(|v| v.has("hostPath"))
        .map(|v| v.text("name"))
        .collect();
    if volumes.is_empty() {
        return None;
    }
    violation(
        "hostPath volumes",
        format!("{} {}", plural("volume", "volumes", volumes.len()), quoted(&volumes)),
    )
}

fn host_ports(pod: &Value, _: u32) -> Option<Violation> {
    let (mut names, mut ports) = (Vec::new(), BTreeSet::new());
    for container in containers(pod) {
        let bad: Vec<i64> = container
            .items("ports")
            .iter()
            .filter_map(|p| p.opt_int("hostPort"))
            .filter(|p| *p != 0)
            .collect();
        if !bad.is_empty() {
            names.push(name(container));
            ports.extend(bad.into_iter().map(|port| port.to_string()));
        }
    }
    if names.is_empty() {
        return None;
    }
    let noun = plural("hostPort", "hostPorts", ports.len());
    let verb = plural("uses", "use", names.len());
    let list = ports.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    violation(noun, format!("{} {verb} {noun} {list}", name_containers(&names)))
}

fn probe_hosts(pod: &Value, _: u32) -> Option<Violation> {
    const HANDLERS: [&str; 5] = [
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle.postStart",
        "lifecycle.preStop",
    ];
    let (mut names, mut hosts) = (Vec::new(), BTreeSet::new());
    for container in containers(pod) {
        let handlers = HANDLERS.iter().map(|way| container.at(way));
        let bad: Vec<&str> = handlers
            .flat_map(|handler| ["httpGet.host", "tcpSocket.host"].map(|way| handler.text(way)))
            .filter(|host| !host.is_empty())
            .collect();
        if !bad.is_empty() {
            names.push(name(container));
            hosts.extend(bad);
        }
    }
    if names.is_empty() {
        return None;
    }
    let noun = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
    let verb = plural("uses", "use", names.len());
    violation(
        "probe or lifecycle host",
        format!("{} {verb} {noun} {}", name_containers(&names), quoted(hosts)),
    )
}

fn privileged(pod: &Value, _: u32) -> Option<Violation> {
    let names: Vec<&str> = containers(pod)
        .filter(|c| c.opt_flag("securityContext.privileged") == Some(true))
        .map(name)
        .collect();
    if names.is_empty() {
        return None;
    }
    violation(
        "privileged",
        format!("{} must not set securityContext.privileged=true", name_containers(&names)),
    )
}

fn proc_mount(pod: &Value, _: u32) -> Option<Violation> {
    let bad = |c: &&Value| !["", "Default"].contains(&c.text("securityContext.procMount"));
    let found: Vec<&Value> = containers(pod).filter(bad).collect();
    if found.is_empty() {
        return None;
    }
    let names: Vec<&str> = found.iter().map(|c| name(c)).collect();
    let values: BTreeSet<&str> =
        found.iter().map(|c| c.text("securityContext.procMount")).collect();
    violation(
        "procMount",
        format!(
            "{} must not set securityContext.procMount to {}",
            name_containers(&names),
            quoted(values)
        ),
    )
}

fn se_linux<'p>(pod: &'p Value, minor: u32) -> Option<Violation> {
    let allowed = |kind: &str| {
        ["", "container_t", "container_init_t", "container_kvm_t"].contains(&kind)
            || (minor >= 31 && kind == "container_engine_t")
    };
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut bad = |holder: &'p Value| {
        let options = |field: &str| holder.text(&format!("securityContext.seLinuxOptions.{field}"));
        let kind = options("type");
        let wrong = (!allowed(kind), !options("user").is_empty(), !options("role").is_empty());
        if wrong.0 {
            types.insert(kind);
        }
        user |= wrong.1;
        role |= wrong.2;
        wrong.0 || wrong.1 || wrong.2
    };
    let of_pod = bad(&pod["spec"]);
    let names: Vec<&str> = containers(pod).filter(|c| bad(c)).map(name).collect();
    let who = name_setters(of_pod, &names);
    if who.is_empty() {
        return None;
    }
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", "types", types.len()), quoted(types)));
    }
    if user {
        data.push("user may not be set".into());
    }
    if role {
        data.push("role may not be set".into());
    }
    violation(
        "seLinuxOptions",
        format!("{who} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")),
    )
}

fn seccomp(pod: &Value, _: u32) -> Option<Violation> {
    let allowed = |profile: &str| ["RuntimeDefault", "Localhost"].contains(&profile);
    let (who, profiles) = forbidden_values(pod, "securityContext.seccompProfile.type", allowed);
    if who.is_empty() {
        return None;
    }
    violation(
        "seccompProfile",
        format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(profiles)),
    )
}

/// The sysctls that do not affect other Pods, and the minor version since which they are allowed.
const SAFE_SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

fn sysctls(pod: &Value, minor: u32) -> Option<Violation> {
    let safe =
        |name: &str| SAFE_SYSCTLS.iter().any(|(safe, since)| *safe == name && minor >= *since);
    let bad: Vec<&str> = pod
        .items("spec.securityContext.sysctls")
        .iter()
        .map(|s| s.text("name"))
        .filter(|name| !safe(name))
        .collect();
    if bad.is_empty() { None } else { violation("forbidden sysctls", bad.join(", ")) }
}

fn host_process(pod: &Value, _: u32) -> Option<Violation> {
    let bad = |holder: &Value| {
        holder.opt_flag("securityContext.windowsOptions.hostProcess") == Some(true)
    };
    let names: Vec<&str> = containers(pod).filter(|c| bad(c)).map(name).collect();
    let who = name_setters(bad(&pod["spec"]), &names);
    if who.is_empty() {
        return None;
    }
    violation(
        "hostProcess",
        format!("{who} must not set securityContext.windowsOptions.hostProcess=true"),
    )
}
