//! The network configuration of the machine.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    path::Path,
};

/// Returns the source address of the default route. Sends no packet.
pub fn default_address() -> Option<IpAddr> {
    let probe = |bind: &str, to: &str| {
        let socket = UdpSocket::bind(bind).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    probe("0.0.0.0:0", "192.0.2.1:9").or_else(|| probe("[::]:0", "[2001:db8::1]:9")).or_else(|| {
        // Without a default route, take any IPv4 address other than loopback.
        let addresses = nix::ifaddrs::getifaddrs().ok()?;
        let ips = addresses.filter_map(|a| Some(IpAddr::V4(a.address?.as_sockaddr_in()?.ip())));
        ips.into_iter().find(|ip| !ip.is_loopback())
    })
}

/// Returns the resolver configuration that Pods inherit.
pub(crate) fn host_resolver(path: Option<&Path>) -> pod_core::dns::Resolver {
    path.and_then(|path| fs::read_to_string(path).ok())
        .map(|text| pod_core::dns::parse(&text))
        .unwrap_or_default()
}
