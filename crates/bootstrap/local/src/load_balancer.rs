//! The announcements of LoadBalancer Services' addresses. They run in the agents of `up`, and as Pods on nodes of
//! `init`.

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::{
    Kubeconfig,
    kubeadm::{ApiEndpoint, ClusterConfiguration},
};
use bootstrap_core::{
    addons::load_balancer::{self, NAMESPACE, RECORD},
    endpoint::stable_url,
};
use client::{Client, ListOptions, Resource};
use net_core::{Cidr, api::Node};
use netlink::{Kernel, Net};

use crate::{
    addon::AddonTarget,
    cluster::ranges,
    config::{HostNetwork, LoadBalancer},
    configure::{cluster_ranges, gateways},
    error::Error,
};

/// The addresses of LoadBalancer Services of a cluster of `init`
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    Print(PrintArgs),
    Run(RunArgs),
}

/// Prints the objects of the Pods that announce addresses, for `kubectl apply -f -`
///
/// The ranges are those of the controller manager's flag --load-balancer-ranges in the cluster's configuration.
#[derive(Clone, Debug, clap::Args)]
pub struct PrintArgs {
    /// The kubeconfig of the cluster, whose API endpoint the Pods use, too
    #[arg(long, default_value = "/etc/kubernetes/admin.conf")]
    pub kubeconfig: PathBuf,
}

/// Announces addresses from this node, as the printed objects request
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The kubeconfig of the API server
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// This node's name
    #[arg(long)]
    pub node_name: String,
    /// The ranges of the addresses. Other addresses in a Service's status are not announced
    #[arg(long, required = true, value_delimiter = ',')]
    pub ranges: Vec<Cidr>,
    /// Addresses that are neither announced nor removed, besides those of Nodes and the API
    #[arg(long, value_delimiter = ',')]
    pub reserved: Vec<IpAddr>,
}

const USER_AGENT: &str = "windlass-load-balancer";
/// The flag of the controller manager.
const FLAG: &str = "load-balancer-ranges";
/// The file with the ranges in the directory of the record.
const RANGES: &str = "ranges";

/// Prints the objects for the ranges from which the controller manager allocates.
pub async fn print(args: PrintArgs) -> Result<(), Error> {
    let target = AddonTarget::read(&args.kubeconfig).await?;
    let configured = configured_ranges(&target.configuration)?;
    let nodes =
        target.client.list::<Node>(&Resource::NODES, "", &ListOptions::default()).await?.items;
    let mut in_use = in_use(&target.configuration, &target.api.server, &nodes)?;
    in_use.addresses.extend(gateways(&Kernel::open()?)?);
    configured.check(&in_use)?;
    let objects = load_balancer::objects(&target.configuration, target.api, &configured.ranges)?;
    print!("{}", api_config::yaml::to_string_all(&objects)?);
    Ok(())
}

/// Returns the ranges in the flags of the controller manager.
fn configured_ranges(configuration: &ClusterConfiguration) -> Result<LoadBalancer, Error> {
    let args = &configuration.controller_manager.extra_args;
    // The last one of several equal flags wins.
    let ranges = args.iter().rfind(|arg| arg.name == FLAG).ok_or(Error::NoLoadBalancerRanges)?;
    Ok(LoadBalancer {
        disabled: false,
        ranges: ranges.value.split(',').map(str::to_owned).collect(),
    })
}

/// Returns the cluster's ranges and addresses, which a load balancer range must not contain. `server` is the URL of the
/// API for Pods.
fn in_use(
    configuration: &ClusterConfiguration,
    server: &str,
    nodes: &[Node],
) -> Result<HostNetwork, Error> {
    let networking = &configuration.networking;
    let ranges = cluster_ranges(&networking.pod_subnet, &networking.service_subnet)?;
    let nodes = nodes.iter().flat_map(Node::addresses);
    let nodes = nodes.map(|address| (address, "the address of a node"));
    let held =
        configuration.virtual_address.iter().filter_map(|held| held.address.parse::<IpAddr>().ok());
    let endpoint = stable_url(configuration, &ApiEndpoint::default());
    let api = held.chain([&*endpoint, server].into_iter().filter_map(vip::host_of));
    let api = api.map(|address| (address, "the address of the API"));
    let etcd = configuration.etcd.external.iter().flat_map(|etcd| &etcd.endpoints);
    let etcd = etcd.filter_map(|url| vip::host_of(url));
    let etcd = etcd.map(|address| (address, "the address of etcd"));
    Ok(HostNetwork { ranges, addresses: nodes.chain(api).chain(etcd).collect() })
}

/// Announces the addresses that this node holds, until shutdown.
pub async fn run(args: RunArgs, tasks: &rt::Tasks) -> Result<(), Error> {
    let client = Client::from_kubeconfig_file(&args.kubeconfig, USER_AGENT)?;
    let server = Kubeconfig::load(&args.kubeconfig)?.current()?.cluster.server.clone();
    let reserved: BTreeSet<_> = args.reserved.into_iter().chain(vip::host_of(&server)).collect();
    let net = Arc::new(Kernel::open()?);
    replace_record(&*net, Path::new(RECORD), &args.ranges, &reserved)?;
    let settings = vip::SpeakerSettings {
        node: args.node_name,
        ranges: args.ranges,
        reserved: reserved.into_iter().collect(),
        namespace: NAMESPACE.to_owned(),
        // An address in no network of a node needs routes, which may lead to any node.
        beside: None,
    };
    vip::announce(settings, client, net, tasks).await;
    Ok(())
}

/// Records the ranges, and removes the addresses of recorded ones that the new ones do not cover.
fn replace_record(
    net: &dyn Net,
    directory: &Path,
    new: &[Cidr],
    reserved: &BTreeSet<IpAddr>,
) -> Result<(), Error> {
    let mut former = recorded(directory)?.unwrap_or_default();
    former.retain(|range| !new.iter().any(|other| other.covers(*range)));
    vip::remove(net, &former, reserved)?;
    let text: Vec<_> = new.iter().map(Cidr::to_string).collect();
    Ok(pki::write_file(&directory.join(RANGES), text.join(",").as_bytes(), 0o644)?)
}

/// Returns the recorded ranges; `None` without a record.
fn recorded(directory: &Path) -> Result<Option<Vec<Cidr>>, Error> {
    let record = directory.join(RANGES);
    let text = match std::fs::read_to_string(&record) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(Error::file("reading", &record))?,
    };
    let invalid = |error: Error| {
        let cause = format!("{error}; remove the file, and leftover addresses by `ip address del`");
        Error::file("parsing", &record)(io::Error::other(cause))
    };
    ranges(&text).map(Some).map_err(invalid)
}

/// Removes the addresses that a killed Pod of the add-on has left on this node, and its record.
pub fn remove() -> Result<(), Error> {
    let Some(ranges) = recorded(Path::new(RECORD))? else { return Ok(()) };
    vip::remove(&Kernel::open()?, &ranges, &BTreeSet::new())?;
    std::fs::remove_dir_all(RECORD).map_err(Error::file("removing", RECORD))
}

/// Starts the announcements of an agent's node.
pub(crate) fn start(
    settings: vip::SpeakerSettings,
    kubeconfig: &Path,
    tasks: &rt::Tasks,
) -> Result<(), Error> {
    let client = Client::from_kubeconfig_file(kubeconfig, USER_AGENT)?;
    let net = Arc::new(Kernel::open()?);
    let running = tasks.clone();
    tasks.essential("load balancer addresses", async move {
        vip::announce(settings, client, net, &running).await;
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use api_config::kubeadm::{Arg, ExternalEtcd, VirtualAddress};
    use netlink::{Fake, NewKind, NewLink};
    use serde_json::json;

    use super::*;

    fn check(flags: &[(&str, &str)]) -> String {
        let mut configuration = ClusterConfiguration::default();
        configuration.networking.pod_subnet = "10.244.0.0/16,fd00:10:244::/56".to_owned();
        configuration.networking.service_subnet = "10.96.0.0/12".to_owned();
        configuration.controller_manager.extra_args =
            flags.iter().map(|(name, value)| Arg::new(*name, *value)).collect();
        configuration.control_plane_endpoint = "[2001:db8:1::5]:6443".to_owned();
        configuration.virtual_address =
            Some(VirtualAddress { address: "192.0.2.100".to_owned(), ..VirtualAddress::default() });
        configuration.etcd.external = Some(ExternalEtcd {
            endpoints: vec!["https://192.0.2.150:2379".to_owned(), "http://192.0.2.170".to_owned()],
            ..ExternalEtcd::default()
        });
        let node =
            json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.3"}]}});
        let nodes = [serde_json::from_value(node).unwrap()];
        let checked = configured_ranges(&configuration).and_then(|ranges| {
            ranges.check(&in_use(&configuration, "https://192.0.2.200:6443", &nodes)?)?;
            Ok(ranges.ranges.join(" "))
        });
        checked.unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn prints_only_free_ranges_of_the_controller_manager() {
        let many = vec!["192.0.2.240/28"; 10_000].join(",");
        for (ranges, expected) in [
            ("192.0.2.240/28,2001:db8::/120", "192.0.2.240/28 2001:db8::/120"),
            ("10.244.7.0/24", "overlaps 10.244.0.0/16, the range of Pods"),
            ("fd00:10:244::/64", "the range of Pods"),
            ("10.100.0.0/24", "the range of Services"),
            ("192.0.2.0/28", "contains 192.0.2.3, the address of a node"),
            ("192.0.2.96/28", "contains 192.0.2.100, the address of the API"),
            ("192.0.2.192/28", "contains 192.0.2.200, the address of the API"),
            ("2001:db8:1::/120", "contains 2001:db8:1::5, the address of the API"),
            ("192.0.2.144/28", "contains 192.0.2.150, the address of etcd"),
            ("192.0.2.160/28", "contains 192.0.2.170, the address of etcd"),
            ("127.0.0.0/8", "unicast"),
            ("$(rm -rf /)", "not a CIDR"),
            ("", "not a CIDR"),
            (&many, "overlaps 192.0.2.240/28, the range of load balancers"),
        ] {
            let seen = check(&[("load-balancer-ranges", ranges)]);
            assert!(seen.contains(expected), "{ranges:.80}: {seen}");
        }
        assert!(check(&[("controllers", "*")]).contains("has no load balancer ranges"));
        let twice =
            [("load-balancer-ranges", "nonsense"), ("load-balancer-ranges", "192.0.2.240/28")];
        assert_eq!(check(&twice), "192.0.2.240/28");
    }

    #[test]
    fn removes_addresses_of_former_ranges_before_their_record() {
        let (directory, net) = (tempfile::tempdir().unwrap(), Fake::new());
        net.add_link(&NewLink { name: "eth0", mtu: 0, mac: None, kind: NewKind::Bridge }).unwrap();
        let index = net.link("eth0").unwrap().unwrap().index;
        for address in ["192.0.2.1/32", "192.0.2.2/32", "192.0.2.17/32", "192.0.2.33/32"] {
            net.add_service_address(index, address.parse().unwrap()).unwrap();
        }
        let of = |text: &str| ranges(text).unwrap();
        let reserved = BTreeSet::from(["192.0.2.2".parse::<IpAddr>().unwrap()]);
        let replace = |new: &str| replace_record(&net, directory.path(), &of(new), &reserved);
        let left = || {
            let all = net.addresses().unwrap().into_iter();
            all.map(|address| address.cidr.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert!(recorded(directory.path()).unwrap().is_none());
        replace("192.0.2.0/28,192.0.2.16/28").unwrap();
        let new = "192.0.2.16/28,192.0.2.32/28";
        replace(new).unwrap();
        assert_eq!(left(), "192.0.2.2/32 192.0.2.17/32 192.0.2.33/32");
        assert_eq!(recorded(directory.path()).unwrap().unwrap(), of(new));

        let record = directory.path().join(RANGES);
        for hostile in ["$(reboot)", "", &"0.0.0.0/0,".repeat(10_000)] {
            std::fs::write(&record, hostile).unwrap();
            let error = replace("192.0.2.16/28").unwrap_err().to_string();
            assert!(error.contains(&record.display().to_string()), "{error:.200}");
            assert_eq!(std::fs::read_to_string(&record).unwrap(), hostile);
        }
        std::fs::write(&record, [0xff]).unwrap();
        recorded(directory.path()).unwrap_err();
    }
}
