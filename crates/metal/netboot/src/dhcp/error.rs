//! The errors of DHCP flags.

use std::net::Ipv4Addr;

use hickory_proto::ProtoError;

/// The maximum number of addresses in a range. It bounds the lease table.
pub const MAX_ADDRESSES: u32 = 1 << 16;

/// The errors of DHCP flags.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{text:?} is not a DHCP range; write FIRST,LAST[,NETMASK[,LEASE]] or NETWORK,proxy")]
    Range { text: String },
    #[error("{text:?} is not a DHCP host; write MAC,ADDRESS[,NAME]")]
    Host { text: String },
    #[error("DHCP option {text:?}: {source}")]
    Option { text: String, source: OptionError },
    #[error("the range {first} to {last} is not within one network of /{prefix}")]
    Span { first: Ipv4Addr, last: Ipv4Addr, prefix: u8 },
    #[error("the range {first} to {last} holds more than {MAX_ADDRESSES} addresses")]
    TooLarge { first: Ipv4Addr, last: Ipv4Addr },
}

/// The errors of an extra option.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    #[error("write NUMBER or option:NAME, and values; tags and vendor options are not supported")]
    Syntax,
    #[error("{0:?} is not an option name; give the number of the option")]
    Name(String),
    #[error("the server itself sets option {0}; use --boot-file to change boot files")]
    Reserved(u8),
    #[error("IPv4 addresses are required")]
    Addresses,
    #[error("NETWORK/PREFIX,ROUTER is required")]
    Routes,
    #[error("an integer is required")]
    Integer,
    #[error("{value} does not fit into {size} bytes")]
    Size { value: i64, size: usize },
    #[error(transparent)]
    Domain(#[from] ProtoError),
    #[error("it is longer than 255 bytes")]
    Length,
    #[error("it has more than 63 addresses")]
    Count,
}
