//! Rules of Services that need no state. The API server allocates addresses and node ports.

use std::collections::{HashMap, HashSet};

use api_meta::{ErrorList, FieldError, Path, Tree as _, Warnings, validation};
use serde_json::{Value, json};

use super::{
    networking::{BAD_CIDR, check_endpoint_ip},
    node::is_cidr,
    status,
};
use crate::{
    fields::{
        Rule::{IsOneOf, OneOf, Text, Unique},
        check_ip, repeats_a_family, validate_one_of, validate_optional_one_of,
    },
    meta::NameRule,
    pod::check_port,
    strategy::Strategy,
    warnings,
};

pub(crate) static SERVICE: Strategy = Strategy {
    storage_path: Some("services/specs"),
    allocated: true,
    name: NameRule::Label,
    status: Some(|| json!({"loadBalancer": {}})),
    own_defaults: defaults,
    own_create: |service, _| {
        if service.blank("spec.clusterIPs") && !service.blank("spec.clusterIP") {
            let address = service.at("spec.clusterIP").clone();
            service.set("spec.clusterIPs", json!([address]));
        }
    },
    own_update: |new, old, _| {
        sync_addresses(new, old);
        keep_allocations(new, old);
        drop_foreign_fields(new, old);
    },
    check,
    fields: &[
        ("spec.ports[].appProtocol", Text(validation::qualified_name)),
        ("spec.ipFamilies", Unique),
        ("spec.ipFamilies[]", IsOneOf(&["IPv4", "IPv6"])),
        ("spec.trafficDistribution", OneOf(&["PreferClose", "PreferSameZone", "PreferSameNode"])),
        ("spec.loadBalancerClass", Text(validation::qualified_name)),
    ],
    check_update,
    check_status: |new, old, _, errors| status::check_service(new, old, errors),
    warnings: warn,
    selectable: &[
        ("spec.clusterIP", |s| s.text("spec.clusterIP").to_owned()),
        ("spec.type", |s| s.text("spec.type").to_owned()),
    ],
    create_on_update: true,
    ..Strategy::PLAIN
};

fn warn(service: &Value, _: Option<&Value>) -> Warnings {
    let kind = service.text("spec.type");
    let (external, headless) =
        (kind == "ExternalName", kind == "ClusterIP" && is_headless(service));
    let outside = !service.blank("spec.externalIPs");
    let hints = "service.kubernetes.io/topology-aware-hints";
    let path = Path::new("spec");
    let each = |list: &str, validate: fn(&str, &Path) -> Option<String>| {
        let items = service.at("spec").items(list).iter().enumerate();
        let judged = items.map(|(i, item)| {
            validate(item.as_str().unwrap_or_default(), &path.child(list).index(i))
        });
        judged.flatten().collect::<Vec<_>>()
    };
    let mut found = Warnings::new();
    if service.at("metadata.annotations").get(hints).is_some() {
        found.push(format!("annotation {hints} is deprecated, please use service.kubernetes.io/topology-mode instead"));
    }
    found.extend(each("clusterIPs", warnings::ip));
    for (applies, words) in [
        (
            !service.blank("spec.loadBalancerIP"),
            "spec.loadBalancerIP is ignored for headless services",
        ),
        (outside, "spec.externalIPs is ignored for headless services"),
        (
            service.text("spec.sessionAffinity") != "None",
            "spec.SessionAffinity is ignored for headless services",
        ),
    ] {
        if headless && applies {
            found.push(words.to_owned());
        }
    }
    found.extend(each("externalIPs", warnings::ip));
    if outside && !headless && !external {
        found.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
                .to_owned(),
        );
    }
    let balancer = service.text("spec.loadBalancerIP");
    found.extend(warnings::ip(balancer, &path.child("loadBalancerIP")));
    found.extend(each("loadBalancerSourceRanges", warnings::cidr));
    for (applies, words) in [
        (external && outside, "spec.externalIPs is ignored when spec.type is \"ExternalName\""),
        (
            !external && !service.blank("spec.externalName"),
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
        (
            service.text("spec.trafficDistribution") == "PreferClose",
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
    ] {
        if applies {
            found.push(words.to_owned());
        }
    }
    found
}

/// Reports whether the Service has cluster IPs.
pub fn needs_cluster_ip(service: &Value) -> bool {
    service.text("spec.type") != "ExternalName"
}

/// Reports whether the Service is headless: it has no cluster IP, and DNS returns its endpoints.
pub fn is_headless(service: &Value) -> bool {
    service.text("spec.clusterIP") == "None"
}

/// Reports whether the Service's ports need node ports.
pub fn needs_node_ports(service: &Value) -> bool {
    match service.text("spec.type") {
        "NodePort" => true,
        "LoadBalancer" => service.at("spec.allocateLoadBalancerNodePorts") != &Value::Bool(false),
        _ => false,
    }
}

/// Reports whether the Service needs a node port for health checks.
pub fn needs_health_check_port(service: &Value) -> bool {
    service.text("spec.type") == "LoadBalancer"
        && service.text("spec.externalTrafficPolicy") == "Local"
}

/// Reports whether the Service has ports or addresses outside of the cluster, for which `externalTrafficPolicy` acts.
fn is_external(service: &Value) -> bool {
    match service.text("spec.type") {
        "NodePort" | "LoadBalancer" => true,
        "ClusterIP" => !service.blank("spec.externalIPs"),
        _ => false,
    }
}

fn defaults(service: &mut Value) {
    let Some(spec) = service.at_mut("spec") else { return };
    for port in spec.items_mut("ports") {
        port.set_default("protocol", "TCP");
        if matches!(port.at("targetPort"), Value::Null)
            || *port.at("targetPort") == 0
            || port.at("targetPort") == ""
        {
            let number = port.at("port").clone();
            port.set("targetPort", number);
        }
    }
    match spec.text("sessionAffinity") {
        "ClientIP" => spec.set_default("sessionAffinityConfig.clientIP.timeoutSeconds", 10800),
        "None" => spec.set("sessionAffinityConfig", Value::Null),
        _ => {}
    }
    let kind = spec.text("type").to_owned();
    let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !spec.blank("externalIPs"));
    if external && spec.blank("externalTrafficPolicy") {
        spec.set("externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        spec.set_default("internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        spec.set_default("allocateLoadBalancerNodePorts", true);
        let ingress = service.items_mut("status.loadBalancer.ingress");
        ingress.filter(|ingress| !ingress.blank("ip")).for_each(|i| i.set_default("ipMode", "VIP"));
    }
}

/// Applies a change of `clusterIP` by an old client to `clusterIPs`.
fn sync_addresses(new: &mut Value, old: &Value) {
    let same_list = new.at("spec.clusterIPs") == old.at("spec.clusterIPs");
    if new.at("spec.clusterIP") == old.at("spec.clusterIP") || !same_list {
        return;
    }
    if new.blank("spec.clusterIP") {
        new.set("spec.clusterIPs", Value::Null);
    } else {
        let address = new.at("spec.clusterIP").clone();
        new.set("spec.clusterIPs", json!([address]));
    }
}

/// Keeps the allocations if a client replaces a Service without them.
fn keep_allocations(new: &mut Value, old: &Value) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        if new.blank("spec.clusterIP") {
            new.keep(old, "spec.clusterIP");
        }
        let same = new.at("spec.clusterIP") == old.at("spec.clusterIP");
        if new.blank("spec.clusterIPs") && same {
            new.keep(old, "spec.clusterIPs");
        }
        for field in ["spec.ipFamilies", "spec.ipFamilyPolicy"] {
            if new.blank(field) && same {
                new.keep(old, field);
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        let mut used: HashSet<i64> =
            new.items("spec.ports").iter().map(|p| p.int("nodePort")).collect();
        let mut before: HashMap<(&Value, &Value), &Value> = HashMap::new();
        for port in old.items("spec.ports") {
            before.entry((port.at("port"), port.at("protocol"))).or_insert(port);
        }
        for port in new.items_mut("spec.ports") {
            let before = before.get(&(port.at("port"), port.at("protocol")));
            let number = before.map_or(0, |p| p.int("nodePort"));
            if port.int("nodePort") == 0 && number != 0 && used.insert(number) {
                port.set("nodePort", number);
            }
        }
    }
    if needs_health_check_port(old)
        && needs_health_check_port(new)
        && new.int("spec.healthCheckNodePort") == 0
    {
        new.keep(old, "spec.healthCheckNodePort");
    }
}

/// After a change of type, removes fields that only the old type has, unless the client changed them.
fn drop_foreign_fields(new: &mut Value, old: &Value) {
    let same = |new: &Value, field: &str| new.at(field) == old.at(field);
    if needs_cluster_ip(old) && !needs_cluster_ip(new) && same(new, "spec.clusterIPs") {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            new.set(&format!("spec.{field}"), Value::Null);
        }
    }
    let ports = |service: &Value| -> Vec<i64> {
        service.items("spec.ports").iter().map(|p| p.int("nodePort")).collect()
    };
    if needs_node_ports(old) && !needs_node_ports(new) && ports(new) == ports(old) {
        for port in new.items_mut("spec.ports") {
            port.set("nodePort", Value::Null);
        }
    }
    if needs_health_check_port(old) && !needs_health_check_port(new) {
        new.set("spec.healthCheckNodePort", Value::Null);
    }
    let balancer = |service: &Value| service.text("spec.type") == "LoadBalancer";
    if balancer(old) && !balancer(new) {
        for field in ["spec.allocateLoadBalancerNodePorts", "spec.loadBalancerClass"] {
            if same(new, field) {
                new.set(field, Value::Null);
            }
        }
        new.set("status.loadBalancer", json!({}));
    }
    if is_external(old) && !is_external(new) && same(new, "spec.externalTrafficPolicy") {
        new.set("spec.externalTrafficPolicy", Value::Null);
    }
    if needs_cluster_ip(old) && !needs_cluster_ip(new) && same(new, "spec.internalTrafficPolicy") {
        new.set("spec.internalTrafficPolicy", Value::Null);
    }
}

fn check(service: &Value, errors: &mut ErrorList) {
    const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    let (spec, path) = (service.at("spec"), Path::new("spec"));
    validate_one_of(spec, "type", &TYPES, &path, errors);
    validate_one_of(spec, "sessionAffinity", &["ClientIP", "None"], &path, errors);
    let kind = spec.text("type");
    if spec.items("ports").is_empty() && !is_headless(service) && kind != "ExternalName" {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    check_type(service, kind, &path, errors);
    check_ports(spec, kind, &path.child("ports"), errors);
    let labels = crate::meta::strings(spec.at("selector"));
    errors.append(&mut validation::labels(&labels, &path.child("selector")));
    for field in ["clusterIPs", "externalIPs"] {
        for (i, address) in spec.items(field).iter().enumerate() {
            let text = address.as_str().unwrap_or_default();
            let path = path.child(field).index(i);
            if field == "externalIPs" {
                check_endpoint_ip(text, &path, errors);
            } else if text != "None" {
                check_ip(text, &path, errors);
            }
        }
    }
    check_source_ranges(service, errors);
    if spec.has("externalTrafficPolicy") && !is_external(service) {
        let found = spec.at("externalTrafficPolicy").clone();
        let detail = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(&path.child("externalTrafficPolicy"), found, detail));
    }
    let health = spec.int("healthCheckNodePort");
    if health != 0 && !(1..=65535).contains(&health) {
        let detail = "must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(&path.child("healthCheckNodePort"), health, detail));
    }
    validate_optional_one_of(spec, "externalTrafficPolicy", &["Cluster", "Local"], &path, errors);
    validate_optional_one_of(spec, "internalTrafficPolicy", &["Cluster", "Local"], &path, errors);
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    validate_optional_one_of(spec, "ipFamilyPolicy", &policies, &path, errors);
    let timeout = "sessionAffinityConfig.clientIP.timeoutSeconds";
    if let Some(seconds) = spec.opt_int(timeout)
        && !(1..=86400).contains(&seconds)
    {
        let detail = "must be greater than 0 and less than 86400";
        errors.push(FieldError::invalid(&path.child(timeout), seconds, detail));
    }
}

/// Validates the ranges that a load balancer accepts connections from: the field, or its older annotation.
fn check_source_ranges(service: &Value, errors: &mut ErrorList) {
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    // Upstream reports the field with this spelling.
    let path = Path::new("spec").child("LoadBalancerSourceRanges");
    let ranges = service.items("spec.loadBalancerSourceRanges");
    let annotation = service.at("metadata.annotations").get(ANNOTATION).and_then(Value::as_str);
    let annotation_path = Path::new("metadata").child("annotations").key(ANNOTATION);
    if ranges.is_empty() {
        let text = annotation.unwrap_or_default().trim();
        if !text.is_empty() && !text.split(',').all(|range| is_cidr(range.trim())) {
            errors.push(FieldError::invalid(&annotation_path, text, BAD_CIDR));
        }
    }
    for (i, range) in ranges.iter().enumerate() {
        let text = range.as_str().unwrap_or_default();
        if !is_cidr(text.trim()) {
            errors.push(FieldError::invalid(&path.index(i), text, BAD_CIDR));
        }
    }
    let used = if ranges.is_empty() { annotation.map(|_| annotation_path) } else { Some(path) };
    if let Some(path) = used.filter(|_| service.text("spec.type") != "LoadBalancer") {
        let detail = "may only be used when `type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden(&path, detail));
    }
}

fn check_type(service: &Value, kind: &str, path: &Path, errors: &mut ErrorList) {
    let spec = service.at("spec");
    let addresses = path.child("clusterIPs");
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(service) => errors.push(FieldError::invalid(
            &addresses.index(0),
            "None",
            format!("may not be set to 'None' for {kind} services"),
        )),
        "ExternalName" => {
            if !spec.blank("clusterIPs") || !spec.blank("clusterIP") {
                let detail = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(&addresses, detail));
            }
            for field in ["ipFamilies", "ipFamilyPolicy"].into_iter().filter(|f| spec.has(f)) {
                let detail = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(&path.child(field), detail));
            }
            let name = spec.text("externalName").trim_end_matches('.');
            let path = path.child("externalName");
            if name.is_empty() {
                errors.push(FieldError::required(&path, ""));
            } else {
                for message in validation::dns1123_subdomain(name) {
                    errors.push(FieldError::invalid(&path, name, message));
                }
            }
        }
        _ => {}
    }
    if kind != "LoadBalancer" {
        if spec.has("allocateLoadBalancerNodePorts") {
            let detail = "may only be used when `type` is 'LoadBalancer'";
            let path = path.child("allocateLoadBalancerNodePorts");
            errors.push(FieldError::forbidden(&path, detail));
        }
        if spec.has("loadBalancerClass") {
            let detail = "may only be used when `type` is 'LoadBalancer'";
            errors.push(FieldError::forbidden(&path.child("loadBalancerClass"), detail));
        }
    }
    if spec.int("healthCheckNodePort") != 0 && !needs_health_check_port(service) {
        errors.push(FieldError::invalid(
            &path.child("healthCheckNodePort"),
            spec.int("healthCheckNodePort"),
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ));
    }
    let first = spec.items("clusterIPs").first().cloned().unwrap_or_default();
    if !spec.blank("clusterIPs") && spec.at("clusterIP") != &first {
        let detail = "first value must match `clusterIP`";
        errors.push(FieldError::invalid(&addresses, spec.at("clusterIPs").clone(), detail));
    }
    let list: Vec<&str> = spec.texts("clusterIPs").collect();
    let detail = if list.len() > 1 && list.contains(&"None") {
        "'None' must be the first and only value"
    } else if repeats_a_family(list.iter().copied()) && !list.contains(&"None") {
        "may specify no more than one IP for each IP family"
    } else {
        return;
    };
    errors.push(FieldError::invalid(&addresses, spec.at("clusterIPs").clone(), detail));
}

fn check_ports(spec: &Value, kind: &str, path: &Path, errors: &mut ErrorList) {
    let ports = spec.items("ports");
    let (mut names, mut numbers, mut node_ports) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let (name, name_path) = (port.text("name"), path.child("name"));
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(&name_path, ""));
            }
        } else {
            for message in validation::dns1123_label(name) {
                errors.push(FieldError::invalid(&name_path, name, message));
            }
            if !names.insert(name) {
                errors.push(FieldError::duplicate(&name_path, name));
            }
        }
        for message in validation::port_number(port.int("port")) {
            errors.push(FieldError::invalid(&path.child("port"), port.int("port"), message));
        }
        validate_one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
        check_port(port.at("targetPort"), &path.child("targetPort"), errors);
        if !numbers.insert((port.int("port"), port.text("protocol"))) {
            let value = json!({"protocol": port.at("protocol"), "port": port.at("port")});
            errors.push(FieldError::duplicate(&path, value));
        }
        let node_port = port.int("nodePort");
        if node_port == 0 {
            continue;
        }
        if kind == "ClusterIP" {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(&path.child("nodePort"), detail));
        }
        if !node_ports.insert((node_port, port.text("protocol"))) {
            errors.push(FieldError::duplicate(&path.child("nodePort"), node_port));
        }
    }
}

fn check_update(new: &Value, old: &Value, errors: &mut ErrorList) {
    let stays = needs_cluster_ip(new) && needs_cluster_ip(old);
    let (now, before) = (new.items("spec.clusterIPs"), old.items("spec.clusterIPs"));
    if stays && !before.is_empty() && now.first() != before.first() {
        errors.push(FieldError::invalid(
            &Path::new("spec").child("clusterIPs").index(0),
            new.at("spec.clusterIPs").clone(),
            "may not change once set",
        ));
    }
    let health = "spec.healthCheckNodePort";
    if needs_health_check_port(new)
        && needs_health_check_port(old)
        && new.at(health) != old.at(health)
    {
        errors.push(FieldError::forbidden(&Path::new(health), "field is immutable"));
    }
    let balancer = |s: &Value| s.text("spec.type") == "LoadBalancer";
    if balancer(new)
        && balancer(old)
        && new.at("spec.loadBalancerClass") != old.at("spec.loadBalancerClass")
    {
        errors.push(FieldError::invalid(
            &Path::new("spec").child("loadBalancerClass"),
            new.at("spec.loadBalancerClass").clone(),
            "may not change once set",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::kinds::{
        strategy,
        tests::{made, updated},
    };

    #[test]
    fn keeps_allocations_of_services() {
        let services = strategy("", "services");
        let mut old =
            made("", "services", json!({"spec": {"type": "NodePort", "ports": [{"port": 80}]}}));
        old["spec"]["clusterIP"] = json!("10.0.0.9");
        old["spec"]["clusterIPs"] = json!(["10.0.0.9"]);
        old["spec"]["ports"][0]["nodePort"] = json!(30000);
        let bare = |o: &mut Value| {
            let spec = o["spec"].as_object_mut().unwrap();
            spec.remove("clusterIP");
            spec.remove("clusterIPs");
            spec["ports"][0].as_object_mut().unwrap().remove("nodePort");
        };
        let (new, errors) = updated(services, &old, bare);
        assert_eq!((new, errors.as_str()), (old.clone(), "[]"));
        let (new, errors) = updated(services, &old, |o| o["spec"]["type"] = json!("ClusterIP"));
        assert_eq!((new["spec"]["ports"][0].get("nodePort"), errors.as_str()), (None, "[]"));
        assert_eq!(new["spec"].get("externalTrafficPolicy"), None);
        let (_, errors) = updated(services, &old, |o| {
            o["spec"]["clusterIP"] = json!("10.0.0.8");
        });
        assert_eq!(
            errors,
            "spec.clusterIPs[0]: Invalid value: [\"10.0.0.8\"]: may not change once set"
        );
    }
}
