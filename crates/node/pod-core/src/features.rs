//! Optional features of a node and its container runtime that isolate a Pod.
//!
//! A runtime ignores unknown fields of CRI. So the kubelet compares the features that a Pod requires with those that
//! the runtime reports, and refuses unsupported ones. [`crate::admit`] has the features that refuse a whole Pod.

use api_meta::go_quote;
use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod, VolumeMount};

use crate::{refusal::Refusal, spec::members};

/// The optional features that a container runtime reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// The runtime implements `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// The Pod's runtime handler makes all mounts below a read-only mount read-only.
    pub recursive_read_only_mounts: bool,
    /// The Pod's runtime handler can run Pods in user namespaces of their own.
    pub user_namespaces: bool,
}

/// Returns `true` if the supplementary groups of the image must not be added to those of the Pod.
pub fn has_strict_groups(pod: &Pod) -> bool {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    context.and_then(|c| c.supplemental_groups_policy.as_deref()) == Some("Strict")
}

/// Returns `true` if the runtime's [`Features`] are needed to create a container's configuration.
pub fn needs_features(pod: &Pod, container: &Container) -> bool {
    let is_requested = |mount: &VolumeMount| {
        mount.recursive_read_only.as_deref().is_some_and(|mode| mode != "Disabled")
    };
    has_strict_groups(pod) || container.volume_mounts.iter().flatten().any(is_requested)
}

/// Refuses a Pod with the groups policy `Strict` if the runtime does not implement it.
///
/// # Errors
///
/// Returns the refusal in upstream's words.
pub fn check_groups(pod: &Pod, features: Features) -> Result<(), Refusal> {
    if features.supplemental_groups_policy || !has_strict_groups(pod) {
        return Ok(());
    }
    let reason = "SupplementalGroupsPolicyNotSupported";
    Err(Refusal::new(reason, "SupplementalGroupsPolicy=Strict is not supported in this node"))
}

/// The error of a mount that requests a recursive read-only mode which is not possible. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecursiveReadOnlyError {
    #[error("{} not read-only", refusal(volume))]
    Writable { volume: String },
    #[error("{} not compatible with propagation {}", refusal(volume), go_quote(propagation))]
    Propagated { volume: String, propagation: String },
    #[error("{} not supported by the runtime", refusal(volume))]
    Unsupported { volume: String },
    #[error(
        "failed to resolve recursive read-only mode: unknown recursive read-only mode {}",
        go_quote(mode)
    )]
    UnknownMode { mode: String },
}

fn refusal(volume: &str) -> String {
    let name = go_quote(volume);
    format!(
        "failed to resolve recursive read-only mode: volume {name} requested recursive read-only mode, but it is"
    )
}

/// Reports whether a volume must be mounted recursively read-only.
///
/// # Errors
///
/// Returns an error if the mount requests it and that is not possible.
pub fn recursive_read_only(
    mount: &VolumeMount,
    features: Features,
) -> Result<bool, RecursiveReadOnlyError> {
    let mode = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
    if mode == "Disabled" {
        return Ok(false);
    }
    let volume = mount.name.clone();
    if mount.read_only != Some(true) {
        return Err(RecursiveReadOnlyError::Writable { volume });
    }
    if let Some(propagation) = mount.mount_propagation.clone().filter(|p| p != "None") {
        return Err(RecursiveReadOnlyError::Propagated { volume, propagation });
    }
    match (mode, features.recursive_read_only_mounts) {
        ("IfPossible", supported) => Ok(supported),
        ("Enabled", true) => Ok(true),
        ("Enabled", false) => Err(RecursiveReadOnlyError::Unsupported { volume }),
        (other, _) => Err(RecursiveReadOnlyError::UnknownMode { mode: other.to_owned() }),
    }
}

/// Returns the AppArmor profile of a container: its own, or else that of the Pod.
pub fn app_armor_profile<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> Option<&'a AppArmorProfile> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    own.or_else(|| of_pod.and_then(|context| context.app_armor_profile.as_ref()))
}

/// Returns `true` if a container of the Pod has an AppArmor profile that confines it.
pub(crate) fn needs_app_armor(pod: &Pod) -> bool {
    let confined = |container: &Container| {
        app_armor_profile(pod, container).is_some_and(|profile| profile.type_ != "Unconfined")
    };
    members(pod).iter().any(|member| confined(&member.container))
}
