//! The default profile: all plugins of the registry, with upstream's weights and arguments.

use crate::{
    plugins::registry,
    profile::{Candidates, FitScoring, PluginSettings, Profile},
};

impl Default for Profile {
    fn default() -> Self {
        Self::new("default-scheduler")
    }
}

impl Profile {
    /// Returns the default profile under a name.
    pub fn new(scheduler_name: &str) -> Self {
        let settings = registry().iter().map(|plugin| PluginSettings {
            name: plugin.name(),
            filters: true,
            weight: plugin.weight(),
        });
        Self {
            scheduler_name: scheduler_name.into(),
            preempts: true,
            percentage_of_nodes_to_score: 0,
            candidates: Candidates { percentage: 10, absolute: 100 },
            fit: FitScoring { most_allocated: false, cpu: 1, memory: 1 },
            ignored_resources: Vec::new(),
            ignored_resource_groups: Vec::new(),
            plugins: settings.collect(),
            added_required: None,
            added_preferred: Vec::new(),
            default_spread: None,
        }
    }
}
