use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use net_core::{
    Family,
    api::{EndpointSlice, Protocol, Service},
    claims::{Claims, Refusal},
    conntrack::UdpServices,
    endpoints::Slices,
    nft::InstalledTable,
    plan::{self, Config, NodePorts, TABLE},
};
use netlink::{ChainWriter, Net, TableWriter, WriteStats, Xtables};

/// Applies the plan to the kernel's rules and UDP conntrack entries; see [`TableWriter`] for the method.
pub struct Syncer {
    net: Arc<dyn Net>,
    writers: Writers,
    udp: Option<UdpServices>,
    /// `true` once the rules of a proxy in another mode are removed.
    alone: bool,
    /// `true` once the IPv4 rules are installed, including the one that protects loopback addresses.
    guards_loopback: bool,
    refusals: BTreeSet<Refusal>,
}

/// A writer for each family.
enum Writers {
    Tables([TableWriter; 2]),
    Chains(Arc<dyn Xtables>, [ChainWriter; 2]),
}

/// The result of a synchronization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The number of writes to the kernel; 0 if nothing changed.
    pub transactions: usize,
    /// The number of operations in these writes.
    pub operations: usize,
    /// The number of deleted conntrack entries of UDP flows to removed endpoints.
    pub flows_deleted: usize,
}

/// The reason why the kernel does not have the rules yet; the next round retries.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("bringing the {} rules of Services up to date", family.nft())]
    Rules { family: Family, source: netlink::Error },
    #[error("deleting conntrack entries of UDP flows to removed endpoints")]
    Flows(#[source] netlink::Error),
    #[error("listing this node's addresses for node ports")]
    Addresses(#[source] netlink::Error),
}

impl Syncer {
    /// Creates a syncer for nftables.
    pub fn new(net: Arc<dyn Net>) -> Self {
        Self::with(net, Writers::Tables(Default::default()))
    }

    /// Creates a syncer for iptables.
    pub fn with_iptables(net: Arc<dyn Net>, kernel: Arc<dyn Xtables>) -> Self {
        Self::with(net, Writers::Chains(kernel, Default::default()))
    }

    fn with(net: Arc<dyn Net>, writers: Writers) -> Self {
        Self {
            net,
            writers,
            udp: None,
            alone: false,
            guards_loopback: false,
            refusals: BTreeSet::new(),
        }
    }

    /// Reports whether rules drop packets from other hosts to loopback addresses.
    pub(crate) fn guards_loopback(&self) -> bool {
        self.guards_loopback
    }

    /// Returns the claims of Services that the rules do not serve.
    pub fn refusals(&self) -> &BTreeSet<Refusal> {
        &self.refusals
    }

    /// Synchronizes both families, even if the first one fails, and returns the first error.
    pub fn sync(
        &mut self,
        config: &Config,
        services: &[Arc<Service>],
        slices: &[Arc<EndpointSlice>],
    ) -> Result<Report, SyncError> {
        let services = || services.iter().map(AsRef::as_ref);
        let slices = Slices::index(slices.iter().map(AsRef::as_ref));
        let claims = Claims::judge(&config.host, services(), &slices);
        let mut report = Report::default();
        let mut failure = None;
        self.guards_loopback = false;
        for (slot, family) in Family::ALL.into_iter().enumerate() {
            let needed = services().any(|service| has_family(service, family));
            let written = match &mut self.writers {
                Writers::Tables(tables) => {
                    let table = plan::plan(family, config, services(), &slices);
                    tables[slot].write(&*self.net, table, needed)
                }
                Writers::Chains(kernel, chains) => {
                    let new = plan::iptables::plan(family, config, services(), &slices);
                    chains[slot].write(&**kernel, new, needed)
                }
            };
            match written {
                Ok(WriteStats { transactions, operations }) => {
                    report.transactions += transactions;
                    report.operations += operations;
                    self.guards_loopback |= needed && family == Family::V4;
                }
                Err(source) => _ = failure.get_or_insert(SyncError::Rules { family, source }),
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        // The new rules are installed, so removing the old ones interrupts nothing.
        if !std::mem::replace(&mut self.alone, true) {
            let removed = match &self.writers {
                Writers::Tables(_) => remove_chains(&*self.net),
                Writers::Chains(..) => remove_tables(&*self.net, |_| true),
            };
            if let Err(error) = removed {
                tracing::warn!(%error, "rules that a proxy left in another mode may stay");
            }
        }
        let mut udp = UdpServices::of(services(), &slices, self.node_addresses(config)?, &claims);
        udp.publish(&config.published);
        self.clean_flows(udp, &mut report)?;
        self.refusals = claims.refusals;
        Ok(report)
    }

    /// Deletes stale UDP conntrack entries. All entries are read only if a UDP Service's targets changed.
    fn clean_flows(&mut self, udp: UdpServices, report: &mut Report) -> Result<(), SyncError> {
        if self.udp.as_ref() == Some(&udp) {
            return Ok(());
        }
        if !udp.is_empty() {
            let number = Protocol::Udp.number();
            let deleted = self.net.delete_flows(number, &|flow| udp.is_stale(flow));
            report.flows_deleted = deleted.map_err(SyncError::Flows)?;
        }
        self.udp = Some(udp);
        Ok(())
    }

    fn node_addresses(&self, config: &Config) -> Result<BTreeSet<IpAddr>, SyncError> {
        match &config.node_ports {
            NodePorts::Addresses(addresses) => Ok(addresses.iter().copied().collect()),
            NodePorts::All => {
                let addresses = self.net.addresses().map_err(SyncError::Addresses)?;
                Ok(addresses.into_iter().map(|address| address.cidr.address).collect())
            }
        }
    }

    /// Reports whether the rules are still installed; see [`TableWriter::check`].
    pub fn check(&mut self) -> Result<bool, netlink::Error> {
        let mut intact = true;
        match &mut self.writers {
            Writers::Tables(tables) => {
                for table in tables {
                    intact &= table.check(&*self.net)?;
                }
            }
            Writers::Chains(kernel, chains) => {
                for chains in chains {
                    intact &= chains.check(&**kernel)?;
                }
            }
        }
        Ok(intact)
    }
}

/// Removes the rules of both modes, for `--cleanup`.
pub fn clean_up(net: &dyn Net) -> Result<(), netlink::Error> {
    remove_tables(net, |_| true)?;
    remove_chains(net)
}

/// Removes the tables for which `goes` returns `true`. All proxies use the same name, so that they can replace each
/// other; a table's digest names its owner.
pub fn remove_tables(
    net: &dyn Net,
    goes: impl Fn(&InstalledTable) -> bool,
) -> Result<(), netlink::Error> {
    for family in Family::ALL {
        if net.table(family, TABLE)?.is_some_and(|table| goes(&table)) {
            net.nft(&format!("delete table {} {TABLE}\n", family.nft()))?;
        }
    }
    Ok(())
}

/// Reports whether the IPv4 table, which protects loopback addresses, is one for which `goes` returns `true`.
pub fn guards_loopback(
    net: &dyn Net,
    goes: impl Fn(&InstalledTable) -> bool,
) -> Result<bool, netlink::Error> {
    Ok(net.table(Family::V4, TABLE)?.is_some_and(|table| goes(&table)))
}

/// Removes the iptables chains of our proxy and of upstream's.
pub fn remove_chains(net: &dyn Net) -> Result<(), netlink::Error> {
    net.remove_iptables_chains(&plan::iptables::is_proxys).map(drop)
}

fn has_family(service: &Service, family: Family) -> bool {
    let ips = std::iter::once(&service.spec.cluster_ip).chain(&service.spec.cluster_ips);
    ips.filter_map(|ip| ip.parse().ok()).any(|ip| Family::of(ip) == family)
}

#[cfg(test)]
mod tests {
    use net_core::nft::InstalledTable;
    use netlink::Fake;
    use serde_json::json;

    use super::*;

    fn service(protocol: &str) -> Vec<Arc<Service>> {
        let service = json!({"metadata": {"name": "s", "namespace": "ns"}, "spec": {"clusterIP": "10.96.0.5",
            "clusterIPs": ["10.96.0.5"], "ports": [{"name": "p", "port": 80, "protocol": protocol}]}});
        vec![Arc::new(serde_json::from_value(service).unwrap())]
    }

    fn slices(protocol: &str, ips: &[&str]) -> Vec<Arc<EndpointSlice>> {
        let endpoints: Vec<_> = ips.iter().map(|ip| json!({"addresses": [ip]})).collect();
        let slice = json!({"metadata": {"name": "s-1", "namespace": "ns", "labels": {"kubernetes.io/service-name": "s"}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 80, "protocol": protocol}], "endpoints": endpoints});
        vec![Arc::new(serde_json::from_value(slice).unwrap())]
    }

    fn digest(transaction: &str) -> String {
        transaction.split('"').find(|part| part.starts_with("sha256-")).unwrap().to_owned()
    }

    #[test]
    fn removes_upstream_chains_and_keeps_kubelets() {
        let fake = Arc::new(Fake::new());
        let chains = ["KUBE-SERVICES", "KUBE-SEP-ABC", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY"];
        fake.set_iptables(&chains);
        let mut syncer = Syncer::new(fake.clone());
        fake.fail_nft(1);
        assert!(syncer.sync(&Config::default(), &service("TCP"), &[]).is_err());
        assert_eq!(fake.iptables(), chains);
        syncer.sync(&Config::default(), &service("TCP"), &[]).unwrap();
        assert_eq!(fake.iptables(), ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY"]);
    }

    #[test]
    fn writes_only_changes_and_recognizes_rules_on_restart() {
        let fake = Arc::new(Fake::new());
        let mut syncer = Syncer::new(fake.clone());
        let config = Config::default();
        syncer.sync(&config, &service("TCP"), &slices("TCP", &["10.1.0.2"])).unwrap();
        let first = fake.take_log();
        assert_eq!(first.len(), 1, "one transaction, no IPv6: {first:?}");
        syncer.sync(&config, &service("TCP"), &slices("TCP", &["10.1.0.2"])).unwrap();
        assert_eq!(fake.take_log(), [""; 0]);
        syncer.sync(&config, &service("TCP"), &slices("TCP", &["10.1.0.2", "10.1.0.3"])).unwrap();
        let change = fake.take_log().pop().unwrap();
        assert!(change.contains("10.1.0.3/80") && !change.contains("masquerading"), "{change}");

        let installed =
            InstalledTable { digest: Some(digest(&change)), ..InstalledTable::default() };
        fake.put_table(Family::V4, TABLE, Some(installed));
        let mut restarted = Syncer::new(fake.clone());
        let report = restarted
            .sync(&config, &service("TCP"), &slices("TCP", &["10.1.0.2", "10.1.0.3"]))
            .unwrap();
        assert_eq!((report, fake.take_log().len()), (Report::default(), 0));
    }

    #[test]
    fn failed_transaction_leads_to_resync_then_new_table() {
        let fake = Arc::new(Fake::new());
        let mut syncer = Syncer::new(fake.clone());
        let config = Config::default();
        syncer.sync(&config, &service("TCP"), &slices("TCP", &["10.1.0.2"])).unwrap();
        fake.put_table(Family::V4, TABLE, Some(InstalledTable::default()));
        fake.take_log();
        fake.fail_nft(2);
        syncer.sync(&config, &service("TCP"), &[]).unwrap();
        assert!(fake.take_log()[0].contains("delete table ip kube-proxy"));
        fake.put_table(Family::V4, TABLE, None);
        assert!(!syncer.check().unwrap());
        syncer.sync(&config, &service("TCP"), &[]).unwrap();
        assert!(fake.take_log()[0].starts_with("add table"));
    }

    #[test]
    fn reads_udp_flows_only_when_targets_change() {
        let fake = Arc::new(Fake::new());
        let mut syncer = Syncer::new(fake.clone());
        let config = Config::default();
        let stale = net_core::conntrack::Flow {
            destination: "10.96.0.5:80".parse().unwrap(),
            answered_by: "10.1.0.9:80".parse().unwrap(),
        };
        let targets = slices("UDP", &["10.1.0.2"]);
        syncer.sync(&config, &service("UDP"), &targets).unwrap();
        fake.add_flow(17, stale);
        assert_eq!(syncer.sync(&config, &service("UDP"), &targets).unwrap().flows_deleted, 0);
        let targets = slices("UDP", &["10.1.0.3"]);
        assert_eq!(syncer.sync(&config, &service("UDP"), &targets).unwrap().flows_deleted, 1);
    }
}
