//! Preflight: checks whether this machine can run a command, before anything is changed.
//!
//! Check names are kubeadm's, because scripts pass them to `--ignore-preflight-errors`. Each failure has a cause and a
//! remedy. Read [`check`] first; `checks` and `system` have the checks.

mod check;
mod checks;
mod images;
mod system;

use bootstrap_core::{constants, manifests::Component};

pub use check::{Check, Ignored, Problem, check};
pub use images::{ensure_images, ensure_node_images};

use crate::{Error, etcd::Etcd, node::Node};

/// Returns the checks for the first control plane.
pub(crate) fn for_init(node: &Node) -> Vec<Check> {
    let host = &node.host;
    let mut all = vec![
        checks::version(&node.config.cluster.kubernetes_version),
        system::privileged(),
        system::clock(node.now()),
        system::cpus(host),
        system::memory(host),
        checks::firewalld(host),
    ];
    all.extend(control_plane(node));
    all.extend(checks::proxies(node));
    all.extend(common(node));
    all.extend(for_balancer(node));
    if node.config.cluster.etcd.local.is_some() {
        all.push(checks::port(constants::ETCD_CLIENT_PORT));
        all.push(checks::port(constants::ETCD_PEER_PORT));
    }
    if let Some(etcd) = &node.config.cluster.etcd.local {
        all.push(checks::empty_directory(host, &etcd.data_dir));
    }
    if let Some(store) = &node.config.cluster.etcd.embedded {
        all.push(checks::empty_directory(host, &store.data_dir));
    }
    if let Some(etcd) = &node.config.cluster.etcd.external {
        all.push(checks::external_etcd_certs(etcd));
    }
    all
}

/// Returns the checks for a joining control plane or worker.
pub(crate) fn for_join(node: &Node, as_control_plane: bool) -> Vec<Check> {
    let mut all = vec![system::privileged(), system::clock(node.now())];
    if as_control_plane {
        all.extend([system::cpus(&node.host), system::memory(&node.host)]);
        all.extend(control_plane(node));
    }
    let paths =
        [node.layout.kubeconfig("kubelet.conf"), node.layout.kubeconfig("bootstrap-kubelet.conf")];
    all.extend(paths.iter().map(|p| checks::absent(p)));
    if !as_control_plane {
        all.push(checks::empty_directory(&node.host, &node.layout.manifests().to_string_lossy()));
    }
    all.extend(common(node));
    all
}

/// Returns the checks of a joining machine that need the cluster's configuration.
pub(crate) fn for_cluster(node: &Node) -> Vec<Check> {
    let version = checks::kubelet_version(&node.config.cluster.kubernetes_version);
    std::iter::once(version).chain(for_balancer(node)).collect()
}

/// Returns the check of the node's load balancer, if the cluster has one.
fn for_balancer(node: &Node) -> Option<Check> {
    let balancer = node.config.cluster.node_balancer.as_ref()?;
    u16::try_from(balancer.port).ok().map(checks::port)
}

/// Returns the checks for a reset.
pub(crate) fn for_reset() -> Vec<Check> {
    vec![system::privileged()]
}

/// Returns the checks for an upgrade of a machine that is part of a cluster.
pub(crate) fn for_upgrade(node: &Node) -> Vec<Check> {
    vec![system::privileged(), system::clock(node.now()), system::verification(&node.host)]
}

/// Returns the checks of a cluster's health before an upgrade: the Job that ran as a trial, the control planes that
/// are not ready, and the missing static Pods.
pub(crate) fn unhealthy(
    job: Result<(), Error>,
    unready: &[String],
    missing: &[String],
) -> Vec<Check> {
    let none = |names: &[String], cause: &str, cure: &str| {
        if names.is_empty() {
            return Ok(());
        }
        Err(Problem::error(format!("{cause}: {}", names.join(", ")), cure))
    };
    let job = job.map_err(|error| {
        let cure = "kubectl -n kube-system get pods,events names what does not work; mend it before the upgrade";
        Problem::error(error.to_string(), cure)
    });
    vec![
        Check::new("CreateJob", job),
        Check::new(
            "ControlPlaneNodesReady",
            none(
                unready,
                "there are NotReady control-planes in the cluster",
                "mend or remove them",
            ),
        ),
        Check::new(
            "StaticPodManifest",
            none(missing, "static Pod manifests are missing", "run upgrade on a control plane"),
        ),
    ]
}

/// Returns the check of a Corefile, given the errors of the DNS server that an upgrade installs.
pub(crate) fn unsupported_plugins(errors: &[String]) -> Check {
    let result = if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::error(
            format!(
                "there are unsupported plugins in the CoreDNS Corefile:\n\t\t{}",
                errors.join("\n\t\t")
            ),
            "edit the Corefile: kubectl -n kube-system edit configmap coredns",
        ))
    };
    Check::new("CoreDNSUnsupportedPlugins", result)
}

fn control_plane(node: &Node) -> Vec<Check> {
    let port = u16::try_from(node.config.init.local_api_endpoint.bind_port)
        .unwrap_or(constants::API_SERVER_PORT);
    let mut all: Vec<Check> = [port, constants::SCHEDULER_PORT, constants::CONTROLLER_MANAGER_PORT]
        .map(checks::port)
        .into();
    let components =
        [Component::ApiServer, Component::ControllerManager, Component::Scheduler, Component::Etcd];
    all.extend(components.iter().map(|c| checks::absent(&node.layout.manifests().join(c.file()))));
    all
}

fn common(node: &Node) -> Vec<Check> {
    let host = &node.host;
    let mut all = vec![
        system::verification(host),
        system::swap(host),
        checks::forwarding(host, &node.config.cluster.networking),
        checks::hostname(node),
        checks::port(constants::KUBELET_PORT),
    ];
    all.extend(
        [("losetup", false), ("mount", true), ("cp", true)]
            .map(|(p, fatal)| checks::program(host, p, fatal)),
    );
    all
}

/// Checks that the container runtime answers.
pub(crate) async fn check_runtime(node: &Node, ignored: &Ignored) -> Result<(), Error> {
    let result = match node.containers.version().await {
        Ok(_) => Ok(()),
        Err(e) => Err(Problem::error(
            format!("container runtime is not running: {e}"),
            format!(
                "start containerd, or name its socket with --cri-socket (now {})",
                node.config.init.node_registration.cri_socket
            ),
        )),
    };
    check(vec![Check::new("CRI", result), checks::kubelet_service(&node.host).await], ignored)
}

/// Checks the version of an external etcd.
pub(crate) async fn check_external_etcd(node: &Node, ignored: &Ignored) -> Result<(), Error> {
    let Some(external) = &node.config.cluster.etcd.external else { return Ok(()) };
    let minimum = constants::MIN_EXTERNAL_ETCD_VERSION;
    let cure =
        format!("run etcd {minimum} or newer, and check the endpoints and the client certificates");
    let result = match Etcd::external(external) {
        Ok(etcd) => etcd.versions().await,
        Err(e) => Err(e),
    };
    let result = match result {
        Ok(versions) => match versions.iter().find(|v| version_of(v) < version_of(minimum)) {
            Some(old) => Err(Problem::error(
                format!(
                    "this version of kubeadm only supports external etcd version >= {minimum}, not {old:?}"
                ),
                cure,
            )),
            None => Ok(()),
        },
        Err(e) => Err(Problem::error(e.to_string(), cure)),
    };
    check(vec![Check::new("ExternalEtcdVersion", result)], ignored)
}

fn version_of(text: &str) -> Vec<u32> {
    text.trim_start_matches('v')
        .split(['.', '-', '+'])
        .map_while(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests;
