//! The flags that select the API server of a cluster.

/// The API server that a command asks.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Connection {
    /// The API server to use, instead of the one of the cluster's configuration
    #[arg(long, value_name = "URL")]
    pub(crate) api_server: Option<String>,
    /// Use the server and the credentials of the cluster's context in the kubeconfig
    #[arg(long)]
    pub(crate) use_kubeconfig: bool,
}
