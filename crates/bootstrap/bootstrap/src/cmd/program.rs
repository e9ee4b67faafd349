//! The name by which the program was called.

use bootstrap_core::constants::{DEFAULT_REPOSITORY, OWN_REPOSITORY};

/// The name by which the program was called. It selects the default image repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Windlass,
    Kubeadm,
}

impl Program {
    /// Returns the program name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Windlass => "windlass",
            Self::Kubeadm => "kubeadm",
        }
    }

    /// Returns the default image repository: images that are built locally, or upstream's.
    pub fn image_repository(self) -> &'static str {
        match self {
            Self::Windlass => OWN_REPOSITORY,
            Self::Kubeadm => DEFAULT_REPOSITORY,
        }
    }
}
