use std::net::IpAddr;

/// Derives a MAC address from an IP address: its last four bytes after `first` and 0x58. The caller's `first` marks the
/// address as locally administered.
pub fn derived_mac(first: u8, address: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match address {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            [octets[12], octets[13], octets[14], octets[15]]
        }
    };
    [first, 0x58, a, b, c, d]
}
