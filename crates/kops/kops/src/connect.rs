//! The access of commands to a cluster's API: by a new certificate, or by the user's kubeconfig.

use std::path::{Path, PathBuf};

use api_config::{Kubeconfig, kubeconfig};
use client::Client;
use kops_api::Object;
use kops_local::{administrator, issue_kubeconfig};
use kops_store::Registry;

use crate::{environment::CommandEnvironment, error::Error, flags::Connection};

/// The lifetime of a certificate for one command.
const COMMAND_PERIOD: std::time::Duration = std::time::Duration::from_secs(3600);
const AGENT: &str = "kops/v1.36.2 (windlass)";

/// Returns a client of a cluster's API.
pub(crate) fn open_client(
    registry: &Registry,
    cluster: &Object,
    connection: &Connection,
    context: &CommandEnvironment<'_>,
) -> Result<Client, Error> {
    let name = cluster.name();
    let mut config = if connection.use_kubeconfig {
        let path = default_kubeconfig(context.environment);
        let mut config = Kubeconfig::load(&path)?;
        config.context(name)?;
        name.clone_into(&mut config.current_context);
        config
    } else {
        issue_kubeconfig(registry, name, administrator(), COMMAND_PERIOD, context.now)?
    };
    if let Some(server) = &connection.api_server {
        for named in &mut config.clusters {
            named.cluster.server.clone_from(server);
            // The certificate may not contain the host of the URL.
            named.cluster.tls_server_name = internal_name(name);
        }
    }
    Ok(Client::from_kubeconfig(&config, AGENT).map_err(kops_local::Error::from)?)
}

/// Returns the name that certificates of a cluster's API servers contain.
pub(crate) fn internal_name(cluster: &str) -> String {
    format!("api.internal.{cluster}")
}

/// Returns the kubeconfig file that kubectl uses.
pub(crate) fn default_kubeconfig(environment: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let home = environment("HOME").unwrap_or_else(|| "/root".to_owned());
    kubeconfig::file_to_change(environment("KUBECONFIG").as_deref(), Path::new(&home))
}
