//! `windlass up`: runs init's phases under the cluster's root, starts the processes, and waits until Pods can run.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use api_config::GoDuration;
use api_meta::{Timestamp, Tree as _};
use bootstrap_core::{addons, kubeconfigs};
use client::{Client, ListOptions, PatchKind, PatchTarget, Resource};
use pki::Subject;
use serde_json::{Value, json};
use sys::supervision;
use telemetry::{Progress, Recorder};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    certs,
    cluster::{Cluster, DEFAULT_NAME, Settings, encryption_file, ranges},
    config::{self, ClusterConfig},
    configure::{self, ConfigArgs},
    containerd, context,
    error::Error,
    images, manifests, mark, metrics, network, nodes, preflight,
    process::{Role, notify_supervisor, settle, start_supervisor},
    replicated, secrets,
    simulated::MOST,
    status, takeover,
    turn::Turn,
    wait::{check_up, wait},
};

/// The time that a process has to end before it is killed.
const RESTART: Duration = Duration::from_secs(10);

/// Brings up a cluster on this host.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The name of the cluster, and of its context in the kubeconfig
    #[arg(long, default_value = DEFAULT_NAME)]
    pub name: String,
    /// The directory of the cluster's files [default: /var/lib/windlass/NAME]
    #[arg(long)]
    pub root: Option<PathBuf>,
    /// The kubeconfig to which the cluster's context is added [default: kubectl's own]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The node's address [default: the address towards the default gateway]
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// The number of nodes: this host, and others with namespaces of their own. Existing nodes are kept if there are
    /// more
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub nodes: u8,
    /// The number of simulated nodes: kubelets with a container runtime in memory, whose Pods have no processes. Only
    /// Pods that tolerate the taint windlass.io/simulated run there. Takes effect at the next start of a cluster that
    /// runs
    #[arg(long, value_parser = clap::value_parser!(u16).range(0..=i64::from(MOST)))]
    pub simulated_nodes: Option<u16>,
    /// Save all objects at this interval, such as 1h, to files in ROOT/snapshots; 'windlass snapshot restore' reads
    /// them. Takes effect at the next start of a cluster that runs
    #[arg(long)]
    pub snapshot_every: Option<GoDuration>,
    /// The number of these files that are kept
    #[arg(long, default_value_t = 24, requires = "snapshot_every")]
    pub snapshot_keep: usize,
    /// Encrypt Secrets in the store. Takes effect at the next start of a cluster that runs; `windlass secrets-encrypt
    /// reencrypt` then encrypts those that are there
    #[arg(long)]
    pub secrets_encryption: bool,
    /// The flags that change the document.
    #[command(flatten)]
    pub document: ConfigArgs,
    /// Print the JSON schema of the files for --config, and do nothing else
    #[arg(long)]
    pub print_schema: bool,
    /// The time to wait for the cluster, in seconds
    #[arg(long, default_value_t = 120)]
    pub timeout: u64,
}

/// Brings the cluster up, or its missing parts. After a reboot of the host, it restarts the cluster.
pub async fn run(args: Args) -> Result<(), Error> {
    if args.print_schema {
        print!("{}", config::SCHEMA);
        return Ok(());
    }
    let started = Instant::now();
    let root = Cluster::at(&args.name, args.root.as_deref());
    let (mut cluster, mut old) = load_or_plan(&args, &root)?;
    mark::claim(&root, &args.name)?;
    let progress = Progress::stderr(Recorder::new(&root, "up"));
    let turn = Turn::wait(&cluster.run(), &progress).await?;
    if turn.waited {
        (cluster, old) = load_or_plan(&args, &root)?;
    }
    apply_flags(&args, &mut cluster)?;
    let served = Role::ControlPlane.document(&cluster);
    let served_balancers = !served.as_ref().unwrap_or(&old).load_balancer.disabled;
    settle(&cluster).await;
    takeover::stop_other_binary(&cluster, &progress).await?;
    if Role::Supervisor.running(&cluster).is_none() {
        check_machine(&cluster, &progress)?;
        if cluster.is_replicated() {
            nodes::choose_link(&mut cluster)?;
        }
        prepare(&cluster, &progress)?;
        configure::store(&cluster)?;
        configure_nodes(&cluster, &old)?;
        add_nodes(&mut cluster, &args, &progress)?;
        progress
            .step("start containerd, control plane and agent", async { start_supervisor(&cluster) })
            .await?;
    } else {
        progress.note("the cluster runs already");
        configure::store(&cluster)?;
        configure_nodes(&cluster, &old)?;
        certs::ensure_server_names(&cluster, rt::now())?;
        add_nodes(&mut cluster, &args, &progress)?;
        notify_supervisor(&cluster);
        restart(&cluster, &old, &progress).await?;
    }
    let members = cluster.members()?;
    // A kept store still reports the Pods as they were before `down`.
    let dns_since =
        cluster.images_missing().exists().then(|| Timestamp::from(rt::now()).to_seconds());
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let client = cluster.admin_client()?;
    api_and_images(&cluster, &members, &client, &progress, deadline).await?;
    for error in std::iter::once(&cluster).chain(&members).flat_map(images::archives::errors) {
        progress.note(&error);
    }
    let add_ons = add_ons(&cluster, &client, served_balancers);
    progress.step("install cluster DNS and bootstrap objects", add_ons).await?;
    if !members.is_empty() {
        let joined = nodes::join::all(&cluster, &client, &members);
        progress.step("let the other nodes join", joined).await?;
    }
    let (one, all) = ("wait for the node", "wait for the nodes");
    let step = if members.is_empty() { one } else { all };
    let up = nodes_ready(&cluster, &members, &client, deadline);
    progress.wait(step, "the node's condition Ready", up).await?;
    label(&cluster, &client).await?;
    configure::apply_nodes(&cluster, &old, &client).await?;
    let up = dns_ready(&cluster, &client, dns_since, deadline);
    progress.wait("wait for cluster DNS", "a Ready Pod of Deployment coredns", up).await?;
    let path = context::path(args.kubeconfig.as_deref());
    context::merge(&cluster, &path, true)?;
    progress.note(&format!("context {} is in {}", context::name(&cluster), path.display()));
    progress.note(&format!(
        "up in {:.1} s; try: kubectl --context {} get pods -A",
        started.elapsed().as_secs_f64(),
        context::name(&cluster)
    ));
    Ok(())
}

/// Applies the flags that change settings of a new or an existing cluster.
fn apply_flags(args: &Args, cluster: &mut Cluster) -> Result<(), Error> {
    cluster.settings.kubeconfig = Some(context::path(args.kubeconfig.as_deref()));
    if let Some(simulated) = args.simulated_nodes {
        cluster.settings.simulated_nodes = simulated;
    }
    if let Some(every) = args.snapshot_every {
        cluster.settings.snapshots = Some((every.to_std().as_secs(), args.snapshot_keep));
    }
    if args.secrets_encryption {
        if cluster.is_replicated() {
            return Err(Error::SharedEncryption);
        }
        configure::check_encryption(&cluster.settings.config)?;
        secrets::create(&encryption_file(&cluster.root))?;
    }
    Ok(())
}

/// Reads the cluster, or plans a new one, with the document that the file and the flags make. Returns the cluster and
/// its former document.
fn load_or_plan(args: &Args, root: &Path) -> Result<(Cluster, ClusterConfig), Error> {
    let (mut cluster, config) = match Cluster::load(&args.name, root) {
        Ok(cluster) => {
            let config = args.document.apply(&cluster.settings.config)?;
            configure::check(&cluster, &config, true)?;
            (cluster, config)
        }
        Err(Error::NoCluster(_)) => {
            let config = args.document.apply(&ClusterConfig::default())?;
            let cluster = new_cluster(args, &config, root)?;
            configure::check(&cluster, &config, false)?;
            (cluster, config)
        }
        Err(error) => return Err(error),
    };
    check_control_planes(&cluster, &config)?;
    let old = std::mem::replace(&mut cluster.settings.config, config);
    Ok((cluster, old))
}

/// Returns an error if several control planes are requested for a cluster with an embedded store.
fn check_control_planes(cluster: &Cluster, config: &ClusterConfig) -> Result<(), Error> {
    if control_planes(config) == 1 || cluster.is_replicated() {
        return Ok(());
    }
    Err(Error::OneControlPlane(cluster.name.clone()))
}

/// Returns the number of control planes that a document wants.
fn control_planes(config: &ClusterConfig) -> u8 {
    config.control_planes.unwrap_or(1)
}

/// Waits for the API server and imports images concurrently, because they are independent and slow.
async fn api_and_images(
    cluster: &Cluster,
    members: &[Cluster],
    client: &Client,
    progress: &Progress,
    deadline: Instant,
) -> Result<(), Error> {
    if cluster.is_replicated() {
        // The API server runs from one of these images.
        let images = import(cluster, members, progress, deadline);
        progress.wait("wait for the images", "their import", images).await?;
        let left = deadline.saturating_duration_since(Instant::now());
        let first = replicated::start(cluster, progress, left);
        progress.wait("start the first control plane", "its components", first).await?;
        return api(cluster, client, progress, deadline).await;
    }
    let (tell, imported) = oneshot::channel();
    let importing = async {
        // The receiver is gone if the API server did not start.
        let _ = tell.send(import(cluster, members, progress, deadline).await);
        Ok(())
    };
    let waiting = async {
        api(cluster, client, progress, deadline).await?;
        let images = async { imported.await.unwrap_or(Ok(())) };
        progress.wait("wait for the images", "their import", images).await
    };
    tokio::try_join!(waiting, importing).map(drop)
}

async fn import(
    cluster: &Cluster,
    members: &[Cluster],
    progress: &Progress,
    deadline: Instant,
) -> Result<(), Error> {
    let mut step = progress.recorder().begin("import images");
    step.waited_for("containerd").read(cluster.binary());
    let result = images::import(cluster, members, deadline).await;
    match &result {
        Ok(()) => step.done(),
        Err(error) => step.failed(error),
    };
    result
}

async fn api(
    cluster: &Cluster,
    client: &Client,
    progress: &Progress,
    deadline: Instant,
) -> Result<(), Error> {
    let up = ready(cluster, client, deadline);
    progress.wait("wait for the API server", "its /readyz", up).await?;
    // Applied first: agents retry forbidden requests with an increasing backoff.
    let mut objects = addons::network::access();
    if !cluster.settings.config.load_balancer.ranges.is_empty() {
        objects.extend(addons::load_balancer::access());
    }
    progress.step("let the Pod network look", apply(client, objects)).await
}

fn new_cluster(args: &Args, config: &ClusterConfig, root: &Path) -> Result<Cluster, Error> {
    let address = match args.address {
        Some(address) => address,
        None => kubelet::default_address().ok_or(Error::NoAddress)?,
    };
    let networking = &config.networking;
    // The IPv6 defaults are kind's.
    let range_list = |list: &Option<String>, ipv4: &str, ipv6: &str| match list {
        Some(list) => ranges(list).map(|_| list.clone()),
        None if networking.dual_stack => Ok(format!("{ipv4},{ipv6}")),
        None => Ok(ipv4.to_owned()),
    };
    let settings = Settings {
        pod_cidr: range_list(&networking.pod_subnet, "10.244.0.0/16", "fd00:10:244::/56")?,
        service_cidr: range_list(&networking.service_subnet, "10.96.0.0/12", "fd00:10:96::/112")?,
        tunnel: networking.tunnel,
        etcd: match control_planes(config) {
            1 => None,
            _ => Some(replicated::etcd_tag()?),
        },
        ..Settings::first_node(rt::node_name(), address)
    };
    Ok(Cluster { name: args.name.clone(), root: root.to_owned(), settings })
}

/// Writes the configurations of the runtime and the kubelet of existing nodes after a change of the document.
fn configure_nodes(cluster: &Cluster, old: &ClusterConfig) -> Result<(), Error> {
    let new = &cluster.settings.config;
    for node in std::iter::once(cluster.clone()).chain(cluster.members()?) {
        let used = Role::Containerd.document(&node);
        if used.as_ref().unwrap_or(old).registries != new.registries {
            containerd::configure(&node)?;
        }
        let used = Role::Agent.document(&node);
        configure::update_kubelet(&node, used.as_ref().unwrap_or(old))?;
    }
    Ok(())
}

/// Restarts the processes of all nodes that run with other options. Containers keep running meanwhile. `old` counts for
/// processes whose options are unknown. An earlier `up` may have been killed after it stored its document.
async fn restart(cluster: &Cluster, old: &ClusterConfig, progress: &Progress) -> Result<(), Error> {
    let mut outdated = Vec::new();
    for node in std::iter::once(cluster.clone()).chain(cluster.members()?) {
        for role in node.roles().iter().filter(|role| role.running(&node).is_some()) {
            let used = role.document(&node);
            let used = used.as_ref().unwrap_or(old);
            if configure::concerned(used, &cluster.settings.config).contains(role) {
                outdated.push((*role, node.clone()));
            }
        }
    }
    if outdated.is_empty() {
        return Ok(());
    }
    let work = async {
        for (role, node) in &outdated {
            if let Some(pid) = role.running(node) {
                supervision::stop(pid, RESTART).await;
            }
        }
        Ok::<_, Error>(())
    };
    progress.step("restart what the new options concern", work).await
}

fn add_nodes(cluster: &mut Cluster, args: &Args, progress: &Progress) -> Result<(), Error> {
    let config = &cluster.settings.config;
    let listed = u8::try_from(config.nodes.len()).unwrap_or(u8::MAX);
    let control_planes = control_planes(config);
    let count = args.nodes.max(control_planes).max(listed);
    if count == 1 && cluster.settings.link.is_none() {
        return Ok(());
    }
    let step = progress.begin("make the other nodes");
    step.end(nodes::ensure(cluster, count.into(), control_planes.into()).map(drop))
}

fn check_machine(cluster: &Cluster, progress: &Progress) -> Result<(), Error> {
    let step = progress.begin("check the machine");
    let problems = preflight::check(cluster);
    step.checked(if problems.is_empty() { Ok(()) } else { Err(Error::Preflight(problems)) })
}

/// Creates everything that processes need: directories, the binary, PKI, kubeconfigs and configurations.
fn prepare(cluster: &Cluster, progress: &Progress) -> Result<(), Error> {
    let layout = cluster.layout();
    for directory in [
        cluster.run(),
        cluster.logs(),
        cluster.store(),
        cluster.root.join("bin"),
        cluster.root.join(manifests::DIRECTORY),
        cluster.root.join(images::archives::DIRECTORY),
        layout.manifests(),
        layout.kubelet.join("pki"),
    ] {
        fs::create_dir_all(&directory).map_err(Error::file("creating", &directory))?;
    }
    cluster.save()?;
    images::delay_agent(cluster)?;
    let init = cluster.init();
    let (endpoint, node) = (&init.init.local_api_endpoint, &cluster.settings.node_name);
    let now = rt::now();
    let _ = fs::remove_file(cluster.run().join("stopping"));
    if cluster.is_replicated() {
        replicated::remove_static_pods(cluster)?;
        replicated::write_first_server(cluster, cluster)?;
    }
    let mut step = progress.begin("make certificates and keys");
    let plan = certs::plan(cluster)?;
    // Certificates may have expired while the cluster was down.
    let renewed: Result<Vec<_>, _> = if layout.pki("ca", "key").exists() {
        certs::renew_due(cluster, &plan, now).into_iter().collect()
    } else {
        Ok(Vec::new())
    };
    renewed?.into_iter().for_each(|t| {
        step.record().written(t.path);
    });
    certs::ensure_server_names(cluster, now)?;
    let touched = bootstrap::certs::ensure(&layout.certificates, &plan, now)?;
    touched.into_iter().filter(|t| t.written).for_each(|t| {
        step.record().written(t.path);
    });
    certs::ensure_serving_certificate(cluster, &plan, now)?;
    step.end(Ok::<_, Error>(()))?;
    let mut step = progress.begin("write kubeconfigs and configuration");
    let mut plans = kubeconfigs::plan(&init.cluster, endpoint, node, true);
    plans.extend(agent_kubeconfigs(&plans)?);
    let touched = bootstrap::kubeconfigs::ensure(
        &layout.kubernetes,
        &layout.certificates,
        &plans,
        &plan,
        now,
    )?;
    touched.into_iter().filter(|t| t.written).for_each(|t| {
        step.record().written(t.path);
    });
    let text = bootstrap_core::kubelet::config(&init.kubelet, &init.init.node_registration)?;
    pki::write_file(&layout.kubelet_config(), text.as_bytes(), 0o644)?;
    containerd::configure(cluster)?;
    step.end(Ok::<_, Error>(()))?;
    install_binary(cluster)
}

/// Copies this binary for the cluster, so that the original can be rebuilt or removed.
fn install_binary(cluster: &Cluster) -> Result<(), Error> {
    let target = cluster.binary();
    let own = std::env::current_exe().map_err(Error::file("finding", &target))?;
    if own == target {
        return Ok(());
    }
    let beside = target.with_extension("new");
    let _ = fs::remove_file(&beside);
    fs::copy(&own, &beside).map_err(Error::file("copying the binary to", &beside))?;
    fs::rename(&beside, &target).map_err(Error::file("putting in place", &target))
}

/// Returns the kubeconfigs of the proxy, the Pod network and the Metrics API. They run in the agent, and so have client
/// certificates and not service accounts.
pub(crate) fn agent_kubeconfigs(
    plans: &[kubeconfigs::Plan],
) -> Result<[kubeconfigs::Plan; 3], Error> {
    // The administrator's kubeconfig names the stable API endpoint.
    let admin = plans.iter().find(|p| p.file == "admin.conf");
    let admin = admin.ok_or(Error::NoAdminKubeconfig)?;
    let of = |phase, file, user, long_name| kubeconfigs::Plan {
        phase,
        file,
        user: Subject::new(user),
        long_name,
        ..admin.clone()
    };
    Ok([
        of(
            "kube-proxy",
            "kube-proxy.conf",
            "system:kube-proxy",
            "certificate embedded in the kubeconfig file for the service proxy to use",
        ),
        of(
            "network",
            network::KUBECONFIG,
            addons::network::USER,
            "certificate embedded in the kubeconfig file for the Pod network to use",
        ),
        of(
            "metrics",
            metrics::KUBECONFIG,
            addons::metrics::USER,
            "certificate embedded in the kubeconfig file for the Metrics API to use",
        ),
    ])
}

async fn ready(cluster: &Cluster, client: &Client, deadline: Instant) -> Result<(), Error> {
    let role = if cluster.is_replicated() { Role::Balancer } else { Role::ControlPlane };
    let up = wait(deadline, async || {
        client.call(http::Method::GET, "/readyz", "", bytes::Bytes::new()).await.is_ok()
    });
    check_up(cluster, up.await, "the API server", role)
}

async fn nodes_ready(
    cluster: &Cluster,
    members: &[Cluster],
    client: &Client,
    deadline: Instant,
) -> Result<(), Error> {
    let is_ready = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    for node in std::iter::once(cluster).chain(members.iter().filter(|n| !n.stopped().exists())) {
        let name = &node.settings.node_name;
        let up = wait(deadline, async || {
            client.get::<Value>(&Resource::NODES, "", name).await.is_ok_and(|node| is_ready(&node))
        });
        check_up(node, up.await, "the node", Role::Agent)?;
    }
    Ok(())
}

async fn dns_ready(
    cluster: &Cluster,
    client: &Client,
    since: Option<Timestamp>,
    deadline: Instant,
) -> Result<(), Error> {
    let options = ListOptions::labels("k8s-app=kube-dns");
    let pods = async || {
        let pods = client.list::<Value>(&Resource::PODS, "kube-system", &options).await;
        pods.map(|pods| pods.items).unwrap_or_default()
    };
    let up = wait(deadline, async || pods().await.iter().any(|pod| is_ready(pod, since)));
    let result = check_up(cluster, up.await, "cluster DNS", Role::Agent);
    let Err(Error::NotUp { what, process, log, .. }) = result else { return result };
    // The Pod has a more specific cause.
    let causes = pods().await.into_iter().filter_map(|pod| {
        let cause = status::unmet_cause(&pod, "Ready")?;
        Some(format!("\nPod {} is not Ready: {cause}", status::name(&pod)))
    });
    Err(Error::NotUp { what, pods: causes.collect(), process, log })
}

/// Returns `true` for a Pod that is Ready, is not being deleted, and whose containers have started since a time.
fn is_ready(pod: &Value, since: Option<Timestamp>) -> bool {
    let has_started = |container: &Value| {
        let started = container["state"]["running"].text("startedAt").parse::<Timestamp>();
        started.is_ok_and(|started| since.is_none_or(|since| started >= since))
    };
    let containers = pod["status"]["containerStatuses"].as_array();
    pod["metadata"]["deletionTimestamp"].is_null()
        && status::unmet_cause(pod, "Ready").is_none()
        && containers.is_some_and(|containers| containers.iter().all(has_started))
}

/// Applies cluster DNS and kubeadm's objects. A second `up` changes nothing. `served_balancers` is `true` if the
/// control plane may have given addresses to LoadBalancer Services before.
async fn add_ons(cluster: &Cluster, client: &Client, served_balancers: bool) -> Result<(), Error> {
    let init = cluster.init();
    let mut objects = addons::coredns(&init.cluster, 1)?;
    // A user waits for this Deployment, whose process is ready in a tenth of a second, so probe it every second.
    for deployment in objects.iter_mut().filter(|o| o["kind"] == "Deployment") {
        deployment["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] =
            json!(1);
    }
    objects.push(bootstrap_core::objects::cluster_admins());
    objects.push(bootstrap_core::objects::api_server_kubelet_client());
    objects.extend(addons::storage::objects());
    objects.extend(addons::metrics::objects(metrics::address(cluster)));
    apply(client, objects).await?;
    // Later, the addresses are those of another controller.
    if served_balancers && cluster.settings.config.load_balancer.disabled {
        configure::clear_addresses(client).await?;
    }
    metrics::register(client).await
}

/// Labels the first node as a control plane. Other control planes set the label when they join.
async fn label(cluster: &Cluster, client: &Client) -> Result<(), Error> {
    let at = PatchTarget { namespace: "", name: &cluster.settings.node_name, subresource: "" };
    let labels = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    client.patch::<Value>(&Resource::NODES, at, PatchKind::Merge, &labels).await?;
    Ok(())
}

async fn apply(client: &Client, objects: Vec<Value>) -> Result<(), Error> {
    for object in &objects {
        let resource = bootstrap::cluster::resource_of(object)?;
        let at =
            PatchTarget { namespace: object.namespace(), name: object.name(), subresource: "" };
        let apply = PatchKind::Apply { manager: "windlass", force: true };
        client.patch::<Value>(resource, at, apply, object).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_pod_of_kept_store_counts_once_it_has_restarted() {
        let pod = |ready: &str, started: &str| {
            json!({"status": {"conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{"state": {"running": {"startedAt": started}}}]}})
        };
        let since = "2026-11-26T06:00:00Z".parse().ok();
        let (before, after) = ("2026-11-26T05:59:59Z", "2026-11-26T06:00:00Z");
        assert!(is_ready(&pod("True", before), None));
        assert!(!is_ready(&pod("True", before), since));
        assert!(is_ready(&pod("True", after), since));
        assert!(!is_ready(&pod("False", after), since));
        let mut deleted = pod("True", after);
        deleted["metadata"]["deletionTimestamp"] = json!(after);
        assert!(!is_ready(&deleted, since));
        for hostile in [json!({}), json!(null), pod("True", "yesterday")] {
            assert!(!is_ready(&hostile, since), "{hostile}");
        }
    }
}
