//! Tables of Services, endpoints, Ingresses, NetworkPolicies and IP addresses.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    column::{AGE, NAME, Table, age, name, text},
    format,
};

pub(super) static SERVICES: Table = Table {
    columns: &[
        NAME,
        text("Type"),
        text("Cluster-IP"),
        text("External-IP"),
        text("Port(s)"),
        AGE,
        text("Selector").wide(),
    ],
    cells: |service, now| {
        let addresses = service.items("spec.clusterIPs").first().and_then(Value::as_str);
        let address = addresses.unwrap_or(service.text("spec.clusterIP"));
        vec![
            name(service),
            json!(service.text("spec.type")),
            json!(format::or(address, "<none>")),
            json!(external_address(service)),
            json!(ports(service)),
            age(service, now),
            json!(format::labels(service.at("spec.selector"))),
        ]
    },
};

fn external_address(service: &Value) -> String {
    let list: Vec<&str> = service.texts("spec.externalIPs").collect();
    let list = list.join(",");
    match service.text("spec.type") {
        "ClusterIP" | "NodePort" => format::or(&list, "<none>"),
        "LoadBalancer" => {
            let all: Vec<String> = [format::balancer(service), list]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect();
            format::or(&all.join(","), "<pending>")
        }
        "ExternalName" => service.text("spec.externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

fn ports(service: &Value) -> String {
    let list: Vec<String> = service
        .items("spec.ports")
        .iter()
        .map(|port| {
            let (number, protocol) = (port.int("port"), port.text("protocol"));
            match port.int("nodePort") {
                0 => format!("{number}/{protocol}"),
                node => format!("{number}:{node}/{protocol}"),
            }
        })
        .collect();
    format::or(&list.join(","), "<none>")
}

pub(super) static ENDPOINTS: Table = Table {
    columns: &[NAME, text("Endpoints"), AGE],
    cells: |endpoints, now| {
        let subsets = endpoints.items("subsets");
        let count =
            |subset: &Value| subset.items("addresses").len() * subset.items("ports").len().max(1);
        let shown = format::join_few(
            subsets.iter().flat_map(endpoints_of),
            subsets.iter().map(count).sum(),
            "<none>",
        );
        vec![name(endpoints), json!(shown), age(endpoints, now)]
    },
};

/// Returns every address of a subset with every port. The iterator is lazy, because a subset of a hundred kilobytes can
/// have a million pairs.
fn endpoints_of(subset: &Value) -> Box<dyn Iterator<Item = String> + '_> {
    let addresses = subset.items("addresses").iter().map(|address| address.text("ip"));
    if subset.blank("ports") {
        return Box::new(addresses.map(str::to_owned));
    }
    Box::new(subset.items("ports").iter().flat_map(move |port| {
        addresses.clone().map(|ip| {
            if ip.contains(':') {
                format!("[{ip}]:{}", port.int("port"))
            } else {
                format!("{ip}:{}", port.int("port"))
            }
        })
    }))
}

pub(super) static ENDPOINT_SLICES: Table = Table {
    columns: &[NAME, text("AddressType"), text("Ports"), text("Endpoints"), AGE],
    cells: |slice, now| {
        let ports: Vec<String> =
            slice.items("ports").iter().map(|p| format::format_scalar(p.at("port"), "*")).collect();
        let addresses: Vec<String> = slice
            .items("endpoints")
            .iter()
            .flat_map(|e| e.items("addresses"))
            .map(|a| format::format_scalar(a, ""))
            .collect();
        vec![
            name(slice),
            json!(slice.text("addressType")),
            json!(format::few(&ports, "<unset>")),
            json!(format::few(&addresses, "<unset>")),
            age(slice, now),
        ]
    },
};

pub(super) static INGRESSES: Table = Table {
    columns: &[NAME, text("Class"), text("Hosts"), text("Address"), text("Ports"), AGE],
    cells: |ingress, now| {
        let hosts: Vec<String> = ingress
            .items("spec.rules")
            .iter()
            .map(|rule| rule.text("host").to_owned())
            .filter(|host| !host.is_empty())
            .collect();
        let ports = if ingress.blank("spec.tls") { "80" } else { "80, 443" };
        vec![
            name(ingress),
            json!(format::or(ingress.text("spec.ingressClassName"), "<none>")),
            json!(format::few(&hosts, "*")),
            json!(format::balancer(ingress)),
            json!(ports),
            age(ingress, now),
        ]
    },
};

pub(super) static INGRESS_CLASSES: Table = Table {
    columns: &[NAME, text("Controller"), text("Parameters"), AGE],
    cells: |class, now| {
        let parameters = class.at("spec.parameters");
        let (kind, group) = (parameters.text("kind"), parameters.text("apiGroup"));
        let shown = match (parameters.is_null(), group) {
            (true, _) => "<none>".to_owned(),
            (_, "") => format!("{kind}/{}", parameters.text("name")),
            (_, group) => format!("{kind}.{group}/{}", parameters.text("name")),
        };
        let annotation = "ingressclass.kubernetes.io/is-default-class";
        let is_default = class.at("metadata.annotations").text(&[annotation][..]) == "true";
        let suffix = if is_default { " (default)" } else { "" };
        vec![
            json!(format!("{}{suffix}", class.name())),
            json!(class.text("spec.controller")),
            json!(shown),
            age(class, now),
        ]
    },
};

pub(super) static NETWORK_POLICIES: Table = Table {
    columns: &[NAME, text("Pod-Selector"), AGE],
    cells: |policy, now| {
        let selector = format::selector(policy.at("spec.podSelector"));
        vec![name(policy), json!(selector), age(policy, now)]
    },
};

pub(super) static IP_ADDRESSES: Table = Table {
    columns: &[NAME, text("ParentRef")],
    cells: |address, _| {
        let parent = address.at("spec.parentRef");
        let resource = match parent.text("group") {
            "" => parent.text("resource").to_owned(),
            group => format!("{}.{group}", parent.text("resource")),
        };
        let parts = [resource.as_str(), parent.text("namespace"), parent.text("name")];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        vec![name(address), json!(format::or(&parts.join("/"), "<none>"))]
    },
};

pub(super) static SERVICE_CIDRS: Table = Table {
    columns: &[NAME, text("CIDRs"), AGE],
    cells: |cidr, now| {
        let list: Vec<&str> = cidr.texts("spec.cidrs").collect();
        vec![name(cidr), json!(list.join(",")), age(cidr, now)]
    },
};
