//! Joins further nodes as on any machine: with a token and kubeadm's phases, from inside the node's namespaces.

use std::{path::Path, process::Stdio, sync::Arc};

use api_config::{
    GoDuration, KubeletConfiguration,
    kubeadm::{
        ApiEndpoint, BootstrapTokenDiscovery, JoinConfiguration, JoinControlPlane,
        Patches as PatchesAt,
    },
};
use bootstrap::{
    FileChange,
    cluster::new_certificate_key,
    containers::{NoRuntime, Runtime},
    host::Host,
    init, join,
    node::Node,
    patches::Patches,
    phase,
    preflight::Ignored,
    service::KubeletService,
};
use bootstrap_core::{
    config::{Documents, Facts, Init, default_join},
    tokens::Token,
};
use client::Client;
use serde_json::json;
use telemetry::{Progress, Recorder};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::space;
use crate::{
    cluster::Cluster,
    error::Error,
    process::{Role, among, internal, notify_supervisor},
    replicated,
};

type ServiceFuture<'a, T> = futures_util::future::BoxFuture<'a, Result<T, bootstrap::Error>>;

/// The lifetime of the bootstrap token, which is used within a minute.
const TOKEN_SECONDS: i64 = 3600;

/// Publishes in the cluster what joining nodes look up, and joins all of `nodes` that have not joined, in parallel.
pub(crate) async fn all(
    cluster: &Cluster,
    client: &Client,
    nodes: &[Cluster],
) -> Result<(), Error> {
    let nodes: Vec<&Cluster> =
        nodes.iter().filter(|n| !n.layout().kubeconfig("kubelet.conf").exists()).collect();
    if nodes.is_empty() {
        return Ok(());
    }
    let credentials = Credentials {
        token: Token::generate(|below| rt::random_in(0..below)).reveal(),
        certificate_key: if nodes.iter().any(|node| node.settings.control_plane) {
            Some(new_certificate_key()?)
        } else {
            None
        },
    };
    publish_join_data(cluster, client, &credentials).await?;
    for node in &nodes {
        write_configuration(cluster, node, &credentials)?;
    }
    let joining = nodes.iter().map(|node| run_inside(cluster, node));
    futures_util::future::try_join_all(joining).await?;
    Ok(())
}

/// The credentials of joining nodes.
struct Credentials {
    token: String,
    /// Decrypts the certificates that control planes share; `None` if no control plane joins.
    certificate_key: Option<String>,
}

/// Runs the phases of `init` that publish configuration, certificates and a bootstrap token for joining nodes.
async fn publish_join_data(
    cluster: &Cluster,
    client: &Client,
    credentials: &Credentials,
) -> Result<(), Error> {
    let mut config = cluster.init();
    config.kubelet = cluster.shared_kubelet();
    config.fill(&Facts { cgroup_driver: "cgroupfs".to_owned(), ..Facts::default() });
    for entry in &mut config.init.bootstrap_tokens {
        entry.token.clone_from(&credentials.token);
        entry.ttl = Some(GoDuration::from_secs(TOKEN_SECONDS));
    }
    let runtime = NoRuntime("these phases need none".to_owned());
    let clock = Arc::new(rt::SystemClock);
    let mut node = Node::new(config, cluster.layout(), Host::default(), clock, Arc::new(runtime));
    node.use_client(client.clone());
    let progress = Progress::silent(Recorder::new(&cluster.root, "up"));
    let only = ["upload-config", "upload-certs", "bootstrap-token"].map(str::to_owned);
    let mut ctx = init::Ctx::new(node);
    ctx.skip_certificate_key_print = true;
    if let Some(key) = &credentials.certificate_key {
        ctx.upload_certs = true;
        ctx.node.config.init.certificate_key.clone_from(key);
    }
    phase::run(&init::phases(), &only, &[], &progress, &mut ctx).await?;
    Ok(())
}

fn join_file(node: &Cluster) -> std::path::PathBuf {
    node.run().join("join.json")
}

fn write_configuration(
    cluster: &Cluster,
    node: &Cluster,
    credentials: &Credentials,
) -> Result<(), Error> {
    let settings = &cluster.settings;
    let mut join = JoinConfiguration::default();
    join.node_registration.name.clone_from(&node.settings.node_name);
    join.node_registration.cri_socket = format!("unix://{}", node.containerd_socket().display());
    join.ca_cert_path = node.layout().pki("ca", "crt").display().to_string();
    let pins = pki::read_certs(&cluster.layout().pki("ca", "crt"))?
        .iter()
        .map(pki::Cert::pin)
        .collect::<Result<_, _>>()?;
    join.discovery.bootstrap_token = Some(BootstrapTokenDiscovery {
        token: credentials.token.clone(),
        api_server_endpoint: if cluster.is_replicated() {
            replicated::ENDPOINT.to_owned()
        } else {
            format!("{}:{}", settings.address, settings.api_port)
        },
        ca_cert_hashes: pins,
        unsafe_skip_ca_verification: false,
    });
    if node.settings.control_plane {
        // Like the first control plane, it also runs users' Pods.
        join.node_registration.taints = Some(Vec::new());
        join.control_plane = Some(JoinControlPlane {
            local_api_endpoint: ApiEndpoint {
                advertise_address: node.settings.address.to_string(),
                bind_port: node.settings.api_port.into(),
            },
            certificate_key: credentials.certificate_key.clone().unwrap_or_default(),
        });
    }
    let patches = node.root.join("etc/patches");
    join.patches = Some(PatchesAt { directory: patches.display().to_string() });
    // Shared settings come from the cluster, and the node's own are a patch.
    let own = node.kubelet(&node.layout());
    let patch = own_settings(&own);
    let text = json!(patch).to_string();
    pki::write_file(
        &patches.join("kubeletconfiguration+merge.json"),
        text.as_bytes(),
        pki::PUBLIC_MODE,
    )?;
    let text = serde_json::to_vec(&join)
        .map_err(|source| Error::Settings { path: join_file(node), source })?;
    pki::write_file(&join_file(node), &text, pki::KEY_MODE)?;
    Ok(())
}

/// Returns the fields of a kubelet's configuration that differ between nodes.
fn own_settings(kubelet: &KubeletConfiguration) -> serde_json::Value {
    json!({
        "staticPodPath": kubelet.static_pod_path,
        "address": kubelet.address,
        "tlsCertFile": kubelet.tls_cert_file,
        "tlsPrivateKeyFile": kubelet.tls_private_key_file,
        "cgroupRoot": kubelet.cgroup_root,
        "podLogsDir": kubelet.pod_logs_dir,
    })
}

/// Runs `join` inside the node, and returns its error output if it fails. For each line of its standard output, this
/// process notifies the supervisor, which `join` cannot signal from the node's PID namespace.
async fn run_inside(cluster: &Cluster, node: &Cluster) -> Result<(), Error> {
    space::wait_for_holder(node).await?;
    let join = internal(node, "join");
    let mut enter = internal(node, "enter");
    enter.arg("--").arg(join.get_program()).args(join.get_args());
    let mut command = tokio::process::Command::from(enter);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |source| Error::Start { program: "windlass".to_owned(), source };
    let mut child = among(node, || command.spawn())?.map_err(failed)?;
    let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
    let notify = async {
        let Some(mut lines) = lines else { return };
        while let Ok(Some(_)) = lines.next_line().await {
            notify_supervisor(cluster);
        }
    };
    let ((), output) = tokio::join!(notify, child.wait_with_output());
    let output = output.map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Join { node: node.settings.node_name.clone(), stderr })
}

/// Runs the phases of `join`, in a process inside the node.
pub async fn run(node: Cluster) -> Result<(), Error> {
    let path = join_file(&node);
    let text = std::fs::read(&path).map_err(Error::file("reading", &path))?;
    let mut join: JoinConfiguration = serde_json::from_slice(&text)
        .map_err(|source| Error::Settings { path: path.clone(), source })?;
    let facts = Facts {
        hostname: node.settings.node_name.clone(),
        address: Some(node.settings.address),
        cgroup_driver: "cgroupfs".to_owned(),
        ..Facts::default()
    };
    default_join(&mut join, &facts);
    let mut documents = Documents::default();
    let init = documents.init.get_or_insert_default();
    init.node_registration = join.node_registration.clone();
    init.timeouts.clone_from(&join.timeouts);
    if let Some(control_plane) = &join.control_plane {
        init.local_api_endpoint = control_plane.local_api_endpoint.clone();
    }
    let config = Init::complete(documents, &facts);
    let runtime = Arc::new(Runtime::new(&join.node_registration.cri_socket, Host::default()));
    let clock = Arc::new(rt::SystemClock);
    let mut machine = Node::new(config, node.layout(), Host::default(), clock, runtime);
    if let Some(patches) = &join.patches {
        machine.patches = Patches::load(Path::new(&patches.directory))?;
    }
    machine.service = Arc::new(SupervisedKubelet { node: node.clone() });
    let recorder = Recorder::new(node.home(), &format!("join {}", node.settings.node_name));
    let progress = Progress::silent(recorder);
    let mut ctx = join::Ctx::new(join, machine);
    // `up` has checked the host's cgroups, of either version.
    ctx.ignored = Ignored::new(["SystemVerification".to_owned()])?;
    phase::run(&join::phases(), &[], &[], &progress, &mut ctx).await?;
    // The file contains a token and is no longer needed.
    std::fs::remove_file(&path).map_err(Error::file("removing", &path))
}

/// The kubelet as a service of the cluster's supervisor. The supervisor runs kubelets in the agents, and starts an
/// agent once its configuration exists. It checks this after a signal from the parent of `join`, which sends one for
/// each line that `join` prints.
struct SupervisedKubelet {
    node: Cluster,
}

impl KubeletService for SupervisedKubelet {
    fn install(&self, _: bool) -> ServiceFuture<'_, Vec<FileChange>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn start(&self) -> ServiceFuture<'_, ()> {
        Box::pin(async {
            println!("start the kubelet of {}", self.node.settings.node_name);
            Ok(())
        })
    }

    fn stop(&self) -> ServiceFuture<'_, ()> {
        // A node that has not joined has no kubelet.
        Box::pin(async { Ok(()) })
    }

    fn uninstall(&self) -> futures_util::future::BoxFuture<'_, Vec<String>> {
        Box::pin(async { Vec::new() })
    }

    fn last_words(&self) -> String {
        Role::Agent.last_words(&self.node)
    }
}
