//! Name constraints (RFC 5280 §4.2.1.10) as Go applies them to alternative names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use x509_parser::extensions::{GeneralName, GeneralSubtree, NameConstraints};

use crate::{fault::Fault, names::AltName};

/// The limit of comparisons of names and constraints of one chain, as in Go.
const MAX_COMPARISONS: usize = 250_000;

/// The names that an authority may sign for.
#[derive(Clone, Debug, Default)]
pub(super) struct Constraints {
    permitted: Vec<Base>,
    excluded: Vec<Base>,
    /// `true` if there are constraints on kinds of names that are not compared, such as directory names.
    pub(super) has_others: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Base {
    Dns(String),
    Email(String),
    Uri(String),
    Net { address: IpAddr, bits: u32 },
}

/// Parses alternative names, and ignores kinds that Kubernetes does not know.
pub(super) fn names(all: &[GeneralName<'_>]) -> Result<Vec<AltName>, Fault> {
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(Ok(AltName::Dns((*name).to_owned()))),
        GeneralName::RFC822Name(name) => Some(Ok(AltName::Email((*name).to_owned()))),
        GeneralName::URI(name) => Some(Ok(AltName::Uri((*name).to_owned()))),
        GeneralName::IPAddress(bytes) => Some(match address(bytes) {
            Some(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => Err(Fault::MappedAddress),
            Some(ip) => Ok(AltName::Ip(ip)),
            None => Err(Fault::AddressLength(bytes.len())),
        }),
        GeneralName::Invalid(..) => Some(Err(Fault::AltNames)),
        _ => None,
    };
    all.iter().filter_map(name).collect()
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

impl Constraints {
    pub(super) fn read(found: &NameConstraints<'_>) -> Result<Self, Fault> {
        let mut read = Self::default();
        let trees = [&found.permitted_subtrees, &found.excluded_subtrees];
        if trees.iter().all(|tree| tree.as_ref().is_none_or(Vec::is_empty)) {
            return Err(Fault::EmptyConstraints);
        }
        for (trees, into) in trees.into_iter().zip([&mut read.permitted, &mut read.excluded]) {
            for tree in trees.iter().flatten() {
                match Base::read(tree)? {
                    Some(base) => into.push(base),
                    None => read.has_others = true,
                }
            }
        }
        Ok(read)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.permitted.is_empty() && self.excluded.is_empty()
    }

    /// Checks the names of a certificate below the authority. `spent` counts comparisons over the whole chain.
    pub(super) fn check(&self, names: &[AltName], spent: &mut usize) -> Result<(), Fault> {
        *spent = spent
            .saturating_add(names.len().saturating_mul(self.permitted.len() + self.excluded.len()));
        if *spent > MAX_COMPARISONS {
            return Err(Fault::ConstraintLimit);
        }
        let checked = names.iter().try_for_each(|name| self.check_name(name));
        checked.map_err(|fault| Fault::Name(Box::new(fault)))
    }

    fn check_name(&self, name: &AltName) -> Result<(), Fault> {
        let compared = ComparableName::new(name)?;
        if let Some(base) = self.excluded.iter().find(|base| compared.matches(base, true)) {
            let (name, constraint) = (describe(name), base.to_string());
            return Err(Fault::Excluded { name, constraint });
        }
        let mut permitted = self.permitted.iter().filter(|base| compared.is_kin(base)).peekable();
        if permitted.peek().is_some() && !permitted.any(|base| compared.matches(base, false)) {
            return Err(Fault::NotPermitted { name: describe(name) });
        }
        Ok(())
    }
}

fn describe(name: &AltName) -> String {
    let kind = match name {
        AltName::Dns(_) => "DNS name",
        AltName::Email(_) => "email address",
        AltName::Ip(_) => "IP address",
        AltName::Uri(_) => "URI",
    };
    format!("{kind} {:?}", name.to_string())
}

impl std::fmt::Display for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dns(text) | Self::Email(text) | Self::Uri(text) => f.write_str(text),
            Self::Net { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

impl Base {
    /// Parses a constraint. Returns `None` for a kind of name that is not compared.
    fn read(tree: &GeneralSubtree<'_>) -> Result<Option<Self>, Fault> {
        let text = |kind: &'static str, text: &str, make: fn(String) -> Self| {
            let host = text.rsplit('@').next().unwrap_or_default();
            let host = host.strip_prefix('.').unwrap_or(host);
            if !host.is_empty() && labels(host).is_none() {
                return Err(Fault::Constraint { kind, text: text.to_owned() });
            }
            Ok(Some(make(text.to_owned())))
        };
        match &tree.base {
            GeneralName::DNSName(name) => text("dnsName", name, Self::Dns),
            GeneralName::RFC822Name(name) => text("rfc822Name", name, Self::Email),
            GeneralName::URI(name) => text("URI", name, Self::Uri),
            GeneralName::IPAddress(bytes) => {
                let (address, mask) = bytes.split_at(bytes.len() / 2);
                let address = self::address(address).filter(|_| address.len() == mask.len());
                let address = address.ok_or(Fault::ConstraintLength)?;
                let bits = ones(mask).ok_or(Fault::ConstraintMask)?;
                Ok(Some(Self::Net { address: masked(address, bits), bits }))
            }
            GeneralName::Invalid(..) => Err(Fault::Constraints),
            _ => Ok(None),
        }
    }
}

/// Returns the prefix length of a mask, or `None` if its ones do not come first.
fn ones(mask: &[u8]) -> Option<u32> {
    let bits: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
    (mask.iter().map(|byte| byte.count_ones()).sum::<u32>() == bits
        && mask.windows(2).all(|pair| pair[0] == 0xff || pair[1] == 0))
    .then_some(bits)
}

fn masked(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
            Ipv4Addr::from_bits(ip.to_bits() & mask).into()
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
            Ipv6Addr::from_bits(ip.to_bits() & mask).into()
        }
    }
}

/// A name in the form that is compared with constraints.
enum ComparableName<'a> {
    Dns(&'a str),
    Email { local: &'a str, host: &'a str },
    Uri { host: &'a str },
    Ip(IpAddr),
}

impl<'a> ComparableName<'a> {
    fn new(name: &'a AltName) -> Result<Self, Fault> {
        match name {
            AltName::Dns(text) => match labels(text) {
                Some(_) => Ok(Self::Dns(text)),
                None => Err(Fault::DnsName(text.clone())),
            },
            AltName::Email(text) => {
                let parts = text.rsplit_once('@');
                let parts = parts.filter(|(local, host)| is_atom(local) && labels(host).is_some());
                let parsed = parts.map(|(local, host)| Self::Email { local, host });
                parsed.ok_or_else(|| Fault::EmailName(text.clone()))
            }
            AltName::Uri(text) => {
                let host = host_of(text);
                let refused = |host| Fault::UriHost { host, uri: text.clone() };
                if host.is_empty() {
                    return Err(refused("empty host"));
                }
                if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
                    return Err(refused("IP"));
                }
                match labels(host) {
                    Some(_) => Ok(Self::Uri { host }),
                    None => Err(Fault::UriName(text.clone())),
                }
            }
            AltName::Ip(ip) => Ok(Self::Ip(*ip)),
        }
    }

    fn is_kin(&self, base: &Base) -> bool {
        matches!(
            (self, base),
            (Self::Dns(_), Base::Dns(_))
                | (Self::Email { .. }, Base::Email(_))
                | (Self::Uri { .. }, Base::Uri(_))
                | (Self::Ip(_), Base::Net { .. })
        )
    }

    fn matches(&self, base: &Base, excluding: bool) -> bool {
        match (self, base) {
            (Self::Dns(name), Base::Dns(base)) => is_below(name, base, excluding),
            (Self::Uri { host }, Base::Uri(base)) => is_below(host, base, excluding),
            (Self::Email { local, host }, Base::Email(base)) => match base.rsplit_once('@') {
                Some((mailbox, domain)) => mailbox == *local && domain.eq_ignore_ascii_case(host),
                None => is_below(host, base, excluding),
            },
            (Self::Ip(ip), Base::Net { address, bits }) => {
                ip.is_ipv4() == address.is_ipv4() && masked(*ip, *bits) == *address
            }
            _ => false,
        }
    }
}

/// Reports whether a name is in a domain. A constraint with a leading dot does not contain the domain itself. An
/// exclusion applies to a wildcard if it applies to one of the wildcard's names.
fn is_below(name: &str, base: &str, excluding: bool) -> bool {
    let (base, strictly) = match base.strip_prefix('.') {
        Some(base) => (base, true),
        None => (base, false),
    };
    if base.is_empty() {
        return true;
    }
    let (Some(name), Some(base)) = (labels(name), labels(base)) else { return excluding };
    let enough = if strictly { name.len() > base.len() } else { name.len() >= base.len() };
    enough
        && name
            .iter()
            .rev()
            .zip(base.iter().rev())
            .all(|(have, want)| have.eq_ignore_ascii_case(want) || (excluding && *have == "*"))
}

/// Returns the labels of a domain name, or `None` if the name is invalid.
fn labels(name: &str) -> Option<Vec<&str>> {
    let labels: Vec<_> = name.split('.').collect();
    let valid = |label: &&str| {
        (1..64).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_graphic())
    };
    (labels.iter().all(valid) && name.len() < 254).then_some(labels)
}

fn is_atom(local: &str) -> bool {
    !local.is_empty()
        && local.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~.".contains(&b))
}

fn host_of(uri: &str) -> &str {
    let Some((_, rest)) = uri.split_once("://") else { return "" };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}
