//! The access of commands to a cluster's API.

use std::{path::Path, time::Duration};

use api_config::{Kubeconfig, kubeconfig::Cluster as Server};
use client::Client;
use kops_api::Object;
use kops_core::{CloudName, Cluster as _};
use kops_local::{administrator, issue_kubeconfig};
use kops_store::Registry;

use crate::{
    environment::CommandEnvironment,
    error::Error,
    flags::Connection,
    kubeconfig::{internal_name, kubeconfig_path, remote_access},
};

impl Connection {
    /// Returns the access of a new administrator to the chosen server.
    fn administrator(
        &self,
        registry: &Registry,
        cluster: &str,
        period: Duration,
        context: &CommandEnvironment<'_>,
    ) -> Result<Kubeconfig, Error> {
        let mut own = issue_kubeconfig(registry, cluster, administrator(), period, context.now)?;
        if self.use_kubeconfig {
            let server = known_server(cluster, context)?;
            own.clusters.iter_mut().for_each(|named| named.cluster = server.clone());
        }
        Ok(own)
    }

    /// Returns the URL of the server that a flag gives.
    fn given_server(&self) -> Result<Option<&str>, Error> {
        // Without TLS, anyone could answer.
        if self.api_server.as_ref().is_some_and(|server| !server.starts_with("https://")) {
            let problem = "is not a URL that starts with https://";
            return Err(Error::Flag { flag: "--api-server", problem });
        }
        Ok(self.api_server.as_deref())
    }

    /// Returns the URL of the chosen server; `None` for the cluster's own.
    pub(crate) fn server(
        &self,
        cluster: &str,
        context: &CommandEnvironment<'_>,
    ) -> Result<Option<String>, Error> {
        if self.use_kubeconfig {
            return Ok(Some(known_server(cluster, context)?.server));
        }
        Ok(self.given_server()?.map(str::to_owned))
    }

    /// Reports whether a flag chooses a server.
    pub(crate) fn is_given(&self) -> bool {
        self.use_kubeconfig || self.api_server.is_some()
    }

    /// Opens a client of a cluster's API in any cloud: by the cluster's context in a kubeconfig, or else as a new
    /// administrator whose certificate is valid for `period`.
    pub(crate) fn open(
        &self,
        registry: &Registry,
        cluster: &Object,
        file: Option<&Path>,
        period: Duration,
        context: &CommandEnvironment<'_>,
    ) -> Result<Client, Error> {
        let given = self.given_server()?;
        let name = cluster.name();
        let mut access = match file {
            Some(path) => {
                let mut access = Kubeconfig::load(path)?;
                access.context(name)?;
                name.clone_into(&mut access.current_context);
                access
            }
            None if cluster.cloud() == CloudName::Local => {
                self.administrator(registry, name, period, context)?
            }
            None => {
                let server = self.server(name, context)?;
                remote_access(registry, cluster, server.as_deref(), period, context)?
            }
        };
        if let Some(server) = given {
            for named in &mut access.clusters {
                server.clone_into(&mut named.cluster.server);
                // The certificate may not contain the host of the URL.
                named.cluster.tls_server_name = internal_name(name);
            }
        }
        Ok(Client::from_kubeconfig(&access, &version::user_agent("kops"))
            .map_err(kops_local::Error::from)?)
    }
}

/// Returns the server of a cluster's context in the kubeconfig.
fn known_server(cluster: &str, context: &CommandEnvironment<'_>) -> Result<Server, Error> {
    let file = Kubeconfig::load(&kubeconfig_path(context.environment))?;
    Ok(file.context(cluster)?.cluster.clone())
}

#[cfg(test)]
mod tests {
    use kops_api::Kind;
    use kops_local::COMMAND_PERIOD;

    use super::*;

    #[test]
    fn rejects_servers_without_tls_and_foreign_contexts() {
        let dir = tempfile::tempdir().unwrap();
        let registry =
            Registry::open(&format!("file://{}", dir.path().display()), &|_| None).unwrap();
        let path = dir.path().join("config");
        let cluster = Object::new(Kind::Cluster, "a.local");
        let refusal = |flags: &Connection, file: Option<&Path>| {
            let environment = |_: &str| Some(path.display().to_string());
            let now = std::time::SystemTime::UNIX_EPOCH;
            let mut out = Vec::new();
            let context = CommandEnvironment { now, out: &mut out, environment: &environment };
            let opened = flags.open(&registry, &cluster, file, COMMAND_PERIOD, &context);
            opened.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let plain =
            Connection { api_server: Some("http://192.0.2.1".to_owned()), ..Connection::default() };
        assert!(
            refusal(&plain, None).contains("--api-server is not a URL that starts with https://")
        );
        let flags = Connection::default();
        assert!(refusal(&flags, Some(&path)).contains("config"));
        for (text, reason) in [("{}", "a.local"), ("[", "config"), ("contexts: 5", "config")] {
            std::fs::write(&path, text).unwrap();
            let error = refusal(&flags, Some(&path));
            assert!(error.contains(reason), "{text}: {error}");
        }
        // The administrator's certificate needs the cluster's keys.
        assert!(refusal(&flags, None).contains("has no keys yet"));
    }
}
