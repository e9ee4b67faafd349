//! The flags of `export`, `helpers`, `version` and `completion`.

use clap::Subcommand;

/// The subcommands of `export`.
#[derive(Debug, Subcommand)]
pub enum Export {
    /// Adds a cluster's context to a kubeconfig
    #[command(alias = "kubecfg")]
    Kubeconfig(ExportKubeconfig),
}

/// The flags of `export kubeconfig`.
#[derive(clap::Args, Debug)]
pub struct ExportKubeconfig {
    pub(crate) cluster: Option<String>,
    /// The file [default: kubectl's own]
    #[arg(long)]
    pub(crate) kubeconfig: Option<std::path::PathBuf>,
    /// Export all clusters of the state store
    #[arg(long)]
    pub(crate) all: bool,
    /// Include a new administrator's certificate with this lifetime, by default 18h
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "18h")]
    pub(crate) admin: Option<api_config::GoDuration>,
    /// An existing user of the kubeconfig for the context
    #[arg(long)]
    pub(crate) user: Option<String>,
    /// The API server to use, instead of the one of the cluster's configuration
    #[arg(long, value_name = "URL")]
    pub(crate) api_server: Option<String>,
    /// Use the API server's internal DNS name
    #[arg(long)]
    pub(crate) internal: bool,
    /// Let kubectl ask this program for certificates
    #[arg(long)]
    pub(crate) auth_plugin: bool,
}

/// The subcommands of `helpers`.
#[derive(Debug, Subcommand)]
pub enum Helpers {
    /// Issues a certificate for kubectl
    KubectlAuth(KubectlAuth),
}

/// The flags of `helpers kubectl-auth`.
#[derive(clap::Args, Debug)]
pub struct KubectlAuth {
    /// The cluster
    #[arg(long)]
    pub(crate) cluster: String,
    /// The lifetime of the certificate
    #[arg(long, default_value = "1h")]
    pub(crate) lifetime: api_config::GoDuration,
    /// The version of client.authentication.k8s.io
    #[arg(long, default_value = "v1beta1", value_parser = ["v1alpha1", "v1beta1"])]
    pub(crate) api_version: String,
}

/// The flags of `version`.
#[derive(clap::Args, Debug)]
pub struct ShowVersion {
    pub(crate) cluster: Option<String>,
    /// Also show the version that last updated the cluster
    #[arg(long)]
    pub(crate) server: bool,
    /// Show the numbers only
    #[arg(long)]
    pub(crate) short: bool,
}

/// The shell of a completion script.
#[derive(Debug, Subcommand)]
pub enum Completion {
    /// Writes the script for bash
    Bash(Descriptions),
    /// Writes the script for fish
    Fish(Descriptions),
    /// Writes the script for PowerShell
    Powershell(Descriptions),
    /// Writes the script for zsh
    Zsh(Descriptions),
}

/// The descriptions in a completion script.
#[derive(clap::Args, Debug)]
pub struct Descriptions {
    /// Leave out the descriptions of commands and flags
    #[arg(long)]
    pub(crate) no_descriptions: bool,
}
