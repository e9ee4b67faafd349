//! The kubelet as a service of the machine.

mod supervised;
mod systemd;

use futures_util::future::BoxFuture;

pub use supervised::keep_kubelet;
pub(crate) use systemd::kubelet_is_enabled;

use crate::{Error, Touched, host::Host};

/// Who keeps the kubelet of a machine running: systemd, or a supervisor of the caller's.
pub trait KubeletService: Send + Sync {
    /// Makes the kubelet a service where it is none.
    fn install(&self, control_plane: bool) -> BoxFuture<'_, Result<Vec<Touched>, Error>>;
    /// Starts it anew, with the settings that are on disk now.
    fn start(&self) -> BoxFuture<'_, Result<(), Error>>;
    fn stop(&self) -> BoxFuture<'_, Result<(), Error>>;
    /// Takes `install` back; returns what could not be.
    fn uninstall(&self) -> BoxFuture<'_, Vec<String>>;
    /// What the kubelet said last, or where that can be read.
    fn last_words(&self) -> String;
}

/// The machine's own service manager: systemd, or where there is none, a supervisor of ours.
pub struct HostService(pub Host);

impl KubeletService for HostService {
    fn install(&self, control_plane: bool) -> BoxFuture<'_, Result<Vec<Touched>, Error>> {
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
                supervised::start(&self.0).await
            }
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async {
            if self.0.has_systemd() {
                systemd::stop(&self.0).await
            } else {
                supervised::stop(&self.0).await
            }
        })
    }

    fn uninstall(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async {
            let mut left = systemd::uninstall(&self.0).await;
            left.extend(supervised::uninstall(&self.0));
            left
        })
    }

    fn last_words(&self) -> String {
        if self.0.has_systemd() {
            "its log says why (journalctl -xeu kubelet, or systemctl status kubelet)".to_owned()
        } else {
            supervised::last_words(&self.0)
        }
    }
}
