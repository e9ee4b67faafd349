//! `nodeup`: configures a machine for its group. The machine is identified by its identity document, the group by the
//! boot configuration. A second run with the same configuration does nothing.
//!
//! Control planes read the store. Workers ask kops-controller, and receive no private key but their own.

mod authority;
mod context;
mod control_plane;
mod disk;
mod etcd_cluster;
mod etcd_pod;
mod kubelet;
mod manifest;
mod member;
mod pods;
mod proxy;
mod volume;
mod worker;
mod writes;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use api_config::kubeadm::Arg;
use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bootstrap::{containers::Runtime, host::Host, init, node::Node, phase};
use bootstrap_core::{Layout, config::Init, images};
use instances::{Machine, machine};
use kops_core::{content_hash, registry_credentials};
use kops_store::{DOCKER_CONFIG, parse_yaml};
use serde_json::Value;
use telemetry::{Progress, Recorder};

use self::{
    context::{Certificates, NodeAnswer, NodeContext},
    manifest::make_parent,
    member::MemberStart,
};
pub use self::{
    control_plane::ETCD_CPU,
    kubelet::KUBELET_FIELDS,
    proxy::{PROXY_LABEL, PROXY_MANIFEST},
    volume::holds_generation,
};
use crate::{
    error::Error,
    hash::file_hash,
    status,
    store_access::{open, read_secret},
    systemd,
};

/// Configures this machine for its instance group
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The boot configuration of the machine
    #[arg(long)]
    conf: PathBuf,
    /// Install and start a unit of systemd that configures the machine, instead of doing so now
    #[arg(long)]
    install_systemd_unit: bool,
}

/// The file with the hash of the applied configuration.
pub const APPLIED_HASH: &str = "/opt/kops/nodeup-done";
/// The file with the applied configuration, from which later differences are shown.
pub const APPLIED_CONFIG: &str = "/opt/kops/nodeupconfig.yaml";
/// The copy of the hosts file that the machine was created with.
const ORIGINAL_HOSTS: &str = "/opt/kops/hosts";
const RUNTIME: &str = "/run/containerd/containerd.sock";
/// The time limit for containerd to start.
const CONTAINERD_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The phases of `init` that write the files of a control plane's components.
const CONTROL_PLANE_PHASES: [&str; 4] = ["certs", "kubeconfig", "etcd", "control-plane"];
/// The directory for recorded steps.
const HOME: &str = "/var/log/windlass";

/// Runs `nodeup`: configures this machine by its boot configuration. A second run changes nothing. The cause of a
/// failure is recorded for `kops validate` and `kops get instances`.
pub async fn run(args: &Args) -> Result<(), Error> {
    let result = configure(args).await;
    match &result {
        Ok(()) => status::clear(),
        Err(error) => status::report_failure(error),
    }
    result
}

async fn configure(args: &Args) -> Result<(), Error> {
    let path = args.conf.display().to_string();
    let text = fs::read(&args.conf).map_err(kops_store::Error::file("reading", &path))?;
    let boot = parse_yaml(&path, &text)?;
    match boot.text("CloudProvider") {
        "local" if !args.install_systemd_unit => {}
        "metal" => return configure_with_systemd(args, boot).await,
        other => return Err(Error::Cloud(other.to_owned())),
    }
    let hash = boot.text("NodeupConfigHash").to_owned();
    if fs::read_to_string(APPLIED_HASH).is_ok_and(|done| done == hash) {
        tracing::info!("this machine is configured already");
        return Ok(());
    }
    let machine = Machine::load(&Path::new(machine::DOCUMENT).join("machine.json"))?;
    // A worker receives its certificate with its configuration.
    let answer = match boot.text("ConfigBase") {
        "" => worker::request_config(&boot, &machine).await?,
        base => NodeAnswer {
            config: control_plane::read_node_config(base, &boot)?,
            certificates: None,
            docker_config: read_secret(&open(base)?, DOCKER_CONFIG)?,
        },
    };
    let text = answer.config;
    if content_hash(text.as_bytes()) != hash {
        return Err(Error::NodeConfig);
    }
    pki::write_file(Path::new(APPLIED_CONFIG), text.as_bytes(), pki::KEY_MODE)?;
    let config = parse_yaml("the node configuration", text.as_bytes())?;
    let credentials = answer.docker_config.as_deref().map(registry_credentials);
    let credentials = credentials.transpose()?.unwrap_or_default();
    let context = NodeContext { boot, config, machine, credentials };
    check_assets(&context)?;
    let (init, members) = write_files(&context, answer.certificates).await?;
    start_runtime(&context, &init).await?;
    let is_control_plane = context.boot.text("InstanceGroupRole") == "ControlPlane";
    run_phases(init, is_control_plane, &context).await?;
    for member in members {
        member.finish().await?;
    }
    pki::write_file(Path::new(APPLIED_HASH), hash.as_bytes(), pki::PUBLIC_MODE)?;
    Ok(())
}

/// Configures a machine that has systemd.
async fn configure_with_systemd(args: &Args, boot: Value) -> Result<(), Error> {
    let root = Path::new("/");
    if args.install_systemd_unit {
        return systemd::install_unit(
            root,
            &args.conf,
            &|name| std::env::var(name).ok(),
            &sys::HostPrograms,
        );
    }
    let changes = systemd::configure(root, boot, &sys::HostPrograms).await?;
    for change in &changes {
        tracing::info!("{change}");
    }
    tracing::info!(changes = changes.len(), "this machine is configured");
    Ok(())
}

/// Writes the files that do not need the container runtime, and returns the configuration of `init` for the rest, with
/// the starts of etcd's members.
async fn write_files(
    context: &NodeContext,
    certificates: Option<Certificates>,
) -> Result<(Init, Vec<MemberStart>), Error> {
    write_hosts(context)?;
    write_file_assets(context)?;
    let (mut init, members) = match certificates {
        None => control_plane::write_files(context).await?,
        Some(certificates) => (worker::write_files(context, certificates)?, Vec::new()),
    };
    set_registration(context, &mut init)?;
    Ok((init, members))
}

/// Checks the programs against their hashes in the configuration.
fn check_assets(context: &NodeContext) -> Result<(), Error> {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    for asset in context.config.texts(&format!("Assets.{arch}")) {
        let (hash, url) = asset.split_once('@').unwrap_or(("", asset));
        let Some(path) = url.strip_prefix("file://") else {
            return Err(Error::AssetUrl { url: url.to_owned() });
        };
        if file_hash(Path::new(path))? != hash {
            return Err(Error::AssetHash { url: url.to_owned() });
        }
    }
    Ok(())
}

/// Writes the names of the API to the hosts file.
fn write_hosts(context: &NodeContext) -> Result<(), Error> {
    const BEGIN: &str = "# Begin host entries managed by nodeup";
    const END: &str = "# End host entries managed by nodeup";
    let path = Path::new(instances::space::HOSTS);
    let base = original_hosts(path, Path::new(ORIGINAL_HOSTS))?;
    let cluster = context.boot.text("ClusterName");
    let servers: Vec<_> = context.boot.texts("APIServerIPs").collect();
    let gateway = context.machine.gateway.to_string();
    let (api, controllers) = match context.boot.text("InstanceGroupRole") {
        "ControlPlane" => (vec!["127.0.0.1"], vec!["127.0.0.1"]),
        // With several servers, the balancer selects one.
        _ if servers.len() > 1 => (vec![gateway.as_str()], servers),
        _ => (servers.clone(), servers),
    };
    let line = |name: &str, address: &&str| format!("{address}\t{name}.internal.{cluster}\n");
    let api = api.iter().map(|address| line("api", address));
    let own: String =
        api.chain(controllers.iter().map(|address| line("kops-controller", address))).collect();
    overwrite(path, &format!("{}\n{BEGIN}\n{own}{END}\n", base.trim_end()))
}

/// Returns the hosts file as the machine was created with it. It is copied first, so that a run that stops while it
/// overwrites the file loses nothing.
fn original_hosts(path: &Path, copy: &Path) -> Result<String, Error> {
    let read = |path: &Path| {
        fs::read_to_string(path)
            .map_err(kops_store::Error::file("reading", &path.display().to_string()))
    };
    if !copy.exists() {
        pki::write_file(copy, read(path)?.as_bytes(), pki::PUBLIC_MODE)?;
    }
    Ok(read(copy)?)
}

/// Overwrites a file that cannot be replaced, because it is a mount. Readers never see an empty file.
fn overwrite(path: &Path, content: &str) -> Result<(), Error> {
    let failed = || kops_store::Error::file("writing", &path.display().to_string());
    let mut file = fs::OpenOptions::new().write(true).open(path).map_err(failed())?;
    file.write_all(content.as_bytes())
        .and_then(|()| file.set_len(content.len() as u64))
        .and_then(|()| file.sync_all())
        .map_err(failed())?;
    Ok(())
}

/// Writes the spec's additional files.
fn write_file_assets(context: &NodeContext) -> Result<(), Error> {
    for asset in context.config.items("FileAssets") {
        let path = match asset.text("path") {
            "" => PathBuf::from("/srv/kubernetes/assets").join(asset.text("name")),
            path => PathBuf::from(path),
        };
        let shown = path.display().to_string();
        let content = if asset.flag("isBase64") {
            STANDARD
                .decode(asset.text("content"))
                .map_err(|source| Error::FileAsset { path: shown.clone(), source })?
        } else {
            asset.text("content").as_bytes().to_vec()
        };
        let mode = asset.text("mode");
        let mode = if mode.is_empty() { "0440" } else { mode };
        let mode = u32::from_str_radix(mode, 8).map_err(|source| Error::FileMode {
            path: shown,
            mode: mode.to_owned(),
            source,
        })?;
        make_parent(&path)?;
        pki::write_file(&path, &content, mode)?;
    }
    Ok(())
}

/// Sets the parameters of the kubelet and of its registration.
fn set_registration(context: &NodeContext, init: &mut Init) -> Result<(), Error> {
    let machine = &context.machine;
    let registration = &mut init.init.node_registration;
    registration.cri_socket = format!("unix://{RUNTIME}");
    let kubelet = context.config.at("KubeletConfig").clone();
    let provider = format!("local://{}/{}", machine.cluster, machine.name);
    registration.kubelet_extra_args.extend([
        Arg::new("node-ip", machine.address.to_string()),
        Arg::new("provider-id", provider),
    ]);
    let taints = kubelet.texts("taints").collect::<Vec<_>>().join(",");
    if !taints.is_empty() {
        registration.kubelet_extra_args.push(Arg::new("register-with-taints", taints));
    }
    if proxy::has_credentials() {
        let label = format!("{PROXY_LABEL}={}", proxy::STATIC);
        registration.kubelet_extra_args.push(Arg::new("node-labels", label));
    }
    registration.taints = Some(Vec::new());
    let config = &mut init.kubelet;
    kubelet::set_fields(config, &kubelet)?;
    config.cgroup_root.clone_from(&machine.cgroup);
    config.fail_cgroup_v1 = Some(false);
    // The machines share this machine's swap, which Pods do not use.
    config.fail_swap_on = Some(false);
    if let Some(dns) = kubelet.at("clusterDNS").as_str() {
        config.cluster_dns = vec![dns.to_owned()];
    }
    kubelet.text("clusterDomain").clone_into(&mut config.cluster_domain);
    // The host's disk is shared by all machines, so its usage says nothing about this machine.
    let off = |signal: &str| (signal.to_owned(), "0%".to_owned());
    let signals =
        ["nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"];
    let mut hard: std::collections::BTreeMap<_, _> = signals.map(off).into();
    hard.insert("memory.available".to_owned(), "100Mi".to_owned());
    config.eviction_hard = Some(hard);
    config.image_gc_high_threshold_percent = Some(100);
    Ok(())
}

/// Writes the container runtime's settings, which starts it, and waits for it.
async fn start_runtime(context: &NodeContext, init: &Init) -> Result<(), Error> {
    let text = instances::runtime::config(&instances::runtime::Paths {
        root: Path::new("/var/lib/containerd"),
        state: Path::new("/run/containerd"),
        socket: Path::new(RUNTIME),
        runc: Path::new("/run/runc"),
        plugins: Path::new("/opt/cni/bin"),
        networks: Path::new("/etc/cni/net.d"),
        sandbox: &images::pause(&init.cluster),
        credentials: &context.credentials,
        registry_hosts: None,
    });
    // The file may contain credentials.
    pki::write_file(Path::new("/etc/containerd/config.toml"), text.as_bytes(), pki::KEY_MODE)?;
    let deadline = tokio::time::Instant::now() + CONTAINERD_TIMEOUT;
    while tokio::net::UnixStream::connect(RUNTIME).await.is_err() {
        if tokio::time::Instant::now() > deadline {
            return Err(Error::Containerd);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Runs the remaining phases of `init`.
async fn run_phases(
    init: Init,
    is_control_plane: bool,
    context: &NodeContext,
) -> Result<(), Error> {
    let endpoint = format!("unix://{RUNTIME}");
    let containers = Arc::new(Runtime::new(&endpoint, Host::default()));
    let mut names = images::all(&init.cluster);
    if !is_control_plane {
        names.retain(|name| !name.contains("/etcd:"));
    }
    names.sort();
    names.dedup();
    bootstrap::containers::Containers::build(&*containers, &names).await?;
    let clock = Arc::new(rt::SystemClock);
    let node = Node::new(init, Layout::default(), Host::default(), clock, containers);
    let mut only = vec!["kubelet-start"];
    if is_control_plane {
        only.extend(CONTROL_PLANE_PHASES);
    }
    run_phases_on(node, &only, is_control_plane, context).await
}

/// Runs phases of `init` on a machine, after writing the static Pods that `init` does not have.
async fn run_phases_on(
    mut node: Node,
    only: &[&str],
    is_control_plane: bool,
    context: &NodeContext,
) -> Result<(), Error> {
    if is_control_plane {
        node.patches = control_plane::write_patches(context)?;
        pods::write_pods(context, &images::windlass(&node.config.cluster))?;
    }
    if proxy::has_credentials() {
        let image = images::kubernetes(&node.config.cluster, "kube-proxy");
        proxy::write_proxy_pod(context, &image)?;
    }
    let only: Vec<String> = only.iter().map(|phase| (*phase).to_owned()).collect();
    let progress = Progress::stderr(Recorder::new(Path::new(HOME), "nodeup"));
    phase::run(&init::phases(), &only, &[], &progress, &mut init::Ctx::new(node)).await?;
    Ok(())
}

#[cfg(test)]
mod crash_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_file_survives_a_stop_at_any_byte() {
        const BASE: &str = "127.0.0.1\tlocalhost\n10.0.0.2 cp-1\n";
        let new = format!("{BASE}# Begin\n10.0.0.9\tapi.internal.a.local\n# End\n");
        for stopped in 0..=new.len() {
            let dir = tempfile::tempdir().unwrap();
            let (path, copy) = (dir.path().join("hosts"), dir.path().join("opt/original"));
            fs::write(&path, BASE).unwrap();
            let inode = fs::metadata(&path).map(|meta| std::os::unix::fs::MetadataExt::ino(&meta));
            assert_eq!(original_hosts(&path, &copy).unwrap(), BASE);
            overwrite(&path, &new[..stopped]).unwrap();
            // The next run begins with the original file, and writes to the same inode, which is mounted.
            assert_eq!(original_hosts(&path, &copy).unwrap(), BASE);
            overwrite(&path, &new).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), new);
            let now = fs::metadata(&path).map(|meta| std::os::unix::fs::MetadataExt::ino(&meta));
            assert_eq!(now.unwrap(), inode.unwrap());
            // A shorter file leaves no rest of a longer one.
            overwrite(&path, BASE).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), BASE);
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(original_hosts(&dir.path().join("none"), &dir.path().join("copy")).is_err());
        assert!(overwrite(&dir.path().join("none"), "x").is_err());
    }
}
