//! The flags of `up` that change the document.

use std::path::PathBuf;

use crate::config::{ClusterConfig, ConfigError, LoadBalancer, PublishedPort};

/// The flags of `up` that change the document.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigArgs {
    /// A file of kind Cluster (windlass.io/v1alpha1), which replaces the one of an earlier `up`. Flags are applied to
    /// it. --print-schema shows its fields
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The number of control planes among the nodes. Several store the cluster's objects in etcd, which must be
    /// installed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=7))]
    pub control_planes: u8,
    /// Tunnel packets between Pods of different nodes (VXLAN) even where plain routes would do
    #[arg(long)]
    pub tunnel: bool,
    /// Give Pods and Services an IPv6 address besides the IPv4 one
    #[arg(long)]
    pub dual_stack: bool,
    /// The address range of Pods; two with a comma for both families [default: 10.244.0.0/16]
    #[arg(long, value_name = "RANGE")]
    pub pod_network_cidr: Option<String>,
    /// The address range of Services; two with a comma for both families [default: 10.96.0.0/12]
    #[arg(long, value_name = "RANGE")]
    pub service_cidr: Option<String>,
    /// Give Services of type LoadBalancer addresses of these ranges, which nodes announce by ARP and neighbour
    /// discovery. `nodes` gives them the nodes' own addresses, `none` leaves them to another controller [default:
    /// nodes, or as before]
    #[arg(long, value_name = "RANGE[,RANGE]|nodes|none")]
    pub load_balancer_range: Option<LoadBalancer>,
    /// Let a port of this host lead to a node port, as in 8080:30080/tcp. Repeat it for more ports; all of them replace
    /// those of an earlier `up`
    #[arg(long, value_name = "PORT:NODEPORT[/PROTOCOL]")]
    pub publish: Vec<PublishedPort>,
    /// A further name or address in the API server's certificate. Repeat it for more; they are added to earlier ones
    #[arg(long, value_name = "NAME")]
    pub san: Vec<String>,
}

impl ConfigArgs {
    /// Returns the document for a cluster: the file's if there is one, else the stored one, with the flags applied.
    pub(crate) fn apply(&self, stored: &ClusterConfig) -> Result<ClusterConfig, ConfigError> {
        let mut config = match &self.config {
            Some(path) => ClusterConfig::load(path)?,
            None => stored.clone(),
        };
        if let Some(load_balancer) = &self.load_balancer_range {
            config.load_balancer.clone_from(load_balancer);
        }
        if !self.publish.is_empty() {
            config.publish.clone_from(&self.publish);
        }
        for san in &self.san {
            if !config.api_server.cert_sans.contains(san) {
                config.api_server.cert_sans.push(san.clone());
            }
        }
        let networking = &mut config.networking;
        networking.dual_stack |= self.dual_stack;
        networking.tunnel |= self.tunnel;
        for (flag, field) in [
            (&self.pod_network_cidr, &mut networking.pod_subnet),
            (&self.service_cidr, &mut networking.service_subnet),
        ] {
            if flag.is_some() {
                field.clone_from(flag);
            }
        }
        if self.control_planes > 1 {
            config.control_planes = Some(self.control_planes);
        }
        Ok(config)
    }
}
