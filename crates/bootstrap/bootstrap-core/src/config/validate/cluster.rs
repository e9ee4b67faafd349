//! Validates a ClusterConfiguration.

use std::net::{IpAddr, Ipv4Addr};

use api_config::{
    GoDuration,
    kubeadm::{Arg, ClusterConfiguration, Etcd, ExternalEtcd},
};
use api_meta::{Cidr, ErrorList, FieldError, Path, validation};
use pki::KeyAlgorithm;

use super::fields::{validate_absolute_path, validate_alt_names, validate_extra_args};
use crate::net;

/// The minimum number of addresses of the service and Pod subnets.
const LEAST_SERVICES: u128 = 10;
const LEAST_PODS: u128 = 50;
/// The maximum number of host bits of a service subnet, for which the API server keeps a bitmap.
const MOST_SERVICE_BITS: u8 = 20;
/// The maximum difference between the prefix lengths of a node's subnet and the Pod subnet.
const MOST_NODE_BITS: u8 = 16;

pub(super) fn cluster_errors(cluster: &ClusterConfiguration) -> ErrorList {
    let mut errors = ErrorList::new();
    validate_absolute_path(&cluster.certificates_dir, &Path::new("certificatesDir"), &mut errors);
    validate_networking(cluster, &mut errors);
    let sans = Path::new("apiServer").child("certSANs");
    validate_alt_names(&cluster.api_server.cert_sans, &sans, &mut errors);
    for (component, args) in [
        ("apiServer", &cluster.api_server.extra_args),
        ("controllerManager", &cluster.controller_manager.extra_args),
        ("scheduler", &cluster.scheduler.extra_args),
    ] {
        validate_extra_args(args, &Path::new(component).child("extraArgs"), &mut errors);
    }
    validate_control_plane_endpoint(&cluster.control_plane_endpoint, &mut errors);
    validate_image_repository(
        &cluster.image_repository,
        &Path::new("imageRepository"),
        &mut errors,
    );
    if !cluster.dns.image_repository.is_empty() {
        let path = Path::new("dns").child("imageRepository");
        validate_image_repository(&cluster.dns.image_repository, &path, &mut errors);
    }
    validate_etcd(&cluster.etcd, &mut errors);
    validate_extensions(cluster, &mut errors);
    for name in cluster.feature_gates.keys() {
        if !["NodeLocalCRISocket", "PublicKeysECDSA", "RootlessControlPlane"]
            .contains(&name.as_str())
        {
            let why = format!("{name} is not a valid feature name.");
            errors.push(FieldError::invalid(&Path::new("featureGates"), name.as_str(), why));
        }
    }
    if cluster.encryption_algorithm.parse::<KeyAlgorithm>().is_err() {
        let algorithm = cluster.encryption_algorithm.as_str();
        let mut algorithms = KeyAlgorithm::ALL.map(KeyAlgorithm::as_str);
        algorithms.sort_unstable();
        let why = format!(
            "Invalid encryption algorithm {algorithm:?}. Must be one of [{}]",
            algorithms.join(" ")
        );
        errors.push(FieldError::invalid(&Path::new("encryptionAlgorithm"), algorithm, why));
    }
    validate_validity_periods(cluster, &mut errors);
    errors
}

/// Validates `host[:port]`.
fn validate_control_plane_endpoint(endpoint: &str, errors: &mut ErrorList) {
    if endpoint.is_empty() {
        return;
    }
    let path = Path::new("controlPlaneEndpoint");
    let Some((host, _)) = net::split_host_port(endpoint) else {
        let why = "endpoint is not valid: use the form host or host:port, with a port between 1 and 65535";
        errors.push(FieldError::invalid(&path, endpoint, why));
        return;
    };
    if host.parse::<IpAddr>().is_err() {
        for why in validation::dns1123_subdomain(&host) {
            let why = format!("endpoint is not valid: {why}");
            errors.push(FieldError::invalid(&path, host.as_str(), why));
        }
    }
}

/// Validates Windlass' extensions of kubeadm's kind.
fn validate_extensions(cluster: &ClusterConfiguration, errors: &mut ErrorList) {
    if let Some(balancer) =
        cluster.node_balancer.as_ref().filter(|b| !(1..=65535).contains(&b.port))
    {
        let path = Path::new("nodeBalancer").child("port");
        errors.push(FieldError::invalid(
            &path,
            balancer.port,
            "must be a port between 1 and 65535",
        ));
    }
    if let Some(held) =
        cluster.virtual_address.as_ref().filter(|h| h.address.parse::<Ipv4Addr>().is_err())
    {
        let path = Path::new("virtualAddress").child("address");
        errors.push(FieldError::invalid(&path, held.address.as_str(), "must be an IPv4 address"));
    }
    if let Some(snapshots) = &cluster.snapshots {
        let path = Path::new("snapshots");
        validate_absolute_path(&snapshots.directory, &path.child("directory"), errors);
        if snapshots.interval.is_none_or(|every| every < GoDuration::from_secs(1)) {
            let interval = snapshots.interval.unwrap_or_default().to_string();
            errors.push(FieldError::invalid(
                &path.child("interval"),
                interval.as_str(),
                "must be a second or longer, such as 1h",
            ));
        }
        if snapshots.keep < 1 {
            let why = "must be 1 or more";
            errors.push(FieldError::invalid(&path.child("keep"), snapshots.keep, why));
        }
    }
}

fn validate_validity_periods(cluster: &ClusterConfiguration, errors: &mut ErrorList) {
    let (leaf, ca) = (cluster.certificate_validity_period, cluster.ca_certificate_validity_period);
    for (name, period) in [("certificateValidityPeriod", leaf), ("caCertificateValidityPeriod", ca)]
    {
        if let Some(period) = period.filter(|p| *p <= GoDuration::ZERO) {
            let why = "the value must be greater than zero";
            errors.push(FieldError::invalid(&Path::new(name), period.to_string(), why));
        }
    }
    if let (Some(leaf), Some(ca)) = (leaf, ca)
        && leaf > ca
    {
        let why = format!("must not be longer than caCertificateValidityPeriod ({ca})");
        errors.push(FieldError::invalid(
            &Path::new("certificateValidityPeriod"),
            leaf.to_string(),
            why,
        ));
    }
}

fn validate_networking(cluster: &ClusterConfiguration, errors: &mut ErrorList) {
    let path = Path::new("networking");
    let networking = &cluster.networking;
    for why in validation::dns1123_subdomain(&networking.dns_domain) {
        let field = path.child("dnsDomain");
        errors.push(FieldError::invalid(&field, networking.dns_domain.as_str(), why));
    }
    let field = path.child("serviceSubnet");
    let services = parse_subnets(&networking.service_subnet, LEAST_SERVICES, &field, errors);
    for range in services.iter().filter(|range| range.host_bits() > MOST_SERVICE_BITS) {
        let width = range.family().bits();
        let why = format!(
            "specified service subnet is too large; for {width}-bit addresses, the mask must be >= {}",
            width - MOST_SERVICE_BITS
        );
        errors.push(FieldError::invalid(&field, range.to_string(), why));
    }
    if networking.pod_subnet.is_empty() {
        return;
    }
    let field = path.child("podSubnet");
    let pods = parse_subnets(&networking.pod_subnet, LEAST_PODS, &field, errors);
    let args = &cluster.controller_manager.extra_args;
    if argument(args, "allocate-node-cidrs") != Some("false") {
        for range in &pods {
            if let Err(error) = validate_node_mask(*range, args) {
                errors.push(FieldError::invalid(&field, range.to_string(), error.to_string()));
            }
        }
    }
    for (pod, service) in pods.iter().flat_map(|p| services.iter().map(move |s| (p, s))) {
        if pod.contains(service.address) || service.contains(pod.address) {
            let why = format!("overlaps with the service subnet {}", networking.service_subnet);
            errors.push(FieldError::invalid(&field, networking.pod_subnet.as_str(), why));
        }
    }
}

/// Returns the effective value of a flag: the last one of several.
fn argument<'a>(args: &'a [Arg], name: &str) -> Option<&'a str> {
    args.iter().rfind(|arg| arg.name == name).map(|arg| arg.value.as_str())
}

/// The error of a Pod subnet that cannot be split among nodes.
#[derive(Debug, thiserror::Error)]
enum NodeMaskError {
    #[error("could not parse the value of the kube-controller-manager flag {0} as an integer")]
    Flag(&'static str),
    #[error(
        "the size of pod subnet with mask {pods} is smaller than the size of node subnet with mask {node}"
    )]
    TooSmall { pods: u8, node: u8 },
    #[error(
        "pod subnet mask ({pods}) and node-mask ({node}) difference is greater than {MOST_NODE_BITS}"
    )]
    TooManyNodes { pods: u8, node: u8 },
}

/// Validates that the range is large enough to split it among nodes.
fn validate_node_mask(range: Cidr, args: &[Arg]) -> Result<(), NodeMaskError> {
    let (name, default) = match range.address {
        IpAddr::V4(_) => ("node-cidr-mask-size-ipv4", 24),
        IpAddr::V6(_) => ("node-cidr-mask-size-ipv6", 64),
    };
    let node = match argument(args, name) {
        Some(text) => text.parse::<u8>().map_err(|_| NodeMaskError::Flag(name))?,
        None => default,
    };
    let pods = range.family().bits() - range.host_bits();
    if pods > node {
        return Err(NodeMaskError::TooSmall { pods, node });
    }
    if node - pods > MOST_NODE_BITS {
        return Err(NodeMaskError::TooManyNodes { pods, node });
    }
    Ok(())
}

fn parse_subnets(text: &str, least: u128, path: &Path, errors: &mut ErrorList) -> Vec<Cidr> {
    let Some(ranges) = net::parse_list(text) else {
        errors.push(FieldError::invalid(path, text, "couldn't parse subnet"));
        return Vec::new();
    };
    let families = ranges.iter().filter(|r| r.address.is_ipv4()).count();
    if ranges.len() > 2 || (ranges.len() == 2 && families != 1) {
        let why = "expected one (IPv4 or IPv6) CIDR or two CIDRs from each family for dual-stack networking";
        errors.push(FieldError::invalid(path, text, why));
    }
    for range in &ranges {
        let size = 1u128.checked_shl(range.host_bits().into()).unwrap_or(u128::MAX);
        if size < least {
            let why =
                format!("subnet with {size} address(es) is too small, the minimum is {least}");
            errors.push(FieldError::invalid(path, range.to_string(), why));
        }
    }
    ranges
}

/// Validates an image repository: an optional registry, then names in lower case.
fn validate_image_repository(repository: &str, path: &Path, errors: &mut ErrorList) {
    let mut parts = repository.split('/').peekable();
    let is_name = |part: &str| {
        let alnum = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(alnum)
            && part.ends_with(alnum)
            && part.chars().all(|c| alnum(c) || "._-".contains(c))
            && !["..", "._", "_.", "-.", ".-", "-_", "_-", "___"]
                .iter()
                .any(|bad| part.contains(bad))
    };
    let first = parts.next().unwrap_or_default();
    if !(is_name(first) || is_registry(first)) || !parts.all(is_name) {
        errors.push(FieldError::invalid(path, repository, "invalid image repository format"));
    }
}

/// Returns `true` if a part of an image name is `host[:port]`.
fn is_registry(part: &str) -> bool {
    let (host, port) = match part.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') => (host, Some(port)),
        _ => (part, None),
    };
    let is_v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    (is_v6 || host.split('.').all(is_label))
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

fn validate_etcd(etcd: &Etcd, errors: &mut ErrorList) {
    let path = Path::new("etcd");
    let set = [etcd.local.is_some(), etcd.external.is_some(), etcd.embedded.is_some()];
    match set.iter().filter(|set| **set).count() {
        0 => {
            let why = "either .Etcd.Local or .Etcd.External is required";
            errors.push(FieldError::invalid(&path, "", why));
        }
        1 => {}
        _ if etcd.embedded.is_none() => {
            let why = ".Etcd.Local and .Etcd.External are mutually exclusive";
            errors.push(FieldError::invalid(&path, "", why));
        }
        _ => errors.push(FieldError::invalid(
            &path,
            "",
            "setting more than one of .Etcd.Local, .Etcd.External and .Etcd.Embedded is not allowed; they are mutually \
             exclusive",
        )),
    }
    if let Some(local) = &etcd.local {
        let path = path.child("local");
        validate_absolute_path(&local.data_dir, &path.child("dataDir"), errors);
        validate_alt_names(&local.server_cert_sans, &path.child("serverCertSANs"), errors);
        validate_alt_names(&local.peer_cert_sans, &path.child("peerCertSANs"), errors);
        validate_extra_args(&local.extra_args, &path.child("extraArgs"), errors);
        if !local.image_repository.is_empty() {
            validate_image_repository(
                &local.image_repository,
                &path.child("imageRepository"),
                errors,
            );
        }
    }
    if let Some(external) = &etcd.external {
        validate_external_etcd(external, &path.child("external"), errors);
    }
    if let Some(embedded) = &etcd.embedded {
        validate_absolute_path(
            &embedded.data_dir,
            &path.child("embedded").child("dataDir"),
            errors,
        );
    }
}

fn validate_external_etcd(etcd: &ExternalEtcd, path: &Path, errors: &mut ErrorList) {
    let (ca, cert, key) = (&etcd.ca_file, &etcd.cert_file, &etcd.key_file);
    if etcd.endpoints.is_empty() {
        let why = "at least one endpoint is required";
        errors.push(FieldError::invalid(&path.child("endpoints"), "", why));
    }
    if cert.is_empty() != key.is_empty() {
        let why =
            "either both or none of .Etcd.External.CertFile and .Etcd.External.KeyFile must be set";
        errors.push(FieldError::invalid(path, "", why));
    }
    if !cert.is_empty() && !key.is_empty() && ca.is_empty() {
        let why = "setting .Etcd.External.CertFile and .Etcd.External.KeyFile requires .Etcd.External.CAFile";
        errors.push(FieldError::invalid(path, "", why));
    }
    let require_https = [ca, cert, key].into_iter().any(|file| !file.is_empty());
    let lists = [("endpoints", &etcd.endpoints), ("httpEndpoints", &etcd.http_endpoints)];
    for (name, url) in lists.iter().flat_map(|(name, urls)| urls.iter().map(move |url| (name, url)))
    {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        let why = match scheme {
            None => "the URL without scheme is not allowed",
            Some("https") => continue,
            Some("http") if !require_https => continue,
            Some(_) if require_https => "the URL must be using the HTTPS scheme",
            Some(_) => "the URL must be using the HTTP or HTTPS scheme",
        };
        errors.push(FieldError::invalid(&path.child(name), url.as_str(), why));
    }
    for (name, file) in [("caFile", ca), ("certFile", cert), ("keyFile", key)] {
        if !file.is_empty() {
            validate_absolute_path(file, &path.child(name), errors);
        }
    }
}
