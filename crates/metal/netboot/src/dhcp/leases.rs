//! The table of DHCP leases.
//!
//! Leases are stored in dnsmasq's format, so that its lease file can be taken over: `EXPIRY MAC ADDRESS NAME
//! CLIENT-ID`.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
};

use crate::labels::parse_mac;

/// The state of an address in its assignment to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Chosen; a probe is checking whether another host uses the address.
    Probing,
    /// Promised in an offer.
    Offered,
    /// Acknowledged to the client. Only bound leases are written to the file.
    Bound,
    /// Another host uses the address.
    Conflict,
}

/// An address assigned to one client or withheld from all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The hardware address, lower case with colons.
    pub client: String,
    /// The end of the lease, in seconds since the epoch. `u64::MAX` means no end.
    pub expires: u64,
    /// The state of the assignment.
    pub state: State,
    /// The name that the client sent or that its reservation sets.
    pub hostname: Option<String>,
}

/// Parses a client as the file has it: a hardware address of any length, or a client identifier.
fn client(text: &str) -> Option<String> {
    let is_byte = |byte: &str| byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
    parse_mac(text).or_else(|| {
        let bytes = text.strip_prefix("id:").unwrap_or(text);
        bytes.split(':').all(is_byte).then(|| text.to_ascii_lowercase())
    })
}

/// The lease table. Each address has at most one lease and each client at most one address, so the ranges bound the
/// table.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    by_address: BTreeMap<Ipv4Addr, Lease>,
    by_client: HashMap<String, Ipv4Addr>,
}

impl Leases {
    /// Parses a lease file; lines that are not IPv4 leases are skipped.
    pub fn parse(text: &str) -> Self {
        let mut leases = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [expires, mac, address, rest @ ..] = words.as_slice() else { continue };
            let (Ok(expires), Some(client), Ok(address)) =
                (expires.parse::<u64>(), client(mac), address.parse())
            else {
                continue;
            };
            // dnsmasq writes 0 for a lease that does not expire.
            let expires = if expires == 0 { u64::MAX } else { expires };
            let hostname = rest.first().filter(|name| **name != "*").map(|name| (*name).to_owned());
            leases.set(address, Lease { client, expires, state: State::Bound, hostname });
        }
        leases
    }

    /// Returns the file lines of the bound leases.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let bound = self.by_address.iter().filter(|(_, lease)| lease.state == State::Bound);
        bound.map(|(address, _)| self.line(*address))
    }

    /// Returns the current state of one address as a file line that replaces earlier lines about the address.
    pub fn line(&self, address: Ipv4Addr) -> String {
        match self.get(address) {
            Some(lease) if lease.state == State::Bound => {
                let expires = if lease.expires == u64::MAX { 0 } else { lease.expires };
                let name = lease.hostname.as_deref().unwrap_or("*");
                format!("{expires} {} {address} {name} *\n", lease.client)
            }
            // A lease that expired in 1970 marks the address as free.
            _ => format!("1 00:00:00:00:00:00 {address} * *\n"),
        }
    }

    /// Returns the lease of an address, even if it has expired.
    pub fn get(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.by_address.get(&address)
    }

    /// Returns the address of a client, by its hardware address. Addresses in conflict belong to no client.
    pub fn of(&self, client: &str) -> Option<(Ipv4Addr, &Lease)> {
        let address = *self.by_client.get(client)?;
        self.by_address.get(&address).map(|lease| (address, lease))
    }

    /// Returns all leases in the order of their addresses, expired ones included.
    pub fn iter(&self) -> impl Iterator<Item = (&Ipv4Addr, &Lease)> {
        self.by_address.iter()
    }

    /// Returns the number of leases, expired ones included.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Returns `true` if the table has no leases.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Assigns an address to the lease's client and frees the client's previous address.
    pub fn set(&mut self, address: Ipv4Addr, lease: Lease) {
        self.remove(address);
        if lease.state != State::Conflict
            && let Some(other) = self.by_client.insert(lease.client.clone(), address)
        {
            self.by_address.remove(&other);
        }
        self.by_address.insert(address, lease);
    }

    /// Frees an address.
    pub fn remove(&mut self, address: Ipv4Addr) -> Option<Lease> {
        let lease = self.by_address.remove(&address)?;
        if self.by_client.get(&lease.client) == Some(&address) {
            self.by_client.remove(&lease.client);
        }
        Some(lease)
    }

    /// Returns `true` if `client` may have the address: it has no lease, an expired one, or one of this client.
    pub fn is_free(&self, address: Ipv4Addr, client: &str, now: u64) -> bool {
        self.get(address).is_none_or(|lease| {
            lease.expires <= now || (lease.client == client && lease.state != State::Conflict)
        })
    }
}
