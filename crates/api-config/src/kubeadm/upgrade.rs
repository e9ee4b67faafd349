use serde::{Deserialize, Serialize};

use super::{Patches, Timeouts, unset};

/// What the commands of `upgrade` need, each its own part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeConfiguration {
    pub apply: UpgradeApply,
    pub diff: UpgradeDiff,
    pub node: UpgradeNode,
    pub plan: UpgradePlan,
    #[serde(skip_serializing_if = "unset")]
    pub timeouts: Option<Timeouts>,
}

/// The part of `upgrade apply`, which takes the first control plane to a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeApply {
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    #[serde(skip_serializing_if = "unset")]
    pub allow_experimental_upgrades: Option<bool>,
    #[serde(skip_serializing_if = "unset", rename = "allowRCUpgrades")]
    pub allow_rc_upgrades: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub certificate_renewal: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub etcd_upgrade: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub force_upgrade: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub patches: Option<Patches>,
    #[serde(skip_serializing_if = "unset")]
    pub print_config: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_policy: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_serial: Option<bool>,
}

/// The part of `upgrade diff`, which shows what would change in the static Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeDiff {
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    #[serde(skip_serializing_if = "unset")]
    pub context_lines: Option<i32>,
}

/// The part of `upgrade node`, for every machine after the first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeNode {
    #[serde(skip_serializing_if = "unset")]
    pub certificate_renewal: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub etcd_upgrade: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub skip_phases: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub patches: Option<Patches>,
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_policy: String,
    #[serde(skip_serializing_if = "unset")]
    pub image_pull_serial: Option<bool>,
}

/// The part of `upgrade plan`, which says what can be upgraded to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradePlan {
    #[serde(skip_serializing_if = "unset")]
    pub kubernetes_version: String,
    #[serde(skip_serializing_if = "unset")]
    pub allow_experimental_upgrades: Option<bool>,
    #[serde(skip_serializing_if = "unset", rename = "allowRCUpgrades")]
    pub allow_rc_upgrades: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub dry_run: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub etcd_upgrade: Option<bool>,
    #[serde(skip_serializing_if = "unset")]
    pub ignore_preflight_errors: Vec<String>,
    #[serde(skip_serializing_if = "unset")]
    pub print_config: Option<bool>,
}
