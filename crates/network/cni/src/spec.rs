//! The types of the CNI specification: the call in the environment, the configuration on stdin, and failures.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use net_core::{Cidr, api::Protocol};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A failure with a code of the specification.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The code; 100 and above are the plugin's own.
    pub code: u32,
    /// The message.
    pub message: String,
}

impl Failure {
    pub(crate) fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn version(version: &str) -> Self {
        let supported = VERSIONS.join(", ");
        Self::new(1, format!("CNI version {version:?} is not supported; use one of {supported}"))
    }

    pub(crate) fn environment(message: impl Into<String>) -> Self {
        Self::new(4, message)
    }

    pub(crate) fn io(action: &str, error: &dyn std::fmt::Display) -> Self {
        Self::new(5, format!("{action}: {error}"))
    }

    pub(crate) fn decode(error: &serde_json::Error) -> Self {
        Self::new(6, format!("the network configuration on stdin is malformed: {error}"))
    }

    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::new(7, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(50, message)
    }

    /// The plugin's own codes start at 100.
    pub(crate) fn network(error: netlink::Error) -> Self {
        Self::new(100, rt::with_causes(&error))
    }

    /// The container or its network namespace does not exist.
    pub(crate) fn container(error: netlink::Error) -> Self {
        Self::new(3, rt::with_causes(&error))
    }

    pub(crate) fn exhausted(subnet: Cidr) -> Self {
        Self::new(
            101,
            format!("no free address in {subnet}; give the node a larger Pod range or remove Pods"),
        )
    }

    pub(crate) fn differs(message: impl Into<String>) -> Self {
        Self::new(102, message)
    }

    pub(crate) fn lease(path: &Path, error: &serde_json::Error) -> Self {
        let advice = "use the windlass that wrote it, or reboot the machine";
        Self::new(
            103,
            format!("the lease {} is of a later release: {error}; {advice}", path.display()),
        )
    }

    pub(crate) fn to_json(&self, version: &str) -> Value {
        json!({"cniVersion": version, "code": self.code, "msg": self.message})
    }
}

/// The `CNI_*` variables.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_NETNS`, a path.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub interface: String,
}

/// An interface of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) container: String,
    pub(crate) interface: String,
    /// The network namespace; empty in a DEL whose namespace is gone.
    pub(crate) netns: PathBuf,
}

pub(crate) enum Call {
    Add(Attachment),
    Delete(Attachment),
    Check(Attachment),
    Gc,
    Status,
    Version,
}

impl Environment {
    pub(crate) fn of_process() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        Self {
            command: variable("CNI_COMMAND"),
            container: variable("CNI_CONTAINERID"),
            netns: variable("CNI_NETNS"),
            interface: variable("CNI_IFNAME"),
        }
    }

    pub(crate) fn call(&self) -> Result<Call, Failure> {
        Ok(match self.command.as_str() {
            "ADD" => Call::Add(self.attachment(true)?),
            "DEL" => Call::Delete(self.attachment(false)?),
            "CHECK" => Call::Check(self.attachment(true)?),
            "GC" => Call::Gc,
            "STATUS" => Call::Status,
            "VERSION" => Call::Version,
            "" => {
                return Err(Failure::environment(
                    "CNI_COMMAND is not set; a container runtime starts this program",
                ));
            }
            other => return Err(Failure::environment(format!("CNI_COMMAND {other:?} is unknown"))),
        })
    }

    fn attachment(&self, needs_netns: bool) -> Result<Attachment, Failure> {
        let is_id = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let starts_well = self.container.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts_well || !self.container.chars().all(is_id) {
            return Err(Failure::environment(format!(
                "CNI_CONTAINERID {:?} is not a container ID",
                self.container
            )));
        }
        let name = &self.interface;
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
        if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(bad) {
            return Err(Failure::environment(format!(
                "CNI_IFNAME {name:?} is not an interface name"
            )));
        }
        if needs_netns && self.netns.is_empty() {
            return Err(Failure::environment("CNI_NETNS is not set"));
        }
        Ok(Attachment {
            container: self.container.clone(),
            interface: name.clone(),
            netns: PathBuf::from(&self.netns),
        })
    }
}

/// The network configuration in `/etc/cni/net.d`, with the additions of libcni.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Config {
    pub(crate) cni_version: String,
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) plugin: String,
    pub(crate) bridge: String,
    pub(crate) mtu: u32,
    /// The node's Pod CIDRs, one of each family.
    pub(crate) subnets: Vec<Cidr>,
    /// Destinations that see the Pod's own address. Traffic to all others is masqueraded.
    #[serde(rename = "clusterCIDRs")]
    pub(crate) cluster_cidrs: Vec<Cidr>,
    pub(crate) data_dir: PathBuf,
    pub(crate) runtime_config: RuntimeConfig,
    pub(crate) prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    pub(crate) valid: Vec<ValidAttachment>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RuntimeConfig {
    pub(crate) port_mappings: Vec<PortMapping>,
    pub(crate) bandwidth: Option<Bandwidth>,
}

/// The limits of a Pod's traffic in bits per second, and their bursts in bits. containerd capitalizes the keys.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Bandwidth {
    /// The limit of what the Pod receives; 0 for none.
    #[serde(alias = "IngressRate")]
    pub(crate) ingress_rate: u64,
    #[serde(alias = "IngressBurst")]
    pub(crate) ingress_burst: u64,
    /// The limit of what the Pod sends; 0 for none.
    #[serde(alias = "EgressRate")]
    pub(crate) egress_rate: u64,
    #[serde(alias = "EgressBurst")]
    pub(crate) egress_burst: u64,
}

/// A port mapping. containerd capitalizes these keys, which Go's case-insensitive decoder accepts.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PortMapping {
    #[serde(alias = "HostPort")]
    pub(crate) host_port: u16,
    #[serde(alias = "ContainerPort")]
    pub(crate) container_port: u16,
    /// The protocol, in any letter case.
    #[serde(alias = "Protocol")]
    pub(crate) protocol: String,
    #[serde(rename = "hostIP", alias = "HostIP")]
    pub(crate) host_ip: String,
}

impl PortMapping {
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        match self.protocol.to_ascii_lowercase().as_str() {
            "" | "tcp" => Some(Protocol::Tcp),
            "udp" => Some(Protocol::Udp),
            "sctp" => Some(Protocol::Sctp),
            _ => None,
        }
    }

    /// Returns the host address; `Ok(None)` stands for all addresses of the node.
    pub(crate) fn address(&self) -> Result<Option<IpAddr>, Failure> {
        if self.host_ip.is_empty() {
            return Ok(None);
        }
        let address: IpAddr = self
            .host_ip
            .parse()
            .map_err(|_| Failure::config(format!("hostIP {:?} is not an address", self.host_ip)))?;
        Ok(Some(address).filter(|address| !address.is_unspecified()))
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub(crate) container: String,
    #[serde(rename = "ifname")]
    pub(crate) interface: String,
}

impl Config {
    pub(crate) fn parse(input: &[u8]) -> Result<Self, Failure> {
        let config: Self =
            serde_json::from_slice(input).map_err(|error| Failure::decode(&error))?;
        if !VERSIONS.contains(&config.cni_version.as_str()) {
            return Err(Failure::version(&config.cni_version));
        }
        if config.plugin != "loopback" {
            config.validate()?;
        }
        Ok(config)
    }

    fn validate(&self) -> Result<(), Failure> {
        if self.bridge.is_empty() || self.bridge.len() > 15 {
            return Err(Failure::config(
                "\"bridge\" must name an interface of at most 15 characters",
            ));
        }
        if self.subnets.is_empty() {
            return Err(Failure::config("\"subnets\" is empty; it holds the node's Pod ranges"));
        }
        if !self.data_dir.is_absolute() {
            return Err(Failure::config(
                "\"dataDir\" must be an absolute path; leases are kept there",
            ));
        }
        for mapping in &self.runtime_config.port_mappings {
            mapping.address()?;
            if mapping.host_port == 0 || mapping.container_port == 0 {
                let (host, container) = (mapping.host_port, mapping.container_port);
                return Err(Failure::config(format!(
                    "port mapping from host port {host} to container port {container}; neither may be 0"
                )));
            }
            if mapping.protocol().is_none() {
                return Err(Failure::config(format!(
                    "port mapping with unknown protocol {:?}",
                    mapping.protocol
                )));
            }
        }
        Ok(())
    }

    /// Formats an address. Results before version 1.0 also contain its family.
    pub(crate) fn address_json(
        &self,
        cidr: Cidr,
        gateway: Option<IpAddr>,
        interface: Option<usize>,
    ) -> Value {
        let mut address = json!({"address": cidr.to_string()});
        if self.cni_version.starts_with("0.") {
            address["version"] = json!(if cidr.address.is_ipv4() { "4" } else { "6" });
        }
        if let Some(gateway) = gateway {
            address["gateway"] = json!(gateway);
        }
        if let Some(interface) = interface {
            address["interface"] = json!(interface);
        }
        address
    }
}

/// Returns the version of the answer, from the input if it can be parsed.
pub(crate) fn version_of(input: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(input).ok();
    let version = parsed.as_ref().and_then(|config| config["cniVersion"].as_str());
    version.unwrap_or("1.0.0").to_owned()
}

pub(crate) fn versions(input: &[u8]) -> Value {
    json!({"cniVersion": version_of(input), "supportedVersions": VERSIONS})
}
