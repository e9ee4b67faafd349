//! The flags of the pages for operators that the controller manager and the scheduler share.

use std::{net::IpAddr, path::PathBuf};

/// The flags that select who may read metrics and health, and the address that serves them.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct PageFlags {
    /// Kubeconfig file for TokenReviews of requests for metrics and health
    #[arg(long)]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Kubeconfig file for SubjectAccessReviews of requests for metrics and health
    #[arg(long)]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Address to serve metrics and health checks on
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
}
