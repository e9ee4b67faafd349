//! `windlass down`: stops a cluster and removes everything that it created.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use net_core::Family;
use netlink::Net;
use sys::supervision;

use crate::{
    cluster::Cluster, cluster_args::ClusterArgs, context, error::Error, mark, nodes, paths,
    process::Role,
};

/// Stops a cluster and removes everything that it created.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The kubeconfig from which to remove the cluster's context [default: the one that `up` changed]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Keep the store and the PKI, so that the next `up` finds all objects again
    #[arg(long)]
    pub keep_data: bool,
}

const GRACE: Duration = Duration::from_secs(15);

/// Stops a cluster and removes what it created, as far as possible. Succeeds if there is no cluster.
pub async fn run(args: Args) -> Result<(), Error> {
    let cluster = match args.cluster.load() {
        Ok(cluster) => cluster,
        // Without a cluster, there is nothing to do.
        Err(Error::NoCluster(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    mark::check(&args.cluster.directory(), &args.cluster.name)?;
    // The supervisor and the other processes restart each other. All of them check the mark, and the supervisor ends
    // first.
    let stopping = cluster.run().join("stopping");
    fs::create_dir_all(cluster.run()).map_err(Error::file("creating", cluster.run()))?;
    fs::write(&stopping, "").map_err(Error::file("writing", &stopping))?;
    let members = cluster.members()?;
    if let Some(pid) = Role::Supervisor.running(&cluster) {
        supervision::stop(pid, GRACE).await;
    }
    // A further node's mounts and networks end with its namespaces, and these end with its processes.
    for node in &members {
        nodes::power::kill_all(node).await?;
    }
    for role in [Role::SimulatedNodes, Role::Agent, Role::ControlPlane, Role::Balancer] {
        if let Some(pid) = role.running(&cluster) {
            supervision::stop(pid, GRACE).await;
        }
    }
    remove_containers(&cluster).await;
    if let Some(pid) = Role::Containerd.running(&cluster) {
        supervision::stop(pid, GRACE).await;
    }
    for pid in paths::shims(&cluster) {
        supervision::stop(pid, Duration::from_secs(2)).await;
    }
    remove_network(&cluster);
    cni::forget_results(&cluster.root);
    if cluster.settings.link.is_some()
        && let Err(error) = nodes::link::remove(&cluster, &members)
    {
        tracing::warn!(%error, "cannot remove the link between the nodes");
    }
    unmount_under(&cluster.root);
    for node in std::iter::once(&cluster).chain(&members) {
        for error in kubelet_volumes::detach_block_volumes(&node.root.join("var/lib/kubelet")).await
        {
            tracing::warn!(%error, "cannot detach a block volume");
        }
    }
    remove_cgroups(&cluster.cgroup()).await;
    let kubeconfig = args.kubeconfig.as_deref().or(cluster.settings.kubeconfig.as_deref());
    context::remove(&cluster, &context::path(kubeconfig))?;
    paths::remove_mount_points(&cluster);
    remove_files(&cluster, args.keep_data)
}

/// Removes every sandbox through the runtime, which calls the CNI plugin and unmounts the layers.
async fn remove_containers(cluster: &Cluster) {
    let endpoint = format!("unix://{}", cluster.containerd_socket().display());
    let runtime = cri::Client::new(&endpoint, Duration::from_secs(30));
    let listed = match Role::Containerd.running(cluster) {
        Some(_) => runtime.list_pod_sandboxes(None).await,
        // Only the runtime can find what remains of its Pods, such as network namespaces, so start it if it ended.
        None if start_runtime(cluster) => {
            let list = || runtime.list_pod_sandboxes(None);
            rt::retry(GRACE, Duration::from_millis(50), |_| true, list).await
        }
        None => return,
    };
    let sandboxes = match listed {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            tracing::warn!(%error, "cannot list the cluster's Pods");
            return;
        }
    };
    for sandbox in sandboxes {
        let stopped = runtime.stop_pod_sandbox(&sandbox.id).await;
        if let Err(error) = stopped.and(runtime.remove_pod_sandbox(&sandbox.id).await) {
            tracing::warn!(sandbox = %sandbox.id, %error, "cannot remove a Pod");
        }
    }
}

/// Starts the runtime again, unless `--keep-data` has removed its data.
fn start_runtime(cluster: &Cluster) -> bool {
    if !cluster.containerd_root().exists() {
        return false;
    }
    let started = Role::Containerd.start(cluster);
    if let Err(error) = &started {
        tracing::warn!(%error, "cannot start containerd to remove the cluster's Pods");
    }
    started.is_ok()
}

/// Removes the bridge, the CNI plugin's tables and the service proxy's tables.
fn remove_network(cluster: &Cluster) {
    crate::network::remove(cluster);
    // Removes the exception in a host firewall that drops forwarded packets.
    cni::disallow_forwarding(&cluster.bridge());
    // Removes the host's interfaces of Pods whose network was not removed.
    let ports =
        Command::new("ip").args(["-o", "link", "show", "master", &cluster.bridge()]).output();
    let ports = ports.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    for port in ports.lines().filter_map(|line| line.split(": ").nth(1)) {
        let name = port.split('@').next().unwrap_or(port);
        let _ = Command::new("ip").args(["link", "delete", name]).output();
    }
    let _ = Command::new("ip").args(["link", "delete", &cluster.bridge()]).output();
    let bridge = cluster.bridge();
    if let Err(error) = remove_addresses(cluster) {
        tracing::warn!(%error, "cannot remove load balancer addresses");
    }
    let removed = netlink::Kernel::open().and_then(|net| {
        if proxy::guards_loopback(&net, |table| table.owner() == Some(&bridge))? {
            proxy::unroute_localhost();
        }
        remove_tables(&net, &bridge)
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "cannot remove the cluster's nftables tables");
    }
}

/// Removes the addresses of LoadBalancer Services that a killed agent has left.
fn remove_addresses(cluster: &Cluster) -> Result<(), Error> {
    let ranges = cluster.settings.config.load_balancer.cidrs()?;
    if !ranges.is_empty() {
        vip::remove(&netlink::Kernel::open()?, &ranges, &BTreeSet::new())?;
    }
    Ok(())
}

/// Removes the cluster's tables. The bridge's name, which is unique to the cluster, is part of the CNI table's name and
/// is recorded as the owner in the service proxy's table.
fn remove_tables(net: &dyn Net, bridge: &str) -> Result<(), netlink::Error> {
    let plugins = cni::table_name(bridge);
    for family in Family::ALL {
        if net.has_table(family, &plugins)? {
            net.nft(&format!("delete table {} {plugins}\n", family.nft()))?;
        }
    }
    proxy::remove_tables(net, |table| table.owner() == Some(bridge))
}

/// Unmounts all mounts under a directory, the deepest first.
fn unmount_under(root: &Path) {
    let mut left = mounts_under(root);
    // A mount may be hidden by a later one, as upstream's kubelet mounts its directory over itself. It can be unmounted
    // only after that one.
    loop {
        let mut failures = Vec::new();
        for point in &left {
            let done = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
            failures.extend(done.err().map(|error| (point, error)));
        }
        let still = mounts_under(root);
        if still.is_empty() {
            return;
        }
        if still.len() >= left.len() {
            for (point, error) in failures {
                tracing::warn!(path = %point.display(), %error, "cannot unmount");
            }
            return;
        }
        left = still;
    }
}

/// Returns the mount points under a directory, the deepest first.
fn mounts_under(root: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split_whitespace().nth(4));
    let mut points: Vec<PathBuf> =
        points.map(PathBuf::from).filter(|p| p.starts_with(root) && p != root).collect();
    points.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    points
}

/// Kills all processes in a cgroup, and removes it once it is empty.
async fn remove_cgroups(group: &str) {
    let cgroups = sys::cgroup::detect();
    if let Err(error) = cgroups.kill(group) {
        tracing::warn!(group, %error, "cannot kill the remaining processes of the cluster's Pods");
    }
    for _ in 0..50 {
        if cgroups.remove(group).is_ok() {
            return;
        }
        // The kernel takes a moment to release killed processes.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if let Err(error) = cgroups.remove(group) {
        tracing::warn!(group, %error, "cannot remove the cluster's cgroup");
    }
}

/// Removes the files. With `keep`, keeps those from which the next `up` restores all objects and further nodes:
/// settings, PKI, and store.
fn remove_files(cluster: &Cluster, keep: bool) -> Result<(), Error> {
    let root = &cluster.root;
    if !keep {
        fs::remove_dir_all(root).map_err(Error::file("removing", root))?;
        // Succeeds only after the last cluster.
        if let Some(parent) = root.parent().filter(|p| p.ends_with("var/lib/windlass")) {
            let _ = fs::remove_dir(parent);
        }
        return Ok(());
    }
    for node in std::iter::once(cluster.clone()).chain(cluster.members()?) {
        for kept_out in
            ["run", "var/lib/containerd", "var/lib/kubelet/pods", "var/lib/cni", "etc/cni", "opt"]
        {
            let path = node.root.join(kept_out);
            if path.exists() {
                fs::remove_dir_all(&path).map_err(Error::file("removing", &path))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use net_core::{nft::InstalledTable, plan::TABLE};

    use super::*;

    /// Another kube-proxy's table has the same name, and an administrator's table may end in a bridge's name.
    #[test]
    fn deletes_only_tables_of_the_cluster() {
        let net = netlink::Fake::new();
        let sealed =
            |digest: &str| InstalledTable { digest: Some(digest.into()), ..Default::default() };
        let anothers = InstalledTable::default();
        net.put_table(Family::V4, "filter-wl-dev", Some(anothers.clone()));
        for others in [anothers.clone(), sealed("sha256-00"), sealed("sha256-00 wl-dev2")] {
            net.put_table(Family::V4, TABLE, Some(sealed("sha256-00 wl-dev")));
            net.put_table(Family::V6, TABLE, Some(others));
            net.put_table(Family::V4, "windlass-cni-wl-dev", Some(anothers.clone()));
            remove_tables(&net, "wl-dev").unwrap();
            let deleted = ["windlass-cni-wl-dev", TABLE].map(|t| format!("delete table ip {t}\n"));
            assert_eq!(net.take_log(), deleted);
        }
    }
}
