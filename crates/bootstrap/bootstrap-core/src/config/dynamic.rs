//! kubeadm's dynamic defaults, which resolve a user's input into stored values.
//!
//! They run after the static defaults and before validation. Values that they cannot resolve stay unchanged and fail
//! validation.

use std::net::IpAddr;

use api_config::kubeadm::{ApiEndpoint, ClusterConfiguration, NodeRegistration};

use super::facts::Facts;
use crate::{
    constants::{API_SERVER_PORT, DEFAULT_CRI_SOCKET},
    net,
};
use version::KUBERNETES_VERSION;

/// Resolves the node's name, trimmed and in lower case, and the runtime's socket.
pub(super) fn resolve_node(node: &mut NodeRegistration, facts: &Facts) {
    let name = if node.name.is_empty() { &facts.hostname } else { &node.name };
    node.name = name.trim().to_lowercase();
    if node.cri_socket.is_empty() {
        // If there are several sockets, the user must choose one.
        match facts.cri_sockets.as_slice() {
            [] => DEFAULT_CRI_SOCKET.clone_into(&mut node.cri_socket),
            [one] => node.cri_socket.clone_from(one),
            _ => {}
        }
    } else if node.cri_socket.starts_with('/') {
        node.cri_socket.insert_str(0, "unix://");
    }
}

/// Resolves the address that the API server advertises. An empty or unspecified one becomes that of the default route,
/// a loopback address becomes the global address of the loopback interface (RFC 5549).
pub(super) fn resolve_endpoint(endpoint: &mut ApiEndpoint, facts: &Facts) {
    let address: Option<IpAddr> = endpoint.advertise_address.parse().ok();
    let resolved = match address {
        Some(ip) if ip.is_loopback() => facts.loopback_address,
        Some(ip) if ip.is_unspecified() => facts.address,
        None if endpoint.advertise_address.is_empty() => facts.address,
        other => other,
    };
    if let Some(address) = resolved {
        endpoint.advertise_address = address.to_string();
    }
    if endpoint.bind_port == 0 {
        endpoint.bind_port = API_SERVER_PORT.into();
    }
}

/// Adds the port of the first API server to the endpoint, so that another control plane's port does not change it.
/// Converts certificate names to lower case.
pub(super) fn resolve_cluster(cluster: &mut ClusterConfiguration, local: &ApiEndpoint) {
    if let Some((host, None)) = net::split_host_port(&cluster.control_plane_endpoint)
        && let Ok(port) = u16::try_from(local.bind_port)
    {
        cluster.control_plane_endpoint = net::join_host_port(&host, port);
    }
    for name in &mut cluster.api_server.cert_sans {
        *name = name.to_lowercase();
    }
}

/// Adds a `v` to the version. The labels of the newest release become the release of this binary, as in a kubeadm
/// without Internet access.
pub(super) fn resolve_version(version: &mut String) {
    if version.starts_with(|c: char| c.is_ascii_digit()) {
        version.insert(0, 'v');
        return;
    }
    let own = KUBERNETES_VERSION.trim_start_matches('v');
    let minor = own.rsplit_once('.').map_or(own, |(minor, _)| minor);
    let (label, of) = version.split_once('-').unwrap_or((version, ""));
    if matches!(label, "stable" | "latest") && ["", "1", minor].contains(&of) {
        KUBERNETES_VERSION.clone_into(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Documents, Init, default_join, validate_init, validate_join};

    fn facts() -> Facts {
        Facts {
            hostname: "Host.Example".into(),
            address: Some([10, 0, 0, 1].into()),
            token: Some("abcdef.0123456789abcdef".into()),
            ..Facts::default()
        }
    }

    type Setup = fn(&mut Init, &mut Facts);
    type Read = fn(&Init) -> String;

    /// kubeadm's dynamic defaults by the function that sets them, with one case each.
    const RESOLVED: &[(&str, Setup, Read, &str)] = &[
        (
            "SetBootstrapTokensDynamicDefaults",
            |_, _| {},
            |all| all.init.bootstrap_tokens[0].token.clone(),
            "abcdef.0123456789abcdef",
        ),
        ("SetNodeRegistrationDynamicDefaults", |_, _| {}, |all| name(all), "host.example"),
        (
            "GetHostname",
            |all, _| all.init.node_registration.name = " Master-1\n".into(),
            |all| name(all),
            "master-1",
        ),
        ("DetectCRISocket: none", |_, _| {}, |all| socket(all), DEFAULT_CRI_SOCKET),
        (
            "DetectCRISocket: one",
            |_, facts| facts.cri_sockets = vec!["unix:///var/run/crio/crio.sock".into()],
            |all| socket(all),
            "unix:///var/run/crio/crio.sock",
        ),
        (
            "criSocket without a scheme",
            |all, _| all.init.node_registration.cri_socket = "/run/c.sock".into(),
            |all| socket(all),
            "unix:///run/c.sock",
        ),
        ("SetAPIEndpointDynamicDefaults", |_, _| {}, |all| address(all), "10.0.0.1"),
        (
            "ChooseAPIServerBindAddress: 0.0.0.0",
            |all, _| all.init.local_api_endpoint.advertise_address = "0.0.0.0".into(),
            |all| address(all),
            "10.0.0.1",
        ),
        (
            "ChooseAPIServerBindAddress: ::",
            |all, _| all.init.local_api_endpoint.advertise_address = "::".into(),
            |all| address(all),
            "10.0.0.1",
        ),
        (
            "ChooseBindAddressForInterface: lo",
            |all, facts| {
                all.init.local_api_endpoint.advertise_address = "127.0.0.1".into();
                facts.loopback_address = Some([192, 0, 2, 7].into());
            },
            |all| address(all),
            "192.0.2.7",
        ),
        (
            "NormalizeKubernetesVersion: number",
            |all, _| all.cluster.kubernetes_version = "1.36.1".into(),
            |all| all.cluster.kubernetes_version.clone(),
            "v1.36.1",
        ),
        (
            "NormalizeKubernetesVersion: label",
            |all, _| all.cluster.kubernetes_version = "stable-1".into(),
            |all| all.cluster.kubernetes_version.clone(),
            KUBERNETES_VERSION,
        ),
        (
            "ControlPlaneEndpoint's port",
            |all, _| {
                all.cluster.control_plane_endpoint = "fd00::1".into();
                all.init.local_api_endpoint.bind_port = 6444;
            },
            |all| all.cluster.control_plane_endpoint.clone(),
            "[fd00::1]:6444",
        ),
        (
            "LowercaseSANs",
            |all, _| all.cluster.api_server.cert_sans = vec!["API.Example.COM".into()],
            |all| all.cluster.api_server.cert_sans.join(","),
            "api.example.com",
        ),
    ];

    fn name(all: &Init) -> String {
        all.init.node_registration.name.clone()
    }

    fn socket(all: &Init) -> String {
        all.init.node_registration.cri_socket.clone()
    }

    fn address(all: &Init) -> String {
        all.init.local_api_endpoint.advertise_address.clone()
    }

    #[test]
    fn resolves_every_dynamic_default_before_validation() {
        for (function, given, read, wanted) in RESOLVED {
            let (mut all, mut facts) = (Init::default(), facts());
            given(&mut all, &mut facts);
            all.fill(&facts);
            assert_eq!(read(&all), *wanted, "{function}");
            validate_init(&all).unwrap_or_else(|error| panic!("{function}: {error}"));
            let once = all.clone();
            all.fill(&facts);
            assert_eq!(all, once, "{function} is not resolved once and for all");
        }
    }

    #[test]
    fn rejects_unresolvable_values() {
        let cases: [(Setup, &str); 6] = [
            (
                |all, _| all.init.local_api_endpoint.advertise_address = "127.0.0.1".into(),
                "unable to resolve link-local addresses",
            ),
            (
                |all, facts| {
                    all.init.local_api_endpoint.advertise_address = "0.0.0.0".into();
                    facts.address = None;
                },
                "cannot use \"0.0.0.0\" as the bind address for the API Server",
            ),
            (
                |all, _| all.init.local_api_endpoint.advertise_address = "fe80::1".into(),
                "cannot use \"fe80::1\" as the bind address for the API Server",
            ),
            (
                |all, _| all.init.local_api_endpoint.advertise_address = "224.0.0.1".into(),
                "cannot use \"224.0.0.1\" as the bind address for the API Server",
            ),
            (
                |_, facts| facts.cri_sockets = vec!["unix:///a".into(), "unix:///b".into()],
                "found multiple CRI endpoints on the host. Please define which one do you wish to use",
            ),
            (
                |all, _| all.init.node_registration.name = "Master_1".into(),
                "nodeRegistration.name: Invalid value: \"master_1\"",
            ),
        ];
        for (given, wanted) in cases {
            let (mut all, mut facts) = (Init::default(), facts());
            given(&mut all, &mut facts);
            all.fill(&facts);
            let refused = validate_init(&all).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
        }
    }

    #[test]
    fn resolves_defaults_of_join() {
        let mut documents = Documents::default();
        let join = documents.join.get_or_insert_default();
        join.node_registration.name = "Worker-1".into();
        join.discovery.tls_bootstrap_token = "abcdef.0123456789abcdef".into();
        join.discovery.file.get_or_insert_default().kube_config_path = "/a".into();
        let local = &mut join.control_plane.get_or_insert_default().local_api_endpoint;
        local.advertise_address = "0.0.0.0".into();
        default_join(join, &facts());
        assert_eq!(join.node_registration.name, "worker-1");
        let local = &join.control_plane.as_ref().unwrap().local_api_endpoint;
        assert_eq!(local.advertise_address, "10.0.0.1");
        validate_join(join).unwrap();
    }
}
