//! The environment variables of Services, modelled on Docker links.

use std::collections::BTreeMap;

/// The fields of a Service that its variables need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The cluster IP; empty or `None` for a headless Service.
    pub cluster_ip: String,
    /// The ports, in order.
    pub ports: Vec<Port>,
}

/// A port of a Service. The first port also has variables without a port name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The name; may be empty.
    pub name: String,
    /// The port number.
    pub port: i32,
    /// The protocol; empty for TCP.
    pub protocol: String,
}

/// Returns the variables of the namespace's Services if `links` is set, and those of the API server's Service in any
/// case.
pub fn variables<'a>(
    services: impl Iterator<Item = &'a Service>,
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        // Headless Services have no address.
        if service.cluster_ip.is_empty() || service.cluster_ip == "None" {
            continue;
        }
        let master = service.namespace == "default" && service.name == "kubernetes";
        if service.namespace == namespace && links {
            chosen.insert(&service.name, service);
        } else if master {
            chosen.entry(&service.name).or_insert(service);
        }
    }
    let mut variables = BTreeMap::new();
    for service in chosen.values() {
        of_service(service, &mut variables);
    }
    variables
}

fn of_service(service: &Service, variables: &mut BTreeMap<String, String>) {
    let prefix = variable_prefix(&service.name);
    let ip = &service.cluster_ip;
    let Some(first) = service.ports.first() else { return };
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
    variables.insert(format!("{prefix}_SERVICE_HOST"), ip.clone());
    variables.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for (place, port) in service.ports.iter().enumerate() {
        if !port.name.is_empty() {
            variables.insert(
                format!("{prefix}_SERVICE_PORT_{}", variable_prefix(&port.name)),
                port.port.to_string(),
            );
        }
        let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
        if place == 0 {
            variables.insert(format!("{prefix}_PORT"), url.clone());
        }
        let link = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        variables.insert(link.clone(), url);
        variables.insert(format!("{link}_PROTO"), protocol.to_lowercase());
        variables.insert(format!("{link}_PORT"), port.port.to_string());
        variables.insert(format!("{link}_ADDR"), ip.clone());
    }
}

fn variable_prefix(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}
