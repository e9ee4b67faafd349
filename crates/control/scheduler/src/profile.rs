//! A profile of the scheduler: the part of the core, and the settings for writing decisions.

use std::time::Duration;

use sched_core::Profile as CoreProfile;

/// A profile of this scheduler.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The part that the core uses.
    pub core: CoreProfile,
    /// The time limit for binding a Pod's volumes.
    pub bind_timeout: Duration,
}

impl Default for Profile {
    fn default() -> Self {
        Self { core: CoreProfile::default(), bind_timeout: Duration::from_secs(600) }
    }
}
