//! The containers in a Pod's spec.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, EphemeralContainer, Pod};

/// The role of a container in its Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A container that runs before the application containers and ends.
    Init,
    /// An init container that keeps running beside the application containers.
    Sidecar,
    /// An application container.
    App,
    /// A container for debugging, added to a running Pod.
    Ephemeral,
}

/// A container of a Pod's spec.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The container's role.
    pub role: Role,
    /// The container's spec.
    pub container: Cow<'a, Container>,
}

/// Returns all containers of a Pod in the order in which they start.
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

/// The consequence of a container's exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The container restarts.
    Restart,
    /// The container has ended successfully.
    Succeeded,
    /// The container has failed for good.
    Failed,
}

/// Decides whether an exited container restarts: by its own rules and policy, else by the Pod's policy.
pub fn should_restart(pod: &Pod, member: &Member<'_>, code: i32) -> Verdict {
    let ended = if code == 0 { Verdict::Succeeded } else { Verdict::Failed };
    let container = &member.container;
    if matching_action(container, code).is_some() {
        return Verdict::Restart;
    }
    let of_pod = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always");
    let policy = container.restart_policy.as_deref().unwrap_or(of_pod);
    match member.role {
        Role::Ephemeral => ended,
        Role::Sidecar => Verdict::Restart,
        // An init container that succeeded does not run again by itself.
        Role::Init if code == 0 => ended,
        Role::Init | Role::App => match policy {
            "Never" => ended,
            "OnFailure" if code == 0 => ended,
            _ => Verdict::Restart,
        },
    }
}

/// The action of a restart rule that restarts all containers of the Pod (KEP-5532).
const RESTART_ALL: &str = "RestartAllContainers";

/// Returns the action of the first restart rule that matches an exit code.
fn matching_action(container: &Container, code: i32) -> Option<&str> {
    let matches = |rule: &&ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|&value| value == code);
            if codes.operator == "NotIn" { !listed } else { listed }
        })
    };
    let known = |rule: &&ContainerRestartRule| ["Restart", RESTART_ALL].contains(&&*rule.action);
    let mut rules = container.restart_policy_rules.iter().flatten().filter(known);
    rules.find(matches).map(|rule| rule.action.as_str())
}

/// Reports whether all containers of the Pod must restart because this one exited with the code.
pub(crate) fn restarts_all(member: &Member<'_>, code: i32) -> bool {
    member.role != Role::Ephemeral && matching_action(&member.container, code) == Some(RESTART_ALL)
}

/// Returns the hash of the spec that a running container was created from. Only name and image count, which can change
/// in place, so a new API default restarts nothing. Upstream's kubelet computes the same hash, so each kubelet can take
/// over the other's containers without a restart.
pub fn container_hash(container: &Container) -> String {
    let image = container.image.as_deref().unwrap_or_default();
    let hashed = serde_json::json!({"image": image, "name": container.name}).to_string();
    let bytes: Vec<String> = hashed.bytes().map(|byte| byte.to_string()).collect();
    let printed = format!("([]uint8)[{}]", bytes.join(" "));
    format!("{:x}", fnv1a(printed.as_bytes()))
}

/// Computes the 32-bit FNV-1a hash.
pub(crate) fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Reports whether the Pod comes from a file on this node and not from the API server.
pub fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get("kubernetes.io/config.source"))
        .is_some_and(|source| source != "api")
}

/// Returns `name_namespace(uid)`, as in messages about containers.
pub fn log_name(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or("default");
    let (name, uid) = (meta.name.as_deref(), meta.uid.as_deref());
    format!("{}_{namespace}({})", name.unwrap_or_default(), uid.unwrap_or_default())
}

/// Returns `namespace/name`, as in logs and Events.
pub fn namespaced_name(pod: &Pod) -> String {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default())
}
