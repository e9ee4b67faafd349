//! Starts the dashboard.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use client::Client;
use local::Cluster;
use tokio::net::TcpListener;

use crate::{
    access::Access,
    error::DashboardError,
    handler::Dashboard,
    measurements::{self, Measurements},
};

/// The directory below which `init` and `join` record their steps.
const INIT_TIMELINE: &str = "/var/lib/windlass";

/// Serves a page that shows a cluster: nodes, workloads, Events, logs, problems and measurements
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The kubeconfig whose current user looks at the cluster [default: kubectl's own]
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The address of the page, which must be a loopback address
    #[arg(long, default_value = "127.0.0.1:8001")]
    listen: SocketAddr,
    /// Show the bootstrap timeline of this directory [default: those of `init` and of the cluster `windlass`]
    #[arg(long, value_name = "DIR")]
    timeline: Vec<PathBuf>,
}

/// Serves the dashboard until shutdown.
///
/// # Errors
///
/// Returns an error if the kubeconfig cannot be used, or the address is taken or reachable from other machines.
pub async fn run(args: Args, tasks: &rt::Tasks) -> Result<(), DashboardError> {
    if !args.listen.ip().is_loopback() {
        return Err(DashboardError::NotLoopback(args.listen));
    }
    let kubeconfig = args.kubeconfig.unwrap_or_else(local::default_kubeconfig);
    let client = Client::from_kubeconfig_file(&kubeconfig, "windlass-dashboard")?;
    let failed = |source| DashboardError::Listen { address: args.listen, source };
    let listener = TcpListener::bind(args.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let access = Access::new(address);
    println!("http://{address}{}", access.entrance());
    let timelines = match args.timeline.as_slice() {
        [] => vec![INIT_TIMELINE.into(), Cluster::at(local::DEFAULT_NAME, None)],
        given => given.to_vec(),
    };
    let measurements = Arc::new(Measurements::default());
    let (sampled, into) = (client.clone(), measurements.clone());
    tasks.keep("measurements", move || measurements::sample(sampled.clone(), into.clone()));
    let dashboard = Dashboard { client, access, measurements, timelines };
    let limits = serve::Limits { connections: 64, ..serve::Limits::default() };
    serve::serve(listener, None, limits, Arc::new(dashboard), tasks.clone()).await;
    Ok(())
}
