use std::{fmt, net::IpAddr, str::FromStr};

use crate::Error;

/// Whom a certificate speaks for: a user name and its groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    pub common_name: String,
    pub organizations: Vec<String>,
}

impl Subject {
    /// A name in no group.
    pub fn new(common_name: impl Into<String>) -> Self {
        Self { common_name: common_name.into(), organizations: Vec::new() }
    }

    /// Adds an organisation, which Kubernetes reads as a group.
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
    /// A DNS name, which may begin with `*.`.
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

    /// An address where it reads as one, a DNS name otherwise.
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

/// What a leaf may be used for in TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    Server,
    Client,
    ServerAndClient,
}

impl Usage {
    /// Whether it may serve.
    pub fn server(self) -> bool {
        self != Self::Client
    }

    /// Whether it may ask as a client.
    pub fn client(self) -> bool {
        self != Self::Server
    }
}
