//! The cluster's part in a rotation: the published authorities and the state of each machine.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    time::{Duration, SystemTime},
};

use api_config::{
    Kubeconfig,
    kubeconfig::{Cluster, User},
};
use api_meta::{Timestamp, Tree as _};
use bootstrap_core::{Layout, discovery};
use client::{Client, List, ListOptions, PatchKind, PatchTarget, Resource};
use pki::Cert;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::bundle::pem;
use crate::{
    Error,
    cluster::{USER_AGENT, apply, is_ready},
};

/// The annotation on a static Pod: the authorities for which it was last restarted.
pub(super) const MARK: &str = "windlass.local/authorities";
/// The annotation on a Node: the state of its machine.
const ROTATION_STATE: &str = "windlass.local/authorities";
/// The ConfigMap in each namespace with which Pods verify the API server.
const ROOT_CA: &str = "kube-root-ca.crt";
const NAMESPACE: &str = "kube-system";
const PAUSE: Duration = Duration::from_millis(200);
/// The time in which a restarted server may not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a short hash of a bundle.
pub(super) fn mark(bundle: &[Cert]) -> String {
    let mut hasher = DefaultHasher::new();
    bundle.iter().for_each(|cert| cert.der().hash(&mut hasher));
    format!("{:016x}", hasher.finish())
}

/// The state of a machine in a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RotationState {
    /// The pins of the trusted authorities.
    pub trusts: Vec<String>,
    /// The pin of the authority that signed the kubelet's certificate.
    pub uses: String,
    /// The time at which the kubelet was first seen to use it.
    pub since: String,
}

impl RotationState {
    pub(super) fn of(layout: &Layout, bundle: &[Cert], now: SystemTime) -> Result<Self, Error> {
        let config = Kubeconfig::load(&layout.kubeconfig("kubelet.conf"))?;
        let own = Cert::from_pem(&config.current()?.user.cert_pem()?.unwrap_or_default())?;
        let signer = bundle.iter().find(|ca| own.check_signed_by(ca).is_ok());
        let uses = signer.map(Cert::pin).transpose()?.unwrap_or_default();
        let trusts = bundle.iter().map(Cert::pin).collect::<Result<_, _>>()?;
        let since = Timestamp::from(now).exact();
        Ok(Self { trusts, uses, since })
    }

    pub(super) fn since(&self) -> Option<SystemTime> {
        self.since.parse::<Timestamp>().ok().map(SystemTime::from)
    }

    fn read(node: &Value) -> Option<Self> {
        serde_json::from_str(node.annotation(ROTATION_STATE)?).ok()
    }
}

/// Writes this machine's state to its own Node.
pub(super) async fn record(
    client: &Client,
    name: &str,
    standing: &RotationState,
) -> Result<(), Error> {
    let write = || async {
        let mut standing = standing.clone();
        let node: Value = client.get(&Resource::NODES, "", name).await?;
        if let Some(old) = RotationState::read(&node).filter(|old| old.uses == standing.uses) {
            standing.since = old.since;
        }
        let text = serde_json::to_string(&standing).unwrap_or_default();
        let patch = json!({"metadata": {"annotations": {ROTATION_STATE: text}}});
        let at = PatchTarget { name, ..PatchTarget::default() };
        client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &patch).await.map(drop)
    };
    rt::retry(PATIENCE, PAUSE, |_| true, write).await.map_err(|source| {
        let subject = format!("Node {name}");
        Error::Api { operation: "write its authorities on", subject, source }
    })
}

/// Returns the names of the Nodes that do not satisfy `has`.
pub(super) async fn nodes_without(
    client: &Client,
    has: impl Fn(Option<&RotationState>) -> bool,
) -> Result<Vec<String>, Error> {
    let nodes: List<Value> = client
        .list(&Resource::NODES, "", &ListOptions::default())
        .await
        .map_err(|source| Error::Api { operation: "list", subject: "Nodes".to_owned(), source })?;
    let lacking = nodes.items.iter().filter(|node| !has(RotationState::read(node).as_ref()));
    Ok(lacking.filter_map(|n| n.at("metadata.name").as_str().map(str::to_owned)).collect())
}

/// Publishes the trusted authorities for joining machines and workers. The controller manager renews the signature.
pub(super) async fn publish(client: &Client, bundle: &[Cert]) -> Result<(), Error> {
    let info =
        crate::cluster::get(client, &Resource::CONFIG_MAPS, "kube-public", discovery::CLUSTER_INFO)
            .await?;
    let info = info.unwrap_or_default();
    let text = info.text("data.kubeconfig");
    let mut config = Kubeconfig::parse(text)?;
    for named in &mut config.clusters {
        named.cluster = Cluster::with_ca(named.cluster.server.as_str(), &pem(bundle));
    }
    apply(client, &discovery::cluster_info(&config.to_yaml()?)).await
}

/// Returns the published authorities. The request is anonymous, because a kubelet's user may not read them.
pub(super) async fn published(layout: &Layout) -> Result<Vec<Cert>, Error> {
    let path = layout.kubeconfig("kubelet.conf");
    let config = Kubeconfig::load(&path)?;
    let cluster = config.current()?.cluster.clone();
    let nobody = Kubeconfig::single("cluster", cluster, "nobody", User::default());
    let client = Client::from_kubeconfig(&nobody, USER_AGENT)
        .map_err(|e| Error::Client { path, reason: e.to_string() })?;
    let info = crate::cluster::get(
        &client,
        &Resource::CONFIG_MAPS,
        "kube-public",
        discovery::CLUSTER_INFO,
    )
    .await?;
    let info = info.unwrap_or_default();
    let text = info.text("data.kubeconfig");
    let first = Kubeconfig::parse(text)?.clusters.into_iter().next().unwrap_or_default();
    Ok(Cert::all_from_pem(&first.cluster.ca_pem()?.unwrap_or_default())?)
}

/// Waits until the ConfigMap of every namespace contains this authority. The files in Pods follow within about a
/// minute.
pub(super) async fn wait_for_root_ca(client: &Client, authority: &Cert) -> Result<(), Error> {
    let (until, pem) = (Instant::now() + PATIENCE, authority.to_pem());
    let options = ListOptions {
        field_selector: format!("metadata.name={ROOT_CA}"),
        ..ListOptions::default()
    };
    loop {
        let maps: List<Value> =
            client.list(&Resource::CONFIG_MAPS, "", &options).await.map_err(|source| {
                Error::Api { operation: "list", subject: format!("ConfigMaps {ROOT_CA}"), source }
            })?;
        let lacks = |map: &&Value| !map.text(&["data", "ca.crt"]).contains(pem.trim());
        let Some(lacking) = maps.items.iter().find(lacks) else { return Ok(()) };
        if Instant::now() >= until {
            return Err(Error::NotUp {
                what: format!(
                    "the new authority in ConfigMap {}/{ROOT_CA}",
                    lacking["metadata"]["namespace"]
                ),
                waited: format!("{}s", PATIENCE.as_secs()),
                cause:
                    "the controller manager writes it, after a restart by `trust` on its machine"
                        .to_owned(),
            });
        }
        sleep(PAUSE).await;
    }
}

/// Returns the most recent authority.
pub(super) fn youngest(bundle: &[Cert]) -> Result<Option<&Cert>, Error> {
    let mut latest: Option<(SystemTime, &Cert)> = None;
    for cert in bundle {
        let since = cert.info()?.not_before;
        if latest.is_none_or(|(youngest, _)| since > youngest) {
            latest = Some((since, cert));
        }
    }
    Ok(latest.map(|(_, cert)| cert))
}

/// Waits until this machine's static Pods run with the marked authorities.
pub(super) async fn wait_for_pods(
    client: &Client,
    node: &str,
    pods: &[String],
    mark: &str,
    patience: Duration,
) -> Result<(), Error> {
    let until = Instant::now() + patience;
    for pod in pods {
        let name = format!("{pod}-{node}");
        let look = || async {
            match client.get::<Value>(&Resource::PODS, NAMESPACE, &name).await {
                Ok(pod) if *pod.at(&["metadata", "annotations", MARK]) != mark => {
                    Err("it has not been restarted yet".to_owned())
                }
                Ok(pod) if is_ready(&pod) => Ok(()),
                Ok(pod) => Err(format!("it is not ready: {}", pod["status"]["containerStatuses"])),
                Err(error) => Err(error.to_string()),
            }
        };
        let left = until.saturating_duration_since(Instant::now());
        rt::retry(left, PAUSE, |_| true, look).await.map_err(|cause| {
            let waited = format!("{}s", patience.as_secs());
            Error::NotUp { what: format!("Pod {name}"), waited, cause }
        })?;
    }
    Ok(())
}
