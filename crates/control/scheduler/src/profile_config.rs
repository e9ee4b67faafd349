//! Converts the profiles of a KubeSchedulerConfiguration to those of the core.
//!
//! A profile either acts as written or prevents the start: a filter that an administrator requires is never left out.

use api_config::scheduler::{PluginSet, SchedulerPlugins, SchedulerProfile};
use api_meta::{ErrorList, FieldError, Path};
use sched_core::Profile as CoreProfile;

use crate::{arguments, profile::Profile};

/// A plugin of upstream's defaults: its name and its extension points.
struct PluginPoints {
    name: &'static str,
    points: &'static [&'static str],
}

const fn plugin(name: &'static str, points: &'static [&'static str]) -> PluginPoints {
    PluginPoints { name, points }
}

const FILTER: &[&str] = &["filter"];
const FILTERS: &[&str] = &["preFilter", "filter"];
const FILTER_AND_SCORE: &[&str] = &["preFilter", "filter", "preScore", "score"];

/// The default plugins of v1.36.
const PLUGINS: &[PluginPoints] = &[
    plugin("SchedulingGates", &["preEnqueue"]),
    plugin("PrioritySort", &["queueSort"]),
    plugin("NodeUnschedulable", FILTER),
    plugin("NodeName", FILTER),
    plugin("TaintToleration", &["filter", "preScore", "score"]),
    plugin("NodeAffinity", FILTER_AND_SCORE),
    plugin("NodePorts", FILTERS),
    plugin("NodeResourcesFit", FILTER_AND_SCORE),
    plugin("VolumeRestrictions", FILTERS),
    plugin("NodeVolumeLimits", FILTERS),
    plugin("VolumeBinding", &["preFilter", "filter", "preScore", "score", "reserve", "preBind"]),
    plugin("VolumeZone", FILTERS),
    plugin("PodTopologySpread", FILTER_AND_SCORE),
    plugin("InterPodAffinity", FILTER_AND_SCORE),
    plugin(
        "DynamicResources",
        &["preEnqueue", "preFilter", "filter", "postFilter", "score", "reserve", "preBind"],
    ),
    plugin("NodeDeclaredFeatures", FILTERS),
    plugin("DefaultPreemption", &["preEnqueue", "postFilter"]),
    plugin("NodeResourcesBalancedAllocation", &["preScore", "score"]),
    plugin("ImageLocality", &["score"]),
    plugin("DefaultBinder", &["bind"]),
];

/// Plugins that every profile has, each with its extension point.
const FIXED: &[(&str, &str)] =
    &[("SchedulingGates", "preEnqueue"), ("PrioritySort", "queueSort"), ("DefaultBinder", "bind")];

/// Compiles one profile. Unsupported settings are added to `errors`.
pub(crate) fn compile(source: &SchedulerProfile, path: &Path, errors: &mut ErrorList) -> Profile {
    let name = source.scheduler_name.as_deref().unwrap_or("default-scheduler");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("schedulerName"), ""));
    }
    let mut profile = Profile { core: CoreProfile::new(name), ..Profile::default() };
    let share = source.percentage_of_nodes_to_score;
    profile.core.percentage_of_nodes_to_score =
        percentage(share, &path.child("percentageOfNodesToScore"), errors);
    let plugins = path.child("plugins");
    check_names(&source.plugins, &plugins, errors);
    for plugin in PLUGINS {
        select(&source.plugins, plugin, &plugins, &mut profile.core, errors);
    }
    let mut names: Vec<&str> = Vec::new();
    for (i, config) in source.plugin_config.iter().enumerate() {
        let path = path.child("pluginConfig").index(i);
        if names.contains(&&*config.name) {
            errors.push(FieldError::duplicate(&path, config.name.as_str()));
        }
        names.push(&config.name);
        if !PLUGINS.iter().any(|plugin| plugin.name == config.name) {
            let detail = format!("plugin {:?} does not exist", config.name);
            errors.push(FieldError::invalid(&path, config.name.as_str(), detail));
            continue;
        }
        arguments::apply(config, &path.child("args"), &mut profile, errors);
    }
    profile
}

/// Validates a share of nodes. A missing one is 0, which adapts to the cluster's size.
pub(crate) fn percentage(share: Option<i64>, path: &Path, errors: &mut ErrorList) -> u32 {
    match share.unwrap_or(0) {
        share @ 0..=100 => share as u32,
        other => {
            errors.push(FieldError::invalid(path, other, "not in valid range [0-100]"));
            0
        }
    }
}

/// Rejects plugins that do not exist, that do not extend their point, or that are enabled twice there.
fn check_names(plugins: &SchedulerPlugins, path: &Path, errors: &mut ErrorList) {
    let multi = ("multiPoint", "MultiPointPlugin", &plugins.multi_point);
    for (point, kind, set) in std::iter::once(multi).chain(plugins.points()) {
        for (i, plugin) in set.enabled.iter().enumerate() {
            let path = path.child(point).child("enabled").index(i);
            let mut bad = |detail| errors.push(FieldError::invalid(&path, &*plugin.name, detail));
            let Some(registered) = PLUGINS.iter().find(|p| p.name == plugin.name) else {
                bad(format!("{kind} {:?} does not exist", plugin.name));
                continue;
            };
            if point != "multiPoint" && !registered.points.contains(&point) {
                bad(format!("plugin {:?} does not extend {kind} plugin", plugin.name));
            }
            if set.enabled[..i].iter().any(|other| other.name == plugin.name) {
                bad(format!("plugin {:?} already registered as {point:?}", plugin.name));
            }
            if plugin.weight.is_some_and(|weight| !(0..=i64::from(i32::MAX)).contains(&weight)) {
                bad(format!("weight {} is not in valid range", plugin.weight.unwrap_or(0)));
            }
        }
    }
}

/// Reports whether a plugin runs at an extension point.
fn runs(plugins: &SchedulerPlugins, name: &str, point: &str) -> bool {
    let points = plugins.points();
    let Some((_, _, set)) = points.iter().find(|(field, ..)| *field == point) else { return false };
    let multi = &plugins.multi_point;
    let by_default = multi.enables(name).is_some() || !multi.disables(name);
    set.enables(name).is_some() || by_default && !set.disables(name)
}

/// Enables or disables a plugin. Rejects a choice of points if the core can only switch the plugin as a whole.
fn select(
    plugins: &SchedulerPlugins,
    plugin: &PluginPoints,
    path: &Path,
    core: &mut CoreProfile,
    errors: &mut ErrorList,
) {
    let name = plugin.name;
    let on = |point: &&&str| runs(plugins, name, point);
    if let Some((_, point)) = FIXED.iter().find(|(fixed, _)| *fixed == name) {
        if !runs(plugins, name, point) {
            let detail = format!("{name} cannot be disabled");
            errors.push(FieldError::forbidden(&path.child(point), detail));
        }
        return;
    }
    if name == "DefaultPreemption" {
        core.preempts = runs(plugins, name, "postFilter");
        return;
    }
    let whole: Vec<_> =
        plugin.points.iter().filter(|point| !matches!(**point, "preScore" | "score")).collect();
    let running = whole.iter().filter(|point| on(point)).count();
    if running != 0 && running != whole.len() {
        let missing = whole.iter().find(|point| !on(point)).map_or("filter", |point| **point);
        let detail = format!("{name} can only be disabled at all of {whole:?}, or at none");
        errors.push(FieldError::forbidden(&path.child(missing), detail));
    }
    if !whole.is_empty() {
        core.set_filter(name, running != 0);
    }
    // The score of VolumeBinding is an alpha feature of upstream; without it the plugin scores nothing.
    if !plugin.points.contains(&"score") || name == "VolumeBinding" {
        return;
    }
    if !runs(plugins, name, "score") {
        core.set_weight(name, 0);
        return;
    }
    if plugin.points.contains(&"preScore") && !runs(plugins, name, "preScore") {
        let detail = format!("{name} scores nothing without it; disable its score, too");
        errors.push(FieldError::forbidden(&path.child("preScore"), detail));
    }
    let enabled = |set: &PluginSet| set.enables(name).map(|plugin| plugin.weight.unwrap_or(0));
    if let Some(weight) = enabled(&plugins.score).or_else(|| enabled(&plugins.multi_point)) {
        // Upstream treats a missing weight as one.
        core.set_weight(name, weight.max(1));
    }
}

/// Reports whether a plugin is one of the defaults.
#[cfg(test)]
pub(crate) fn is_known(name: &str) -> bool {
    PLUGINS.iter().any(|plugin| plugin.name == name)
}
