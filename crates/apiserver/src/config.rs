//! The API server's configuration, parsed once.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// What `apiserver::Server` needs, whichever way it was said.
#[derive(Clone, Debug)]
pub struct Config {
    pub bind: SocketAddr,
    /// Where the `kubernetes` Service sends its clients.
    pub advertise: IpAddr,
    /// Other API servers may use the same store: this one tells them of itself, and is an endpoint of the
    /// `kubernetes` Service beside them.
    pub shares_store: bool,
    pub service_cidrs: Vec<Cidr>,
    /// Inclusive.
    pub node_ports: (u16, u16),
    pub event_ttl: Duration,
    pub compaction_interval: Duration,
    pub tls_certificate: PathBuf,
    pub tls_key: PathBuf,
    pub client_ca: PathBuf,
    /// PEM public (or private) keys that verify service-account tokens.
    pub service_account_keys: Vec<PathBuf>,
    pub service_account_signing_key: PathBuf,
    pub service_account_issuer: String,
    /// The audiences that tokens are accepted for; the issuer if empty.
    pub api_audiences: Vec<String>,
    pub kubelet_client_certificate: PathBuf,
    pub kubelet_client_key: PathBuf,
    /// Verifies the kubelets' serving certificates; without it they are not checked, as upstream.
    pub kubelet_ca: Option<PathBuf>,
    pub front_proxy: Option<FrontProxy>,
    pub anonymous: bool,
    pub bootstrap_tokens: bool,
    pub enable_admission: Vec<String>,
    pub disable_admission: Vec<String>,
    /// How much may be at work at once; flow control shares it out.
    pub seats: u32,
}

impl Config {
    /// Upstream's `--max-requests-inflight` and `--max-mutating-requests-inflight`, together.
    pub const SEATS: u32 = 400 + 200;
}

#[derive(Clone, Debug)]
pub struct FrontProxy {
    pub ca: PathBuf,
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub address: IpAddr,
    pub prefix: u8,
}

impl std::str::FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once('/')
            .and_then(|(a, p)| Some((a.parse::<IpAddr>().ok()?, p.parse::<u8>().ok()?)));
        match parsed {
            Some((address, prefix)) if prefix <= if address.is_ipv4() { 32 } else { 128 } => {
                Ok(Self { address: masked(address, prefix), prefix })
            }
            _ => Err(format!("invalid CIDR address: {text}")),
        }
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(a) => IpAddr::V4(
            (u32::from(a) & u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)).into(),
        ),
        IpAddr::V6(a) => IpAddr::V6(
            (u128::from(a) & u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)).into(),
        ),
    }
}

impl Cidr {
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.prefix) == self.address
    }

    /// The `n`th address of the range; the first usable one of a Service range is 1.
    pub fn nth(&self, n: u128) -> IpAddr {
        match self.address {
            IpAddr::V4(a) => IpAddr::V4(u32::from(a).wrapping_add(n as u32).into()),
            IpAddr::V6(a) => IpAddr::V6(u128::from(a).wrapping_add(n).into()),
        }
    }

    /// Whether a Service may have the address: not the first one, nor IPv4's last.
    pub fn gives(&self, address: IpAddr) -> bool {
        let last = self.address.is_ipv4() && address == self.nth(self.usable() + 1);
        self.contains(address) && address != self.address && !last
    }

    /// How many addresses Services may have: not the first, which names the range, nor IPv4's last, and at
    /// most 2^16 of IPv6's as upstream.
    pub fn usable(&self) -> u128 {
        let bits = if self.address.is_ipv4() { 32 } else { 128 } - u32::from(self.prefix);
        let size = 1u128.checked_shl(bits.min(127)).unwrap_or(u128::MAX);
        if self.address.is_ipv4() {
            size.saturating_sub(2)
        } else {
            size.saturating_sub(1).min(1 << 16)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let v4: Cidr = "10.96.0.7/12".parse().unwrap();
        assert_eq!(v4.to_string(), "10.96.0.0/12");
        assert_eq!(v4.nth(1).to_string(), "10.96.0.1");
        assert!(
            v4.contains("10.111.255.255".parse().unwrap())
                && !v4.contains("10.112.0.0".parse().unwrap())
        );
        assert_eq!("10.0.0.0/30".parse::<Cidr>().unwrap().usable(), 2);
        let v6: Cidr = "fd00::/108".parse().unwrap();
        assert_eq!((v6.nth(10).to_string().as_str(), v6.usable()), ("fd00::a", 65536));
        let gives = |range: &str, address: &str| {
            range.parse::<Cidr>().unwrap().gives(address.parse().unwrap())
        };
        for (address, given) in
            [("10.0.0.0", false), ("10.0.0.1", true), ("10.0.0.254", true), ("10.0.0.255", false)]
        {
            assert_eq!(gives("10.0.0.0/24", address), given, "{address}");
        }
        assert!(gives("fd00::/64", "fd00::ffff:ffff") && !gives("fd00::/64", "fd00::"));
        assert!("10.0.0.0".parse::<Cidr>().is_err() && "10.0.0.0/33".parse::<Cidr>().is_err());
    }
}
