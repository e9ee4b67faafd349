//! Functions for IP addresses and CIDRs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api_meta::{Cidr, go_quote};

use super::{Native, mistyped};
use crate::{
    error::EvalError,
    opaque::Opaque,
    value::{Eval, Value, Work},
};

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "ip" => ip,
        "isIP" => |_, args| Ok(Value::Bool(parse_ip(args[0].as_str()?).is_ok())),
        "ip.isCanonical" => |_, args| {
            let text = args[0].as_str()?;
            let address = parse_ip(text).map_err(EvalError::Failed)?;
            Ok(Value::Bool(address.to_string() == text))
        },
        "family" => |_, args| Ok(Value::Int(if address(&args[0])?.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => |_, args| Ok(Value::Bool(address(&args[0])?.is_unspecified())),
        "isLoopback" => |_, args| Ok(Value::Bool(address(&args[0])?.is_loopback())),
        "isLinkLocalMulticast" => {
            |_, args| Ok(Value::Bool(link_local_multicast(address(&args[0])?)))
        }
        "isLinkLocalUnicast" => |_, args| Ok(Value::Bool(link_local(address(&args[0])?))),
        "isGlobalUnicast" => |_, args| Ok(Value::Bool(global(address(&args[0])?))),
        "cidr" => |_, args| {
            let (address, prefix) = parse_cidr(args[0].as_str()?).map_err(EvalError::Failed)?;
            Ok(Value::opaque(Opaque::Cidr(address, prefix)))
        },
        "isCIDR" => |_, args| Ok(Value::Bool(parse_cidr(args[0].as_str()?).is_ok())),
        "containsIP" => contains_ip,
        "containsCIDR" => contains_cidr,
        "prefixLength" => |_, args| Ok(Value::Int(network(&args[0])?.1.into())),
        "masked" => |_, args| {
            let (address, prefix) = network(&args[0])?;
            let masked = Cidr::new(address, prefix).map_or(address, |cidr| cidr.network().address);
            Ok(Value::opaque(Opaque::Cidr(masked, prefix)))
        },
        _ => return None,
    })
}

/// Parses an address. Zones and IPv4-mapped IPv6 addresses are rejected, because programs interpret them differently.
fn parse_ip(text: &str) -> Result<IpAddr, String> {
    if let Some((address, _)) = text.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Err(format!("IP address {} with zone value is not allowed", go_quote(text)));
    }
    let address: IpAddr = text.parse().map_err(|_| {
        format!(
            "IP Address {} parse error during conversion from string: ParseAddr({0}): unable to parse IP",
            go_quote(text)
        )
    })?;
    match address {
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {} is not allowed", go_quote(text)))
        }
        address => Ok(address),
    }
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), String> {
    let failed = |what: &str| {
        format!(
            "network address parse error during conversion from string: netip.ParsePrefix({}): {what}",
            go_quote(text)
        )
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
        IpAddr::V6(six) if six.to_ipv4_mapped().is_some() => {
            Err(format!("IPv4-mapped IPv6 address {} is not allowed", go_quote(text)))
        }
        address => Ok((address, prefix)),
    }
}

fn address(value: &Value<'_>) -> Result<IpAddr, EvalError> {
    match value {
        Value::Opaque(opaque) => match **opaque {
            Opaque::Ip(address) => Ok(address),
            _ => mistyped(),
        },
        _ => mistyped(),
    }
}

fn network(value: &Value<'_>) -> Result<(IpAddr, u8), EvalError> {
    match value {
        Value::Opaque(opaque) => match **opaque {
            Opaque::Cidr(address, prefix) => Ok((address, prefix)),
            _ => mistyped(),
        },
        _ => mistyped(),
    }
}

/// Evaluates `ip('…')`, or `ip()` of a CIDR.
fn ip<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let address = match &args[0] {
        Value::String(text) => parse_ip(text).map_err(EvalError::Failed)?,
        other => network(other)?.0,
    };
    Ok(Value::opaque(Opaque::Ip(address)))
}

fn contains_ip<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let (base, prefix) = network(&args[0])?;
    let other = match &args[1] {
        Value::String(text) => parse_ip(text).map_err(EvalError::Failed)?,
        other => address(other)?,
    };
    Ok(Value::Bool(Cidr::new(base, prefix).is_some_and(|cidr| cidr.contains(other))))
}

fn contains_cidr<'a>(_: &mut Work, args: &[Value<'a>]) -> Eval<'a> {
    let (base, prefix) = network(&args[0])?;
    let (other, length) = match &args[1] {
        Value::String(text) => parse_cidr(text).map_err(EvalError::Failed)?,
        other => network(other)?,
    };
    let within = Cidr::new(base, prefix).is_some_and(|cidr| cidr.contains(other));
    Ok(Value::Bool(within && prefix <= length))
}

fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.octets()[..3] == [224, 0, 0],
        IpAddr::V6(six) => six.segments()[0] & 0xff0f == 0xff02,
    }
}

/// Reports whether an address is global in Go's sense: private networks are, broadcast and multicast are not.
fn global(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || link_local(address))
}
