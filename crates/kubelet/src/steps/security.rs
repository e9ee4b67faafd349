//! From security contexts to what the runtime enforces.

use std::path::Path;

use crate::config::Settings;
use cri::v1;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, SELinuxOptions, SeccompProfile};

/// What a container must not see of /proc and /sys.
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

pub(super) fn of_sandbox(pod: &Pod, root: &Path) -> v1::LinuxSandboxSecurityContext {
    let spec = pod.spec.clone().unwrap_or_default();
    let context = spec.security_context.clone().unwrap_or_default();
    let privileged = pod_core::members(pod).iter().any(|m| is_privileged(&m.container));
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(pod)),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(|value| v1::Int64Value { value }),
        run_as_group: context.run_as_group.map(|value| v1::Int64Value { value }),
        supplemental_groups: supplemental_groups(pod),
        privileged,
        // A sandbox without a profile of its own gets the runtime's, as upstream's kubelet gives it.
        seccomp: Some(match context.seccomp_profile {
            Some(profile) => seccomp(profile, root),
            None => v1::SecurityProfile {
                profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
                ..Default::default()
            },
        }),
        ..Default::default()
    }
}

fn namespaces(pod: &Pod) -> v1::NamespaceOption {
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

/// A privileged container is not confined; one that asks for nothing is when the node's configuration says so.
fn container_profile(
    asked: Option<&SeccompProfile>,
    privileged: bool,
    settings: &Settings,
) -> SeccompProfile {
    let of = |kind: &str| SeccompProfile { type_: kind.to_owned(), localhost_profile: None };
    match asked {
        _ if privileged => of("Unconfined"),
        Some(profile) => profile.clone(),
        None if settings.seccomp_default => of("RuntimeDefault"),
        None => of("Unconfined"),
    }
}

/// `Localhost` profiles are below the kubelet's root.
fn seccomp(profile: SeccompProfile, root: &Path) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (kind, path) = match profile.type_.as_str() {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, String::new()),
        "Localhost" => {
            let file = profile.localhost_profile.as_deref().unwrap_or_default();
            (ProfileType::Localhost, root.join("seccomp").join(file).display().to_string())
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: path }
}

fn apparmor(profile: &AppArmorProfile) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let kind = match profile.type_.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::Unconfined,
    };
    let localhost_ref = profile.localhost_profile.clone().unwrap_or_default();
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref }
}

/// Who the image says its process is.
#[derive(Clone, Debug, Default)]
pub(super) struct ImageUser {
    pub(super) uid: Option<i64>,
    pub(super) name: String,
}

/// A container's context; `Err` says why the container must not be started.
pub(super) fn of_container(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<String>,
    settings: &Settings,
) -> Result<v1::LinuxContainerSecurityContext, String> {
    let of_pod = pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(of_pod.run_as_user);
    check_not_root(pod, container, user, image)?;
    let privileged = own.privileged == Some(true);
    let mut namespaces = namespaces(pod);
    if let Some(target) = target {
        namespaces.pid = v1::NamespaceMode::Target.into();
        namespaces.target_id = target;
    }
    let capabilities = own.capabilities.unwrap_or_default();
    let profile = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
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
        seccomp: Some(seccomp(container_profile(profile, privileged, settings), &settings.root)),
        apparmor: own
            .app_armor_profile
            .as_ref()
            .or(of_pod.app_armor_profile.as_ref())
            .map(apparmor),
    })
}

fn check_not_root(
    pod: &Pod,
    container: &Container,
    user: Option<i64>,
    image: &ImageUser,
) -> Result<(), String> {
    let of_pod =
        pod.spec.as_ref().and_then(|s| s.security_context.as_ref()).and_then(|s| s.run_as_non_root);
    let own = container.security_context.as_ref().and_then(|s| s.run_as_non_root);
    if own.or(of_pod) != Some(true) {
        return Ok(());
    }
    match (user, image.uid, image.name.as_str()) {
        (Some(0), ..) => Err("container's runAsUser breaks non-root policy".to_owned()),
        (Some(_), ..) => Ok(()),
        (None, Some(0), _) | (None, None, "") => {
            Err("container has runAsNonRoot and image will run as root".to_owned())
        }
        (None, _, name) if !name.is_empty() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
        )),
        _ => Ok(()),
    }
}
