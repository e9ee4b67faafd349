use std::{fmt, net::IpAddr, str::FromStr};

use crate::error::Error;

/// The subject of a certificate: user name and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// The user name: the common name.
    pub common_name: String,
    /// The groups: the organizations.
    pub organizations: Vec<String>,
}

impl Subject {
    /// Creates a subject without groups.
    pub fn new(common_name: impl Into<String>) -> Self {
        Self { common_name: common_name.into(), organizations: Vec::new() }
    }

    /// Adds an organization, which Kubernetes reads as a group.
    pub fn in_group(mut self, group: impl Into<String>) -> Self {
        self.organizations.push(group.into());
        self
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for group in &self.organizations {
            write!(f, "O={group},")?;
        }
        write!(f, "CN={}", self.common_name)
    }
}

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AltName {
    Dns(String),
    Email(String),
    Ip(IpAddr),
    Uri(String),
}

impl AltName {
    /// Creates a DNS name, which may begin with `*.`.
    pub fn dns(name: impl Into<String>) -> Self {
        Self::Dns(name.into())
    }
}

impl fmt::Display for AltName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) | Self::Email(name) | Self::Uri(name) => f.write_str(name),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

impl FromStr for AltName {
    type Err = Error;

    /// Parses an IP address, or takes the text as a DNS name.
    fn from_str(text: &str) -> Result<Self, Error> {
        if let Ok(ip) = text.parse() {
            return Ok(Self::Ip(ip));
        }
        if text.is_ascii() {
            Ok(Self::Dns(text.to_owned()))
        } else {
            Err(Error::UnsuitableName(text.to_owned()))
        }
    }
}

impl From<IpAddr> for AltName {
    fn from(ip: IpAddr) -> Self {
        Self::Ip(ip)
    }
}

/// The use of a leaf certificate in TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    ServerAndClient,
}

impl Usage {
    /// Returns `true` if servers may use the certificate.
    pub fn server(self) -> bool {
        self != Self::Client
    }

    /// Returns `true` if clients may use the certificate.
    pub fn client(self) -> bool {
        self != Self::Server
    }
}
