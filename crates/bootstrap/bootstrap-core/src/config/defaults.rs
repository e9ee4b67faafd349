//! The defaults of the configuration.

use api_config::{
    GoDuration, KubeProxyConfiguration, KubeletConfiguration,
    kubeadm::{
        ApiEndpoint, BootstrapToken, ClusterConfiguration, InitConfiguration, JoinConfiguration,
        LocalEtcd, NodeRegistration, ResetConfiguration, Timeouts, UpgradeConfiguration,
    },
};

use super::{dynamic, facts::Facts};
use crate::{
    constants::{
        BOOTSTRAPPERS_GROUP, DEFAULT_CERTIFICATES_DIR, DEFAULT_CLUSTER_NAME, DEFAULT_CRI_SOCKET,
        DEFAULT_DNS_DOMAIN, DEFAULT_ETCD_DATA_DIR, DEFAULT_SERVICE_SUBNET, KUBELET_HEALTH_PORT,
    },
    net,
};

fn text(field: &mut String, default: &str) {
    if field.is_empty() {
        *field = default.to_owned();
    }
}

/// Sets defaults of the machine's configuration, from `facts` where they depend on the machine.
pub fn default_init(init: &mut InitConfiguration, facts: &Facts) {
    if init.bootstrap_tokens.is_empty() {
        init.bootstrap_tokens.push(BootstrapToken::default());
    }
    for token in &mut init.bootstrap_tokens {
        text(&mut token.token, facts.token.as_deref().unwrap_or_default());
        if token.ttl.is_none() && token.expires.is_none() {
            token.ttl = Some(GoDuration::from_secs(24 * 3600));
        }
        if token.usages.is_empty() {
            token.usages = vec!["signing".to_owned(), "authentication".to_owned()];
        }
        if token.groups.is_empty() {
            token.groups = vec![BOOTSTRAPPERS_GROUP.to_owned()];
        }
    }
    dynamic::resolve_endpoint(&mut init.local_api_endpoint, facts);
    default_node(&mut init.node_registration, facts);
    default_timeouts(init.timeouts.get_or_insert_default());
}

fn default_node(node: &mut NodeRegistration, facts: &Facts) {
    dynamic::resolve_node(node, facts);
    text(&mut node.image_pull_policy, "IfNotPresent");
    node.image_pull_serial.get_or_insert(true);
}

/// Sets kubeadm's default timeouts.
pub fn default_timeouts(timeouts: &mut Timeouts) {
    let minutes = |m: i64| GoDuration::from_secs(m * 60);
    timeouts.control_plane_component_health_check.get_or_insert(minutes(4));
    timeouts.kubelet_health_check.get_or_insert(minutes(4));
    timeouts.kubernetes_api_call.get_or_insert(minutes(1));
    timeouts.etcd_api_call.get_or_insert(minutes(2));
    timeouts.tls_bootstrap.get_or_insert(minutes(5));
    timeouts.discovery.get_or_insert(minutes(5));
    timeouts.upgrade_manifests.get_or_insert(minutes(5));
}

/// The default port of the node balancer, which no upstream component uses.
const DEFAULT_BALANCER_PORT: i32 = 7445;

/// Sets defaults of the cluster's configuration, including Windlass' extensions.
pub fn default_cluster(cluster: &mut ClusterConfiguration, facts: &Facts) {
    dynamic::resolve_version(&mut cluster.kubernetes_version);
    text(&mut cluster.kubernetes_version, &facts.kubernetes_version);
    text(&mut cluster.networking.service_subnet, DEFAULT_SERVICE_SUBNET);
    text(&mut cluster.networking.dns_domain, DEFAULT_DNS_DOMAIN);
    text(&mut cluster.certificates_dir, DEFAULT_CERTIFICATES_DIR);
    text(&mut cluster.image_repository, &facts.image_repository);
    text(&mut cluster.cluster_name, DEFAULT_CLUSTER_NAME);
    text(&mut cluster.encryption_algorithm, "RSA-2048");
    cluster.certificate_validity_period.get_or_insert(GoDuration::from_secs(365 * 86_400));
    cluster.ca_certificate_validity_period.get_or_insert(GoDuration::from_secs(3650 * 86_400));
    if cluster.etcd.external.is_none() && cluster.etcd.embedded.is_none() {
        let local = cluster.etcd.local.get_or_insert_with(LocalEtcd::default);
        text(&mut local.data_dir, DEFAULT_ETCD_DATA_DIR);
    }
    if let Some(balancer) = cluster.node_balancer.as_mut().filter(|b| b.port == 0) {
        balancer.port = DEFAULT_BALANCER_PORT;
    }
    if let Some(held) = &cluster.virtual_address {
        text(&mut cluster.control_plane_endpoint, &held.address);
    }
    if let Some(snapshots) = &mut cluster.snapshots {
        text(&mut snapshots.directory, "/var/lib/windlass/snapshots");
        snapshots.interval.get_or_insert(GoDuration::from_secs(3600));
        if snapshots.keep == 0 {
            snapshots.keep = 24;
        }
    }
    if let Some(embedded) = &mut cluster.etcd.embedded {
        text(&mut embedded.data_dir, "/var/lib/windlass/store");
    }
}

/// Sets defaults of a join's configuration.
pub fn default_join(join: &mut JoinConfiguration, facts: &Facts) {
    text(&mut join.ca_cert_path, "/etc/kubernetes/pki/ca.crt");
    default_node(&mut join.node_registration, facts);
    if let Some(control_plane) = &mut join.control_plane {
        dynamic::resolve_endpoint(&mut control_plane.local_api_endpoint, facts);
    }
    // One token serves for discovery and for the kubelet's certificate request.
    if let Some(token) = &join.discovery.bootstrap_token {
        text(&mut join.discovery.tls_bootstrap_token, &token.token);
    }
    default_timeouts(join.timeouts.get_or_insert_default());
}

/// Sets defaults of a reset's configuration.
pub fn default_reset(reset: &mut ResetConfiguration) {
    text(&mut reset.certificates_dir, DEFAULT_CERTIFICATES_DIR);
    text(&mut reset.cri_socket, DEFAULT_CRI_SOCKET);
    default_timeouts(reset.timeouts.get_or_insert_default());
}

/// Sets defaults of the configuration of all `upgrade` commands.
pub fn default_upgrade(upgrade: &mut UpgradeConfiguration) {
    let (apply, node) = (&mut upgrade.apply, &mut upgrade.node);
    for (renewal, etcd, policy, serial) in [
        (
            &mut apply.certificate_renewal,
            &mut apply.etcd_upgrade,
            &mut apply.image_pull_policy,
            &mut apply.image_pull_serial,
        ),
        (
            &mut node.certificate_renewal,
            &mut node.etcd_upgrade,
            &mut node.image_pull_policy,
            &mut node.image_pull_serial,
        ),
    ] {
        renewal.get_or_insert(true);
        etcd.get_or_insert(true);
        text(policy, "IfNotPresent");
        serial.get_or_insert(true);
    }
    upgrade.plan.etcd_upgrade.get_or_insert(true);
    default_timeouts(upgrade.timeouts.get_or_insert_default());
}

/// Sets kubeadm's values in the kubelet's configuration.
pub fn default_kubelet(
    kubelet: &mut KubeletConfiguration,
    cluster: &ClusterConfiguration,
    facts: &Facts,
) {
    text(&mut kubelet.api_version, api_config::kubelet::API_VERSION);
    text(&mut kubelet.kind, api_config::kubelet::KIND);
    text(&mut kubelet.static_pod_path, "/etc/kubernetes/manifests");
    if kubelet.cluster_dns.is_empty() {
        let dns = net::nth_address(&cluster.networking.service_subnet, 10);
        kubelet.cluster_dns = dns.into_iter().map(|ip| ip.to_string()).collect();
    }
    text(&mut kubelet.cluster_domain, &cluster.networking.dns_domain);
    text(
        &mut kubelet.authentication.x509.client_ca_file,
        &format!("{}/ca.crt", cluster.certificates_dir),
    );
    kubelet.authentication.anonymous.enabled.get_or_insert(false);
    kubelet.authentication.webhook.enabled.get_or_insert(true);
    text(&mut kubelet.authorization.mode, "Webhook");
    text(&mut kubelet.healthz_bind_address, "127.0.0.1");
    kubelet.healthz_port.get_or_insert(KUBELET_HEALTH_PORT.into());
    kubelet.rotate_certificates = true;
    text(&mut kubelet.cgroup_driver, &facts.cgroup_driver);
    if facts.systemd_resolved && kubelet.resolv_conf.is_none() {
        kubelet.resolv_conf = Some("/run/systemd/resolve/resolv.conf".to_owned());
    }
}

/// Sets kubeadm's values in kube-proxy's configuration.
pub fn default_proxy(
    proxy: &mut KubeProxyConfiguration,
    cluster: &ClusterConfiguration,
    endpoint: &ApiEndpoint,
) {
    let any = if endpoint.advertise_address.contains(':') { "::" } else { "0.0.0.0" };
    text(&mut proxy.api_version, api_config::proxy::API_VERSION);
    text(&mut proxy.kind, api_config::proxy::KIND);
    text(&mut proxy.bind_address, any);
    text(&mut proxy.cluster_cidr, &cluster.networking.pod_subnet);
    text(&mut proxy.client_connection.kubeconfig, "/var/lib/kube-proxy/kubeconfig.conf");
}
