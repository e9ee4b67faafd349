//! Turns the profiles of a KubeSchedulerConfiguration into those of the core.
//!
//! A profile either acts as written or stops the start: a filter that an administrator requires is never left out.

use std::time::Duration;

use api_config::scheduler::{PluginSet, SchedulerPlugins, SchedulerProfile};
use api_meta::{ErrorList, FieldError, Path};
use sched_core::Profile as CoreProfile;

use crate::arguments;

/// A profile of this scheduler.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The part that decides.
    pub core: CoreProfile,
    /// The time that the volumes of a Pod may take to be bound.
    pub bind_timeout: Duration,
}

impl Default for Profile {
    fn default() -> Self {
        Self { core: CoreProfile::default(), bind_timeout: Duration::from_secs(600) }
    }
}

/// A plugin of upstream's defaults: its name and the extension points that it extends.
struct Known {
    name: &'static str,
    points: &'static [&'static str],
}

const fn known(name: &'static str, points: &'static [&'static str]) -> Known {
    Known { name, points }
}

const FILTER: &[&str] = &["filter"];
const FILTERS: &[&str] = &["preFilter", "filter"];
const FILTER_AND_SCORE: &[&str] = &["preFilter", "filter", "preScore", "score"];

/// The default plugins of v1.36.
const PLUGINS: &[Known] = &[
    known("SchedulingGates", &["preEnqueue"]),
    known("PrioritySort", &["queueSort"]),
    known("NodeUnschedulable", FILTER),
    known("NodeName", FILTER),
    known("TaintToleration", &["filter", "preScore", "score"]),
    known("NodeAffinity", FILTER_AND_SCORE),
    known("NodePorts", FILTERS),
    known("NodeResourcesFit", FILTER_AND_SCORE),
    known("VolumeRestrictions", FILTERS),
    known("NodeVolumeLimits", FILTERS),
    known("VolumeBinding", &["preFilter", "filter", "preScore", "score", "reserve", "preBind"]),
    known("VolumeZone", FILTERS),
    known("PodTopologySpread", FILTER_AND_SCORE),
    known("InterPodAffinity", FILTER_AND_SCORE),
    known(
        "DynamicResources",
        &["preEnqueue", "preFilter", "filter", "postFilter", "score", "reserve", "preBind"],
    ),
    known("NodeDeclaredFeatures", FILTERS),
    known("DefaultPreemption", &["preEnqueue", "postFilter"]),
    known("NodeResourcesBalancedAllocation", &["preScore", "score"]),
    known("ImageLocality", &["score"]),
    known("DefaultBinder", &["bind"]),
];

/// Plugins that every profile has, with the extension point that they act at.
const FIXED: &[(&str, &str)] =
    &[("SchedulingGates", "preEnqueue"), ("PrioritySort", "queueSort"), ("DefaultBinder", "bind")];

/// A plugin that is on by default and that no node can fail here: nodes do not declare features.
const WITHOUT_EFFECT: &str = "NodeDeclaredFeatures";

/// Compiles one profile; whatever it cannot act on goes to `errors`.
pub(crate) fn compile(given: &SchedulerProfile, path: &Path, errors: &mut ErrorList) -> Profile {
    let name = given.scheduler_name.as_deref().unwrap_or("default-scheduler");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("schedulerName"), ""));
    }
    let mut profile = Profile { core: CoreProfile::new(name), ..Profile::default() };
    let share = given.percentage_of_nodes_to_score;
    profile.core.percentage_of_nodes_to_score =
        percentage(share, &path.child("percentageOfNodesToScore"), errors);
    let plugins = path.child("plugins");
    check_names(&given.plugins, &plugins, errors);
    for known in PLUGINS {
        select(&given.plugins, known, &plugins, &mut profile.core, errors);
    }
    let mut seen: Vec<&str> = Vec::new();
    for (i, config) in given.plugin_config.iter().enumerate() {
        let path = path.child("pluginConfig").index(i);
        if seen.contains(&&*config.name) {
            errors.push(FieldError::duplicate(&path, config.name.as_str()));
        }
        seen.push(&config.name);
        if !PLUGINS.iter().any(|known| known.name == config.name) {
            let detail = format!("plugin {:?} does not exist", config.name);
            errors.push(FieldError::invalid(&path, config.name.as_str(), detail));
            continue;
        }
        arguments::apply(config, &path.child("args"), &mut profile, errors);
    }
    profile
}

/// Validates a share of nodes; one that is not given is 0, which adapts to the cluster's size.
pub(crate) fn percentage(given: Option<i64>, path: &Path, errors: &mut ErrorList) -> u32 {
    match given.unwrap_or(0) {
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
            let Some(known) = PLUGINS.iter().find(|known| known.name == plugin.name) else {
                bad(format!("{kind} {:?} does not exist", plugin.name));
                continue;
            };
            if point != "multiPoint" && !known.points.contains(&point) {
                bad(format!("plugin {:?} does not extend {kind} plugin", plugin.name));
            }
            if set.enabled[..i].iter().any(|other| other.name == plugin.name) {
                bad(format!("plugin {:?} already registered as {point:?}", plugin.name));
            }
            if plugin.name == WITHOUT_EFFECT && point != "multiPoint" {
                bad("is not acted on: nodes of this cluster declare no features".to_owned());
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

/// Switches one plugin as the profile says. A plugin that would run at some of its points only is refused where the
/// core knows only the whole of it.
fn select(
    plugins: &SchedulerPlugins,
    known: &Known,
    path: &Path,
    core: &mut CoreProfile,
    errors: &mut ErrorList,
) {
    let name = known.name;
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
        known.points.iter().filter(|point| !matches!(**point, "preScore" | "score")).collect();
    let running = whole.iter().filter(|point| on(point)).count();
    if running != 0 && running != whole.len() {
        let missing = whole.iter().find(|point| !on(point)).map_or("filter", |point| **point);
        let detail = format!("{name} can only be disabled at all of {whole:?}, or at none");
        errors.push(FieldError::forbidden(&path.child(missing), detail));
    }
    if !whole.is_empty() {
        core.set_filter(name, running != 0);
    }
    // What VolumeBinding scores is an alpha feature of upstream's; it scores nothing otherwise.
    if !known.points.contains(&"score") || name == "VolumeBinding" {
        return;
    }
    if !runs(plugins, name, "score") {
        core.set_weight(name, 0);
        return;
    }
    if known.points.contains(&"preScore") && !runs(plugins, name, "preScore") {
        let detail = format!("{name} scores nothing without it; disable its score, too");
        errors.push(FieldError::forbidden(&path.child("preScore"), detail));
    }
    let enabled = |set: &PluginSet| set.enables(name).map(|plugin| plugin.weight.unwrap_or(0));
    if let Some(weight) = enabled(&plugins.score).or_else(|| enabled(&plugins.multi_point)) {
        // Upstream takes no weight for a weight of one.
        core.set_weight(name, weight.max(1));
    }
}

/// Reports whether a plugin is one of the defaults.
#[cfg(test)]
pub(crate) fn is_known(name: &str) -> bool {
    PLUGINS.iter().any(|known| known.name == name)
}
