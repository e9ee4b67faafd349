//! Checks of ports, files, programs and settings.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs},
    path::Path,
};

use api_config::kubeadm::{ExternalEtcd, Networking};
use bootstrap_core::{images::version_tag, upgrade::KUBELET_SKEW};

use super::check::{Check, Problem, label};
use crate::{host::Host, node::Node, service};
use version::KUBERNETES_VERSION;

/// Checks the requested version. This release sets up clusters of its own minor version and the previous one.
pub(super) fn version(requested: &str) -> Check {
    let own = minor(KUBERNETES_VERSION).unwrap_or_default();
    let result = match minor(requested) {
        None => Err(Problem::error(
            format!("{requested:?} is not a version of Kubernetes"),
            format!("write it like {KUBERNETES_VERSION}, or leave it out"),
        )),
        Some((major, number)) if major != own.0 || number > own.1 || number + 1 < own.1 => {
            Err(Problem::error(
                format!(
                    "this is {KUBERNETES_VERSION}, which does not make clusters of {}",
                    version_tag(requested)
                ),
                "use a release of the same minor version as the cluster's, or leave kubernetesVersion out",
            ))
        }
        Some(_) => Ok(()),
    };
    Check::new("KubernetesVersion", result)
}

/// Checks that this version's kubelet may join a cluster: it must not be newer than the control plane.
pub(super) fn kubelet_version(control_plane: &str) -> Check {
    let own = minor(KUBERNETES_VERSION).unwrap_or_default();
    let result = match minor(control_plane) {
        None => Err(Problem::warning(
            format!(
                "the version {control_plane:?} of the control plane is no version of Kubernetes"
            ),
            "look at kubernetesVersion in the ConfigMap kubeadm-config",
        )),
        Some(cluster) if cluster < own => Err(Problem::error(
            format!(
                "the kubelet version is higher than the control plane version. This is not a supported version skew \
                 and may lead to a malfunctional cluster. Kubelet version: \"{KUBERNETES_VERSION}\" Control plane \
                 version: \"{control_plane}\""
            ),
            "upgrade the control plane first, or join with an older release",
        )),
        Some((major, number)) if major != own.0 || number > own.1 + KUBELET_SKEW => {
            Err(Problem::error(
                format!(
                    "the kubelet {KUBERNETES_VERSION} is more than {KUBELET_SKEW} minor versions older than the \
                     control plane, which is {control_plane}"
                ),
                "join with a newer release",
            ))
        }
        Some(_) => Ok(()),
    };
    Check::new("KubeletVersion", result)
}

/// Returns the major and the minor version.
fn minor(version: &str) -> Option<(u64, u64)> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']).map(str::parse::<u64>);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

pub(super) fn port(port: u16) -> Check {
    let result = match TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => Err(Problem::error(
            format!("Port {port} is in use"),
            format!(
                "stop what listens there (ss -ltnp 'sport = :{port}' names it); after an earlier init, run reset first"
            ),
        )),
        Err(e) => Err(Problem::error(
            format!("Port {port} cannot be used: {e}"),
            "free it or choose another",
        )),
    };
    Check::new(format!("Port-{port}"), result)
}

pub(super) fn absent(path: &Path) -> Check {
    let result = if path.exists() {
        let cause = format!("{} already exists", path.display());
        Err(Problem::error(
            cause,
            "this machine has been set up before; run reset first, or remove the file",
        ))
    } else {
        Ok(())
    };
    Check::new(format!("FileAvailable-{}", label(path)), result)
}

pub(super) fn empty_directory(host: &Host, path: &str) -> Check {
    let used = fs::read_dir(host.path(path)).is_ok_and(|mut entries| entries.next().is_some());
    let result = if used {
        let cure = "it may hold an earlier cluster's data: move it away, or run reset first";
        Err(Problem::error(format!("{path} is not empty"), cure))
    } else {
        Ok(())
    };
    Check::new(format!("DirAvailable-{}", path.replace('/', "-")), result)
}

pub(super) fn program(host: &Host, name: &str, fatal: bool) -> Check {
    let result = match host.program(name) {
        Some(_) => Ok(()),
        None => Err(Problem {
            fatal,
            cause: format!("{name} not found in system path"),
            cure: "install the package that has it (util-linux, coreutils)".to_owned(),
        }),
    };
    Check::new(format!("FileExisting-{name}"), result)
}

/// Checks IP forwarding, which Pod traffic requires.
pub(super) fn forwarding(host: &Host, networking: &Networking) -> Check {
    let path = if networking.service_subnet.split(',').next().is_some_and(|s| s.contains(':')) {
        "/proc/sys/net/ipv6/conf/default/forwarding"
    } else {
        "/proc/sys/net/ipv4/ip_forward"
    };
    let result = match host.read(path) {
        Some(text) if text.trim() == "1" => Ok(()),
        Some(_) => {
            let setting = path.trim_start_matches("/proc/sys/").replace('/', ".");
            Err(Problem::error(
                format!("{path} contents are not set to 1"),
                format!("run sysctl -w {setting}=1, and keep it in /etc/sysctl.d"),
            ))
        }
        None => Err(Problem::error(
            format!("{path} does not exist"),
            "the kernel lacks this network protocol",
        )),
    };
    Check::new(format!("FileContent-{}", path.replace('/', "-")), result)
}

pub(super) fn hostname(node: &Node) -> Check {
    let name = node.name();
    let resolves =
        (name, 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.next().is_some());
    let result = if resolves {
        Ok(())
    } else {
        Err(Problem::warning(
            format!("hostname {name:?} could not be reached"),
            "add it to /etc/hosts or DNS, or name the node with --node-name",
        ))
    };
    Check::new("Hostname", result)
}

pub(super) fn firewalld(host: &Host) -> Check {
    let active = host.path("/run/firewalld.pid").exists();
    let result = if active {
        Err(Problem::warning(
            "firewalld is active, please ensure ports [6443 10250] are open or your cluster may not function correctly",
            "run firewall-cmd --permanent --add-port=6443/tcp --add-port=10250/tcp, then firewall-cmd --reload",
        ))
    } else {
        Ok(())
    };
    Check::new("Firewalld", result)
}

/// Checks that traffic in the cluster does not use the proxy.
pub(super) fn proxies(node: &Node) -> Vec<Check> {
    let env = |name: &str| {
        node.proxy_env
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    };
    let Some(proxy) = env("https_proxy") else { return Vec::new() };
    let exempt = env("no_proxy").unwrap_or_default();
    let covered = |ip: IpAddr| {
        exempt.split(',').map(str::trim).any(|entry| {
            entry == "*"
                || entry.parse() == Ok(ip)
                || entry.parse::<bootstrap_core::net::Cidr>().is_ok_and(|range| range.contains(ip))
        })
    };
    let networking = &node.config.cluster.networking;
    let subject = |name: &str, ip: Option<IpAddr>, address: &str| {
        let result = match ip {
            Some(ip) if !covered(ip) => Err(Problem::warning(
                format!("connection to {address:?} uses proxy {proxy:?}"),
                format!("if that is not intended, add {address} to NO_PROXY"),
            )),
            _ => Ok(()),
        };
        Check::new(name, result)
    };
    let advertise = &node.config.init.local_api_endpoint.advertise_address;
    let first = |subnet: &str| bootstrap_core::net::nth_address(subnet, 1);
    vec![
        subject("HTTPProxy", advertise.parse().ok(), advertise),
        subject("HTTPProxyCIDR", first(&networking.service_subnet), &networking.service_subnet),
        subject("HTTPProxyCIDR", first(&networking.pod_subnet), &networking.pod_subnet),
    ]
}

pub(super) fn external_etcd_certs(etcd: &ExternalEtcd) -> Check {
    let missing = [&etcd.ca_file, &etcd.cert_file, &etcd.key_file]
        .into_iter()
        .find(|f| !f.is_empty() && !Path::new(f).exists());
    let result = match missing {
        Some(file) => Err(Problem::error(
            format!("{file} doesn't exist"),
            "copy the external etcd's client certificates here",
        )),
        None => Ok(()),
    };
    Check::new("ExternalEtcdClientCertificates", result)
}

pub(super) async fn kubelet_service(host: &Host) -> Check {
    let result = if !host.has_systemd() || service::kubelet_is_enabled(host).await {
        Ok(())
    } else {
        let cure =
            "run 'systemctl enable kubelet.service', so that the node comes back after a restart";
        Err(Problem::warning("kubelet service is not enabled", cure))
    };
    Check::new("Service-kubelet", result)
}
