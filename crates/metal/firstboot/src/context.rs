//! The inputs of a stage.

use std::{path::PathBuf, sync::Arc, time::Duration};

use sys::Programs;

/// The inputs of a stage.
pub(crate) struct Context {
    /// The platform, which provides a config if the kernel command line names none.
    pub(crate) platform: String,
    /// The root that is being installed.
    pub(crate) root: PathBuf,
    /// The file with the config that the fetch stage has merged.
    pub(crate) config_cache: PathBuf,
    /// The file that fetch-offline creates if a stage needs the network.
    pub(crate) neednet: PathBuf,
    /// The file with the state for later stages.
    pub(crate) state_file: PathBuf,
    /// The time to wait for the config.
    pub(crate) fetch_timeout: Duration,
    /// Runs programs such as mount and mkfs.
    pub(crate) programs: Arc<dyn Programs>,
    /// The time to wait for a device.
    pub(crate) device_timeout: Duration,
}

#[cfg(test)]
impl Context {
    /// Returns a context with all files below a root, and no time to wait.
    pub(crate) fn below(root: &std::path::Path, programs: Arc<dyn Programs>) -> Self {
        Self {
            platform: "file".into(),
            root: root.to_owned(),
            config_cache: root.join("none"),
            neednet: root.join("none"),
            state_file: root.join("run-state"),
            fetch_timeout: Duration::ZERO,
            programs,
            device_timeout: Duration::ZERO,
        }
    }
}
