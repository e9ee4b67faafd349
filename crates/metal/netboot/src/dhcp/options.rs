//! Extra DHCP options that an operator configures, in the format of dnsmasq's `--dhcp-option`.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, DhcpOptions, OptionCode, UnknownOption};
use hickory_proto::{ProtoError, rr::Name, serialize::binary::BinEncodable};

use super::error::{ConfigError, OptionError};

/// The format of an option's values in text and on the wire (RFC 2132).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Addresses,
    Text,
    /// An integer of this many bytes.
    Number(usize),
    /// Concatenated domain names (RFC 3397).
    Domains,
    /// Networks, each with its router (RFC 3442).
    Routes,
    /// A format guessed from the values.
    Any,
}

/// The options that dnsmasq knows by name, except those that the server sets itself.
const NAMED: [(u8, &str, Kind); 45] = [
    (1, "netmask", Kind::Addresses),
    (2, "time-offset", Kind::Number(4)),
    (3, "router", Kind::Addresses),
    (6, "dns-server", Kind::Addresses),
    (7, "log-server", Kind::Addresses),
    (9, "lpr-server", Kind::Addresses),
    (13, "boot-file-size", Kind::Number(2)),
    (15, "domain-name", Kind::Text),
    (16, "swap-server", Kind::Addresses),
    (17, "root-path", Kind::Text),
    (18, "extension-path", Kind::Text),
    (19, "ip-forward-enable", Kind::Number(1)),
    (20, "non-local-source-routing", Kind::Number(1)),
    (21, "policy-filter", Kind::Addresses),
    (22, "max-datagram-reassembly", Kind::Number(2)),
    (23, "default-ttl", Kind::Number(1)),
    (26, "mtu", Kind::Number(2)),
    (27, "all-subnets-local", Kind::Number(1)),
    (31, "router-discovery", Kind::Number(1)),
    (32, "router-solicitation", Kind::Addresses),
    (33, "static-route", Kind::Addresses),
    (34, "trailer-encapsulation", Kind::Number(1)),
    (35, "arp-timeout", Kind::Number(4)),
    (36, "ethernet-encap", Kind::Number(1)),
    (37, "tcp-ttl", Kind::Number(1)),
    (38, "tcp-keepalive", Kind::Number(4)),
    (40, "nis-domain", Kind::Text),
    (41, "nis-server", Kind::Addresses),
    (42, "ntp-server", Kind::Addresses),
    (44, "netbios-ns", Kind::Addresses),
    (45, "netbios-dd", Kind::Addresses),
    (46, "netbios-nodetype", Kind::Number(1)),
    (48, "x-windows-fs", Kind::Addresses),
    (49, "x-windows-dm", Kind::Addresses),
    (64, "nis+-domain", Kind::Text),
    (65, "nis+-server", Kind::Addresses),
    (69, "smtp-server", Kind::Addresses),
    (70, "pop3-server", Kind::Addresses),
    (71, "nntp-server", Kind::Addresses),
    (100, "posix-timezone", Kind::Text),
    (101, "tzdb-timezone", Kind::Text),
    (108, "ipv6-only", Kind::Number(4)),
    (119, "domain-search", Kind::Domains),
    (121, "classless-static-route", Kind::Routes),
    (150, "tftp-server-address", Kind::Addresses),
];

/// Returns `true` for options that the server sets itself: those of the protocol and those that name the boot file.
fn is_reserved(code: u8) -> bool {
    matches!(code, 0 | 43 | 50..=61 | 66 | 67 | 77 | 80..=82 | 93 | 94 | 97 | 118 | 175 | 255)
}

/// An extra option, or the suppression of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraOption {
    code: u8,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Nothing,
    /// 0.0.0.0 stands for the server's own address.
    Addresses(Vec<Ipv4Addr>),
    Bytes(Vec<u8>),
}

impl ExtraOption {
    /// Inserts the option into a reply and replaces an option with the same code.
    pub(super) fn apply(&self, options: &mut DhcpOptions, server: Ipv4Addr) {
        let code = OptionCode::from(self.code);
        // `dhcproto` stores unknown options under a separate key.
        for key in [code, OptionCode::Unknown(self.code)] {
            options.remove(key);
        }
        let bytes = match &self.value {
            Value::Nothing => return,
            Value::Bytes(bytes) => bytes.clone(),
            Value::Addresses(addresses) => {
                let own = |address: &Ipv4Addr| {
                    if address.is_unspecified() { server.octets() } else { address.octets() }
                };
                addresses.iter().flat_map(own).collect()
            }
        };
        options.insert(DhcpOption::Unknown(UnknownOption::new(code, bytes)));
    }
}

/// Parses `NUMBER` or `option:NAME`, followed by comma-separated values.
pub fn parse_option(text: &str) -> Result<ExtraOption, ConfigError> {
    parse(text).map_err(|source| ConfigError::Option { text: text.to_owned(), source })
}

fn parse(text: &str) -> Result<ExtraOption, OptionError> {
    let (name, values) = text.split_once(',').unwrap_or((text, ""));
    let (code, kind) = parse_name(name.trim())?;
    let value = match values.trim() {
        "" => Value::Nothing,
        values => parse_value(kind, values)?,
    };
    match &value {
        Value::Bytes(bytes) if bytes.len() > 255 => Err(OptionError::Length),
        Value::Addresses(all) if all.len() > 63 => Err(OptionError::Count),
        _ => Ok(ExtraOption { code, value }),
    }
}

fn parse_name(name: &str) -> Result<(u8, Kind), OptionError> {
    let (code, kind) = match name.strip_prefix("option:") {
        Some(name) => {
            let entry = NAMED.iter().find(|(_, other, _)| *other == name);
            let (code, _, kind) = entry.ok_or_else(|| OptionError::Name(name.to_owned()))?;
            (*code, *kind)
        }
        None => {
            let code: u8 = name.parse().map_err(|_| OptionError::Syntax)?;
            let entry = NAMED.iter().find(|(other, _, _)| *other == code);
            (code, entry.map_or(Kind::Any, |(_, _, kind)| *kind))
        }
    };
    if is_reserved(code) { Err(OptionError::Reserved(code)) } else { Ok((code, kind)) }
}

fn parse_value(kind: Kind, text: &str) -> Result<Value, OptionError> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let addresses: Option<Vec<Ipv4Addr>> = parts.iter().map(|part| part.parse().ok()).collect();
    Ok(match kind {
        Kind::Addresses => Value::Addresses(addresses.ok_or(OptionError::Addresses)?),
        Kind::Text => Value::Bytes(text.into()),
        Kind::Number(size) => Value::Bytes(number(text, size)?),
        Kind::Domains => Value::Bytes(domains(&parts)?),
        Kind::Routes => Value::Bytes(routes(&parts).ok_or(OptionError::Routes)?),
        Kind::Any => match (addresses, hexadecimal(text)) {
            (Some(addresses), _) => Value::Addresses(addresses),
            (None, Some(bytes)) => Value::Bytes(bytes),
            _ => {
                let bytes = [1, 2, 4].into_iter().find_map(|size| number(text, size).ok());
                Value::Bytes(bytes.unwrap_or_else(|| text.into()))
            }
        },
    })
}

fn number(text: &str, size: usize) -> Result<Vec<u8>, OptionError> {
    let value: i64 = text.parse().map_err(|_| OptionError::Integer)?;
    let most = 1i64 << (8 * size);
    if (-most / 2..most).contains(&value) {
        Ok(value.to_be_bytes()[8 - size..].to_vec())
    } else {
        Err(OptionError::Size { value, size })
    }
}

/// Parses bytes in the form `01:0a:ff`.
fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let byte = |part: &str| {
        let digits = matches!(part.len(), 1 | 2) && part.bytes().all(|b| b.is_ascii_hexdigit());
        digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
    };
    text.contains(':').then(|| text.split(':').map(byte).collect()).flatten()
}

fn domains(names: &[&str]) -> Result<Vec<u8>, ProtoError> {
    let encode = |name: &&str| {
        let mut name = Name::from_ascii(name)?;
        name.set_fqdn(true);
        name.to_bytes()
    };
    Ok(names.iter().map(encode).collect::<Result<Vec<_>, _>>()?.concat())
}

fn routes(parts: &[&str]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for pair in parts.chunks(2) {
        let [network, router] = pair else { return None };
        let (network, prefix) = network.split_once('/')?;
        let (network, prefix): (Ipv4Addr, u8) = (network.parse().ok()?, prefix.parse().ok()?);
        let significant = usize::from(prefix).div_ceil(8);
        out.push(prefix);
        out.extend(network.octets().get(..significant)?);
        out.extend(router.parse::<Ipv4Addr>().ok()?.octets());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn sent(text: &str) -> Result<Vec<u8>, String> {
        let extra = parse_option(text).map_err(|error| error.to_string())?;
        let mut options = DhcpOptions::new();
        extra.apply(&mut options, SERVER);
        let mut sent = options.iter();
        match (sent.next(), sent.next()) {
            (Some((_, DhcpOption::Unknown(option))), None) => {
                Ok([&[u8::from(option.code())], option.data()].concat())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn encodes_values_in_the_format_of_the_option() {
        let route = [121, 8, 10, 10, 0, 0, 2, 0, 10, 0, 0, 3];
        for (text, want) in [
            ("option:ntp-server,10.0.0.5,0.0.0.0", &[42, 10, 0, 0, 5, 10, 0, 0, 1][..]),
            ("42, 10.0.0.5", &[42, 10, 0, 0, 5]),
            ("option:mtu,1400", &[26, 5, 120]),
            ("option:time-offset,-1", &[2, 255, 255, 255, 255]),
            ("option:domain-name,example.test", b"\x0fexample.test"),
            ("option:domain-search,a.test,b", b"\x77\x01a\x04test\0\x01b\0"),
            ("121,10.0.0.0/8,10.0.0.2,0.0.0.0/0,10.0.0.3", &route),
            ("200,7", &[200, 7]),
            ("200,300", &[200, 1, 44]),
            ("200,1:ff:0a", &[200, 1, 255, 10]),
            ("200,1.2.3.4", &[200, 1, 2, 3, 4]),
            ("200,some, text", b"\xc8some, text"),
        ] {
            assert_eq!(sent(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn rejects_invalid_option_values() {
        let long = format!("200,{}", "x".repeat(256));
        for (text, want) in [
            ("option:mtu,70000", "70000 does not fit into 2 bytes"),
            ("option:mtu,a", "an integer is required"),
            ("option:ntp-server,pool.test", "IPv4 addresses are required"),
            ("option:nothing,1", "\"nothing\" is not an option name"),
            ("121,10.0.0.0/33,10.0.0.1", "NETWORK/PREFIX,ROUTER is required"),
            ("121,10.0.0.0/8", "NETWORK/PREFIX,ROUTER is required"),
            ("67,a", "--boot-file"),
            ("tag:a,3", "tags"),
            (&long, "longer than 255"),
        ] {
            let error = sent(text).unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn suppresses_option_without_values() {
        let mut options = DhcpOptions::new();
        options.insert(DhcpOption::Router(vec![SERVER]));
        parse_option("3,10.0.0.9").unwrap().apply(&mut options, SERVER);
        assert_eq!(options.iter().count(), 1);
        parse_option("option:router").unwrap().apply(&mut options, SERVER);
        assert_eq!(options.iter().count(), 0);
    }
}
