use std::net::{IpAddr, Ipv4Addr};

use api_config::{
    GoDuration,
    kubeadm::{
        ApiEndpoint, Arg, BootstrapToken, ClusterConfiguration, Discovery, Etcd, JoinConfiguration,
        NodeRegistration, ResetConfiguration, UpgradeConfiguration,
    },
};
use api_meta::{Cidr, ErrorList, FieldError, Path, field, validation};
use pki::KeyAlgorithm;

use super::Init;
use crate::{Error, net, tokens::Token};

fn finish(errors: &ErrorList) -> Result<(), Error> {
    if errors.is_empty() { Ok(()) } else { Err(Error::Invalid(field::aggregate(errors))) }
}

/// All that is wrong with an `init`'s configuration at once, as one error with the fields' paths.
pub fn validate_init(all: &Init) -> Result<(), Error> {
    let mut errors = node(&all.init.node_registration);
    for token in &all.init.bootstrap_tokens {
        bootstrap_token(token, &mut errors);
    }
    errors.extend(endpoint(&all.init.local_api_endpoint, &Path::new("localAPIEndpoint")));
    certificate_key(&all.init.certificate_key, &Path::new("certificateKey"), &mut errors);
    errors.extend(cluster(&all.cluster));
    finish(&errors)
}

/// The cluster's part alone, for what was read back from the cluster.
pub fn validate_cluster(configuration: &ClusterConfiguration) -> Result<(), Error> {
    finish(&cluster(configuration))
}

/// All that is wrong with a `join`'s configuration at once.
pub fn validate_join(join: &JoinConfiguration) -> Result<(), Error> {
    let mut errors = discovery(&join.discovery, &Path::new("discovery"));
    errors.extend(node(&join.node_registration));
    absolute(&join.ca_cert_path, &Path::new("caCertPath"), &mut errors);
    if let Some(control_plane) = &join.control_plane {
        let path = Path::new("controlPlane");
        errors.extend(endpoint(&control_plane.local_api_endpoint, &path.child("localAPIEndpoint")));
        certificate_key(&control_plane.certificate_key, &path.child("certificateKey"), &mut errors);
    }
    finish(&errors)
}

/// All that is wrong with a `reset`'s configuration at once.
pub fn validate_reset(reset: &ResetConfiguration) -> Result<(), Error> {
    let mut errors = ErrorList::new();
    absolute(&reset.certificates_dir, &Path::new("certificatesDir"), &mut errors);
    cri_socket(&reset.cri_socket, &Path::new("criSocket"), &mut errors);
    let flags = ["MNT_FORCE", "MNT_DETACH", "MNT_EXPIRE", "UMOUNT_NOFOLLOW"];
    for (i, flag) in reset.unmount_flags.iter().enumerate() {
        if !flags.contains(&flag.as_str()) {
            errors.push(FieldError::not_supported(
                &Path::new("unmountFlags").index(i),
                flag.as_str(),
                &flags,
            ));
        }
    }
    finish(&errors)
}

/// All that is wrong with an `upgrade`'s configuration at once.
pub fn validate_upgrade(upgrade: &UpgradeConfiguration) -> Result<(), Error> {
    let mut errors = ErrorList::new();
    for (name, policy) in
        [("apply", &upgrade.apply.image_pull_policy), ("node", &upgrade.node.image_pull_policy)]
    {
        pull_policy(policy, &Path::new(name).child("imagePullPolicy"), &mut errors);
    }
    finish(&errors)
}

fn cluster(cluster: &ClusterConfiguration) -> ErrorList {
    let mut errors = ErrorList::new();
    absolute(&cluster.certificates_dir, &Path::new("certificatesDir"), &mut errors);
    networking(cluster, &mut errors);
    let sans = Path::new("apiServer").child("certSANs");
    alt_names(&cluster.api_server.cert_sans, &sans, &mut errors);
    for (component, args) in [
        ("apiServer", &cluster.api_server.extra_args),
        ("controllerManager", &cluster.controller_manager.extra_args),
        ("scheduler", &cluster.scheduler.extra_args),
    ] {
        extra_args(args, &Path::new(component).child("extraArgs"), &mut errors);
    }
    if !cluster.control_plane_endpoint.is_empty() {
        let path = Path::new("controlPlaneEndpoint");
        match net::split_host_port(&cluster.control_plane_endpoint) {
            None => errors.push(FieldError::invalid(
                &path,
                cluster.control_plane_endpoint.as_str(),
                "use the form host or host:port, with a port between 1 and 65535",
            )),
            Some((host, _)) if host.parse::<IpAddr>().is_err() => {
                for why in validation::dns1123_subdomain(&host) {
                    errors.push(FieldError::invalid(&path, host.as_str(), why));
                }
            }
            Some(_) => {}
        }
    }
    etcd(&cluster.etcd, &mut errors);
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
        absolute(&snapshots.directory, &path.child("directory"), &mut errors);
        if snapshots.interval.is_none_or(|every| every < GoDuration::from_secs(1)) {
            let given = snapshots.interval.unwrap_or_default().to_string();
            errors.push(FieldError::invalid(
                &path.child("interval"),
                given.as_str(),
                "must be a second or longer, such as 1h",
            ));
        }
        if snapshots.keep < 1 {
            let why = "must be 1 or more";
            errors.push(FieldError::invalid(&path.child("keep"), snapshots.keep, why));
        }
    }
    for name in cluster.feature_gates.keys() {
        if !["NodeLocalCRISocket", "PublicKeysECDSA", "RootlessControlPlane"]
            .contains(&name.as_str())
        {
            let path = Path::new("featureGates");
            errors.push(FieldError::invalid(
                &path,
                name.as_str(),
                format!("{name} is not a valid feature name."),
            ));
        }
    }
    if cluster.encryption_algorithm.parse::<KeyAlgorithm>().is_err() {
        let known = KeyAlgorithm::ALL.map(KeyAlgorithm::as_str);
        let path = Path::new("encryptionAlgorithm");
        errors.push(FieldError::not_supported(
            &path,
            cluster.encryption_algorithm.as_str(),
            &known,
        ));
    }
    validity_periods(cluster, &mut errors);
    errors
}

fn validity_periods(cluster: &ClusterConfiguration, errors: &mut ErrorList) {
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

fn networking(cluster: &ClusterConfiguration, errors: &mut ErrorList) {
    let path = Path::new("networking");
    for why in validation::dns1123_subdomain(&cluster.networking.dns_domain) {
        errors.push(FieldError::invalid(
            &path.child("dnsDomain"),
            cluster.networking.dns_domain.as_str(),
            why,
        ));
    }
    let services =
        subnets(&cluster.networking.service_subnet, &path.child("serviceSubnet"), errors);
    for range in &services {
        // The API server keeps a bitmap of the range, which must stay small; a Service needs room for number 10.
        let (bits, field) = (range.host_bits(), path.child("serviceSubnet"));
        let value = cluster.networking.service_subnet.as_str();
        if bits > 20 {
            let width = range.family().bits();
            let why = format!(
                "specified service subnet is too large; for {width}-bit addresses, the mask must be >= {}",
                width - 20
            );
            errors.push(FieldError::invalid(&field, value, why));
        }
        if bits < 4 {
            let why = "subnet with 10 address(es) or more is required";
            errors.push(FieldError::invalid(&field, value, why));
        }
    }
    if !cluster.networking.pod_subnet.is_empty() {
        let pods = subnets(&cluster.networking.pod_subnet, &path.child("podSubnet"), errors);
        for (pod, service) in pods.iter().flat_map(|p| services.iter().map(move |s| (p, s))) {
            if pod.contains(service.address) || service.contains(pod.address) {
                let why = format!(
                    "overlaps with the service subnet {}",
                    cluster.networking.service_subnet
                );
                let value = cluster.networking.pod_subnet.as_str();
                errors.push(FieldError::invalid(&path.child("podSubnet"), value, why));
            }
        }
    }
}

fn subnets(text: &str, path: &Path, errors: &mut ErrorList) -> Vec<Cidr> {
    let Some(ranges) = net::parse_list(text) else {
        errors.push(FieldError::invalid(path, text, "couldn't parse subnet"));
        return Vec::new();
    };
    let families = ranges.iter().filter(|r| r.address.is_ipv4()).count();
    if ranges.len() > 2 {
        errors.push(FieldError::invalid(
            path,
            text,
            "expected one (IPv4 or IPv6) CIDR or two CIDRs from each family",
        ));
    } else if ranges.len() == 2 && families != 1 {
        errors.push(FieldError::invalid(
            path,
            text,
            "expected two CIDRs, one of each family (IPv4 and IPv6)",
        ));
    }
    ranges
}

fn etcd(etcd: &Etcd, errors: &mut ErrorList) {
    let path = Path::new("etcd");
    let set = [etcd.local.is_some(), etcd.external.is_some(), etcd.embedded.is_some()];
    if set.iter().filter(|s| **s).count() > 1 {
        errors.push(FieldError::invalid(
            &path,
            "",
            "setting more than one of .Etcd.Local, .Etcd.External and .Etcd.Embedded is not allowed; they are mutually exclusive",
        ));
    }
    if let Some(local) = &etcd.local {
        absolute(&local.data_dir, &path.child("local").child("dataDir"), errors);
        alt_names(&local.server_cert_sans, &path.child("local").child("serverCertSANs"), errors);
        alt_names(&local.peer_cert_sans, &path.child("local").child("peerCertSANs"), errors);
        extra_args(&local.extra_args, &path.child("local").child("extraArgs"), errors);
    }
    if let Some(external) = &etcd.external {
        let path = path.child("external");
        let require_https = !external.ca_file.is_empty();
        if external.endpoints.is_empty() {
            errors.push(FieldError::invalid(
                &path.child("endpoints"),
                "",
                "at least one endpoint is required",
            ));
        }
        for endpoint in external.endpoints.iter().chain(&external.http_endpoints) {
            let known = endpoint.starts_with("https://")
                || (!require_https && endpoint.starts_with("http://"));
            if !known {
                let why = if require_https {
                    "the URL must be using the HTTPS scheme"
                } else {
                    "the URL must be using the HTTP or HTTPS scheme"
                };
                errors.push(FieldError::invalid(&path.child("endpoints"), endpoint.as_str(), why));
            }
        }
        if external.cert_file.is_empty() != external.key_file.is_empty() {
            errors.push(FieldError::invalid(&path, "", "either both or none of .Etcd.External.CertFile and .Etcd.External.KeyFile must be set"));
        }
        for (name, file) in [
            ("caFile", &external.ca_file),
            ("certFile", &external.cert_file),
            ("keyFile", &external.key_file),
        ] {
            if !file.is_empty() {
                absolute(file, &path.child(name), errors);
            }
        }
    }
    if let Some(embedded) = &etcd.embedded {
        absolute(&embedded.data_dir, &path.child("embedded").child("dataDir"), errors);
    }
}

fn node(node: &NodeRegistration) -> ErrorList {
    let (mut errors, path) = (ErrorList::new(), Path::new("nodeRegistration"));
    if node.name.is_empty() {
        errors.push(FieldError::required(
            &path.child("name"),
            "--node-name or .nodeRegistration.name in the config file is a required value",
        ));
    } else {
        for why in validation::dns1123_subdomain(&node.name) {
            errors.push(FieldError::invalid(&path.child("name"), node.name.as_str(), why));
        }
    }
    cri_socket(&node.cri_socket, &path.child("criSocket"), &mut errors);
    pull_policy(&node.image_pull_policy, &path.child("imagePullPolicy"), &mut errors);
    extra_args(&node.kubelet_extra_args, &path.child("kubeletExtraArgs"), &mut errors);
    let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    for (i, taint) in node.taints.iter().flatten().enumerate() {
        let path = path.child("taints").index(i);
        for why in validation::qualified_name(&taint.key) {
            errors.push(FieldError::invalid(&path.child("key"), taint.key.as_str(), why));
        }
        if !effects.contains(&taint.effect.as_str()) {
            errors.push(FieldError::not_supported(
                &path.child("effect"),
                taint.effect.as_str(),
                &effects,
            ));
        }
    }
    errors
}

fn endpoint(endpoint: &ApiEndpoint, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let address = endpoint.advertise_address.as_str();
    match address.parse::<IpAddr>() {
        Err(_) => errors.push(FieldError::invalid(
            &path.child("advertiseAddress"),
            address,
            "ip address is not valid",
        )),
        Ok(ip) if ip.is_unspecified() || ip.is_multicast() => errors.push(FieldError::invalid(
            &path.child("advertiseAddress"),
            address,
            "must be an address of this machine that the other nodes reach",
        )),
        Ok(_) => {}
    }
    if !(1..=65535).contains(&endpoint.bind_port) {
        errors.push(FieldError::invalid(
            &path.child("bindPort"),
            endpoint.bind_port,
            "port number is not valid",
        ));
    }
    errors
}

fn discovery(discovery: &Discovery, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    match (&discovery.bootstrap_token, &discovery.file) {
        (None, None) => {
            errors.push(FieldError::invalid(path, "", "bootstrapToken or file must be set"))
        }
        (Some(_), Some(_)) => {
            errors.push(FieldError::invalid(path, "", "bootstrapToken and file cannot both be set"))
        }
        (Some(bootstrap), None) => {
            let path = path.child("bootstrapToken");
            token(&bootstrap.token, &path.child("token"), &mut errors);
            let server = bootstrap.api_server_endpoint.as_str();
            if server.is_empty() {
                errors.push(FieldError::required(&path, "APIServerEndpoint is not set"));
            } else if net::split_host_port(server).and_then(|(_, port)| port).is_none() {
                errors.push(FieldError::invalid(
                    &path.child("apiServerEndpoint"),
                    server,
                    "use the form host:port, such as 10.0.0.1:6443",
                ));
            }
            if bootstrap.ca_cert_hashes.is_empty() && !bootstrap.unsafe_skip_ca_verification {
                errors.push(FieldError::invalid(
                    &path,
                    "",
                    "using token-based discovery without caCertHashes can be unsafe. Set unsafeSkipCAVerification as \
                     true in your kubeadm config file or pass --discovery-token-unsafe-skip-ca-verification flag to continue",
                ));
            }
            for pin in &bootstrap.ca_cert_hashes {
                if let Err(why) = crate::discovery::check_pin(pin) {
                    errors.push(FieldError::invalid(
                        &path.child("caCertHashes"),
                        pin.as_str(),
                        why,
                    ));
                }
            }
        }
        (None, Some(file)) => {
            let location = file.kube_config_path.as_str();
            if location.is_empty() {
                errors.push(FieldError::required(
                    &path.child("file").child("kubeConfigPath"),
                    "not set",
                ));
            } else if location.contains("://") && !location.starts_with("https://") {
                let field = path.child("file").child("kubeConfigPath");
                errors.push(FieldError::invalid(
                    &field,
                    location,
                    "if a URL is used, the scheme must be https",
                ));
            }
        }
    }
    if !discovery.tls_bootstrap_token.is_empty() {
        token(&discovery.tls_bootstrap_token, &path.child("tlsBootstrapToken"), &mut errors);
    }
    errors
}

fn bootstrap_token(entry: &BootstrapToken, errors: &mut ErrorList) {
    let path = Path::new("bootstrapTokens");
    token(&entry.token, &path.child("token"), errors);
    for usage in &entry.usages {
        if !["signing", "authentication"].contains(&usage.as_str()) {
            let why = format!(
                "invalid bootstrap token usage string: {usage}, valid usage options: authentication, signing"
            );
            errors.push(FieldError::invalid(&path.child("usages"), usage.as_str(), why));
        }
    }
    for group in &entry.groups {
        if !crate::tokens::is_bootstrap_group(group) {
            let why = format!(
                "bootstrap group {group:?} is invalid (must match \\Asystem:bootstrappers:[a-z0-9:-]{{0,255}}[a-z0-9]\\z)"
            );
            errors.push(FieldError::invalid(&path.child("groups"), group.as_str(), why));
        }
    }
}

/// The token itself stays out of the message: it is a secret.
fn token(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.parse::<Token>().is_err() {
        let id = text.split('.').next().unwrap_or_default();
        let shown = if id.is_empty() { String::new() } else { format!("{id}.<secret>") };
        errors.push(FieldError::invalid(
            path,
            shown,
            "the bootstrap token is invalid: it must be of the form \"[a-z0-9]{6}.[a-z0-9]{16}\"",
        ));
    }
}

fn certificate_key(key: &str, path: &Path, errors: &mut ErrorList) {
    if !key.is_empty() && (key.len() != 64 || !key.bytes().all(|b| b.is_ascii_hexdigit())) {
        errors.push(FieldError::invalid(
            path,
            "<secret>",
            "the key must be 32 bytes in hexadecimal (64 characters)",
        ));
    }
}

fn absolute(value: &str, path: &Path, errors: &mut ErrorList) {
    if !value.starts_with('/') {
        errors.push(FieldError::invalid(path, value, "path is not absolute"));
    }
}

fn cri_socket(socket: &str, path: &Path, errors: &mut ErrorList) {
    match socket.split_once("://") {
        Some(("unix", rest)) if rest.starts_with('/') => {}
        Some(("unix", _)) => errors.push(FieldError::invalid(path, socket, "path is not absolute")),
        Some((scheme, _)) => {
            let why = format!("only URL scheme \"unix\" is supported, got {scheme:?}");
            errors.push(FieldError::invalid(path, socket, why));
        }
        None => absolute(socket, path, errors),
    }
}

fn pull_policy(policy: &str, path: &Path, errors: &mut ErrorList) {
    let policies = ["Always", "IfNotPresent", "Never"];
    if !policies.contains(&policy) {
        errors.push(FieldError::not_supported(path, policy, &policies));
    }
}

fn extra_args(args: &[Arg], path: &Path, errors: &mut ErrorList) {
    for arg in args.iter().filter(|a| a.name.is_empty()) {
        errors.push(FieldError::invalid(
            path,
            format!("={}", arg.value),
            "argument name must not be empty",
        ));
    }
}

fn alt_names(names: &[String], path: &Path, errors: &mut ErrorList) {
    for name in names {
        let dns = validation::dns1123_subdomain(name).is_empty();
        if !dns
            && name.parse::<IpAddr>().is_err()
            && !validation::wildcard_dns1123_subdomain(name).is_empty()
        {
            let why = "altname is not a valid IP address, DNS label or a DNS label with subdomain wildcards";
            errors.push(FieldError::invalid(path, name.as_str(), why));
        }
    }
}
