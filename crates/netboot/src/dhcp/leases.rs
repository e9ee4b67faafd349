//! Who has which address until when.
//!
//! Kept in dnsmasq's format, so that a file of its is taken over: `EXPIRY MAC ADDRESS NAME CLIENT-ID`.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
};

/// How far an address is on its way to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Chosen, while it is found out whether anyone answers there.
    Probing,
    /// Promised in an offer.
    Offered,
    /// The client has taken it; it alone is written to the file.
    Bound,
    /// Something else answers there.
    Conflict,
}

/// One address given to one client, or held back from all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The hardware address, lower case with colons.
    pub client: String,
    /// In seconds since the epoch.
    pub expires: u64,
    pub state: State,
    /// The name that the client gave itself.
    pub hostname: Option<String>,
}

/// A client as the file has it: a hardware address of any length, or an identifier.
fn client(text: &str) -> Option<String> {
    let is_byte = |byte: &str| byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
    crate::matchbox::parse_mac(text).or_else(|| {
        let bytes = text.strip_prefix("id:").unwrap_or(text);
        bytes.split(':').all(is_byte).then(|| text.to_ascii_lowercase())
    })
}

/// At most one lease for an address and one address for a client, so that the ranges bound the table.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    by_address: BTreeMap<Ipv4Addr, Lease>,
    by_client: HashMap<String, Ipv4Addr>,
}

impl Leases {
    /// Reads a file; lines that say nothing of IPv4 leases are left out.
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
            // dnsmasq writes 0 for a lease without end.
            let expires = if expires == 0 { u64::MAX } else { expires };
            let hostname = rest.first().filter(|name| **name != "*").map(|name| (*name).to_owned());
            leases.set(address, Lease { client, expires, state: State::Bound, hostname });
        }
        leases
    }

    /// The lines of the bound leases.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let bound = self.by_address.iter().filter(|(_, lease)| lease.state == State::Bound);
        bound.map(|(address, _)| self.line(*address))
    }

    /// What is so of one address now, as a line that counts from where it stands in the file on.
    pub fn line(&self, address: Ipv4Addr) -> String {
        match self.get(address) {
            Some(lease) if lease.state == State::Bound => {
                let expires = if lease.expires == u64::MAX { 0 } else { lease.expires };
                let name = lease.hostname.as_deref().unwrap_or("*");
                format!("{expires} {} {address} {name} *\n", lease.client)
            }
            // A lease that ended at the beginning of time.
            _ => format!("1 00:00:00:00:00:00 {address} * *\n"),
        }
    }

    /// The lease of an address, also one that has expired.
    pub fn get(&self, address: Ipv4Addr) -> Option<&Lease> {
        self.by_address.get(&address)
    }

    /// The address of a client, by its hardware address. An address in conflict is nobody's.
    pub fn of(&self, client: &str) -> Option<(Ipv4Addr, &Lease)> {
        let address = *self.by_client.get(client)?;
        self.by_address.get(&address).map(|lease| (address, lease))
    }

    /// All leases in the addresses' order, expired ones too.
    pub fn iter(&self) -> impl Iterator<Item = (&Ipv4Addr, &Lease)> {
        self.by_address.iter()
    }

    /// Counts expired leases too.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether no address was ever given.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Gives an address to the lease's client, and takes away the one that the client had before: it has one at a time.
    pub fn set(&mut self, address: Ipv4Addr, lease: Lease) {
        self.remove(address);
        if lease.state != State::Conflict
            && let Some(other) = self.by_client.insert(lease.client.clone(), address)
        {
            self.by_address.remove(&other);
        }
        self.by_address.insert(address, lease);
    }

    /// Frees an address, whoever has it.
    pub fn remove(&mut self, address: Ipv4Addr) -> Option<Lease> {
        let lease = self.by_address.remove(&address)?;
        if self.by_client.get(&lease.client) == Some(&address) {
            self.by_client.remove(&lease.client);
        }
        Some(lease)
    }

    /// Whether `client` may have the address: nobody has, or it itself, or the lease has ended.
    pub fn is_free(&self, address: Ipv4Addr, client: &str, now: u64) -> bool {
        self.get(address).is_none_or(|lease| {
            lease.expires <= now || (lease.client == client && lease.state != State::Conflict)
        })
    }
}
