//! Asks every server again and again whether it is ready.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::{Client, HttpTransport, TlsMaterial};
use tokio::time::timeout;

use crate::{Args, SERVER_NAME, Servers, pool::Finding};

/// How long an answer may take, for a server under load is slow, not silent; and how often each is asked, so that no
/// two checks of one server are under way.
const EVERY: Duration = Duration::from_secs(4);

/// Looks after all servers, those that are learnt of later too.
pub(crate) async fn watch(servers: Arc<Servers>, args: Args, tasks: rt::Tasks) {
    let mut clients = BTreeMap::new();
    let round = async {
        loop {
            let addresses = servers.pool().addresses();
            clients.retain(|known, _| addresses.contains(known));
            for address in &addresses {
                if !clients.contains_key(address)
                    && let Some(client) = client_of(address, &args)
                {
                    clients.insert(address.clone(), client);
                }
            }
            for (address, client) in &clients {
                let (address, client, servers) = (address.clone(), client.clone(), servers.clone());
                // Side by side: a silent one must not delay the others.
                tasks.spawn_until_shutdown("check", async move {
                    servers.report(&address, ask(&client).await);
                });
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tasks.shutdown().unless_stopping(round).await;
}

fn client_of(address: &str, args: &Args) -> Option<Client> {
    let ca = std::fs::read(&args.certificate_authority);
    let material = |ca| TlsMaterial { ca: Some(ca), certificate: None, key: None, insecure: false };
    let made = ca.map_err(|e| e.to_string()).and_then(|ca| {
        let tls = material(ca).client_config().map_err(|e| e.to_string())?;
        let transport = HttpTransport::new(&format!("https://{address}"), tls, None);
        Ok(transport.map_err(|e| e.to_string())?.with_server_name(SERVER_NAME))
    });
    match made {
        Ok(transport) => Some(Client::new(Arc::new(transport), "windlass-balancer")),
        Err(error) => {
            let ca = args.certificate_authority.display();
            tracing::warn!(address, %ca, error, "cannot look after this API server; trying again");
            None
        }
    }
}

async fn ask(client: &Client) -> Finding {
    let call = client.call(http::Method::GET, "/readyz", "", Default::default());
    match timeout(EVERY, call).await {
        Ok(Ok(_)) => Finding::Ready,
        // One that answers nobody who is a stranger to it is as good as ready.
        Ok(Err(client::Error::Api { status, .. })) if matches!(status.code, 401 | 403) => {
            Finding::Ready
        }
        Ok(Err(client::Error::Api { .. })) => Finding::Unready,
        _ => Finding::Silent,
    }
}
