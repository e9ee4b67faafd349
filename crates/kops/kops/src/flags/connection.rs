//! The flags of commands that use a cluster's API.

/// The flags that choose the server of a cluster's API.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Connection {
    /// The URL of the API server [default: the cluster's own]
    #[arg(long, value_name = "URL")]
    pub(crate) api_server: Option<String>,
    /// Use the server of the cluster's context in the kubeconfig
    #[arg(long, conflicts_with = "api_server")]
    pub(crate) use_kubeconfig: bool,
}
