//! Connections to kubelets, and to proxied Pods and Services.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use client::{ClientTls, HttpTransport, Proxy, TlsFiles};
use parking_lot::Mutex;

use super::target::{Peer, Target};
use crate::config::{Config, Network};

/// The transports to kubelets, cached by address and name.
pub(crate) struct Kubelets {
    /// The client certificate for kubelets, and their authorities.
    tls: ClientTls,
    /// The types of a node's addresses in the order in which they are tried.
    pub(crate) address_types: Vec<String>,
    /// The proxy to the cluster's network.
    proxy: Option<Proxy>,
    transports: Mutex<HashMap<(SocketAddr, String), Arc<HttpTransport>>>,
}

const KNOWN_LIMIT: usize = 10_000;

/// The order of address types that kubeadm configures.
const KUBEADM_ORDER: [&str; 3] = ["InternalIP", "ExternalIP", "Hostname"];

impl Kubelets {
    pub(crate) fn new(config: &Config) -> Result<Self, client::TlsError> {
        let files = TlsFiles {
            insecure: config.kubelet_ca.is_none(),
            ca: config.kubelet_ca.clone(),
            certificate: config.kubelet_client.as_ref().map(|(certificate, _)| certificate.clone()),
            key: config.kubelet_client.as_ref().map(|(_, key)| key.clone()),
        };
        let tls = ClientTls::from_files(files)?;
        let proxy = config.egress.proxy(Network::Cluster);
        let mut address_types = config.kubelet_address_types.clone();
        if address_types.is_empty() {
            address_types = KUBEADM_ORDER.map(str::to_owned).to_vec();
        }
        Ok(Self { tls, address_types, proxy, transports: Mutex::default() })
    }

    pub(crate) fn transport(&self, target: &Target) -> Arc<HttpTransport> {
        let Peer::Kubelet { name } = &target.peer else {
            // Pods and Services receive no client certificate, and theirs is not verified.
            let anyone = ClientTls::anyone();
            let transport = HttpTransport::http1_at(target.address, target.encrypted, anyone);
            return Arc::new(transport.by_proxy(self.proxy.clone()));
        };
        let mut transports = self.transports.lock();
        let key = (target.address, name.clone());
        if let Some(transport) = transports.get(&key) {
            return transport.clone();
        }
        let transport = HttpTransport::at(target.address, self.tls.clone()).with_server_name(name);
        let transport = Arc::new(transport.by_proxy(self.proxy.clone()));
        if transports.len() >= KNOWN_LIMIT {
            transports.clear();
        }
        transports.insert(key, transport.clone());
        transport
    }
}
