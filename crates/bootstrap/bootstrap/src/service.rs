//! The kubelet as a service of the machine. Read [`KubeletService`] first.

mod supervisor;
mod systemd;

use futures_util::future::BoxFuture;

pub use supervisor::keep_kubelet;
pub(crate) use systemd::kubelet_is_enabled;

use crate::{Error, FileChange, host::Host};

/// A manager of a machine's kubelet: systemd, or our own supervisor.
pub trait KubeletService: Send + Sync {
    /// Installs the kubelet as a service unless it is one.
    fn install(&self, control_plane: bool) -> BoxFuture<'_, Result<Vec<FileChange>, Error>>;
    /// Restarts the kubelet with the settings on disk.
    fn start(&self) -> BoxFuture<'_, Result<(), Error>>;
    fn stop(&self) -> BoxFuture<'_, Result<(), Error>>;
    /// Reverts `install` and returns the errors.
    fn uninstall(&self) -> BoxFuture<'_, Vec<String>>;
    /// Returns the end of the kubelet's log, or a hint where to read it.
    fn last_words(&self) -> String;
}

/// The service manager of a host: systemd, or else our own supervisor.
pub struct HostService(pub Host);

impl KubeletService for HostService {
    fn install(&self, control_plane: bool) -> BoxFuture<'_, Result<Vec<FileChange>, Error>> {
        Box::pin(async move {
            if self.0.has_systemd() {
                systemd::install(&self.0, control_plane).await
            } else {
                Ok(Vec::new())
            }
        })
    }

    fn start(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            if self.0.has_systemd() {
                systemd::start().await
            } else {
                supervisor::start(&self.0).await
            }
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            if self.0.has_systemd() {
                systemd::stop(&self.0).await
            } else {
                supervisor::stop(&self.0).await
            }
        })
    }

    fn uninstall(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async {
            let mut left = systemd::uninstall(&self.0).await;
            left.extend(supervisor::uninstall(&self.0));
            left
        })
    }

    fn last_words(&self) -> String {
        if self.0.has_systemd() {
            "its log says why (journalctl -xeu kubelet, or systemctl status kubelet)".to_owned()
        } else {
            supervisor::last_words(&self.0)
        }
    }
}
