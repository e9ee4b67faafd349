//! Converts security contexts to the runtime's configuration.

use std::path::Path;

use cri::v1;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, SELinuxOptions, SeccompProfile};
use kubelet_config::Settings;
use pod_core::{features::app_armor_profile, files::is_descending, user_namespaces::IdRange};

use crate::user_namespaces::UserNamespaceError;

/// The reason why a security context cannot be enforced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecurityError {
    #[error("container's runAsUser breaks non-root policy")]
    UserIsRoot,
    #[error("container has runAsNonRoot and image will run as root")]
    ImageIsRoot,
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
    )]
    UnknownUser { name: String },
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoSeccompProfile,
    #[error("seccomp profile {0:?}: the path must be relative and must not contain '..'")]
    SeccompPath(String),
    #[error("unknown {kind} profile type {name:?}")]
    ProfileType { kind: &'static str, name: String },
    #[error("procMount Unmasked requires a user namespace: set hostUsers to false")]
    Unmasked,
    #[error(transparent)]
    UserNamespace(#[from] UserNamespaceError),
}

/// The paths in /proc and /sys that are hidden from a container.
const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

pub(super) fn of_sandbox(
    pod: &Pod,
    users: Option<IdRange>,
    root: &Path,
) -> Result<v1::LinuxSandboxSecurityContext, SecurityError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let context = spec.security_context.clone().unwrap_or_default();
    let privileged = pod_core::members(pod).iter().any(|m| is_privileged(&m.container));
    Ok(v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod, users)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(|value| v1::Int64Value { value }),
        run_as_group: context.run_as_group.map(|value| v1::Int64Value { value }),
        supplemental_groups: supplemental_groups(pod),
        privileged,
        // A sandbox without a profile gets the runtime's default, as in upstream's kubelet.
        seccomp: Some(match context.seccomp_profile {
            Some(profile) => seccomp(profile, root)?,
            None => v1::SecurityProfile {
                profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
                ..Default::default()
            },
        }),
        ..Default::default()
    })
}

/// Returns the mapping of a Pod's user or group IDs, for its namespace and its mounts.
pub(super) fn id_mappings(users: Option<IdRange>) -> Vec<v1::IdMapping> {
    let mapping = |range: IdRange| v1::IdMapping {
        host_id: range.first,
        container_id: 0,
        length: range.length,
    };
    users.map(mapping).into_iter().collect()
}

/// Returns the Pod's namespaces. Without a range of users, the Pod has the host's user namespace.
fn namespaces(pod: &Pod, users: Option<IdRange>) -> v1::NamespaceOption {
    let spec = pod.spec.clone().unwrap_or_default();
    let node_or = |host: Option<bool>, own: v1::NamespaceMode| {
        if host == Some(true) { v1::NamespaceMode::Node } else { own }
    };
    let pid = if spec.share_process_namespace == Some(true) {
        v1::NamespaceMode::Pod
    } else {
        v1::NamespaceMode::Container
    };
    v1::NamespaceOption {
        network: node_or(spec.host_network, v1::NamespaceMode::Pod).into(),
        pid: node_or(spec.host_pid, pid).into(),
        ipc: node_or(spec.host_ipc, v1::NamespaceMode::Pod).into(),
        target_id: String::new(),
        userns_options: users.map(|_| v1::UserNamespace {
            mode: v1::NamespaceMode::Pod.into(),
            uids: id_mappings(users),
            gids: id_mappings(users),
        }),
    }
}

fn supplemental_groups(pod: &Pod) -> Vec<i64> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let groups = context.and_then(|c| c.supplemental_groups.clone()).unwrap_or_default();
    groups.into_iter().chain(context.and_then(|c| c.fs_group)).collect()
}

fn is_privileged(container: &Container) -> bool {
    container.security_context.as_ref().and_then(|s| s.privileged) == Some(true)
}

fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

/// Returns the seccomp profile of a container. A privileged container is unconfined. Without a profile, the
/// `seccompDefault` setting decides.
fn container_profile(
    requested: Option<&SeccompProfile>,
    privileged: bool,
    settings: &Settings,
) -> SeccompProfile {
    let of = |kind: &str| SeccompProfile { type_: kind.to_owned(), localhost_profile: None };
    match requested {
        _ if privileged => of("Unconfined"),
        Some(profile) => profile.clone(),
        None if settings.seccomp_default => of("RuntimeDefault"),
        None => of("Unconfined"),
    }
}

/// Converts a seccomp profile. The file of a `Localhost` profile is below the kubelet's seccomp directory. Its name
/// comes from the Pod and must not lead out of the directory. Links in the directory belong to the administrator, and
/// the runtime follows them.
fn seccomp(profile: SeccompProfile, root: &Path) -> Result<v1::SecurityProfile, SecurityError> {
    use v1::security_profile::ProfileType;
    let (kind, path) = match profile.type_.as_str() {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Unconfined" => (ProfileType::Unconfined, String::new()),
        "Localhost" => {
            let file = profile.localhost_profile.filter(|file| !file.is_empty());
            let file = file.ok_or(SecurityError::NoSeccompProfile)?;
            if !is_descending(&file) {
                return Err(SecurityError::SeccompPath(file));
            }
            (ProfileType::Localhost, root.join("seccomp").join(file).display().to_string())
        }
        _ => return Err(SecurityError::ProfileType { kind: "seccomp", name: profile.type_ }),
    };
    Ok(v1::SecurityProfile { profile_type: kind.into(), localhost_ref: path })
}

fn apparmor(profile: &AppArmorProfile) -> Result<v1::SecurityProfile, SecurityError> {
    use v1::security_profile::ProfileType;
    let name = profile.type_.clone();
    let kind = match name.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Localhost" => ProfileType::Localhost,
        "Unconfined" => ProfileType::Unconfined,
        _ => return Err(SecurityError::ProfileType { kind: "AppArmor", name }),
    };
    let localhost_ref = profile.localhost_profile.clone().unwrap_or_default();
    Ok(v1::SecurityProfile { profile_type: kind.into(), localhost_ref })
}

/// The user of an image.
#[derive(Clone, Debug, Default)]
pub(super) struct ImageUser {
    pub(super) uid: Option<i64>,
    pub(super) name: String,
}

/// The parts of a container's security context that the node decides.
#[derive(Clone, Copy)]
pub(super) struct NodeSecurity<'a> {
    pub(super) settings: &'a Settings,
    /// The IDs of the Pod's user namespace, if it has one.
    pub(super) users: Option<IdRange>,
}

/// Returns a container's security context. The error says why the container must not start.
pub(super) fn of_container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<String>,
    node: NodeSecurity<'_>,
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(of_pod.run_as_user);
    check_not_root(pod, container, user, image)?;
    let privileged = own.privileged == Some(true);
    let mut namespaces = namespaces(pod, node.users);
    if let Some(target) = target {
        namespaces.pid = v1::NamespaceMode::Target.into();
        namespaces.target_id = target;
    }
    let capabilities = own.capabilities.unwrap_or_default();
    let profile = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    // Without a user namespace, root in the container is root on the host.
    if unmasked && node.users.is_none() {
        return Err(SecurityError::Unmasked);
    }
    let unmasked = unmasked || privileged;
    let paths = |list: &[&str]| {
        if unmasked { Vec::new() } else { list.iter().map(ToString::to_string).collect() }
    };
    let strict = of_pod.supplemental_groups_policy.as_deref() == Some("Strict");
    let policy = if strict {
        v1::SupplementalGroupsPolicy::Strict
    } else {
        v1::SupplementalGroupsPolicy::Merge
    };
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged,
        namespace_options: Some(namespaces),
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or(of_pod.se_linux_options.as_ref())
            .map(selinux),
        run_as_user: user
            .or(image.uid.filter(|_| image.name.is_empty()))
            .map(|value| v1::Int64Value { value }),
        run_as_username: if user.is_none() { image.name.clone() } else { String::new() },
        run_as_group: own
            .run_as_group
            .or(of_pod.run_as_group)
            .map(|value| v1::Int64Value { value }),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: policy.into(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: Some(seccomp(
            container_profile(profile, privileged, node.settings),
            &node.settings.root,
        )?),
        apparmor: app_armor_profile(pod, container).map(apparmor).transpose()?,
    })
}

fn check_not_root(
    pod: &Pod,
    container: &Container,
    user: Option<i64>,
    image: &ImageUser,
) -> Result<(), SecurityError> {
    let of_pod =
        pod.spec.as_ref().and_then(|s| s.security_context.as_ref()).and_then(|s| s.run_as_non_root);
    let own = container.security_context.as_ref().and_then(|s| s.run_as_non_root);
    if own.or(of_pod) != Some(true) {
        return Ok(());
    }
    match (user, image.uid, image.name.as_str()) {
        (Some(0), ..) => Err(SecurityError::UserIsRoot),
        (Some(_), ..) => Ok(()),
        (None, Some(0), _) | (None, None, "") => Err(SecurityError::ImageIsRoot),
        (None, _, name) if !name.is_empty() => {
            Err(SecurityError::UnknownUser { name: name.to_owned() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use pod_core::user_namespaces::has_user_namespace;
    use serde_json::{Value, json};

    use super::*;

    fn profile(kind: &str, file: Option<&str>) -> SeccompProfile {
        SeccompProfile { type_: kind.to_owned(), localhost_profile: file.map(str::to_owned) }
    }

    fn settings() -> Settings {
        let place = kubelet_config::HostSettings {
            node_name: "node".to_owned(),
            node_ips: Vec::new(),
            root: "/var/lib/kubelet".into(),
            cert_dir: "/pki".into(),
            labels: Default::default(),
        };
        Settings::new(&Default::default(), place).unwrap()
    }

    /// Returns the security context of a Pod's first container.
    fn described(spec: Value) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
        let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        let users = has_user_namespace(&pod).then_some(IdRange { first: 65_536, length: 65_536 });
        let node = NodeSecurity { settings: &settings(), users };
        of_container(&pod, &container, &ImageUser::default(), None, node)
    }

    #[test]
    fn resolves_seccomp_profile_below_the_kubelets_directory() {
        let root = Path::new("/var/lib/kubelet");
        for (file, below) in [("a.json", "a.json"), ("operator/ns/a.json", "operator/ns/a.json")] {
            let found = seccomp(profile("Localhost", Some(file)), root).unwrap();
            assert_eq!(found.localhost_ref, format!("/var/lib/kubelet/seccomp/{below}"));
        }
    }

    /// CVE-2023-2431: a `Localhost` profile without a name left the container unconfined.
    #[test]
    fn rejects_seccomp_profile_outside_its_directory() {
        let root = Path::new("/var/lib/kubelet");
        for file in [None, Some("")] {
            let error = seccomp(profile("Localhost", file), root).unwrap_err();
            assert!(matches!(error, SecurityError::NoSeccompProfile), "{error}");
        }
        for file in ["/tmp/all.json", "../pods/u/volumes/all.json", "a/../../all.json", "a/.."] {
            let error = seccomp(profile("Localhost", Some(file)), root).unwrap_err();
            assert!(matches!(&error, SecurityError::SeccompPath(path) if path == file), "{error}");
        }
        let error = seccomp(profile("localhost", Some("a")), root).unwrap_err();
        assert!(error.to_string().contains("unknown seccomp profile type"), "{error}");
    }

    #[test]
    fn rejects_unmasked_proc_without_user_namespace() {
        let spec = |host_users: Value, privileged: bool| {
            json!({ "hostUsers": host_users, "containers": [{ "name": "c",
                "securityContext": { "procMount": "Unmasked", "privileged": privileged } }] })
        };
        for host_users in [Value::Null, json!(true)] {
            for privileged in [false, true] {
                let error = described(spec(host_users.clone(), privileged)).unwrap_err();
                assert!(matches!(error, SecurityError::Unmasked), "{host_users} {privileged}");
            }
        }
        let unmasked = described(spec(json!(false), false)).unwrap();
        assert_eq!(unmasked.masked_paths, [""; 0]);
        let users = unmasked.namespace_options.unwrap().userns_options.unwrap();
        let mapping = v1::IdMapping { host_id: 65_536, container_id: 0, length: 65_536 };
        assert_eq!((users.mode(), users.uids), (v1::NamespaceMode::Pod, vec![mapping]));
        let masked = described(json!({ "containers": [{ "name": "c" }] })).unwrap();
        assert!(masked.masked_paths.iter().any(|path| path == "/proc/kcore"));
    }

    #[test]
    fn rejects_unknown_app_armor_profile_type() {
        let spec = |kind: &str| {
            json!({ "securityContext": { "appArmorProfile": { "type": kind } },
                "containers": [{ "name": "c" }] })
        };
        let profile = described(spec("RuntimeDefault")).unwrap().apparmor.unwrap();
        assert_eq!(profile.profile_type(), v1::security_profile::ProfileType::RuntimeDefault);
        let error = described(spec("none")).unwrap_err().to_string();
        assert_eq!(error, "unknown AppArmor profile type \"none\"");
    }
}
