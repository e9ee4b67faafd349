//! Values of Kubernetes' libraries, which have methods and no fields.

use std::{fmt, net::IpAddr, sync::Arc};

use api_meta::{Authorizer, Decision, FieldSelector, Quantity, Selector, UserInfo};

use crate::{formats::Format, semver::Version, url::Url};

/// A value with methods alone; each kind is one library's.
#[derive(Clone, Debug, PartialEq)]
pub enum Opaque {
    Url(Url),
    Quantity(Quantity),
    Ip(IpAddr),
    /// An address with the length of its network's prefix; bits beyond it may be set.
    Cidr(IpAddr, u8),
    Semver(Version),
    Format(&'static Format),
    Authorizer(Asks),
    /// A question about a path that is no resource, as far as it is put.
    Path(Asks, String),
    /// A question about an API group, until it names a resource.
    Group(Asks, String),
    Resource(Box<ResourceCheck>),
    Decision(Answer),
}

/// On whose behalf authorisation is asked, and whom.
#[derive(Clone)]
pub struct Asks {
    pub authorizer: Arc<dyn Authorizer>,
    pub user: UserInfo,
}

impl fmt::Debug for Asks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asks").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl PartialEq for Asks {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.authorizer, &other.authorizer) && self.user == other.user
    }
}

/// A question about a resource, as far as it is put.
#[derive(Clone, Debug)]
pub struct ResourceCheck {
    pub asks: Asks,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// A selector that cannot be read makes the question one without it.
    pub fields: Option<FieldSelector>,
    pub labels: Option<Selector>,
}

impl PartialEq for ResourceCheck {
    fn eq(&self, other: &Self) -> bool {
        let key = |check: &Self| {
            [&check.group, &check.resource, &check.subresource, &check.namespace, &check.name]
                .map(String::clone)
        };
        self.asks == other.asks && key(self) == key(other)
    }
}

/// What the authoriser said to a question, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(pub Decision);

impl Opaque {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Url(_) => "kubernetes.URL",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(..) => "net.CIDR",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Self::Path(..) => "kubernetes.authorization.PathCheck",
            Self::Group(..) => "kubernetes.authorization.GroupCheck",
            Self::Resource(_) => "kubernetes.authorization.ResourceCheck",
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Ip(address) => bytes(address),
            Self::Cidr(_, prefix) => u64::from(prefix.div_ceil(8)),
            _ => 1,
        }
    }
}

pub(crate) fn bytes(address: &IpAddr) -> u64 {
    if address.is_ipv4() { 4 } else { 16 }
}

impl fmt::Display for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(&url.text),
            Self::Quantity(quantity) => quantity.fmt(f),
            Self::Ip(address) => address.fmt(f),
            Self::Cidr(address, prefix) => write!(f, "{address}/{prefix}"),
            Self::Semver(version) => version.fmt(f),
            Self::Format(format) => f.write_str(format.name),
            other => f.write_str(other.type_name()),
        }
    }
}
