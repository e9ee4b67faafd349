//! Resolves the target of a proxied request to an address and a port from the API's objects.
//!
//! The client's input selects among them, and never becomes part of an address. As upstream, loopback, link-local,
//! multicast and unspecified addresses are rejected: a user who may change a status must not be able to direct the API
//! server to its own machine or link.

use std::net::{IpAddr, SocketAddr};

use api_meta::{GroupResource, Objects, Status, StatusReason, Tree as _, special, validation};
use serde_json::Value;

use crate::request::ResourcePath;

/// The default port of a kubelet, if its Node has none.
const KUBELET_PORT: u16 = 10250;

/// The target of a proxied request.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// `true` if the connection uses TLS.
    pub(crate) encrypted: bool,
    pub(crate) peer: Peer,
}

/// The server at a target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A kubelet. It receives this server's client certificate, and its own must be valid for this name.
    Kubelet { name: String },
    /// Another server. It receives no client certificate, and its own is not verified.
    Unknown,
}

/// `[scheme:]name[:port]`, the name of a proxy's target in the path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProxyName<'a> {
    pub(crate) encrypted: bool,
    pub(crate) name: &'a str,
    pub(crate) port: Port<'a>,
}

/// The port in the name of a proxied object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port<'a> {
    Default,
    Number(u16),
    Name(&'a str),
}

impl<'a> ProxyName<'a> {
    /// Returns `None` for other forms: more parts, another scheme, an empty name or an invalid port.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match *parts.as_slice() {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let encrypted = match scheme {
            "" | "http" => false,
            "https" => true,
            _ => return None,
        };
        let port = Port::parse(port)?;
        (!name.is_empty()).then_some(Self { encrypted, name, port })
    }

    fn of(kind: &str, text: &'a str) -> Result<Self, Box<Status>> {
        Self::parse(text).ok_or_else(|| {
            Box::new(Status::bad_request(format!("invalid {kind} request {text:?}")))
        })
    }

    fn usual_port(&self) -> u16 {
        if self.encrypted { 443 } else { 80 }
    }
}

impl<'a> Port<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::Default);
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return text.parse().ok().filter(|number| *number > 0).map(Self::Number);
        }
        validation::dns1123_label(text).is_empty().then_some(Self::Name(text))
    }
}

/// Returns a Pod's address with the requested port: a number, or the name of a container's port.
pub(crate) fn pod(objects: &dyn Objects, path: &ResourcePath) -> Result<Target, Box<Status>> {
    let proxied = ProxyName::of("pod", &path.name)?;
    let pod = objects
        .get(&GroupResource::PODS, &path.namespace, proxied.name)
        .ok_or_else(|| Box::new(Status::not_found(&GroupResource::PODS, proxied.name)))?;
    let address = pod_addresses(&pod).next().and_then(proxyable).ok_or_else(not_allowed)?;
    let containers = pod.items("spec.containers");
    let mut ports = containers.iter().flat_map(|c| c.items("ports"));
    let port = match proxied.port {
        Port::Number(number) => number,
        Port::Default => {
            ports.find_map(|p| number(&p["containerPort"])).unwrap_or_else(|| proxied.usual_port())
        }
        Port::Name(name) => ports
            .find(|p| p["name"] == name)
            .and_then(|p| number(&p["containerPort"]))
            .ok_or_else(|| unknown_port(name))?,
    };
    Ok(Target::of_unknown_peer(address, port, proxied.encrypted))
}

/// Returns a ready endpoint of a Service. It must be the address of a Pod in the Service's namespace.
pub(crate) fn service(objects: &dyn Objects, path: &ResourcePath) -> Result<Target, Box<Status>> {
    let proxied = ProxyName::of("service", &path.name)?;
    let service = objects
        .get(&GroupResource::SERVICES, &path.namespace, proxied.name)
        .ok_or_else(|| Box::new(Status::not_found(&GroupResource::SERVICES, proxied.name)))?;
    let port_name = match proxied.port {
        Port::Default => String::new(),
        Port::Name(name) => name.to_owned(),
        Port::Number(number) => service_port(&service, number).ok_or_else(|| {
            Box::new(Status::service_unavailable(format!(
                "no service port {number} found for service {:?}",
                proxied.name
            )))
        })?,
    };
    let mut found =
        endpoints(objects, &path.namespace, proxied.name, &port_name).unwrap_or_default();
    found.retain(|endpoint| {
        proxyable(endpoint.address.ip()).is_some() && endpoint.is_of_a_pod(objects, &path.namespace)
    });
    let address = any(found).ok_or_else(|| {
        let message = format!("no endpoints available for service {:?}", path.name);
        Box::new(Status::service_unavailable(message))
    })?;
    Ok(Target::of_unknown_peer(address.ip(), address.port(), proxied.encrypted))
}

/// Returns a Node's kubelet, or another port of the Node.
pub(crate) async fn node(
    objects: &dyn Objects,
    address_types: &[String],
    path: &ResourcePath,
) -> Result<Target, Box<Status>> {
    let proxied = ProxyName::of("node", &path.name)?;
    let kubelet = kubelet(objects, address_types, proxied.name).await?;
    match proxied.port {
        Port::Default => Ok(kubelet),
        Port::Number(number) if number == kubelet.address.port() => Ok(kubelet),
        Port::Number(number) => {
            Ok(Target::of_unknown_peer(kubelet.address.ip(), number, proxied.encrypted))
        }
        Port::Name(name) => Err(unknown_port(name)),
    }
}

fn preferred_address<'a>(node: &'a Value, types: &[String]) -> Option<&'a str> {
    let of = |kind: &String| {
        let addresses = node.items("status.addresses").iter();
        addresses.filter(|a| a["type"] == **kind).find_map(|a| a["address"].as_str())
    };
    types.iter().find_map(of)
}

/// Returns the kubelet of a node, at the first address of a preferred type.
pub(crate) async fn kubelet(
    objects: &dyn Objects,
    address_types: &[String],
    name: &str,
) -> Result<Target, Box<Status>> {
    let node = objects
        .get(&GroupResource::NODES, "", name)
        .ok_or_else(|| Box::new(Status::not_found(&GroupResource::NODES, name)))?;
    let host = preferred_address(&node, address_types).ok_or_else(|| {
        Box::new(Status::internal(format!("no preferred addresses found for node {name}")))
    })?;
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    let port = number(port).unwrap_or(KUBELET_PORT);
    let address = match host.parse::<IpAddr>() {
        Ok(address) => proxyable(address).ok_or_else(not_allowed)?,
        Err(_) => look_up(host).await?,
    };
    Ok(Target {
        address: SocketAddr::new(address, port),
        encrypted: true,
        peer: Peer::Kubelet { name: host.to_owned() },
    })
}

/// Resolves a host name once, so that the validated address is the one that is connected to.
pub(crate) async fn look_up(host: &str) -> Result<IpAddr, Box<Status>> {
    let found = tokio::net::lookup_host((host, KUBELET_PORT)).await;
    let found =
        found.map_err(|error| Box::new(Status::internal(format!("lookup {host}: {error}"))))?;
    let judged: Option<Vec<IpAddr>> = found.map(|address| proxyable(address.ip())).collect();
    judged.ok_or_else(not_allowed)?.first().copied().ok_or_else(|| {
        Box::new(Status::bad_request(format!("lookup {host}: no addresses for hostname")))
    })
}

/// Returns an endpoint of a Service for a webhook. It need not be a Pod; the validation of EndpointSlices restricts the
/// addresses.
pub(crate) fn endpoint(
    objects: &dyn Objects,
    namespace: &str,
    name: &str,
    port: u16,
) -> Option<SocketAddr> {
    let service = objects.get(&GroupResource::SERVICES, namespace, name)?;
    let port_name = service_port(&service, port)?;
    any(endpoints(objects, namespace, name, &port_name)?)
}

/// Returns the name of a Service's port, which may be empty.
pub(super) fn service_port(service: &Value, port: u16) -> Option<String> {
    let mut ports = service["spec"]["ports"].as_array()?.iter();
    let found = ports.find(|p| number(&p["port"]) == Some(port))?;
    Some(found.text("name").to_owned())
}

/// A ready address of a Service and the `targetRef` of its EndpointSlice.
pub(super) struct Endpoint {
    address: SocketAddr,
    target: Value,
}

impl Endpoint {
    /// Returns `true` if a Pod of the namespace has this address, because the author of an EndpointSlice can enter any
    /// address.
    fn is_of_a_pod(&self, objects: &dyn Objects, namespace: &str) -> bool {
        self.target.text("namespace") == namespace
            && objects
                .get(&GroupResource::PODS, namespace, self.target.text("name"))
                .is_some_and(|pod| pod_addresses(&pod).any(|ip| ip == self.address.ip()))
    }
}

/// Returns the ready endpoints of a Service's port, or `None` if the Service has no EndpointSlice.
pub(super) fn endpoints(
    objects: &dyn Objects,
    namespace: &str,
    service: &str,
    port_name: &str,
) -> Option<Vec<Endpoint>> {
    let slices = GroupResource::new("discovery.k8s.io", "endpointslices");
    let mut slices = objects.list(&slices, namespace);
    slices.retain(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == service);
    if slices.is_empty() {
        return None;
    }
    let mut found = Vec::new();
    for slice in slices {
        let port = slice.items("ports").iter().find(|p| p.text("name") == port_name);
        let Some(port) = port.and_then(|p| number(&p["port"])) else { continue };
        for endpoint in slice.items("endpoints") {
            if endpoint["conditions"]["ready"] == Value::Bool(false) {
                continue;
            }
            if let Some(ip) = endpoint["addresses"].get(0).and_then(address) {
                let address = SocketAddr::new(ip, port);
                found.push(Endpoint { address, target: endpoint["targetRef"].clone() });
            }
        }
    }
    Some(found)
}

fn any(mut endpoints: Vec<Endpoint>) -> Option<SocketAddr> {
    if endpoints.is_empty() {
        return None;
    }
    Some(endpoints.swap_remove(rt::random_in(0..endpoints.len())).address)
}

/// Returns the addresses of a Pod, the primary one first.
fn pod_addresses(pod: &Value) -> impl Iterator<Item = IpAddr> {
    let status = &pod["status"];
    let all = status.items("podIPs").iter().map(|ip| &ip["ip"]);
    std::iter::once(&status["podIP"]).chain(all).filter_map(address)
}

fn address(text: &Value) -> Option<IpAddr> {
    text.as_str()?.parse().ok()
}

fn number(port: &Value) -> Option<u16> {
    port.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0)
}

/// Returns the address in canonical form if Go's `IsGlobalUnicast` is true for it.
pub(crate) fn proxyable(address: IpAddr) -> Option<IpAddr> {
    special(address).is_none().then(|| address.to_canonical())
}

fn not_allowed() -> Box<Status> {
    Box::new(Status::bad_request("address not allowed"))
}

/// Upstream leaves such a port to Go's dialer, whose error this is.
fn unknown_port(name: &str) -> Box<Status> {
    Box::new(Status::failure(
        503,
        StatusReason::ServiceUnavailable,
        format!("error trying to reach service: dial tcp: lookup tcp/{name}: unknown port"),
    ))
}

impl Target {
    fn of_unknown_peer(address: IpAddr, port: u16, encrypted: bool) -> Self {
        Self { address: SocketAddr::new(address, port), encrypted, peer: Peer::Unknown }
    }

    pub(crate) fn is_kubelet(&self) -> bool {
        self.peer != Peer::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_node_at_first_address_of_preferred_type() {
        let node = serde_json::json!({"status": {"addresses": [
            {"type": "Hostname", "address": "h"},
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "InternalIP", "address": "fd00::1"}]}});
        for (types, expected) in [
            ("ExternalIP,InternalIP,Hostname", Some("10.0.0.1")),
            ("Hostname,InternalIP", Some("h")),
            ("ExternalIP,ExternalDNS", None),
        ] {
            let types: Vec<String> = types.split(',').map(str::to_owned).collect();
            assert_eq!(preferred_address(&node, &types), expected, "{types:?}");
        }
    }

    #[test]
    fn parses_proxy_names_strictly() {
        let table = [
            ("p", Some((false, "p", Port::Default))),
            ("p:80", Some((false, "p", Port::Number(80)))),
            ("p:http", Some((false, "p", Port::Name("http")))),
            ("http:p:80", Some((false, "p", Port::Number(80)))),
            ("https:p:", Some((true, "p", Port::Default))),
            (":p:80", Some((false, "p", Port::Number(80)))),
            ("http:p:80@169.254.169.254:80", None),
            ("p:80@169.254.169.254", None),
            ("http:p:80@127.0.0.1", None),
            ("ftp:p:80", None),
            ("HTTP:p:80", None),
            ("http::80", None),
            (":80", None),
            ("", None),
            ("p:0", None),
            ("p:65536", None),
            ("p:+80", None),
            ("p:-1", None),
            ("p:80/x", None),
            ("p:80#", None),
            ("p:[::1]", None),
            ("p: 80", None),
            ("http:p:80:", None),
        ];
        for (text, wanted) in table {
            let wanted = wanted.map(|(encrypted, name, port)| ProxyName { encrypted, name, port });
            assert_eq!(ProxyName::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn rejects_addresses_of_machine_and_link() {
        for (text, allowed) in [
            ("10.0.0.1", true),
            ("192.0.2.2", true),
            ("fd00::1", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("127.8.8.8", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::1", false),
            ("::", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
        ] {
            assert_eq!(proxyable(text.parse().unwrap()).is_some(), allowed, "{text}");
        }
    }
}
