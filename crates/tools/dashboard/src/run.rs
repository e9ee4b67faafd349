//! Starts the dashboard.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use client::Client;
use local::Cluster;
use tokio::net::TcpListener;

use crate::{
    access::Access,
    error::DashboardError,
    handler::{Dashboard, Users},
    login::{Login, USER_AGENT},
    measurements::{self, Measurements},
    pages::overview::Watches,
    shared::Readings,
};

/// The directory below which `init` and `join` record their steps.
const INIT_TIMELINE: &str = "/var/lib/windlass";

/// Serves a page that shows a cluster: nodes, workloads, Events, logs, problems and measurements
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The kubeconfig whose current user looks at the cluster [default: kubectl's own]
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The address of the page, which must be a loopback address unless the page has TLS
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// The certificate for users of other machines, who log in by a bearer token and see what it permits
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// The certificate's key
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Show the bootstrap timeline of this directory [default: those of `init` and of the cluster `windlass`]
    #[arg(long, value_name = "DIR")]
    timeline: Vec<PathBuf>,
}

/// Returns the limits of the connections, which few people at browsers share. One browser needs six at most.
fn limits() -> serve::Limits {
    serve::Limits {
        connections: 64,
        connections_of_a_source: 16,
        streams_per_connection: 16,
        ..serve::Limits::default()
    }
}

/// Serves the dashboard until shutdown.
///
/// # Errors
///
/// Returns an error if the kubeconfig cannot be used, or the address is taken or reachable from other machines.
pub async fn run(args: Args, tasks: &rt::Tasks) -> Result<(), DashboardError> {
    let tls = match (&args.tls_cert_file, &args.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            Some(serve::ServerTls::from_files(certificate, key, Vec::new())?)
        }
        _ if !args.listen.ip().is_loopback() => {
            return Err(DashboardError::NotLoopback(args.listen));
        }
        _ => None,
    };
    let kubeconfig = args.kubeconfig.unwrap_or_else(local::default_kubeconfig);
    let client = Client::from_kubeconfig_file(&kubeconfig, USER_AGENT)?;
    let failed = |source| DashboardError::Listen { address: args.listen, source };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let users = if tls.is_some() {
        println!("https://{address}/");
        Users::Remote(Login::new(Client::anonymous_from_kubeconfig_file(&kubeconfig, USER_AGENT)?))
    } else {
        let access = Access::new(address);
        println!("http://{address}{}", access.entrance());
        Users::Local { access, client: client.clone() }
    };
    let timelines = match args.timeline.as_slice() {
        [] => vec![INIT_TIMELINE.into(), Cluster::at(local::DEFAULT_NAME, None)],
        given => given.to_vec(),
    };
    let measurements = Arc::new(Measurements::default());
    let (sampled, into) = (client.clone(), measurements.clone());
    tasks.keep("measurements", move || measurements::sample(sampled.clone(), into.clone()));
    let watches = Arc::new(Watches::default());
    let (started, informers) = (watches.clone(), tasks.clone());
    tasks.spawn_until_shutdown("watches", async move { started.start(&client, &informers).await });
    let dashboard = Dashboard {
        users,
        measurements,
        counts: Readings::default(),
        problems: Arc::default(),
        watches,
        tasks: tasks.clone(),
        timelines,
    };
    serve::serve(listener, tls, limits(), Arc::new(dashboard), tasks.clone()).await;
    Ok(())
}
