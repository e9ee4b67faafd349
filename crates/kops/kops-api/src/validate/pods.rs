//! Validates the settings of Pod networks.

use std::net::IpAddr;

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use regex::Regex;
use serde_json::Value;

use super::{
    paths::{below, spec},
    provider::Provider,
    values::validate_range,
};
use crate::object::Object;

/// The Pod networks; a cluster uses exactly one.
const NETWORKS: [&str; 15] = [
    "classic",
    "kubenet",
    "external",
    "cni",
    "kopeio",
    "weave",
    "flannel",
    "calico",
    "kubeRouter",
    "romana",
    "amazonVPC",
    "cilium",
    "lyftvpc",
    "gcp",
    "kindnet",
];

pub(super) fn validate(cluster: &Object, errors: &mut ErrorList) {
    let tree = &cluster.spec;
    validate_choice(tree, errors);
    validate_support(tree, &Provider::of(cluster), errors);
    if let Some(flannel) = tree.opt_at("networking.flannel")
        && flannel.text("backend").is_empty()
    {
        errors.push(FieldError::required(
            &spec("networking.flannel.backend"),
            "Flannel backend must be specified",
        ));
    }
    if let Some(calico) = tree.opt_at("networking.calico") {
        validate_calico(tree, calico, errors);
    }
    if let Some(cilium) = tree.opt_at("networking.cilium") {
        validate_cilium(tree, cilium, errors);
    }
    if tree.flag("networking.kindnet.masquerade.enabled") {
        let mut found = ErrorList::new();
        for text in tree.texts("networking.kindnet.masquerade.nonMasqueradeCIDRs") {
            validate_range(&spec("networking.kindnet"), text, &mut found);
        }
        errors.append(&mut found);
    }
    if tree.has("networking.kubeRouter") && uses_kube_proxy(tree) {
        let detail = "kube-router requires kubeProxy to be disabled";
        errors.push(FieldError::forbidden(&spec("kubeProxy.enabled"), detail));
    }
}

fn validate_choice(tree: &Value, errors: &mut ErrorList) {
    let networking = spec("networking");
    let has = |name: &&str| tree.has(&format!("networking.{name}"));
    let mut chosen: Vec<_> = NETWORKS.into_iter().filter(has).collect();
    if chosen.len() > 1 {
        chosen.sort_unstable();
        let found = chosen.join(", ");
        for name in chosen {
            let detail = format!("only one networking option permitted, found {found}");
            errors.push(FieldError::forbidden(&networking.child(name), detail));
        }
    }
}

/// Validates that a Pod network works with the cluster's cloud and addresses.
fn validate_support(tree: &Value, provider: &Provider, errors: &mut ErrorList) {
    let at = spec("networking");
    let networking = tree.at("networking");
    for (name, detail) in [
        ("kubenet", "Kubenet does not support IPv6"),
        ("kopeio", "Kopeio does not support IPv6"),
        ("flannel", "Flannel does not support IPv6"),
        ("kubeRouter", "kube-router does not support IPv6"),
        ("amazonVPC", "amazon-vpc-routed-eni networking does not support IPv6"),
        ("gcp", "GCP networking does not support IPv6"),
    ] {
        if networking.has(name) && is_v6(tree) {
            errors.push(FieldError::forbidden(&at.child(name), detail));
        }
    }
    for (name, cloud, detail) in [
        ("amazonVPC", "aws", "amazon-vpc-routed-eni networking is supported only in AWS"),
        ("gcp", "gce", "GCP networking is supported only when on GCP"),
    ] {
        if networking.has(name) && !provider.is(cloud) {
            errors.push(FieldError::forbidden(&at.child(name), detail));
        }
    }
    let encapsulation = networking.text("calico.encapsulationMode");
    if provider.is("azure") && !["", "vxlan"].contains(&encapsulation) {
        let detail = "Azure requires an encapsulationMode of \"vxlan\"";
        let at = at.child("calico").child("encapsulationMode");
        errors.push(FieldError::forbidden(&at, detail));
    }
}

fn is_v6(tree: &Value) -> bool {
    tree.text("networking.nonMasqueradeCIDR").contains(':')
}

fn uses_kube_proxy(tree: &Value) -> bool {
    tree.has("kubeProxy") && tree.opt_flag("kubeProxy.enabled") != Some(false)
}

fn validate_calico(tree: &Value, calico: &Value, errors: &mut ErrorList) {
    let at = spec("networking.calico");
    let v6 = is_v6(tree);
    let mut forbid =
        |field: &str, detail: &str| errors.push(FieldError::forbidden(&at.child(field), detail));
    if v6 && !["", "DoNothing"].contains(&calico.text("awsSrcDstCheck")) {
        forbid("awsSrcDstCheck", "awsSrcDstCheck may only be \"DoNothing\" for IPv6 clusters");
    }
    let encapsulation = calico.text("encapsulationMode");
    match (encapsulation, v6) {
        ("", _) | ("none", true) => {}
        (_, true) => forbid("encapsulationMode", "IPv6 requires an encapsulationMode of \"none\""),
        ("none", false) => {
            forbid(
                "encapsulationMode",
                "encapsulationMode \"none\" is only supported for IPv6 clusters",
            );
        }
        _ => {}
    }
    for (field, mode, detail) in [
        (
            "ipipMode",
            "ipip",
            "IP-in-IP encapsulation requires use of Calico's \"ipip\" encapsulation mode",
        ),
        (
            "vxlanMode",
            "vxlan",
            "VXLAN encapsulation requires use of Calico's \"vxlan\" encapsulation mode",
        ),
    ] {
        let used = !["", "Never"].contains(&calico.text(field));
        if used && !["", mode].contains(&encapsulation) {
            forbid(field, detail);
        }
    }
    if v6 && calico.flag("wireguardEnabled") {
        forbid("wireguardEnabled", "WireGuard is not supported on IPv6 clusters");
    }
    if calico.flag("bpfEnabled") && uses_kube_proxy(tree) {
        let detail = "calico in BPF mode (spec.networking.calico.bpfEnabled=true) requires kubeProxy to be disabled";
        errors.push(FieldError::forbidden(&spec("kubeProxy.enabled"), detail));
    }
    if let Some(replicas) = calico.opt_int("typhaReplicas").filter(|n| *n < 0) {
        let detail = format!(
            "Unable to set number of Typha replicas to less than 0, you've specified {replicas}"
        );
        errors.push(FieldError::invalid(&at.child("typhaReplicas"), replicas, detail));
    }
    for (field, v6) in [("ipv4AutoDetectionMethod", false), ("ipv6AutoDetectionMethod", true)] {
        validate_detection(calico.text(field), v6, &at.child(field), errors);
    }
}

/// Validates `first-found`, `can-reach=ADDRESS`, `interface=REGEX,…` or `skip-interface=REGEX,…`.
fn validate_detection(text: &str, v6: bool, at: &Path, errors: &mut ErrorList) {
    if text.is_empty() {
        return;
    }
    let mut refuse = |detail: String| errors.push(FieldError::invalid(at, text, detail));
    let (method, rest) = text.split_once('=').unwrap_or((text, ""));
    if rest.contains('=') {
        return refuse("malformed autodetection method".to_owned());
    }
    match method {
        "first-found" => {}
        "can-reach" => {
            if !rest.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == v6) {
                refuse(format!("must be a valid IPv{} address", if v6 { 6 } else { 4 }));
            }
        }
        "interface" | "skip-interface" => {
            if rest.split(',').next().is_none_or(|first| first.trim().is_empty()) {
                refuse(format!(
                    "'{method}=' must be followed by a comma separated list of interface regular expressions"
                ));
            }
            for part in rest.split(',').map(str::trim) {
                if let Err(error) = Regex::new(part) {
                    refuse(format!("regexp {part} does not compile: {error}"));
                }
            }
        }
        _ => refuse("unsupported autodetection method".to_owned()),
    }
}

fn validate_cilium(tree: &Value, cilium: &Value, errors: &mut ErrorList) {
    let at = spec("networking.cilium");
    validate_version(cilium.text("version"), &at.child("version"), errors);
    let mut forbid = |field: &str, detail: &str| {
        errors.push(FieldError::forbidden(&below(&at, field), detail));
    };
    let v6 = is_v6(tree);
    if cilium.flag("hubble.enabled") && !tree.flag("certManager.enabled") {
        forbid("hubble.enabled", "Hubble requires that cert manager is enabled");
    }
    if cilium.text("identityAllocationMode") == "kvstore" && !cilium.flag("etcdManaged") {
        forbid(
            "identityAllocationMode",
            "Cilium requires managed etcd to allocate identities on kvstore mode",
        );
    }
    if cilium.flag("bpfLBSockHostNSOnly") && !cilium.flag("bpfLBSock") {
        forbid("bpfLBSockHostNSOnly", "bpfLBSockHostNSOnly requires bpfLBSock to be enabled");
    }
    if cilium.flag("enableEncryption") && v6 {
        forbid("enableEncryption", "encryption is not supported on IPv6 clusters");
    }
    if !cilium.text("encryptionType").is_empty() && !cilium.flag("enableEncryption") {
        forbid("encryptionType", "encryptionType requires enableEncryption");
    }
    if cilium.flag("enableL7Proxy") && cilium.opt_flag("installIptablesRules") == Some(false) {
        forbid("enableL7Proxy", "Cilium L7 Proxy requires installIptablesRules.");
    }
    if cilium.text("ipam") == "eni" {
        if !tree.has("cloudProvider.aws") {
            forbid("ipam", "Cilum ENI IPAM is supported only in AWS");
        }
        if v6 {
            forbid("ipam", "Cilium ENI IPAM does not support IPv6");
        }
    }
    if cilium.flag("enableNodePort") && uses_kube_proxy(tree) {
        let detail = "When Cilium NodePort is enabled, kubeProxy must be disabled";
        errors.push(FieldError::forbidden(&spec("kubeProxy.enabled"), detail));
    }
    let own = tree.items("etcdClusters").iter().any(|etcd| etcd.text("name") == "cilium");
    if cilium.flag("etcdManaged") && !own {
        let detail = "Cilium with managed etcd requires a dedicated etcd cluster";
        errors.push(FieldError::required(&spec("etcdClusters"), detail));
    }
}

fn validate_version(text: &str, at: &Path, errors: &mut ErrorList) {
    if text.is_empty() {
        return;
    }
    let mut refuse = |detail| errors.push(FieldError::invalid(at, text, detail));
    let Some(plain) = text.strip_prefix('v') else {
        return refuse("Cilium version must be prefixed with 'v'");
    };
    let numbers: Vec<_> = plain.split(['-', '+']).next().unwrap_or_default().split('.').collect();
    if numbers.len() != 3 || numbers.iter().any(|n| n.parse::<u64>().is_err()) {
        refuse("Could not parse as semantic version");
    } else if numbers[1] != "18" {
        refuse("Only version 1.18 is supported");
    }
}
