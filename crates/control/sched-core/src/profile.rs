//! Scheduler profiles: the plugins that decide for the Pods of one scheduler name, with their weights and arguments.

use std::sync::{Arc, LazyLock};

use crate::{
    nodeaffinity::{NodeSelector, NodeTerm},
    pod::{Spread, spread},
    view::{NodeAffinityView, SpreadView},
};

/// A scheduler profile. A new one has upstream's default plugins, weights and arguments.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name by which Pods ask for this profile.
    pub scheduler_name: Arc<str>,
    /// `true` if Pods of this profile may evict less important Pods.
    pub preempts: bool,
    /// The share of nodes that is enough to choose from; 0 adapts it to the cluster's size.
    pub percentage_of_nodes_to_score: u32,
    /// The number of nodes that preemption considers.
    pub candidates: Candidates,
    /// The scoring of free resources by NodeResourcesFit.
    pub fit: FitScoring,
    /// The extended resources that NodeResourcesFit does not check.
    pub ignored_resources: Vec<Box<str>>,
    /// The domains of further extended resources that NodeResourcesFit does not check.
    pub ignored_resource_groups: Vec<Box<str>>,
    /// The settings of all plugins, by number.
    pub(crate) plugins: Vec<PluginSettings>,
    pub(crate) added_required: Option<NodeSelector>,
    pub(crate) added_preferred: Vec<(i64, NodeTerm)>,
    /// Constraints for Pods without any; `None` for the system's defaults.
    pub(crate) default_spread: Option<Vec<Spread>>,
}

/// The lower bound of nodes that preemption considers: the larger one of a share and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Percent of the nodes on which preemption may help.
    pub percentage: usize,
    /// A number of nodes.
    pub absolute: usize,
}

/// A scoring strategy over processor and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitScoring {
    /// `MostAllocated` rather than `LeastAllocated`.
    pub most_allocated: bool,
    /// The weight of the processor; 0 leaves it out.
    pub cpu: i64,
    /// The weight of memory; 0 leaves it out.
    pub memory: i64,
}

/// The part of a plugin in a profile.
#[derive(Clone, Debug)]
pub(crate) struct PluginSettings {
    pub(crate) name: &'static str,
    /// `true` if the plugin filters nodes.
    pub(crate) filters: bool,
    /// The weight of the plugin's score; 0 leaves the score out.
    pub(crate) weight: i64,
}

impl Profile {
    /// Enables or disables a plugin's filter, and with it everything else that the plugin does, except its score.
    /// Returns `false` if there is no such plugin.
    pub fn set_filter(&mut self, plugin: &str, on: bool) -> bool {
        self.change(plugin, |settings| settings.filters = on)
    }

    /// Sets the weight of a plugin's score; 0 leaves the score out. Returns `false` if there is no such plugin.
    pub fn set_weight(&mut self, plugin: &str, weight: i64) -> bool {
        self.change(plugin, |settings| settings.weight = weight)
    }

    fn change(&mut self, plugin: &str, change: impl FnOnce(&mut PluginSettings)) -> bool {
        self.plugins.iter_mut().find(|settings| settings.name == plugin).map(change).is_some()
    }

    /// Adds to the node affinity of every Pod of this profile.
    pub fn set_added_affinity(&mut self, added: &NodeAffinityView) {
        let preferred = added.preferred.iter();
        self.added_required = NodeSelector::new(&Default::default(), added.required.as_ref());
        self.added_preferred =
            preferred.map(|p| (p.weight, NodeTerm::new(&p.preference))).collect();
    }

    /// Replaces the system's default spreading by a list, which may be empty.
    pub fn set_default_spread(&mut self, constraints: &[SpreadView]) {
        let constraints = constraints.iter().map(|view| spread(view, &Default::default()));
        self.default_spread = Some(constraints.collect());
    }

    /// Reports whether NodeResourcesFit leaves out an extended resource.
    pub(crate) fn ignores(&self, resource: &str) -> bool {
        let domain = resource.split('/').next().unwrap_or_default();
        self.ignored_resources.iter().any(|name| **name == *resource)
            || self.ignored_resource_groups.iter().any(|group| **group == *domain)
    }

    /// Reports whether the plugin with this number filters nodes.
    pub(crate) fn filters(&self, at: usize) -> bool {
        self.plugins[at].filters
    }

    /// Reports whether the plugin of this name filters nodes.
    pub(crate) fn filters_by(&self, plugin: &str) -> bool {
        self.plugins.iter().any(|settings| settings.name == plugin && settings.filters)
    }

    pub(crate) fn weight(&self, at: usize) -> i64 {
        self.plugins[at].weight
    }

    pub(crate) fn added_required(&self) -> Option<&NodeSelector> {
        self.added_required.as_ref()
    }

    pub(crate) fn added_preferred(&self) -> &[(i64, NodeTerm)] {
        &self.added_preferred
    }

    pub(crate) fn default_spread(&self) -> Option<&[Spread]> {
        self.default_spread.as_deref()
    }
}

/// The profiles of one scheduler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profiles(Vec<Arc<Profile>>);

impl Profiles {
    pub(crate) fn new(profiles: Vec<Profile>) -> Self {
        Self(profiles.into_iter().map(Arc::new).collect())
    }

    pub(crate) fn find(&self, scheduler_name: &str) -> Option<&Arc<Profile>> {
        self.0.iter().find(|profile| *profile.scheduler_name == *scheduler_name)
    }

    /// Returns the profile of a scheduler name, or the default one, because Pods of other schedulers are evaluated too.
    pub(crate) fn of(&self, scheduler_name: &str) -> &Arc<Profile> {
        static DEFAULT: LazyLock<Arc<Profile>> = LazyLock::new(Arc::default);
        self.find(scheduler_name).unwrap_or(&DEFAULT)
    }
}
