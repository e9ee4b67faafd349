//! `windlass down`: stops the cluster and takes away everything that it made.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use net_core::Family;
use netlink::Net;
use sys::kept;

use crate::{Cluster, Error, context, mark, nodes, process::Role};

/// Stops a cluster and removes what it made.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The cluster's name
    #[arg(long, default_value = crate::DEFAULT_NAME)]
    pub name: String,
    /// Where the cluster keeps its files [default: /var/lib/windlass/NAME]
    #[arg(long)]
    pub root: Option<PathBuf>,
    /// The kubeconfig to take the cluster's context out of [default: the one that `up` put it into]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Keep the store and the PKI, so that the next `up` finds every object again
    #[arg(long)]
    pub keep_data: bool,
}

const GRACE: Duration = Duration::from_secs(15);

/// Takes a cluster away with all that it made, as far as it gets; success if there is none.
pub async fn run(args: Args) -> Result<(), Error> {
    let root = Cluster::at(&args.name, args.root.as_deref());
    let cluster = match Cluster::load(&args.name, &root) {
        Ok(cluster) => cluster,
        // Nothing there is what down is for.
        Err(Error::NoCluster(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    mark::check(&root, &args.name)?;
    // The supervisor would start the others again, and they it: it goes first, by a mark that all of them read.
    let stopping = cluster.run().join("stopping");
    fs::create_dir_all(cluster.run()).map_err(Error::file("creating", cluster.run()))?;
    fs::write(&stopping, "").map_err(Error::file("writing", &stopping))?;
    let members = cluster.members()?;
    if let Some(pid) = Role::Supervisor.running(&cluster) {
        kept::stop(pid, GRACE).await;
    }
    // Mounts and networks of further nodes go with the namespaces, and those with the processes.
    for node in &members {
        nodes::power::end(node).await?;
    }
    for role in [Role::Agent, Role::ControlPlane, Role::Balancer] {
        if let Some(pid) = role.running(&cluster) {
            kept::stop(pid, GRACE).await;
        }
    }
    remove_containers(&cluster).await;
    if let Some(pid) = Role::Containerd.running(&cluster) {
        kept::stop(pid, GRACE).await;
    }
    for pid in processes_under(&cluster) {
        kept::stop(pid, Duration::from_secs(2)).await;
    }
    remove_network(&cluster);
    cni::forget_results(&cluster.root);
    if cluster.settings.link.is_some()
        && let Err(error) = nodes::link::remove(&cluster, &members)
    {
        tracing::warn!(%error, "removing the link between the nodes");
    }
    unmount_under(&cluster.root);
    remove_cgroups(&cluster.cgroup()).await;
    let given = args.kubeconfig.as_deref().or(cluster.settings.kubeconfig.as_deref());
    context::remove(&cluster, &context::path(given))?;
    remove_files(&cluster, args.keep_data)
}

/// Removes every sandbox through the runtime, which runs the CNI plugin's deletion and unmounts its layers.
async fn remove_containers(cluster: &Cluster) {
    let endpoint = format!("unix://{}", cluster.containerd_socket().display());
    let runtime = cri::Client::new(&endpoint, Duration::from_secs(30));
    let listed = match Role::Containerd.running(cluster) {
        Some(_) => runtime.list_pod_sandboxes(None).await,
        // What a dead runtime left of Pods, their network namespaces above all, only it can find.
        None if start_runtime(cluster) => {
            let list = || runtime.list_pod_sandboxes(None);
            rt::retry(GRACE, Duration::from_millis(50), |_| true, list).await
        }
        None => return,
    };
    let sandboxes = match listed {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            tracing::warn!(%error, "listing the cluster's Pods");
            return;
        }
    };
    for sandbox in sandboxes {
        let stopped = runtime.stop_pod_sandbox(&sandbox.id).await;
        if let Err(error) = stopped.and(runtime.remove_pod_sandbox(&sandbox.id).await) {
            tracing::warn!(sandbox = %sandbox.id, %error, "removing a Pod");
        }
    }
}

/// Starts the runtime once more. A cluster whose data alone was kept has nothing to start it for.
fn start_runtime(cluster: &Cluster) -> bool {
    if !cluster.containerd_root().exists() {
        return false;
    }
    let started = Role::Containerd.start(cluster);
    if let Err(error) = &started {
        tracing::warn!(%error, "the cluster's Pods are not removed through their runtime");
    }
    started.is_ok()
}

/// Shims that outlived their containerd.
fn processes_under(cluster: &Cluster) -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_shim_under(&cluster.root, &String::from_utf8_lossy(&line))
        })
        .collect()
}

/// Whether a command line is a shim's that was told of a path under a root. Another cluster's root may begin with the
/// same letters.
fn is_shim_under(root: &Path, line: &str) -> bool {
    let mut words = line.split('\0');
    let program = words.next().unwrap_or_default();
    program.ends_with("containerd-shim-runc-v2")
        && words.any(|word| Path::new(word).starts_with(root))
}

/// The bridge, the plugin's tables and the service proxy's.
fn remove_network(cluster: &Cluster) {
    crate::network::remove(cluster);
    // The exception that the plugin made where a host firewall forwards nothing.
    cni::disallow_forwarding(&cluster.bridge());
    // The host's ends of Pods whose deletion did not come to their network.
    let ports =
        Command::new("ip").args(["-o", "link", "show", "master", &cluster.bridge()]).output();
    let ports = ports.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    for port in ports.lines().filter_map(|line| line.split(": ").nth(1)) {
        let name = port.split('@').next().unwrap_or(port);
        let _ = Command::new("ip").args(["link", "delete", name]).output();
    }
    let _ = Command::new("ip").args(["link", "delete", &cluster.bridge()]).output();
    let bridge = cluster.bridge();
    let removed = netlink::Kernel::open().and_then(|net| {
        if proxy::guards_loopback(&net, |table| table.owner() == Some(&bridge))? {
            proxy::unroute_localhost();
        }
        remove_tables(&net, &bridge)
    });
    if let Err(error) = removed {
        tracing::warn!(%error, "removing the cluster's nftables tables");
    }
}

/// The plugin's table carries the bridge's name, which is the cluster's, and the service proxy's says it inside.
fn remove_tables(net: &dyn Net, bridge: &str) -> Result<(), netlink::Error> {
    let plugins = cni::table_name(bridge);
    for family in Family::ALL {
        if net.has_table(family, &plugins)? {
            net.nft(&format!("delete table {} {plugins}\n", family.nft()))?;
        }
    }
    proxy::remove_tables(net, |table| table.owner() == Some(bridge))
}

/// Unmounts what lies under a directory, the deepest first.
fn unmount_under(root: &Path) {
    let mut left = mounts_under(root);
    // A mount that a later one hides, as upstream's kubelet does by mounting its directory over itself, is within reach
    // only when that is gone.
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
                tracing::warn!(path = %point.display(), %error, "unmounting");
            }
            return;
        }
        left = still;
    }
}

/// The mount points under a directory, the deepest first.
fn mounts_under(root: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split_whitespace().nth(4));
    let mut points: Vec<PathBuf> =
        points.map(PathBuf::from).filter(|p| p.starts_with(root) && p != root).collect();
    points.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    points
}

/// Ends what is still in the cluster's cgroup, and removes it once it is empty.
async fn remove_cgroups(group: &str) {
    let cgroups = sys::cgroup::detect();
    if let Err(error) = cgroups.kill(group) {
        tracing::warn!(group, %error, "ending what is left of the cluster's Pods");
    }
    for _ in 0..50 {
        if cgroups.remove(group).is_ok() {
            return;
        }
        // The kernel takes its time to let go of what was killed.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if let Err(error) = cgroups.remove(group) {
        tracing::warn!(group, %error, "removing the cluster's cgroup");
    }
}

/// With `keep`, what the next `up` needs to find every object again stays: the settings, the PKI, the store, and what
/// makes further nodes known.
fn remove_files(cluster: &Cluster, keep: bool) -> Result<(), Error> {
    let root = &cluster.root;
    if !keep {
        fs::remove_dir_all(root).map_err(Error::file("removing", root))?;
        // Only when it is the last cluster's.
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
    use net_core::{nft::Installed, plan::TABLE};

    use super::*;

    /// Another kube-proxy's table has the same name, and an administrator's may end as a bridge's does.
    #[test]
    fn only_the_clusters_own_tables_are_deleted() {
        let net = netlink::Fake::new();
        let sealed = |digest: &str| Installed { digest: Some(digest.into()), ..Default::default() };
        let anothers = Installed::default();
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

    #[test]
    fn only_the_clusters_own_shims_are_ended() {
        let shim = |root: &str| {
            let address = format!("{root}/run/containerd.sock");
            format!("/usr/bin/containerd-shim-runc-v2\0-namespace\0k8s.io\0-address\0{address}\0")
        };
        let root = Path::new("/var/lib/windlass/dev");
        for (line, ours) in [
            (shim("/var/lib/windlass/dev"), true),
            (shim("/var/lib/windlass/dev2"), false),
            (shim("/run/containerd"), false),
            ("vi\0/var/lib/windlass/dev/cluster.json".to_owned(), false),
        ] {
            assert_eq!(is_shim_under(root, &line), ours, "{line:?}");
        }
    }
}
