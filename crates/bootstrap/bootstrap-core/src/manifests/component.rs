//! The components with static Pods.

use crate::constants;

/// The components with static Pods, in the order of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    ApiServer,
    ControllerManager,
    Scheduler,
    Etcd,
}

impl Component {
    /// The components of every control plane, with local or external etcd.
    pub const CONTROL_PLANE: [Self; 3] =
        [Self::ApiServer, Self::ControllerManager, Self::Scheduler];

    /// Returns the name of the binary, the image and the container.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => constants::API_SERVER,
            Self::ControllerManager => constants::CONTROLLER_MANAGER,
            Self::Scheduler => constants::SCHEDULER,
            Self::Etcd => constants::ETCD,
        }
    }

    /// Returns the file name of the manifest.
    pub fn file(self) -> String {
        format!("{}.yaml", self.name())
    }
}
