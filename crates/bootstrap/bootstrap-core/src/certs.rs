//! The plan of kubeadm's PKI: files, subjects, usages and names. Read [`Plan`] first.

use std::net::IpAddr;

use api_config::{
    GoDuration,
    kubeadm::{ApiEndpoint, ClusterConfiguration},
};
use pki::{AltName, KeyAlgorithm, LeafSpec, Subject, Usage};

use crate::{Error, net};

/// The cluster's certificate authorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ca {
    Kubernetes,
    FrontProxy,
    Etcd,
}

impl Ca {
    /// Returns the base name of the files in the certificates directory.
    pub fn base(self) -> &'static str {
        match self {
            Self::Kubernetes => "ca",
            Self::FrontProxy => "front-proxy-ca",
            Self::Etcd => "etcd/ca",
        }
    }

    /// Returns kubeadm's common name of the authority.
    pub fn common_name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::FrontProxy => "front-proxy-ca",
            Self::Etcd => "etcd-ca",
        }
    }

    /// Returns the name of the phase, also used in `certs` commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "ca",
            Self::FrontProxy => "front-proxy-ca",
            Self::Etcd => "etcd-ca",
        }
    }
}

/// A leaf certificate and its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The name of its phase, also used in `certs renew`.
    pub name: &'static str,
    /// The base name of its files in the certificates directory.
    pub base: &'static str,
    /// The authority that signs it.
    pub ca: Ca,
    /// The subject, names and usage.
    pub spec: LeafSpec,
    /// The description in `certs renew`.
    pub long_name: &'static str,
}

/// The PKI of a control plane, in the order of the phases.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The algorithm of new keys.
    pub algorithm: KeyAlgorithm,
    /// The validity of authorities.
    pub ca_validity: std::time::Duration,
    /// The validity of leaf certificates.
    pub leaf_validity: std::time::Duration,
    /// The authorities.
    pub authorities: Vec<Ca>,
    /// The leaf certificates.
    pub leaves: Vec<Leaf>,
}

impl Plan {
    /// Returns the PKI of one control plane machine.
    pub fn new(
        cluster: &ClusterConfiguration,
        local: &ApiEndpoint,
        node_name: &str,
    ) -> Result<Self, Error> {
        let advertise = parse_ip("localAPIEndpoint.advertiseAddress", &local.advertise_address)?;
        let mut authorities = vec![Ca::Kubernetes, Ca::FrontProxy];
        let mut leaves = kubernetes_leaves(cluster, advertise, node_name)?;
        if let Some(etcd) = &cluster.etcd.local {
            authorities.push(Ca::Etcd);
            leaves.extend(etcd_leaves(
                node_name,
                advertise,
                &etcd.server_cert_sans,
                &etcd.peer_cert_sans,
            )?);
        }
        let or = |period: Option<GoDuration>, days: i64| {
            period.filter(|p| !p.is_zero()).unwrap_or(GoDuration::from_secs(days * 86_400)).to_std()
        };
        Ok(Self {
            algorithm: algorithm(cluster)?,
            ca_validity: or(cluster.ca_certificate_validity_period, 3650),
            leaf_validity: or(cluster.certificate_validity_period, 365),
            authorities,
            leaves,
        })
    }

    /// Returns the leaf with this name of a phase.
    pub fn leaf(&self, name: &str) -> Option<&Leaf> {
        self.leaves.iter().find(|l| l.name == name)
    }
}

/// Returns the configured algorithm, by default RSA-2048; an error for one that kubeadm does not support.
pub fn algorithm(cluster: &ClusterConfiguration) -> Result<KeyAlgorithm, Error> {
    match cluster.encryption_algorithm.as_str() {
        "" => Ok(KeyAlgorithm::Rsa2048),
        name => Ok(name.parse()?),
    }
}

fn client_leaf(
    name: &'static str,
    base: &'static str,
    ca: Ca,
    common_name: &str,
    long_name: &'static str,
) -> Leaf {
    let subject = Subject::new(common_name);
    let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
    Leaf { name, base, ca, long_name, spec }
}

fn kubernetes_leaves(
    cluster: &ClusterConfiguration,
    advertise: IpAddr,
    node_name: &str,
) -> Result<Vec<Leaf>, Error> {
    Ok(vec![
        Leaf {
            name: "apiserver",
            base: "apiserver",
            ca: Ca::Kubernetes,
            long_name: "certificate for serving the Kubernetes API",
            spec: LeafSpec {
                subject: Subject::new("kube-apiserver"),
                alt_names: api_server_names(cluster, advertise, node_name)?,
                usage: Usage::Server,
            },
        },
        client_leaf(
            "apiserver-kubelet-client",
            "apiserver-kubelet-client",
            Ca::Kubernetes,
            "kube-apiserver-kubelet-client",
            "certificate for the API server to connect to kubelet",
        ),
        client_leaf(
            "front-proxy-client",
            "front-proxy-client",
            Ca::FrontProxy,
            "front-proxy-client",
            "certificate for the front proxy client",
        ),
    ])
}

fn etcd_leaves(
    node_name: &str,
    advertise: IpAddr,
    server_names: &[String],
    peer_names: &[String],
) -> Result<Vec<Leaf>, Error> {
    let member = |name, base, extra: &[String], long_name| {
        let own = ["localhost", node_name].map(str::to_owned);
        let ips = [advertise, IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
        Ok::<_, Error>(Leaf {
            name,
            base,
            ca: Ca::Etcd,
            long_name,
            spec: LeafSpec {
                subject: Subject::new(node_name),
                alt_names: collect(own, ips, extra)?,
                usage: Usage::ServerAndClient,
            },
        })
    };
    let client = |name, base, common_name, long_name| {
        client_leaf(name, base, Ca::Etcd, common_name, long_name)
    };
    Ok(vec![
        member("etcd-server", "etcd/server", server_names, "certificate for serving etcd")?,
        member(
            "etcd-peer",
            "etcd/peer",
            peer_names,
            "certificate for etcd nodes to communicate with each other",
        )?,
        client(
            "etcd-healthcheck-client",
            "etcd/healthcheck-client",
            "kube-etcd-healthcheck-client",
            "certificate for liveness probes to healthcheck etcd",
        ),
        client(
            "apiserver-etcd-client",
            "apiserver-etcd-client",
            "kube-apiserver-etcd-client",
            "certificate the apiserver uses to access etcd",
        ),
    ])
}

fn api_server_names(
    cluster: &ClusterConfiguration,
    advertise: IpAddr,
    node_name: &str,
) -> Result<Vec<AltName>, Error> {
    let services = &cluster.networking.service_subnet;
    let service = net::nth_address(services, 1).ok_or_else(|| Error::ServiceSubnet {
        subnet: services.clone(),
        purpose: "the API's service",
    })?;
    let names = [
        node_name.to_owned(),
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        format!("kubernetes.default.svc.{}", cluster.networking.dns_domain),
    ];
    let mut extra = Vec::new();
    if let Some((host, _)) = net::split_host_port(&cluster.control_plane_endpoint) {
        extra.push(host);
    }
    extra.extend(cluster.api_server.cert_sans.iter().cloned());
    collect(names, [service, advertise], &extra)
}

/// Collects names in kubeadm's order: sorted DNS names, then addresses, without duplicates.
fn collect(
    names: impl IntoIterator<Item = String>,
    ips: impl IntoIterator<Item = IpAddr>,
    extra: &[String],
) -> Result<Vec<AltName>, Error> {
    let mut dns: Vec<AltName> = names.into_iter().map(AltName::Dns).collect();
    let mut addresses: Vec<AltName> = ips.into_iter().map(AltName::Ip).collect();
    for name in extra {
        match name.parse()? {
            ip @ AltName::Ip(_) => addresses.push(ip),
            other => dns.push(other),
        }
    }
    dns.sort();
    dns.dedup();
    for address in addresses {
        if !dns.contains(&address) {
            dns.push(address);
        }
    }
    Ok(dns)
}

pub(crate) fn parse_ip(field: &'static str, text: &str) -> Result<IpAddr, Error> {
    text.parse().map_err(|_| Error::Address { field, text: text.to_owned() })
}
