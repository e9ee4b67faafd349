use std::{sync::Arc, time::Duration};

use client::{Change, Client, Informer, ListOptions, Resource};
use net_core::{api::Node, overlay};
use netlink::Net;
use tokio::sync::Notify;

use crate::{Overlay, OverlayError};

#[derive(Clone, Debug)]
pub struct Settings {
    pub node: String,
    pub overlay: Overlay,
    pub always_tunnel: bool,
}

/// How often it is looked whether routes and rules are still there.
const PERIOD: Duration = Duration::from_secs(30);

/// Follows the nodes until `tasks` shuts down.
pub async fn run(settings: Settings, client: Client, net: Arc<dyn Net>, tasks: &rt::Tasks) {
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    let nodes = Informer::<Node>::start(
        &client,
        Resource::NODES,
        ListOptions::default(),
        tasks,
        move |change: Change<'_, Node>| {
            if change.old != change.new {
                notify.notify_one();
            }
        },
    );
    let follow = async {
        nodes.synced().await;
        let mut backoff = rt::Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        loop {
            let (settings, net, list) = (settings.clone(), net.clone(), nodes.list());
            let work = move || apply(&settings, &*net, &list);
            match tokio::task::spawn_blocking(work).await {
                Ok(Ok(changes)) => {
                    backoff.reset();
                    if changes > 0 {
                        tracing::info!(changes, "routes to other nodes are up to date");
                    }
                    let _ = tokio::time::timeout(PERIOD, changed.notified()).await;
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, cause = ?std::error::Error::source(&error).map(ToString::to_string), "routing to other nodes");
                    tokio::time::sleep(backoff.next(0.0)).await;
                }
                Err(panic) => {
                    tracing::error!(%panic, "routing to other nodes");
                    tokio::time::sleep(backoff.next(0.0)).await;
                }
            }
        }
    };
    let _: Option<()> = tasks.shutdown().unless_stopping(follow).await;
}

fn apply(settings: &Settings, net: &dyn Net, nodes: &[Arc<Node>]) -> Result<usize, OverlayError> {
    let connected: Vec<_> = net.addresses()?.into_iter().map(|address| address.cidr).collect();
    let config =
        overlay::Config { node: settings.node.clone(), always_tunnel: settings.always_tunnel };
    let plan = overlay::plan(&config, nodes.iter().map(AsRef::as_ref), &connected);
    settings.overlay.apply(net, &plan)
}
