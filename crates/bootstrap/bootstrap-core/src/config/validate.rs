//! Validates the configuration.

mod cluster;
mod fields;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use api_config::kubeadm::{
    ApiEndpoint, BootstrapToken, ClusterConfiguration, Discovery, JoinConfiguration,
    NodeRegistration, Patches, ResetConfiguration, UpgradeConfiguration,
};
use api_meta::{ErrorList, FieldError, Path, Timestamp, validation};

use self::{
    cluster::cluster_errors,
    fields::{validate_absolute_path, validate_extra_args},
};
use super::init::Init;
use crate::{Error, net, tokens::Token};

fn finish(errors: ErrorList) -> Result<(), Error> {
    if errors.is_empty() { Ok(()) } else { Err(Error::Fields(errors)) }
}

/// Validates the configuration of `init` and returns all errors at once, with the fields' paths.
pub fn validate_init(all: &Init) -> Result<(), Error> {
    let mut errors = validate_node(&all.init.node_registration);
    for (i, token) in all.init.bootstrap_tokens.iter().enumerate() {
        let path = Path::new("bootstrapTokens").child(&i.to_string());
        validate_bootstrap_token(token, &path, &mut errors);
    }
    errors.extend(validate_endpoint(&all.init.local_api_endpoint, &Path::new("localAPIEndpoint")));
    validate_certificate_key(&all.init.certificate_key, &Path::new("certificateKey"), &mut errors);
    errors.extend(cluster_errors(&all.cluster));
    finish(errors)
}

/// Validates only the cluster's part, for a configuration that was read from the cluster.
pub fn validate_cluster(configuration: &ClusterConfiguration) -> Result<(), Error> {
    finish(cluster_errors(configuration))
}

/// Validates the configuration of `join` and returns all errors at once.
pub fn validate_join(join: &JoinConfiguration) -> Result<(), Error> {
    let mut errors = validate_discovery(&join.discovery, &Path::new("discovery"));
    errors.extend(validate_node(&join.node_registration));
    if !join.ca_cert_path.starts_with('/') || !join.ca_cert_path.ends_with(".crt") {
        let why = "the ca certificate path must be an absolute path to a file named *.crt";
        errors.push(FieldError::invalid(&Path::new("caCertPath"), join.ca_cert_path.as_str(), why));
    }
    if let Some(control_plane) = &join.control_plane {
        let path = Path::new("controlPlane");
        errors.extend(validate_endpoint(
            &control_plane.local_api_endpoint,
            &path.child("localAPIEndpoint"),
        ));
        validate_certificate_key(
            &control_plane.certificate_key,
            &path.child("certificateKey"),
            &mut errors,
        );
    }
    finish(errors)
}

/// Validates the configuration of `reset` and returns all errors at once.
pub fn validate_reset(reset: &ResetConfiguration) -> Result<(), Error> {
    let mut errors = ErrorList::new();
    validate_absolute_path(&reset.certificates_dir, &Path::new("certificatesDir"), &mut errors);
    validate_cri_socket(&reset.cri_socket, &Path::new("criSocket"), &mut errors);
    let flags = ["MNT_FORCE", "MNT_DETACH", "MNT_EXPIRE", "UMOUNT_NOFOLLOW"];
    for (i, flag) in reset.unmount_flags.iter().enumerate() {
        if !flags.contains(&flag.as_str()) {
            let why = format!("unknown unmount flag {flag}");
            let (path, position) = (Path::new("unmountFlags"), format!("index {i}"));
            errors.push(FieldError::invalid(&path, position, why));
        }
    }
    finish(errors)
}

/// Validates the configuration of `upgrade` and returns all errors at once.
pub fn validate_upgrade(upgrade: &UpgradeConfiguration) -> Result<(), Error> {
    let mut errors = ErrorList::new();
    let (apply, node) = (&upgrade.apply, &upgrade.node);
    for (name, policy, patched) in [
        ("apply", &apply.image_pull_policy, &apply.patches),
        ("node", &node.image_pull_policy, &node.patches),
    ] {
        let path = Path::new(name);
        validate_pull_policy(policy, &path.child("imagePullPolicy"), &mut errors);
        if let Some(Patches { directory }) = patched {
            validate_absolute_path(
                directory,
                &path.child("patches").child("directory"),
                &mut errors,
            );
        }
    }
    finish(errors)
}

fn validate_node(node: &NodeRegistration) -> ErrorList {
    let (mut errors, path) = (ErrorList::new(), Path::new("nodeRegistration"));
    if node.name.is_empty() {
        errors.push(FieldError::required(
            &path,
            "--node-name or .nodeRegistration.name in the config file is a required value. It seems like this value \
             couldn't be automatically detected in your environment, please specify the desired value using the CLI or \
             config file.",
        ));
    } else {
        for why in validation::dns1123_subdomain(&node.name) {
            errors.push(FieldError::invalid(&path.child("name"), node.name.as_str(), why));
        }
    }
    validate_cri_socket(&node.cri_socket, &path.child("criSocket"), &mut errors);
    validate_pull_policy(&node.image_pull_policy, &path.child("imagePullPolicy"), &mut errors);
    validate_extra_args(&node.kubelet_extra_args, &path.child("kubeletExtraArgs"), &mut errors);
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

fn validate_endpoint(endpoint: &ApiEndpoint, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let address = endpoint.advertise_address.as_str();
    match address.parse::<IpAddr>() {
        Err(_) => errors.push(FieldError::invalid(
            &path.child("advertiseAddress"),
            address,
            "ip address is not valid",
        )),
        Ok(ip) if net::is_global_unicast(ip) => {}
        Ok(ip) => {
            let mut why = format!("cannot use {address:?} as the bind address for the API Server");
            if ip.is_loopback() {
                why.push_str(": unable to resolve link-local addresses");
            }
            errors.push(FieldError::invalid(&path.child("advertiseAddress"), address, why));
        }
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

fn validate_discovery(discovery: &Discovery, path: &Path) -> ErrorList {
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
            validate_token(&bootstrap.token, &path.child("token"), &mut errors);
            let server = bootstrap.api_server_endpoint.as_str();
            if server.is_empty() {
                errors.push(FieldError::required(&path, "APIServerEndpoint is not set"));
            }
            let why = match net::split_host_port(server) {
                Some((_, Some(_))) => None,
                Some((host, None)) => Some(format!("address {host}: missing port in address")),
                None if server.is_empty() => Some("missing port in address".to_owned()),
                None => Some("use the form host:port, such as 10.0.0.1:6443".to_owned()),
            };
            if let Some(why) = why {
                errors.push(FieldError::invalid(&path.child("apiServerEndpoint"), server, why));
            }
            if bootstrap.ca_cert_hashes.is_empty() && !bootstrap.unsafe_skip_ca_verification {
                errors.push(FieldError::invalid(
                    &path.child("caCertHashes"),
                    "",
                    "using token-based discovery without caCertHashes can be unsafe. Set unsafeSkipCAVerification as \
                     true in your kubeadm config file or pass --discovery-token-unsafe-skip-ca-verification flag to \
                     continue",
                ));
            }
            for pin in &bootstrap.ca_cert_hashes {
                if let Err(error) = crate::discovery::check_pin(pin) {
                    errors.push(FieldError::invalid(
                        &path.child("caCertHashes"),
                        pin.as_str(),
                        error.to_string(),
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
        validate_token(
            &discovery.tls_bootstrap_token,
            &path.child("tlsBootstrapToken"),
            &mut errors,
        );
    }
    errors
}

fn validate_bootstrap_token(entry: &BootstrapToken, path: &Path, errors: &mut ErrorList) {
    validate_token(&entry.token, &path.child("token"), errors);
    let usages = || format!("[{}]", entry.usages.join(" "));
    for usage in &entry.usages {
        if !["signing", "authentication"].contains(&usage.as_str()) {
            let why = format!(
                "invalid bootstrap token usage string: {usage}, valid usage options: authentication, signing"
            );
            errors.push(FieldError::invalid(&path.child("usages"), usages(), why));
        }
    }
    let groups = path.child("groups");
    if !entry.groups.is_empty() && !entry.usages.iter().any(|usage| usage == "authentication") {
        let why = "token groups cannot be specified unless --usages includes \"authentication\"";
        errors.push(FieldError::invalid(&groups, format!("[{}]", entry.groups.join(" ")), why));
    }
    for group in &entry.groups {
        if !crate::tokens::is_bootstrap_group(group) {
            let why = format!(
                "bootstrap group {group:?} is invalid (must match \
                 \\Asystem:bootstrappers:[a-z0-9:-]{{0,255}}[a-z0-9]\\z)"
            );
            errors.push(FieldError::invalid(&groups, group.as_str(), why));
        }
    }
    if entry.expires.is_some() && entry.ttl.is_some() {
        let why = "the BootstrapToken .TTL and .Expires fields are mutually exclusive";
        errors.push(FieldError::invalid(path, "", why));
    }
    if let Some(expires) = entry.expires.as_ref().filter(|at| at.parse::<Timestamp>().is_err()) {
        let why = "must be a time of RFC 3339, such as 2026-12-31T00:00:00Z";
        errors.push(FieldError::invalid(&path.child("expires"), expires.as_str(), why));
    }
}

/// Validates a token. The message does not contain its secret part.
fn validate_token(text: &str, path: &Path, errors: &mut ErrorList) {
    if text.parse::<Token>().is_err() {
        let id = text.split('.').next().unwrap_or_default();
        let redacted = if id.is_empty() { String::new() } else { format!("{id}.<secret>") };
        errors.push(FieldError::invalid(
            path,
            redacted,
            "the bootstrap token is invalid: it must be of the form \"[a-z0-9]{6}.[a-z0-9]{16}\"",
        ));
    }
}

/// Validates a certificate key. The message does not contain the key.
fn validate_certificate_key(key: &str, path: &Path, errors: &mut ErrorList) {
    const SIZE: usize = 32;
    let digits = key.bytes().all(|b| b.is_ascii_hexdigit());
    let why = match key.len() {
        0 => return,
        _ if !digits => "certificate key decoding error: it is not hexadecimal".to_owned(),
        length if length % 2 == 1 => {
            "certificate key decoding error: odd length hex string".to_owned()
        }
        length if length / 2 != SIZE => format!(
            "invalid certificate key size {}, the key must be an AES key of size {SIZE}",
            length / 2
        ),
        _ => return,
    };
    errors.push(FieldError::invalid(path, "<secret>", why));
}

fn validate_cri_socket(socket: &str, path: &Path, errors: &mut ErrorList) {
    if socket.is_empty() {
        let why = "empty CRI socket: found multiple CRI endpoints on the host. Please define which one do you wish to \
            use by setting the 'criSocket' field in the kubeadm configuration file";
        errors.push(FieldError::invalid(path, socket, why));
        return;
    }
    match socket.split_once("://") {
        Some(("unix", rest)) if rest.starts_with('/') => {}
        Some(("unix", _)) => errors.push(FieldError::invalid(path, socket, "path is not absolute")),
        Some((scheme, _)) => {
            let why = format!("only URL scheme \"unix\" is supported, got {scheme:?}");
            errors.push(FieldError::invalid(path, socket, why));
        }
        None => validate_absolute_path(socket, path, errors),
    }
}

fn validate_pull_policy(policy: &str, path: &Path, errors: &mut ErrorList) {
    if !["", "Always", "IfNotPresent", "Never"].contains(&policy) {
        errors.push(FieldError::invalid(path, policy, "invalid pull policy"));
    }
}
