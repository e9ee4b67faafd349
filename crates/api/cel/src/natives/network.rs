//! Functions for IP addresses and CIDRs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api_meta::{Cidr, go_quote};

use super::convert;
use crate::{
    cost::{charges, estimates},
    error::EvalError,
    function::{Function, Library, mistyped},
    opaque::Opaque,
    value::{Eval, Value, Work},
};

/// The IP and CIDR libraries.
pub(super) static LIBRARY: Library = Library::since(
    30,
    &[
        Function::new("ip", "(string) net.IP", ip).costs(charges::read, estimates::read),
        Function::new("ip", "net.CIDR#() net.IP", ip),
        Function::new("isIP", "(string) bool", |_, args| {
            Ok(Value::Bool(parse_ip(args[0].as_str()?).is_ok()))
        })
        .costs(charges::read, estimates::read),
        Function::new("ip.isCanonical", "(string) bool", |_, args| {
            let text = args[0].as_str()?;
            let address = parse_ip(text)?;
            Ok(Value::Bool(address.to_string() == text))
        })
        .costs(charges::read_twice, estimates::read_twice),
        Function::new("family", "net.IP#() int", |_, args| {
            Ok(Value::Int(if address(&args[0])?.is_ipv4() { 4 } else { 6 }))
        }),
        Function::new("isUnspecified", "net.IP#() bool", |_, args| {
            Ok(Value::Bool(address(&args[0])?.is_unspecified()))
        }),
        Function::new("isLoopback", "net.IP#() bool", |_, args| {
            Ok(Value::Bool(address(&args[0])?.is_loopback()))
        }),
        Function::new("isLinkLocalMulticast", "net.IP#() bool", |_, args| {
            Ok(Value::Bool(is_link_local_multicast(address(&args[0])?)))
        }),
        Function::new("isLinkLocalUnicast", "net.IP#() bool", |_, args| {
            Ok(Value::Bool(is_link_local(address(&args[0])?)))
        }),
        Function::new("isGlobalUnicast", "net.IP#() bool", |_, args| {
            Ok(Value::Bool(is_global(address(&args[0])?)))
        }),
        Function::new("string", "(net.IP) string; (net.CIDR) string", convert::string),
        Function::new("cidr", "(string) net.CIDR", |_, args| {
            let (address, prefix) = parse_cidr(args[0].as_str()?)?;
            Ok(Value::opaque(Opaque::Cidr(address, prefix)))
        })
        .costs(charges::read, estimates::read),
        Function::new("isCIDR", "(string) bool", |_, args| {
            Ok(Value::Bool(parse_cidr(args[0].as_str()?).is_ok()))
        })
        .costs(charges::read, estimates::read),
        Function::new("containsIP", "net.CIDR#(string) bool", contains_ip)
            .costs(charges::contains_ip, estimates::contains_ip_text),
        Function::new("containsIP", "net.CIDR#(net.IP) bool", contains_ip)
            .costs(charges::contains_ip, estimates::contains_ip),
        Function::new("containsCIDR", "net.CIDR#(string) bool", contains_cidr)
            .costs(charges::contains_cidr, estimates::contains_cidr_text),
        Function::new("containsCIDR", "net.CIDR#(net.CIDR) bool", contains_cidr)
            .costs(charges::contains_cidr, estimates::contains_cidr),
        Function::new("prefixLength", "net.CIDR#() int", |_, args| {
            Ok(Value::Int(network(&args[0])?.1.into()))
        }),
        Function::new("masked", "net.CIDR#() net.CIDR", |_, args| {
            let (address, prefix) = network(&args[0])?;
            let masked = Cidr::new(address, prefix).map_or(address, |cidr| cidr.network().address);
            Ok(Value::opaque(Opaque::Cidr(masked, prefix)))
        }),
    ],
)
.with_types(&["net.IP", "net.CIDR"]);

/// Parses an address. Zones and IPv4-mapped IPv6 addresses are rejected, because programs interpret them differently.
fn parse_ip(text: &str) -> Result<IpAddr, EvalError> {
    if let Some((address, _)) = text.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        let text = go_quote(text);
        return Err(EvalError::Failed(format!("IP address {text} with zone value is not allowed")));
    }
    let address: IpAddr = text.parse().map_err(|_| {
        EvalError::Failed(format!(
            "IP Address {} parse error during conversion from string: ParseAddr({0}): unable to parse IP",
            go_quote(text)
        ))
    })?;
    match address {
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => Err(mapped_address_error(text)),
        address => Ok(address),
    }
}

/// Returns the error for an IPv4-mapped IPv6 address.
fn mapped_address_error(text: &str) -> EvalError {
    let text = go_quote(text);
    EvalError::Failed(format!("IPv4-mapped IPv6 address {text} is not allowed"))
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), EvalError> {
    let failed = |what: &str| {
        EvalError::Failed(format!(
            "network address parse error during conversion from string: netip.ParsePrefix({}): {what}",
            go_quote(text)
        ))
    };
    let (address, prefix) = text.rsplit_once('/').ok_or_else(|| failed("no '/'"))?;
    let address: IpAddr = address.parse().map_err(|_| failed("unable to parse IP"))?;
    let canonical = prefix.bytes().all(|b| b.is_ascii_digit())
        && (prefix.len() == 1 || !prefix.starts_with('0'));
    let prefix = prefix.parse::<u8>().ok().filter(|_| canonical);
    let prefix = prefix
        .filter(|prefix| Cidr::new(address, *prefix).is_some())
        .ok_or_else(|| failed("prefix length out of range"))?;
    match address {
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => Err(mapped_address_error(text)),
        address => Ok((address, prefix)),
    }
}

fn address(value: &Value<'_>) -> Result<IpAddr, EvalError> {
    match value.as_opaque()? {
        Opaque::Ip(address) => Ok(*address),
        _ => mistyped(),
    }
}

fn network(value: &Value<'_>) -> Result<(IpAddr, u8), EvalError> {
    match value.as_opaque()? {
        Opaque::Cidr(address, prefix) => Ok((*address, *prefix)),
        _ => mistyped(),
    }
}

/// Evaluates `ip('…')`, or `ip()` of a CIDR.
fn ip<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let address = match &args[0] {
        Value::String(text) => parse_ip(text)?,
        other => network(other)?.0,
    };
    Ok(Value::opaque(Opaque::Ip(address)))
}

fn contains_ip<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let (base, prefix) = network(&args[0])?;
    let other = match &args[1] {
        Value::String(text) => parse_ip(text)?,
        other => address(other)?,
    };
    Ok(Value::Bool(Cidr::new(base, prefix).is_some_and(|cidr| cidr.contains(other))))
}

fn contains_cidr<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let (base, prefix) = network(&args[0])?;
    let (other, length) = match &args[1] {
        Value::String(text) => parse_cidr(text)?,
        other => network(other)?,
    };
    let within = Cidr::new(base, prefix).is_some_and(|cidr| cidr.contains(other));
    Ok(Value::Bool(within && prefix <= length))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.octets()[..3] == [224, 0, 0],
        IpAddr::V6(six) => six.segments()[0] & 0xff0f == 0xff02,
    }
}

/// Reports whether an address is global in Go's sense: private networks are, broadcast and multicast are not.
fn is_global(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || is_link_local(address))
}
