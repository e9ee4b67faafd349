//! Checks the readiness of every server periodically.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::{Client, ClientTls, HttpTransport, TlsFiles};
use tokio::time::timeout;

use crate::{args::Args, pool::Finding, servers::Servers};

/// The name that every API server's certificate contains, whatever its addresses.
pub const SERVER_NAME: &str = "kubernetes";

/// The interval between two checks of a server, and the time limit of a check. A server under load is slow but not
/// silent. Checks of one server never overlap.
const EVERY: Duration = Duration::from_secs(4);

/// Checks all servers, including those that are learned later.
pub(crate) async fn watch(servers: Arc<Servers>, args: Args, tasks: rt::Tasks) {
    let mut clients = BTreeMap::new();
    let round = async {
        loop {
            let addresses = servers.pool().addresses();
            clients.retain(|address, _| addresses.contains(address));
            for address in &addresses {
                if !clients.contains_key(address)
                    && let Some(client) = client_of(address, &args)
                {
                    clients.insert(address.clone(), client);
                }
            }
            for (address, client) in &clients {
                let (address, client, servers) = (address.clone(), client.clone(), servers.clone());
                // Concurrently, so that a silent server does not delay the others.
                tasks.spawn_until_shutdown("check", async move {
                    servers.report(&address, check(&client).await);
                });
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tasks.shutdown().unless_stopping(round).await;
}

fn client_of(address: &str, args: &Args) -> Option<Client> {
    // The file is read again when it changes: a rotation of the authority does not start the balancer again.
    let files = TlsFiles { ca: Some(args.certificate_authority.clone()), ..TlsFiles::default() };
    let transport = ClientTls::from_files(files).map_err(|e| e.to_string()).and_then(|tls| {
        let transport = HttpTransport::new(&format!("https://{address}"), tls, None);
        Ok(transport.map_err(|e| e.to_string())?.with_server_name(SERVER_NAME))
    });
    match transport {
        Ok(transport) => Some(Client::new(Arc::new(transport), "windlass-balancer")),
        Err(error) => {
            let ca = args.certificate_authority.display();
            tracing::warn!(address, %ca, error, "cannot check this API server; retrying");
            None
        }
    }
}

async fn check(client: &Client) -> Finding {
    let call = client.call(http::Method::GET, "/readyz", "", Default::default());
    match timeout(EVERY, call).await {
        Ok(Ok(_)) => Finding::Ready,
        // A server that rejects anonymous requests is ready.
        Ok(Err(client::Error::Api { status, .. })) if matches!(status.code, 401 | 403) => {
            Finding::Ready
        }
        Ok(Err(client::Error::Api { .. })) => Finding::Unready,
        _ => Finding::Silent,
    }
}
