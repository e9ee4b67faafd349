//! Stores the addresses of the cluster's API servers in a file, and updates them from the cluster.

use std::{io, path::Path, sync::Arc, time::Duration};

use client::{Client, KubeconfigError, Resource};
use serde_json::Value;

use crate::{args::Args, servers::Servers};

/// The interval between two queries of the cluster.
const EVERY: Duration = Duration::from_secs(20);
/// The interval until the cluster has answered once.
const SOON: Duration = Duration::from_secs(2);

pub(crate) fn read(path: &Path) -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(str::trim);
    Ok(lines.filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned).collect())
}

/// Writes the file atomically.
pub(crate) fn write(path: &Path, servers: &[String]) -> io::Result<()> {
    let next = path.with_extension("new");
    std::fs::write(&next, servers.iter().map(|s| format!("{s}\n")).collect::<String>())?;
    std::fs::rename(&next, path)
}

/// Queries the cluster for its servers periodically, and updates the file.
pub(crate) async fn refresh(servers: Arc<Servers>, args: Args, shutdown: rt::Shutdown) {
    let mut wait = SOON;
    while shutdown.unless_stopping(tokio::time::sleep(wait)).await.is_some() {
        let query = list_servers(&args.kubeconfig);
        let Some(listed) = shutdown.unless_stopping(query).await else { return };
        match listed {
            Ok(Some(listed)) => {
                wait = EVERY;
                let changed = servers.pool().update(&listed);
                if !changed {
                    continue;
                }
                tracing::info!(servers = ?listed, "the cluster's API servers");
                servers.changed.send_replace(());
                let all = servers.pool().addresses();
                if let Err(error) = write(&args.servers, &all) {
                    tracing::warn!(%error, path = %args.servers.display(), "cannot write the file of API servers");
                }
            }
            // The node has no identity yet.
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "asking the cluster for its API servers"),
        }
    }
}

/// The error of a query for the cluster's servers.
#[derive(Debug, thiserror::Error)]
enum QueryError {
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error(transparent)]
    Api(#[from] client::Error),
}

async fn list_servers(kubeconfig: &Path) -> Result<Option<Vec<String>>, QueryError> {
    if !kubeconfig.exists() {
        return Ok(None);
    }
    // The kubeconfig is read each time, because its identity is renewed.
    let client = Client::from_kubeconfig_file(kubeconfig, "windlass-balancer")?;
    let endpoints = client.get(&Resource::ENDPOINTS, "default", "kubernetes").await?;
    let listed = addresses(&endpoints);
    // An empty list would leave the node without servers.
    Ok(Some(listed).filter(|l| !l.is_empty()))
}

fn addresses(endpoints: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for subset in list(&endpoints["subsets"]) {
        for (address, port) in list(&subset["addresses"])
            .iter()
            .flat_map(|a| list(&subset["ports"]).into_iter().map(move |p| (a.clone(), p)))
        {
            let ip = address["ip"].as_str().unwrap_or_default();
            match (ip.parse::<std::net::IpAddr>(), port["port"].as_u64()) {
                (Ok(std::net::IpAddr::V6(ip)), Some(port)) => all.push(format!("[{ip}]:{port}")),
                (Ok(ip), Some(port)) => all.push(format!("{ip}:{port}")),
                _ => {}
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_endpoints_in_both_families() {
        let endpoints = json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 6443}]},
            {"addresses": [{"ip": "fd00::1"}], "ports": [{"port": 6443}]},
        ]});
        assert_eq!(addresses(&endpoints), ["10.0.0.1:6443", "10.0.0.2:6443", "[fd00::1]:6443"]);
        assert!(addresses(&json!({})).is_empty());
    }

    #[test]
    fn file_has_one_server_per_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("servers");
        let all = ["10.0.0.1:6443".to_owned(), "[fd00::1]:6443".to_owned()];
        write(&path, &all).unwrap();
        assert_eq!(read(&path).unwrap(), all);
        std::fs::write(&path, "# by hand\n\n a:1 \n").unwrap();
        assert_eq!(read(&path).unwrap(), ["a:1"]);
    }
}
