//! Validates the settings of Kubernetes' components and of the add-ons that kOps manages.

use std::net::IpAddr;

use api_config::GoDuration;
use api_meta::{Cidr, ErrorList, FieldError, Path, Tree as _};
use serde_json::Value;

use super::{access, machine, paths::spec, provider::Provider, values::arn_resource};
use crate::object::Object;

pub(super) fn validate(cluster: &Object, errors: &mut ErrorList) {
    let tree = &cluster.spec;
    for kubelet in ["kubelet", "controlPlaneKubelet"] {
        if let Some(settings) = tree.get(kubelet) {
            validate_kubelet(settings, &spec(kubelet), errors);
        }
    }
    validate_kube_proxy(tree, errors);
    validate_controller_manager(tree, errors);
    validate_dns(tree, errors);
    validate_add_ons(cluster, errors);
    validate_aws_add_ons(tree, errors);
    validate_permissions(tree, errors);
    validate_issuer(tree, errors);
    let assets = spec("assets.containerProxy");
    if tree.has("assets.containerProxy") && tree.has("assets.containerRegistry") {
        let detail = "containerProxy cannot be used in conjunction with containerRegistry";
        errors.push(FieldError::forbidden(&assets, detail));
    }
}

fn duration(tree: &Value, field: &str) -> Option<i64> {
    tree.text(field).parse::<GoDuration>().ok().map(GoDuration::nanos)
}

fn validate_kubelet(kubelet: &Value, at: &Path, errors: &mut ErrorList) {
    const SECOND: i64 = 1_000_000_000;
    let critical = "shutdownGracePeriodCriticalPods";
    if let Some(reserved) = duration(kubelet, critical) {
        match duration(kubelet, "shutdownGracePeriod") {
            None => {
                let detail = "shutdownGracePeriodCriticalPods require shutdownGracePeriod";
                errors.push(FieldError::forbidden(&at.child(critical), detail));
            }
            Some(whole) if whole < reserved => {
                let detail =
                    "shutdownGracePeriodCriticalPods cannot be greater than shutdownGracePeriod";
                let value = kubelet.text(critical);
                errors.push(FieldError::invalid(&at.child(critical), value, detail));
            }
            Some(_) => {}
        }
    }
    let restart = "crashLoopBackOffMaxContainerRestartPeriod";
    if duration(kubelet, restart).is_some_and(|d| !(SECOND..=300 * SECOND).contains(&d)) {
        let detail =
            "crashLoopBackOffMaxContainerRestartPeriod must be a value between 1s and 300s";
        errors.push(FieldError::invalid(&at.child(restart), kubelet.text(restart), detail));
    }
}

fn validate_kube_proxy(tree: &Value, errors: &mut ErrorList) {
    for (number, text) in tree.texts("kubeProxy.ipvsExcludeCIDRs").enumerate() {
        if text.parse::<Cidr>().is_err() {
            let at = spec("kubeProxy.ipvsExcludeCIDRs").index(number);
            errors.push(FieldError::invalid(&at, text, "Invalid network CIDR"));
        }
    }
    let master = tree.text("kubeProxy.master");
    let host = master.split_once("://").filter(|(scheme, _)| !scheme.is_empty());
    if !master.is_empty() && host.is_none_or(|(_, rest)| rest.is_empty() || rest.starts_with('/')) {
        let detail = "Not a valid APIServer URL";
        errors.push(FieldError::invalid(&spec("kubeProxy.master"), master, detail));
    }
}

fn validate_controller_manager(tree: &Value, errors: &mut ErrorList) {
    let text = tree.text("kubeControllerManager.clusterCIDR");
    if text.is_empty() {
        return;
    }
    let at = spec("kubeControllerManager.clusterCIDR");
    let outside = tree.text("networking.nonMasqueradeCIDR");
    match (text.parse::<Cidr>(), outside.parse::<Cidr>()) {
        (Err(_), _) => {
            let detail = "cluster had an invalid kubeControllerManager.clusterCIDR";
            errors.push(FieldError::invalid(&at, text, detail));
        }
        (Ok(pods), Ok(range)) if !range.network().covers(pods.network()) => {
            let detail = format!(
                "kubeControllerManager.clusterCIDR {text:?} must be a subnet of nonMasqueradeCIDR {outside:?}"
            );
            errors.push(FieldError::forbidden(&at, detail));
        }
        _ => {}
    }
}

fn validate_dns(tree: &Value, errors: &mut ErrorList) {
    let server = tree.text("kubeDNS.serverIP");
    if !server.is_empty() {
        validate_dns_server(tree, server, errors);
    }
    let wrong = "Invalid nameserver given, should be a valid ip address";
    for (number, text) in tree.texts("kubeDNS.upstreamNameservers").enumerate() {
        if text.parse::<IpAddr>().is_err() {
            let at = spec("kubeDNS.upstreamNameservers").index(number);
            errors.push(FieldError::invalid(&at, text, wrong));
        }
    }
    let domains = tree.at("kubeDNS.stubDomains").as_object();
    for (domain, servers) in domains.into_iter().flatten() {
        let at = spec("kubeDNS.stubDomains").key(domain);
        let servers = servers.as_array().map(Vec::as_slice).unwrap_or_default();
        if servers.is_empty() {
            let detail = "No nameservers specified for the stub domain";
            errors.push(FieldError::invalid(&at, domain.as_str(), detail));
        }
        for (number, text) in servers.iter().filter_map(Value::as_str).enumerate() {
            if text.parse::<IpAddr>().is_err() {
                errors.push(FieldError::invalid(&at.index(number), text, wrong));
            }
        }
    }
}

fn validate_dns_server(tree: &Value, server: &str, errors: &mut ErrorList) {
    let at = spec("kubeDNS.serverIP");
    let Ok(address) = server.parse::<IpAddr>() else {
        let detail = "Cluster had an invalid kubeDNS.serverIP";
        errors.push(FieldError::invalid(&at, server, detail));
        return;
    };
    let services = tree.text("networking.serviceClusterIPRange");
    if services.parse::<Cidr>().is_ok_and(|range| !range.network().contains(address)) {
        let detail =
            format!("ServiceClusterIPRange {services:?} must contain the DNS Server IP {server:?}");
        errors.push(FieldError::forbidden(&at, detail));
    }
    let local = tree.text("kubeDNS.nodeLocalDNS.localIP");
    for (kubelet, name) in [("kubelet", "Kubelet"), ("controlPlaneKubelet", "ControlPlaneKubelet")]
    {
        let field = format!("{kubelet}.clusterDNS");
        let known = [server, local].contains(&tree.text(&field));
        if tree.has(kubelet) && tree.has("kubeDNS.nodeLocalDNS") && !known {
            let detail = format!(
                "{name} ClusterDNS did not match cluster kubeDNS.serverIP or nodeLocalDNS.localIP"
            );
            errors.push(FieldError::forbidden(&spec(&field), detail));
        }
    }
    let provider = tree.text("kubeDNS.provider");
    if tree.flag("kubeDNS.nodeLocalDNS.enabled") && !["", "CoreDNS"].contains(&provider) {
        let detail = "KubeDNS provider must be set to CoreDNS if NodeLocalDNS addon is enabled";
        errors.push(FieldError::forbidden(&spec("kubeDNS.provider"), detail));
    }
}

fn validate_add_ons(cluster: &Object, errors: &mut ErrorList) {
    let tree = &cluster.spec;
    let certificates = tree.flag("certManager.enabled");
    let mut forbid = |field: &str, detail| errors.push(FieldError::forbidden(&spec(field), detail));
    let provider = Provider::of(cluster);
    if tree.text("clusterAutoscaler.expander") == "price" && !provider.is("gce") {
        let detail = "Cluster autoscaler price expander is only supported on GCE";
        forbid("clusterAutoscaler.expander", detail);
    }
    if tree.has("clusterAutoscaler") && provider.is("openstack") {
        forbid("clusterAutoscaler", "Cluster autoscaler is not supported on OpenStack");
    }
    if !["", "kube-system"].contains(&tree.text("externalDNS.watchNamespace")) {
        let detail = "externalDNS must watch either all namespaces or only kube-system";
        forbid("externalDNS.watchNamespace", detail);
    }
    let no_dns = tree.text("networking.topology.dns") == "None";
    if no_dns && tree.text("externalDNS.provider") == "external-dns" {
        forbid("externalDNS.provider", "external-dns requires public or private DNS topology");
    }
    if tree.flag("metricsServer.enabled") && !tree.flag("metricsServer.insecure") && !certificates {
        let detail = "Secure metrics server requires that cert manager is enabled";
        forbid("metricsServer.insecure", detail);
    }
    if tree.flag("snapshotController.enabled") && !certificates {
        let detail = "Snapshot controller requires that cert manager is enabled";
        forbid("snapshotController.enabled", detail);
    }
    if certificates
        && !tree.items("certManager.hostedZoneIDs").is_empty()
        && !tree.flag("iam.useServiceAccountExternalPermissions")
    {
        let detail = "Cert Manager requires that service accounts use external permissions in order to do dns-01 \
                      validation";
        forbid("certManager", detail);
    }
}

fn validate_aws_add_ons(tree: &Value, errors: &mut ErrorList) {
    let Some(aws) = tree.opt_at("cloudProvider.aws") else { return };
    let at = spec("cloudProvider.aws");
    let mut forbid = |field: &str, detail| {
        let at = field.split('.').fold(at.clone(), |at, name| at.child(name));
        errors.push(FieldError::forbidden(&at, detail));
    };
    let certificates = tree.flag("certManager.enabled");
    if aws.flag("loadBalancerController.enabled") && !certificates {
        let detail = "AWS Load Balancer Controller requires that cert manager is enabled";
        forbid("loadBalancerController", detail);
    }
    if aws.flag("podIdentityWebhook.enabled") && !certificates {
        let detail = "EKS Pod Identity Webhook requires that cert manager is enabled";
        forbid("podIdentityWebhook", detail);
    }
    if let Some(handler) = aws.get("nodeTerminationHandler") {
        if handler.opt_flag("enabled") != Some(false) && tree.flag("karpenter.enabled") {
            let detail = "nodeTerminationHandler cannot be used in conjunction with Karpenter";
            forbid("nodeTerminationHandler", detail);
        }
        let queue = handler.flag("enabled")
            && handler.opt_flag("enableSQSTerminationDraining") != Some(false);
        if queue && handler.opt_flag("enableSpotInterruptionDraining") == Some(false) {
            let detail = "spot interruption draining cannot be disabled in Queue Processor mode";
            forbid("nodeTerminationHandler.enableSpotInterruptionDraining", detail);
        }
        let monitors = handler.flag("enableRebalanceMonitoring");
        if queue && monitors && !handler.flag("enableRebalanceDraining") {
            let detail = "rebalance events can only drain in Queue Processor mode";
            forbid("nodeTerminationHandler.enableRebalanceMonitoring", detail);
        }
    }
    if let Some(pool) = aws.get("warmPool") {
        let (least, most) = (pool.int("minSize"), pool.opt_int("maxSize"));
        if most.is_some_and(|most| most >= least.max(0))
            && !pool.items("additionalImages").is_empty()
        {
            let detail = "warm pool additional images can only be set in the instance group spec";
            forbid("warmPool.additionalImages", detail);
        }
        machine::validate_pool_sizes(least, most, &at.child("warmPool"), errors);
    }
}

fn validate_permissions(tree: &Value, errors: &mut ErrorList) {
    if tree.flag("iam.legacy") {
        let detail = "legacy IAM permissions are no longer supported";
        errors.push(FieldError::forbidden(&spec("iam.legacy"), detail));
    }
    if tree.flag("karpenter.enabled") && !tree.flag("iam.useServiceAccountExternalPermissions") {
        let detail = "Karpenter requires that service accounts use external permissions";
        errors.push(FieldError::forbidden(&spec("karpenter.enabled"), detail));
    }
    let policies = tree.at("externalPolicies").as_object();
    for (role, policies) in policies.into_iter().flatten() {
        let at = spec("externalPolicies");
        if !access::ROLES.contains(&role.as_str()) {
            errors.push(FieldError::not_supported(&at, role.as_str(), &access::ROLES));
        }
        for arn in policies.as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !arn_resource(arn).is_some_and(|resource| resource.starts_with("policy/")) {
                let detail = "Policy must be a valid AWS ARN such as \
                              arn:aws:iam::123456789012:policy/KopsExamplePolicy";
                errors.push(FieldError::invalid(&at.child(role), arn, detail));
            }
        }
    }
}

/// Validates the location where the service account issuer publishes its keys.
fn validate_issuer(tree: &Value, errors: &mut ErrorList) {
    let Some(discovery) = tree.get("serviceAccountIssuerDiscovery") else { return };
    let at = spec("serviceAccountIssuerDiscovery");
    let (store, service) = (discovery.text("discoveryStore"), discovery.get("discoveryService"));
    if !store.is_empty() && service.is_some() {
        let detail = "Only one of discoveryStore or discoveryService may be specified";
        errors.push(FieldError::forbidden(&at.child("discoveryStore"), detail));
    }
    let problem = match store.split_once("://") {
        _ if store.is_empty() => None,
        Some(("s3", rest)) if rest.split('/').next().unwrap_or_default().contains('.') => {
            Some("Bucket name cannot contain dots")
        }
        // Upstream's tests use stores in memory; completion accepts only stores that machines can read.
        Some(("s3" | "gs" | "memfs", _)) => None,
        Some(_) => Some("S3 is the only supported VFS for discoveryStore"),
        None => Some("not a valid VFS path"),
    };
    if let Some(detail) = problem {
        errors.push(FieldError::invalid(&at.child("discoveryStore"), store, detail));
    }
    if service.is_some_and(|service| service.text("url").is_empty()) {
        let detail = "discoveryService URL must be specified";
        errors.push(FieldError::required(&at.child("discoveryService").child("url"), detail));
    }
    if discovery.flag("enableAWSOIDCProvider") && store.is_empty() && service.is_none() {
        let detail = "AWS OIDC Provider requires a discoveryStore or discoveryService to be set";
        errors.push(FieldError::forbidden(&at.child("enableAWSOIDCProvider"), detail));
    }
}
