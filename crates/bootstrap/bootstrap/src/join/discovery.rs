//! Discovers a cluster and establishes trust in it.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use api_config::{
    Kubeconfig, KubeletConfiguration,
    kubeadm::{BootstrapTokenDiscovery, ClusterConfiguration, JoinConfiguration},
    kubeconfig::{Cluster, User},
    yaml,
};
use api_meta::Tree as _;
use bootstrap_core::{
    DiscoveryError,
    constants::DEFAULT_CLUSTER_NAME,
    discovery::{self, CLUSTER_INFO},
    hash, objects,
    tokens::Token,
};
use client::{Client, HttpTransport, Resource, TlsMaterial};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    Error, JoinError,
    cluster::{USER_AGENT, get},
    node::Node,
};

const TOKEN_USER: &str = "tls-bootstrap-token-user";
const POLL: Duration = Duration::from_millis(500);
/// The time to wait for the signature of a new token. If it is missing for longer, the token is unknown.
const UNSIGNED: Duration = Duration::from_secs(10);

/// A discovered cluster.
#[derive(Clone)]
pub(super) struct DiscoveredCluster {
    /// The kubeconfig with the credentials of discovery, with which the kubelet requests its own.
    pub(super) kubeconfig: Kubeconfig,
    pub(super) client: Client,
    pub(super) ca_pem: String,
}

/// Discovers the cluster and establishes trust, as the configuration says.
pub(super) async fn discover(
    join: &JoinConfiguration,
    now: SystemTime,
) -> Result<DiscoveredCluster, Error> {
    let patience = join
        .timeouts
        .as_ref()
        .and_then(|t| t.discovery)
        .map_or(Duration::from_secs(300), |d| d.to_std());
    let cluster = match (&join.discovery.bootstrap_token, &join.discovery.file) {
        (Some(token), _) => by_token(token, patience, now).await?,
        (None, Some(file)) => {
            let config = from_file(&file.kube_config_path)?;
            let current = config.current()?;
            if join.discovery.tls_bootstrap_token.is_empty() {
                if !current.user.has_credentials() {
                    return Err(JoinError::NoCredentials.into());
                }
                return discovered_cluster(current.cluster.clone(), current.user.clone());
            }
            current.cluster.clone()
        }
        (None, None) => return Err(JoinError::NoDiscovery.into()),
    };
    discovered_cluster(cluster, User::with_token(join.discovery.tls_bootstrap_token.as_str()))
}

fn discovered_cluster(cluster: Cluster, user: User) -> Result<DiscoveredCluster, Error> {
    let ca_pem = cluster.ca_pem()?.ok_or(JoinError::NoAuthority)?;
    let server = cluster.server.clone();
    let kubeconfig = Kubeconfig::single(DEFAULT_CLUSTER_NAME, cluster, TOKEN_USER, user);
    let client = Client::from_kubeconfig(&kubeconfig, USER_AGENT)
        .map_err(|e| Error::Client { path: server.into(), reason: e.to_string() })?;
    Ok(DiscoveredCluster { kubeconfig, client, ca_pem })
}

fn from_file(path: &str) -> Result<Kubeconfig, Error> {
    if path.starts_with("https://") {
        return Err(JoinError::Url(path.to_owned()).into());
    }
    if !Path::new(path).exists() {
        return Err(JoinError::File(path.to_owned()).into());
    }
    let mut config = Kubeconfig::load(Path::new(path))?;
    // The ConfigMap cluster-info contains one unnamed cluster, no user and no context.
    if config.current_context.is_empty() && config.clusters.len() == 1 {
        let cluster = config.clusters.remove(0).cluster;
        config = Kubeconfig::single(DEFAULT_CLUSTER_NAME, cluster, TOKEN_USER, User::default());
    }
    Ok(config)
}

/// Creates a client of `server` without credentials. Without a CA the server is not verified.
fn client_of(server: &str, ca_pem: Option<&str>) -> Result<Client, Error> {
    let failed = |reason: String| Error::Client { path: server.into(), reason };
    let tls = TlsMaterial {
        ca: ca_pem.map(|pem| pem.as_bytes().to_vec()),
        insecure: ca_pem.is_none(),
        ..TlsMaterial::default()
    };
    let tls = tls.client_config().map_err(|e| failed(e.to_string()))?;
    let transport = HttpTransport::new(server, tls, None).map_err(|e| failed(e.to_string()))?;
    Ok(Client::new(Arc::new(transport), USER_AGENT))
}

async fn by_token(
    config: &BootstrapTokenDiscovery,
    patience: Duration,
    now: SystemTime,
) -> Result<Cluster, Error> {
    let token: Token = config.token.parse()?;
    let server = format!("https://{}", config.api_server_endpoint);
    let nobody = client_of(&server, None)?;
    let started = Instant::now();
    let untrusted = loop {
        let (error, patience) = match cluster_info(&nobody).await {
            Ok(map) => match discovery::verify(&map, &token, &config.ca_cert_hashes) {
                Ok(cluster) => break cluster,
                Err(e @ bootstrap_core::Error::Discovery(DiscoveryError::NoSignature(_))) => {
                    (e.into(), patience.min(UNSIGNED))
                }
                Err(e) => return Err(e.into()),
            },
            Err(e) => (e, patience),
        };
        if started.elapsed() >= patience {
            return Err(Error::NotUp {
                what: format!("cluster-info at {server}"),
                waited: format!("{}s", patience.as_secs()),
                cause: error.to_string(),
            });
        }
        sleep(POLL).await;
    };
    // A wrong clock invalidates every certificate, so it is reported here and not mistaken for an attack.
    for ca in &untrusted.ca {
        ca.check_valid_at(now)?;
    }
    // Read the unauthenticated answer again from the server, now verified by its CA.
    let pem: String = untrusted.ca.iter().map(pki::Cert::to_pem).collect();
    let trusted = client_of(&server, Some(&pem))?;
    let again = discovery::verify(&cluster_info(&trusted).await?, &token, &config.ca_cert_hashes)?;
    if again != untrusted {
        return Err(JoinError::ClusterInfoChanged(server).into());
    }
    Ok(again.cluster)
}

async fn cluster_info(client: &Client) -> Result<Value, Error> {
    let info = get(client, &Resource::CONFIG_MAPS, "kube-public", CLUSTER_INFO).await?;
    Ok(info.ok_or(JoinError::NoClusterInfo)?)
}

/// Reads the configuration that the cluster publishes for joining machines.
pub(super) async fn read_configuration(client: &Client, node: &mut Node) -> Result<(), Error> {
    node.config.cluster = cluster_configuration(client).await?;
    (node.config.kubelet, _) = kubelet_configuration(client).await?;
    Ok(())
}

/// Reads the cluster's configuration from the ConfigMap kubeadm-config.
pub(crate) async fn cluster_configuration(client: &Client) -> Result<ClusterConfiguration, Error> {
    let map = system_map(client, "kubeadm-config").await?;
    Ok(objects::read_kubeadm_config(&map)?)
}

/// Reads the kubelets' configuration from the ConfigMap kubelet-config. The flag is `true` if a user has written it.
pub(crate) async fn kubelet_configuration(
    client: &Client,
) -> Result<(KubeletConfiguration, bool), Error> {
    let map = system_map(client, "kubelet-config").await?;
    let config = KubeletConfiguration::from_value(yaml::parse(map.text("data.kubelet"))?)?.value;
    Ok((config, !hash::is_untouched(&map)))
}

async fn system_map(client: &Client, name: &'static str) -> Result<Value, Error> {
    let map = get(client, &Resource::CONFIG_MAPS, "kube-system", name).await?;
    Ok(map.ok_or(JoinError::NoConfigMap(name))?)
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};

    use super::*;

    /// Certificates and keys made by openssl and Go.
    const VECTORS: &str = include_str!("../../../../base/pki/vectors/client-certificates.tsv");

    /// Discovers a cluster with a file for this user.
    async fn by_file(user: &str, token: &str) -> Result<DiscoveredCluster, Error> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("discovery.conf");
        let root = row("openssl-without-extensions-rsa")[4];
        let ca = STANDARD.encode(pem("CERTIFICATE", root));
        let text = format!(
            "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1', certificate-authority-data: {ca}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut join = JoinConfiguration::default();
        join.discovery.file.get_or_insert_default().kube_config_path =
            file.to_string_lossy().into_owned();
        token.clone_into(&mut join.discovery.tls_bootstrap_token);
        discover(&join, SystemTime::now()).await
    }

    fn row(name: &str) -> Vec<&'static str> {
        let mut rows = VECTORS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        rows.find(|row| row[0] == name || (row[0] == "key" && row[1] == name)).unwrap()
    }

    fn pem(label: &str, base64: &str) -> String {
        format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n")
    }

    #[tokio::test]
    async fn rejects_discovery_file_without_credentials() {
        for user in ["", "username: u", "client-certificate: /a"] {
            let refused = by_file(user, "").await.err().unwrap().to_string();
            assert!(refused.contains("for the TLS bootstrap process"), "{user}: {refused}");
        }
        for (user, token) in [("token: t", ""), ("", "abcdef.0123456789abcdef")] {
            by_file(user, token).await.unwrap();
        }
    }

    #[tokio::test]
    async fn accepts_x509v1_client_certificate_in_discovery_file() {
        let cert = STANDARD.encode(pem("CERTIFICATE", row("openssl-without-extensions-rsa")[5]));
        let key = STANDARD.encode(pem("PRIVATE KEY", row("rsa")[2]));
        let user = format!("client-certificate-data: {cert}, client-key-data: {key}");
        by_file(&user, "").await.unwrap();
    }

    #[tokio::test]
    async fn rejects_missing_discovery_file() {
        let mut join = JoinConfiguration::default();
        join.discovery.file.get_or_insert_default().kube_config_path = "/nonexistent".to_owned();
        let refused = discover(&join, SystemTime::now()).await.err().unwrap().to_string();
        assert!(refused.contains("not a valid HTTPS URL or a file on disk"), "{refused}");
    }
}
