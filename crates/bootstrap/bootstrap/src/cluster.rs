//! Access to a running cluster: clients, apply and shared certificates. Read [`admin`] first.

mod apply;
mod upload_certs;

use std::{path::Path, time::Duration};

use api_config::GoDuration;
use bootstrap_core::{Layout, objects};
use client::Client;
use tokio::time::Instant;

pub use apply::{apply, apply_all, get, resource_of};
pub(crate) use apply::{is_conflict, is_ready};
pub use upload_certs::{download_certs, new_certificate_key, upload_certs};

use crate::Error;

/// The user agent of bootstrap clients.
pub const USER_AGENT: &str = concat!("windlass/", env!("CARGO_PKG_VERSION"), " (bootstrap)");

/// Creates a client from a kubeconfig file.
pub fn client(path: &Path) -> Result<Client, Error> {
    Client::from_kubeconfig_file(path, USER_AGENT)
        .map_err(|e| Error::Client { path: path.into(), reason: e.to_string() })
}

/// Returns a client with administrator rights. The rights of admin.conf come from a ClusterRoleBinding; if it is
/// missing, super-admin.conf creates it.
pub async fn admin(layout: &Layout, patience: Option<GoDuration>) -> Result<Client, Error> {
    let path = layout.kubeconfig("admin.conf");
    let (admin, super_admin) = (client(&path)?, layout.kubeconfig("super-admin.conf"));
    let binding = objects::cluster_admins();
    let until = Instant::now() + patience.map_or(Duration::from_secs(60), GoDuration::to_std);
    let mut bound = false;
    loop {
        let error = match apply(&admin, &binding).await {
            Ok(()) => return Ok(admin),
            Err(e) => e,
        };
        match &error {
            Error::Api { source, .. } if source.is_forbidden() && bound => {
                // The binding exists; the server's authorizer will see it soon.
            }
            Error::Api { source, .. } if source.is_forbidden() && super_admin.exists() => {
                apply(&client(&super_admin)?, &binding).await?;
                bound = true;
            }
            Error::Api { source, .. } if source.is_forbidden() => {
                return Err(Error::Client {
                    path,
                    reason: format!(
                        "{source}; its group kubeadm:cluster-admins is bound to no role, and there is no {} to bind it \
                         with",
                        super_admin.display()
                    ),
                });
            }
            // The server may have only just started to listen.
            Error::Api { source: client::Error::Transport { .. }, .. } => {}
            _ => return Err(error),
        }
        if Instant::now() >= until {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
