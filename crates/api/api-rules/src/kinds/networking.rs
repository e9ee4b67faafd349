//! Rules of Endpoints, EndpointSlices, Ingresses, NetworkPolicies, IPAddresses and ServiceCIDRs.

use std::net::IpAddr;

use api_meta::{
    ErrorList, FieldError, Path, SpecialAddress, Tree as _, Warnings, special, validation,
};
use serde_json::{Value, json};

use super::{node::is_cidr, status};
use crate::{
    fields::{
        FieldRule,
        Rule::{IsOneOf, IsText, Named, OneOf, Text, TextIfAny, UniqueBy},
        check_ip, repeats_a_family, validate_label_selector, validate_one_of,
        validate_optional_one_of,
    },
    meta::{NameRule, check_immutable, immutable},
    pod::check_port,
    strategy::Strategy,
    warnings,
};

pub(super) const BAD_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

pub(crate) static ENDPOINTS: Strategy = Strategy {
    storage_path: Some("services/endpoints"),
    deprecation: Some(
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ),
    check: |endpoints, errors| {
        for (i, subset) in endpoints.items("subsets").iter().enumerate() {
            let path = Path::new("subsets").index(i);
            if subset.blank("addresses") && subset.blank("notReadyAddresses") {
                let detail = "must specify `addresses` or `notReadyAddresses`";
                errors.push(FieldError::required(&path, detail));
            }
            for list in ["addresses", "notReadyAddresses"] {
                for (j, address) in subset.items(list).iter().enumerate() {
                    let path = path.child(list).index(j).child("ip");
                    check_endpoint_ip(address.text("ip"), &path, errors);
                }
            }
            for (j, port) in subset.items("ports").iter().enumerate() {
                let path = path.child("ports").index(j);
                if port.text("name").is_empty() && subset.items("ports").len() > 1 {
                    errors.push(FieldError::required(&path.child("name"), ""));
                }
                for message in validation::port_number(port.int("port")) {
                    errors.push(FieldError::invalid(
                        &path.child("port"),
                        port.int("port"),
                        message,
                    ));
                }
                validate_one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
            }
        }
    },
    fields: &[
        ("subsets[].addresses[].hostname", Text(validation::dns1123_label)),
        ("subsets[].addresses[].nodeName", Text(validation::dns1123_subdomain)),
        ("subsets[].notReadyAddresses[].hostname", Text(validation::dns1123_label)),
        ("subsets[].notReadyAddresses[].nodeName", Text(validation::dns1123_subdomain)),
        ("subsets[].ports[].name", Text(validation::dns1123_label)),
        ("subsets[].ports[].appProtocol", Text(validation::qualified_name)),
    ],
    create_on_update: true,
    warnings: |endpoints, _| {
        // The controller writes only canonical addresses.
        if endpoints.at("metadata.labels").get("endpoints.kubernetes.io/managed-by").is_some() {
            return Warnings::new();
        }
        let mut found = Warnings::new();
        for (i, subset) in endpoints.items("subsets").iter().enumerate() {
            for list in ["addresses", "notReadyAddresses"] {
                for (j, address) in subset.items(list).iter().enumerate() {
                    let path = Path::new("subsets").index(i).child(list).index(j).child("ip");
                    found.extend(warnings::ip(address.text("ip"), &path));
                }
            }
        }
        found
    },
    ..Strategy::PLAIN
};

pub(crate) static ENDPOINT_SLICE: Strategy = Strategy {
    generation: true,
    check: |slice, errors| {
        let types = ["FQDN", "IPv4", "IPv6"];
        validate_one_of(slice, "addressType", &types, &Path::new(""), errors);
        let path = Path::new("endpoints");
        if slice.items("endpoints").len() > 1000 {
            errors.push(FieldError::too_many(&path, slice.items("endpoints").len(), 1000));
        }
        for (i, endpoint) in slice.items("endpoints").iter().enumerate() {
            let path = path.index(i).child("addresses");
            let addresses = endpoint.items("addresses");
            if addresses.is_empty() {
                let detail = "must contain at least 1 address";
                errors.push(FieldError::required(&path, detail));
            }
            for (j, address) in addresses.iter().enumerate() {
                let text = address.as_str().unwrap_or_default();
                match slice.text("addressType") {
                    "FQDN" => check_domain(text, &path.index(j), errors),
                    kind => check_slice_ip(kind, text, &path.index(j), errors),
                }
            }
        }
        let mut names = std::collections::HashSet::new();
        for (i, port) in slice.items("ports").iter().enumerate() {
            if !names.insert(port.text("name")) {
                let path = Path::new("ports").index(i).child("name");
                errors.push(FieldError::duplicate(&path, port.text("name")));
            }
        }
    },
    fields: &[
        ("endpoints[].hostname", Text(validation::dns1123_label)),
        ("endpoints[].nodeName", Text(validation::dns1123_subdomain)),
        ("endpoints[].hints.forZones", UniqueBy("name")),
        ("endpoints[].hints.forZones[].name", IsText(validation::label_value)),
        ("endpoints[].hints.forNodes", UniqueBy("name")),
        ("endpoints[].hints.forNodes[].name", IsText(validation::dns1123_subdomain)),
        ("ports[].name", TextIfAny(validation::dns1123_label)),
        ("ports[].protocol", OneOf(&["SCTP", "TCP", "UDP"])),
        ("ports[].appProtocol", Text(validation::qualified_name)),
    ],
    check_update: |new, old, errors| check_immutable(new, old, "addressType", errors),
    warnings: |slice, old| {
        let mut found = Warnings::new();
        if old.is_none() && slice.text("addressType") == "FQDN" {
            found.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        let manager = slice.at("metadata.labels").get("endpointslice.kubernetes.io/managed-by");
        if manager.and_then(Value::as_str).is_some_and(|name| name.ends_with(".k8s.io")) {
            return found;
        }
        for (i, endpoint) in slice.items("endpoints").iter().enumerate() {
            for (j, address) in endpoint.items("addresses").iter().enumerate() {
                let path = Path::new("endpoints").index(i).child("addresses").index(j);
                found.extend(warnings::ip(address.as_str().unwrap_or_default(), &path));
            }
        }
        found
    },
    ..Strategy::PLAIN
};

/// Validates and returns the address of an endpoint. It must not be an address that is only valid on a node itself
/// (CVE-2021-25737).
pub(super) fn check_endpoint_ip(
    text: &str,
    path: &Path,
    errors: &mut ErrorList,
) -> Option<std::net::IpAddr> {
    let ip = check_ip(text, path, errors)?;
    let detail = match special(ip) {
        Some(SpecialAddress::Unspecified) => format!("may not be unspecified ({text})"),
        Some(SpecialAddress::Loopback) => {
            "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()
        }
        Some(SpecialAddress::LinkLocal) => {
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()
        }
        Some(SpecialAddress::LinkLocalMulticast) => {
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned()
        }
        // Upstream accepts other multicast addresses. No proxy forwards to them.
        Some(SpecialAddress::Multicast) | None => return Some(ip),
    };
    errors.push(FieldError::invalid(path, text, detail));
    None
}

/// Validates a domain name of at least two labels.
fn check_domain(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let relative = name.strip_suffix('.').unwrap_or(name);
    let messages = validation::dns1123_subdomain(relative);
    if messages.is_empty() && !relative.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(path, name, detail));
    }
    errors.extend(messages.into_iter().map(|detail| FieldError::invalid(path, name, detail)));
}

/// Validates an address of an EndpointSlice, which must have the slice's IP family.
fn check_slice_ip(kind: &str, text: &str, path: &Path, errors: &mut ErrorList) {
    let Some(ip) = check_endpoint_ip(text, path, errors) else { return };
    let detail = match kind {
        "IPv4" if ip.is_ipv6() => "must be a valid IPv4 address",
        "IPv6" if ip.is_ipv4() => "must be a valid IPv6 address",
        _ => return,
    };
    errors.push(FieldError::invalid(path, text, detail));
}

pub(crate) static INGRESS: Strategy = Strategy {
    storage_path: Some("ingress"),
    status: Some(|| json!({"loadBalancer": {}})),
    generation: true,
    check: check_ingress,
    check_status: |new, _, _, errors| status::check_load_balancer(new, errors),
    fields: &[
        ("spec.ingressClassName", Text(validation::dns1123_subdomain)),
        ("spec.tls[].hosts[]", Text(tls_host)),
        ("spec.tls[].secretName", TextIfAny(validation::dns1123_subdomain)),
    ],
    warnings: |ingress, old| {
        let annotation = ingress.at("metadata.annotations").get("kubernetes.io/ingress.class");
        let applies = old.is_none() && !ingress.has("spec.ingressClassName");
        annotation
            .filter(|_| applies)
            .map(|_| {
                "annotation \"kubernetes.io/ingress.class\" is \
                deprecated, please use 'spec.ingressClassName' instead"
                    .to_owned()
            })
            .into_iter()
            .collect()
    },
    ..Strategy::PLAIN
};

fn tls_host(host: &str) -> Vec<String> {
    if host.contains('*') {
        validation::wildcard_dns1123_subdomain(host)
    } else {
        validation::dns1123_subdomain(host)
    }
}

fn check_ingress(ingress: &Value, errors: &mut ErrorList) {
    let (spec, path) = (ingress.at("spec"), Path::new("spec"));
    if spec.blank("rules") && !spec.has("defaultBackend") {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&path, spec.clone(), detail));
    }
    if spec.has("defaultBackend") {
        check_backend(spec.at("defaultBackend"), &path.child("defaultBackend"), errors);
    }
    for (i, rule) in spec.items("rules").iter().enumerate() {
        let path = path.child("rules").index(i);
        let host = rule.text("host");
        if !host.is_empty() {
            let wrong = if host.contains('*') {
                validation::wildcard_dns1123_subdomain(host)
            } else if host.parse::<std::net::IpAddr>().is_ok() {
                vec!["must be a DNS name, not an IP address".to_owned()]
            } else {
                validation::dns1123_subdomain(host)
            };
            for message in wrong {
                errors.push(FieldError::invalid(&path.child("host"), host, message));
            }
        }
        if rule.has("http") && rule.blank("http.paths") {
            errors.push(FieldError::required(&path.child("http").child("paths"), ""));
        }
        for (j, entry) in rule.items("http.paths").iter().enumerate() {
            let path = path.child("http").child("paths").index(j);
            let types = ["Exact", "ImplementationSpecific", "Prefix"];
            if entry.blank("pathType") {
                let detail = "pathType must be specified";
                errors.push(FieldError::required(&path.child("pathType"), detail));
            } else {
                validate_one_of(entry, "pathType", &types, &path, errors);
            }
            let text = entry.text("path");
            let strict = matches!(entry.text("pathType"), "Exact" | "Prefix");
            if (strict || !text.is_empty()) && !text.starts_with('/') {
                let detail = "must be an absolute path";
                errors.push(FieldError::invalid(&path.child("path"), text, detail));
            }
            check_backend(entry.at("backend"), &path.child("backend"), errors);
        }
    }
}

fn check_backend(backend: &Value, path: &Path, errors: &mut ErrorList) {
    match (backend.has("resource"), backend.has("service")) {
        (true, true) => errors.push(FieldError::invalid(
            path,
            "",
            "cannot set both resource and service backends",
        )),
        (false, false) => {
            let detail = "resource or service backend is required";
            errors.push(FieldError::required(path, detail));
        }
        (true, false) => {
            crate::fields::check(
                backend.at("resource"),
                REFERENCE,
                &path.child("resource"),
                errors,
            );
        }
        (false, true) => {
            let (service, path) = (backend.at("service"), path.child("service"));
            if service.blank("name") {
                errors.push(FieldError::required(&path.child("name"), ""));
            } else {
                for message in validation::dns1123_label(service.text("name")) {
                    let path = path.child("name");
                    errors.push(FieldError::invalid(&path, service.text("name"), message));
                }
            }
            let (name, number) = (service.text("port.name"), service.int("port.number"));
            let path = path.child("port");
            if !name.is_empty() {
                for message in validation::port_name(name) {
                    errors.push(FieldError::invalid(&path.child("name"), name, message));
                }
            }
            if name.is_empty() == (number == 0) {
                let detail = if name.is_empty() {
                    "port name or number is required"
                } else {
                    "cannot set both port name & port number"
                };
                errors.push(if name.is_empty() {
                    FieldError::required(&path, detail)
                } else {
                    FieldError::invalid(&path, "", detail)
                });
            } else if number != 0 {
                for message in validation::port_number(number) {
                    errors.push(FieldError::invalid(&path.child("number"), number, message));
                }
            }
        }
    }
}

/// The fields of a reference to an object of any kind.
const REFERENCE: &[FieldRule] = &[
    ("apiGroup", Text(validation::dns1123_subdomain)),
    ("kind", Named(validation::path_segment_name)),
    ("name", Named(validation::path_segment_name)),
];

pub(crate) static INGRESS_CLASS: Strategy = Strategy {
    generation: true,
    check: |class, errors| {
        let parameters = class.at("spec.parameters");
        if parameters.is_null() {
            return;
        }
        let path = Path::new("spec").child("parameters");
        crate::fields::check(parameters, REFERENCE, &path, errors);
        let (scope, space) = (parameters.text("scope"), path.child("namespace"));
        match scope {
            "Cluster" if parameters.has("namespace") => {
                let detail = "`parameters.scope` is set to 'Cluster'";
                errors.push(FieldError::forbidden(&space, detail));
            }
            "Namespace" if parameters.blank("namespace") => {
                let detail = "`parameters.scope` is set to 'Namespace'";
                errors.push(FieldError::required(&space, detail));
            }
            "Namespace" => {
                let name = parameters.text("namespace");
                for message in validation::dns1123_label(name) {
                    errors.push(FieldError::invalid(&space, name, message));
                }
            }
            _ => {}
        }
    },
    fields: &[
        ("spec.controller", Named(validation::domain_prefixed_path)),
        ("spec.parameters.scope", IsOneOf(&["Cluster", "Namespace"])),
    ],
    check_update: |new, old, errors| check_immutable(new, old, "spec.controller", errors),
    ..Strategy::PLAIN
};

pub(crate) static NETWORK_POLICY: Strategy = Strategy {
    generation: true,
    own_defaults: |policy| {
        for direction in ["ingress", "egress"] {
            for rule in policy.items_mut(&format!("spec.{direction}")) {
                for port in rule.items_mut("ports") {
                    port.set_default("protocol", "TCP");
                }
            }
        }
        if policy.blank("spec.policyTypes") {
            let types = if policy.blank("spec.egress") {
                json!(["Ingress"])
            } else {
                json!(["Ingress", "Egress"])
            };
            policy.set("spec.policyTypes", types);
        }
    },
    check: |policy, errors| {
        let (spec, path) = (policy.at("spec"), Path::new("spec"));
        validate_label_selector(spec.at("podSelector"), &path.child("podSelector"), errors);
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            for (i, rule) in spec.items(direction).iter().enumerate() {
                let path = path.child(direction).index(i);
                for (j, port) in rule.items("ports").iter().enumerate() {
                    check_policy_port(port, &path.child("ports").index(j), errors);
                }
                for (j, peer) in rule.items(peers).iter().enumerate() {
                    check_peer(peer, &path.child(peers).index(j), errors);
                }
            }
        }
        if spec.items("policyTypes").len() > 2 {
            let found = spec.at("policyTypes").clone();
            let detail = "may not specify more than two policyTypes";
            errors.push(FieldError::invalid(&path.child("policyTypes"), found, detail));
            return;
        }
        for (i, kind) in spec.items("policyTypes").iter().enumerate() {
            if !matches!(kind.as_str(), Some("Ingress" | "Egress")) {
                let path = path.child("policyTypes").index(i);
                errors.push(FieldError::not_supported(&path, kind.clone(), &["Egress", "Ingress"]));
            }
        }
    },
    warnings: |policy, _| {
        let mut found = Warnings::new();
        for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
            for (i, rule) in policy.at("spec").items(rules).iter().enumerate() {
                let path = Path::new("spec").child(rules).index(i).child(peers);
                for (j, peer) in rule.items(peers).iter().enumerate() {
                    let path = path.index(j).child("ipBlock");
                    found.extend(warnings::cidr(peer.text("ipBlock.cidr"), &path.child("cidr")));
                    for (k, except) in peer.items("ipBlock.except").iter().enumerate() {
                        let path = path.child("except").index(k);
                        found.extend(warnings::cidr(except.as_str().unwrap_or_default(), &path));
                    }
                }
            }
        }
        found
    },
    ..Strategy::PLAIN
};

fn check_policy_port(port: &Value, path: &Path, errors: &mut ErrorList) {
    validate_optional_one_of(port, "protocol", &["TCP", "UDP", "SCTP"], path, errors);
    if port.has("port") {
        check_port(port.at("port"), &path.child("port"), errors);
    }
    let Some(end) = port.opt_int("endPort") else { return };
    let path = path.child("endPort");
    for message in validation::port_number(end) {
        errors.push(FieldError::invalid(&path, end, message));
    }
    match port.at("port") {
        Value::Null => {
            errors.push(FieldError::invalid(
                &path,
                end,
                "may not be specified when `port` is not specified",
            ));
        }
        Value::String(_) => {
            errors.push(FieldError::invalid(
                &path,
                end,
                "may not be specified when `port` is non-numeric",
            ));
        }
        first if first.as_i64().is_some_and(|first| end < first) => {
            errors.push(FieldError::invalid(&path, end, "must be greater than or equal to `port`"));
        }
        _ => {}
    }
}

fn check_peer(peer: &Value, path: &Path, errors: &mut ErrorList) {
    validate_label_selector(peer.at("podSelector"), &path.child("podSelector"), errors);
    validate_label_selector(peer.at("namespaceSelector"), &path.child("namespaceSelector"), errors);
    let selects = peer.has("podSelector") || peer.has("namespaceSelector");
    if !peer.has("ipBlock") {
        if !selects {
            errors.push(FieldError::required(path, "must specify a peer"));
        }
        return;
    }
    if selects {
        errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"));
    }
    let path = path.child("ipBlock");
    let cidr = peer.text("ipBlock.cidr");
    if cidr.is_empty() {
        errors.push(FieldError::required(&path.child("cidr"), ""));
    } else if !is_cidr(cidr) {
        errors.push(FieldError::invalid(&path.child("cidr"), cidr, BAD_CIDR));
    }
    for (i, except) in peer.items("ipBlock.except").iter().enumerate() {
        let text = except.as_str().unwrap_or_default();
        if !is_cidr(text) {
            errors.push(FieldError::invalid(&path.child("except").index(i), text, BAD_CIDR));
        }
    }
}

pub(crate) static IP_ADDRESS: Strategy = Strategy {
    name: NameRule::Any,
    check: |address, errors| {
        let name = address.name();
        check_ip(name, &Path::new("metadata").child("name"), errors);
        if !address.has("spec.parentRef") {
            let path = Path::new("spec").child("parentRef");
            errors.push(FieldError::required(&path, ""));
        }
    },
    fields: &[
        ("spec.parentRef.group", TextIfAny(validation::dns1123_subdomain)),
        ("spec.parentRef.resource", Named(validation::path_segment_name)),
        ("spec.parentRef.name", Named(validation::path_segment_name)),
        ("spec.parentRef.namespace", Text(validation::path_segment_name)),
    ],
    check_create: |address, errors| {
        let name = address.name();
        if let Some(ip) = validation::ip(name).ok().filter(|ip| ip.to_string() != name) {
            let path = Path::new("metadata").child("name");
            let detail = format!("must be in canonical form ({:?})", ip.to_string());
            errors.push(FieldError::invalid(&path, name, detail));
        }
    },
    check_update: |new, old, errors| check_immutable(new, old, "spec.parentRef", errors),
    ..Strategy::PLAIN
};

pub(crate) static SERVICE_CIDR: Strategy = Strategy {
    status: Some(|| json!({})),
    check: |cidr, errors| {
        let path = Path::new("spec").child("cidrs");
        if cidr.blank("spec.cidrs") {
            let detail = "at least one CIDR required";
            errors.push(FieldError::required(&path, detail));
        }
        if repeats_a_family(cidr.texts("spec.cidrs")) {
            let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
            errors.push(FieldError::invalid(&path, cidr.at("spec.cidrs").clone(), detail));
        }
        for (i, entry) in cidr.items("spec.cidrs").iter().enumerate() {
            let text = entry.as_str().unwrap_or_default();
            if !is_cidr(text) {
                errors.push(FieldError::invalid(&path.index(i), text, BAD_CIDR));
            }
        }
    },
    // Older objects keep their form.
    check_create: |cidr, errors| {
        let path = Path::new("spec").child("cidrs");
        for (i, text) in cidr.texts("spec.cidrs").enumerate().filter(|(_, text)| is_cidr(text)) {
            if let Some(detail) = form_error(text) {
                errors.push(FieldError::invalid(&path.index(i), text, detail));
            }
        }
    },
    check_update: check_ranges,
    ..Strategy::PLAIN
};

/// Returns the reason for which a range of addresses is not in canonical form.
fn form_error(text: &str) -> Option<String> {
    let strict =
        text.split_once('/').filter(|(_, length)| *length == "0" || !length.starts_with('0'));
    let parsed = strict.and_then(|(ip, length)| Some((ip.parse().ok()?, length.parse().ok()?)));
    let Some((address, length)): Option<(IpAddr, u32)> = parsed else {
        return Some("must not have leading 0s in IP or prefix length".to_owned());
    };
    let host_bits = match address {
        IpAddr::V4(ip) => ip.to_bits().checked_shl(length).unwrap_or(0) != 0,
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
            return Some("must not have an IPv4-mapped IPv6 address".to_owned());
        }
        IpAddr::V6(ip) => ip.to_bits().checked_shl(length).unwrap_or(0) != 0,
    };
    if host_bits {
        return Some("must not have bits set beyond the prefix length".to_owned());
    }
    let canonical = format!("{address}/{length}");
    (canonical != text).then(|| format!("must be in canonical form ({canonical:?})"))
}

/// Reports changed IP ranges. A range of the other IP family may be added, to make a cluster dual-stack.
fn check_ranges(new: &Value, old: &Value, errors: &mut ErrorList) {
    let path = Path::new("spec").child("cidrs");
    let (before, after) = (old.items("spec.cidrs"), new.items("spec.cidrs"));
    if after.len() < before.len() {
        errors.push(immutable(&path, new.at("spec.cidrs")));
        return;
    }
    for (i, (after, before)) in after.iter().zip(before).enumerate() {
        if after != before {
            errors.push(immutable(&path.index(i), after));
        }
    }
}
