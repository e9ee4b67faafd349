//! Combines the claims of all objects to the records that names need.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::claims::{Claims, NodeAddresses, NodeSet, Scope, Target};

/// The namespace whose objects decide alone about the names that they claim.
const SYSTEM: &str = "kube-system";
/// The most addresses of a family for one name; more do not fit into an answer.
const MOST_ADDRESSES: usize = 100;
/// The most problems that are returned.
const MOST_PROBLEMS: usize = 50;

/// The addresses that names may have.
#[derive(Clone, Copy, Debug)]
pub struct AddressOptions {
    /// `true` for IPv4 addresses of internal names.
    pub internal_ipv4: bool,
    /// `true` for IPv6 addresses of internal names.
    pub internal_ipv6: bool,
    /// `true` if a Node without an external address has its internal ones for external names, too.
    pub internal_as_external: bool,
}

impl Default for AddressOptions {
    fn default() -> Self {
        Self { internal_ipv4: true, internal_ipv6: true, internal_as_external: false }
    }
}

/// The records of a name: addresses, or another name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The A records.
    pub ipv4: BTreeSet<Ipv4Addr>,
    /// The AAAA records.
    pub ipv6: BTreeSet<Ipv6Addr>,
    /// The CNAME record. A name with addresses has none.
    pub host: Option<String>,
}

impl Records {
    /// Returns `true` if there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.ipv4.len() + self.ipv6.len() + usize::from(self.host.is_some())
    }

    /// Returns the types of records with their values, without empty ones.
    pub fn by_type(&self) -> Vec<(&'static str, Vec<String>)> {
        let text = |values: Vec<String>, kind| (!values.is_empty()).then_some((kind, values));
        let ipv4 = self.ipv4.iter().map(Ipv4Addr::to_string).collect();
        let ipv6 = self.ipv6.iter().map(Ipv6Addr::to_string).collect();
        let host = self.host.iter().cloned().collect();
        [text(ipv4, "A"), text(ipv6, "AAAA"), text(host, "CNAME")].into_iter().flatten().collect()
    }

    fn add(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.ipv4.insert(address),
            IpAddr::V6(address) => self.ipv6.insert(address),
        };
    }
}

/// The records that names need, and what was ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredRecords {
    /// The claimed names. The records are empty if no target has an address.
    pub names: BTreeMap<String, Records>,
    /// The reasons why claims are ignored, a bounded number.
    pub problems: Vec<String>,
}

impl DesiredRecords {
    fn problem(&mut self, problem: impl FnOnce() -> String) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem());
        }
    }
}

/// The addresses of Nodes by their name and roles: of each family one more than a name may have, because every name of
/// every NodePort Service collects those of all workers.
struct NodeIndex(BTreeMap<(NodeSet, Scope), BTreeSet<IpAddr>>);

impl NodeIndex {
    fn new<'a>(
        nodes: impl IntoIterator<Item = &'a NodeAddresses>,
        options: AddressOptions,
    ) -> Self {
        let mut index: BTreeMap<_, BTreeSet<IpAddr>> = BTreeMap::new();
        for node in nodes {
            let external = if node.external.is_empty() && options.internal_as_external {
                &node.internal
            } else {
                &node.external
            };
            let roles = node.roles.iter().cloned().map(NodeSet::Role);
            for set in roles.chain([NodeSet::Name(node.name.clone())]) {
                for (scope, addresses) in
                    [(Scope::Internal, &node.internal), (Scope::External, external)]
                {
                    index.entry((set.clone(), scope)).or_default().extend(addresses);
                }
            }
        }
        for addresses in index.values_mut() {
            let (mut ipv4, mut ipv6) = (0, 0);
            addresses.retain(|address| {
                let count = if address.is_ipv4() { &mut ipv4 } else { &mut ipv6 };
                *count += 1;
                *count <= MOST_ADDRESSES + 1
            });
        }
        Self(index)
    }
}

/// The claims on one name.
#[derive(Default)]
struct NameClaims<'a> {
    /// The object of kube-system that claims the name.
    system: Option<&'a str>,
    addresses: BTreeSet<IpAddr>,
    hosts: BTreeSet<&'a str>,
}

/// Combines claims to the records of names. The result does not depend on the order of the objects.
///
/// Addresses of several objects are united. A name with addresses has no CNAME record, and of several host names the
/// first in order is used. If an object of kube-system claims a name, claims from other namespaces are ignored.
pub fn wanted<'a>(
    nodes: impl IntoIterator<Item = &'a NodeAddresses>,
    claims: impl IntoIterator<Item = &'a Claims>,
    options: AddressOptions,
) -> DesiredRecords {
    let index = NodeIndex::new(nodes, options);
    let mut wanted = DesiredRecords::default();
    let (mut system, mut others): (Vec<&Claims>, Vec<&Claims>) = claims
        .into_iter()
        .filter(|claims| !claims.object.is_empty())
        .partition(|claims| claims.namespace == SYSTEM);
    for all in [&mut system, &mut others] {
        all.sort_by_key(|claims| &claims.object);
    }
    let mut names: BTreeMap<&str, NameClaims<'_>> = BTreeMap::new();
    for claims in system.into_iter().chain(others) {
        for problem in &claims.problems {
            wanted.problem(|| format!("{}: {problem}", claims.object));
        }
        for (name, targets) in
            claims.claims.iter().flat_map(|claim| claim.names.iter().map(|n| (n, &claim.targets)))
        {
            let found = names.entry(name).or_default();
            if claims.namespace == SYSTEM {
                found.system = Some(&claims.object);
            } else if let Some(owner) = found.system {
                wanted.problem(|| format!("{}: {owner} claims {name}", claims.object));
                continue;
            }
            collect(found, targets, &index, options);
        }
    }
    for (name, found) in names {
        let records = finish(name, found, &mut wanted);
        wanted.names.insert(name.to_owned(), records);
    }
    wanted
}

/// Adds targets to the claims on a name.
fn collect<'a>(
    found: &mut NameClaims<'a>,
    targets: &'a [Target],
    index: &NodeIndex,
    options: AddressOptions,
) {
    let fits = |address: &IpAddr, scope: Scope| match (scope, address) {
        (Scope::External, _) => true,
        (Scope::Internal, IpAddr::V4(_)) => options.internal_ipv4,
        (Scope::Internal, IpAddr::V6(_)) => options.internal_ipv6,
    };
    for target in targets {
        match target {
            Target::Address(address, scope) => {
                found.addresses.extend(Some(*address).filter(|address| fits(address, *scope)));
            }
            Target::Host(host) => {
                found.hosts.insert(host);
            }
            Target::Nodes(set, scope) => {
                let key = (set.clone(), *scope);
                let all = index.0.get(&key).into_iter().flatten();
                found.addresses.extend(all.filter(|address| fits(address, *scope)));
            }
        }
    }
}

/// Returns the records of a name.
fn finish(name: &str, found: NameClaims<'_>, wanted: &mut DesiredRecords) -> Records {
    let mut records = Records::default();
    for address in found.addresses {
        records.add(address);
    }
    if records.ipv4.len().max(records.ipv6.len()) > MOST_ADDRESSES {
        wanted.problem(|| format!("{name} has the first {MOST_ADDRESSES} of its addresses only"));
        records.ipv4 = records.ipv4.into_iter().take(MOST_ADDRESSES).collect();
        records.ipv6 = records.ipv6.into_iter().take(MOST_ADDRESSES).collect();
    }
    if records.is_empty() {
        records.host = found.hosts.into_iter().find(|host| *host != name).map(str::to_owned);
    }
    records
}
