use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

/// What part a container plays in its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Init,
    /// An init container that is restarted and outlives initialisation.
    Sidecar,
    App,
    Ephemeral,
}

/// A container of a Pod's spec.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    pub role: Role,
    pub container: Cow<'a, Container>,
}

/// All containers of a Pod in the order in which they start.
pub fn members(pod: &Pod) -> Vec<Member<'_>> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten().map(|c| {
        let sidecar = c.restart_policy.as_deref() == Some("Always");
        Member {
            role: if sidecar { Role::Sidecar } else { Role::Init },
            container: Cow::Borrowed(c),
        }
    });
    let app =
        spec.containers.iter().map(|c| Member { role: Role::App, container: Cow::Borrowed(c) });
    let ephemeral = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|c| Member { role: Role::Ephemeral, container: Cow::Owned(of_ephemeral(c)) });
    init.chain(app).chain(ephemeral).collect()
}

fn of_ephemeral(c: &EphemeralContainer) -> Container {
    let c = c.clone();
    Container {
        name: c.name,
        image: c.image,
        command: c.command,
        args: c.args,
        working_dir: c.working_dir,
        env: c.env,
        env_from: c.env_from,
        volume_mounts: c.volume_mounts,
        image_pull_policy: c.image_pull_policy,
        security_context: c.security_context,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        tty: c.tty,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        ..Container::default()
    }
}

/// What an exit means for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Restart,
    Succeeded,
    Failed,
}

/// Whether a container that exited is to run again, by its own policy and rules or else its Pod's.
pub fn should_restart(pod: &Pod, member: &Member<'_>, code: i32) -> Verdict {
    let ended = if code == 0 { Verdict::Succeeded } else { Verdict::Failed };
    let container = &member.container;
    for rule in container.restart_policy_rules.iter().flatten() {
        let Some(codes) = &rule.exit_codes else { continue };
        let listed = codes.values.iter().flatten().any(|&value| value == code);
        let matches = if codes.operator == "NotIn" { !listed } else { listed };
        if matches && rule.action == "Restart" {
            return Verdict::Restart;
        }
    }
    let of_pod = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always");
    let policy = container.restart_policy.as_deref().unwrap_or(of_pod);
    match member.role {
        Role::Ephemeral => ended,
        Role::Sidecar => Verdict::Restart,
        // An init container that succeeded is never run again for its own sake.
        Role::Init if code == 0 => ended,
        Role::Init | Role::App => match policy {
            "Never" => ended,
            "OnFailure" if code == 0 => ended,
            _ => Verdict::Restart,
        },
    }
}

/// Identifies what a running container was made from. Only what may change in place counts, which is the image, so
/// that a new default in the API restarts nothing. The number is the one by which upstream's kubelet knows its
/// containers, so that it can take a node over from us, and we from it, and nothing restarts.
pub fn container_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let seen = serde_json::json!({"image": image, "name": container.name}).to_string();
    let bytes: Vec<String> = seen.bytes().map(|byte| byte.to_string()).collect();
    let printed = format!("([]uint8)[{}]", bytes.join(" "));
    format!("{:x}", fnv1a(printed.as_bytes()))
}

/// The Fowler–Noll–Vo hash of 32 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Whether the Pod comes from a file on this node, not from the API.
pub fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get("kubernetes.io/config.source"))
        .is_some_and(|source| source != "api")
}

/// `namespace/name`, by which logs and Events speak of a Pod.
pub fn namespaced_name(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default())
}
