//! The API servers of a cluster, and the configuration that they have loaded.

use data_encoding::HEXLOWER;
use std::{path::Path, time::Duration};

use api_meta::{Timestamp, Tree as _};
use bytes::Bytes;
use client::{Client, ListOptions, Resource};
use http::Method;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::secrets_error::SecretsError;

/// The metric that shows the hash of the configuration in use.
const INFO: &str = "apiserver_encryption_config_controller_last_config_info{";
/// The pause between two reads of the metrics.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns an error if the cluster has several API servers.
pub(super) async fn only_one(client: &Client) -> Result<(), SecretsError> {
    let labels = ListOptions::labels("apiserver.kubernetes.io/identity=kube-apiserver");
    let leases = client.list::<Value>(&Resource::LEASES, "kube-system", &labels).await?;
    let now = Timestamp::from(rt::now());
    let is_live = |lease: &&Value| {
        let renewed = lease.text("spec.renewTime").parse::<Timestamp>();
        let life = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(3600);
        renewed.is_ok_and(|at| at.plus(Duration::from_secs(life)) > now)
    };
    match leases.items.iter().filter(is_live).count() {
        0 | 1 => Ok(()),
        servers => Err(SecretsError::SeveralServers(servers)),
    }
}

/// Reports whether the API server uses a configuration.
pub(super) async fn has_loaded(client: &Client, text: &str) -> Result<bool, SecretsError> {
    let page = client.call(Method::GET, "/metrics", "", Bytes::new()).await?;
    let page = String::from_utf8_lossy(&page);
    let hex = HEXLOWER.encode(&Sha256::digest(text));
    let hash = format!("hash=\"sha256:{hex}\"");
    Ok(page.lines().any(|line| {
        line.starts_with(INFO) && line.contains(&hash) && line.trim_end().ends_with(" 1")
    }))
}

/// Waits until the API server uses a configuration. It may restart meanwhile.
pub(super) async fn wait_until_loaded(
    client: &Client,
    path: &Path,
    text: &str,
    patience: Duration,
) -> Result<(), SecretsError> {
    let loaded = || async {
        match has_loaded(client, text).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SecretsError::NotLoaded { path: path.to_owned(), waited: patience }),
            Err(error) => Err(error),
        }
    };
    let is_passing = |error: &SecretsError| match error {
        SecretsError::NotLoaded { .. } => true,
        SecretsError::Api(error) => !error.is_forbidden(),
        _ => false,
    };
    rt::retry(patience, PAUSE, is_passing, loaded).await
}
