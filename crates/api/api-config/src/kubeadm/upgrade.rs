use serde::{Deserialize, Serialize};

use super::node::{Patches, Timeouts};
use crate::shared::unset;

/// The configuration of the `upgrade` commands, with a part for each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeConfiguration {
    /// The part of `upgrade apply`.
    pub apply: UpgradeApply,
    /// The part of `upgrade diff`.
    pub diff: UpgradeDiff,
    /// The part of `upgrade node`.
    pub node: UpgradeNode,
    /// The part of `upgrade plan`.
    pub plan: UpgradePlan,
    /// The timeouts.
    #[serde(skip_serializing_if = "unset")]
    pub timeouts: Option<Timeouts>,
}

/// The configuration of `upgrade apply`, which upgrades the first control plane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeApply {
    /// The target version.
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    /// `true` to allow unstable versions.
    #[serde(skip_serializing_if = "unset")]
    pub allow_experimental_upgrades: Option<bool>,
    /// `true` to allow release candidates.
    #[serde(skip_serializing_if = "unset", rename = "allowRCUpgrades")]
    pub allow_rc_upgrades: Option<bool>,
    /// `true` to renew certificates.
    #[serde(skip_serializing_if = "unset")]
    pub certificate_renewal: Option<bool>,
    /// `true` to make no changes.
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: Option<bool>,
    /// `true` to upgrade etcd.
    #[serde(skip_serializing_if = "unset")]
    pub etcd_upgrade: Option<bool>,
    /// `true` to upgrade despite unmet requirements.
    #[serde(skip_serializing_if = "unset")]
    pub force_upgrade: Option<bool>,
    /// The preflight checks whose errors are ignored.
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    /// The patches of manifests.
    #[serde(skip_serializing_if = "unset")]
    pub patches: Option<Patches>,
    /// `true` to print the configuration.
    #[serde(skip_serializing_if = "unset")]
    pub print_config: Option<bool>,
    /// The phases to skip.
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    /// The pull policy of images.
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_policy: String,
    /// `true` to pull images one after another.
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_serial: Option<bool>,
}

/// The configuration of `upgrade diff`, which shows the changes of static Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeDiff {
    /// The target version.
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    /// The number of context lines.
    #[serde(skip_serializing_if = "unset")]
    pub context_lines: Option<i32>,
}

/// The configuration of `upgrade node`, for all other machines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeNode {
    /// `true` to renew certificates.
    #[serde(skip_serializing_if = "unset")]
    pub certificate_renewal: Option<bool>,
    /// `true` to make no changes.
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: Option<bool>,
    /// `true` to upgrade etcd.
    #[serde(skip_serializing_if = "unset")]
    pub etcd_upgrade: Option<bool>,
    /// The preflight checks whose errors are ignored.
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    /// The phases to skip.
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    /// The patches of manifests.
    #[serde(skip_serializing_if = "unset")]
    pub patches: Option<Patches>,
    /// The pull policy of images.
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_policy: String,
    /// `true` to pull images one after another.
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_serial: Option<bool>,
}

/// The configuration of `upgrade plan`, which lists the possible upgrades.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradePlan {
    /// The target version.
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    /// `true` to allow unstable versions.
    #[serde(skip_serializing_if = "unset")]
    pub allow_experimental_upgrades: Option<bool>,
    /// `true` to allow release candidates.
    #[serde(skip_serializing_if = "unset", rename = "allowRCUpgrades")]
    pub allow_rc_upgrades: Option<bool>,
    /// `true` to make no changes.
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: Option<bool>,
    /// `true` to include etcd.
    #[serde(skip_serializing_if = "unset")]
    pub etcd_upgrade: Option<bool>,
    /// The preflight checks whose errors are ignored.
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    /// `true` to print the configuration.
    #[serde(skip_serializing_if = "unset")]
    pub print_config: Option<bool>,
}
