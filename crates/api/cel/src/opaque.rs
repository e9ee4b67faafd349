//! Opaque values of Kubernetes' libraries, which have methods but no fields.

use std::{fmt, net::IpAddr, sync::Arc};

use api_meta::{Authorizer, Decision, FieldSelector, Quantity, Selector, UserInfo};

use crate::{formats::Format, semver::Version, url::Url};

/// An opaque value. Each variant belongs to one library.
#[derive(Clone, Debug, PartialEq)]
pub enum Opaque {
    Url(Url),
    Quantity(Quantity),
    Ip(IpAddr),
    /// An address and a prefix length. Bits beyond the prefix may be set.
    Cidr(IpAddr, u8),
    Semver(Version),
    Format(&'static Format),
    Authorizer(AuthorizerContext),
    /// An incomplete check of a non-resource path.
    Path(AuthorizerContext, String),
    /// An incomplete check of an API group without a resource.
    Group(AuthorizerContext, String),
    Resource(Box<ResourceCheck>),
    Decision(AuthorizationDecision),
}

/// The authorizer of checks, and the user that is checked.
#[derive(Clone)]
pub struct AuthorizerContext {
    /// The authorizer.
    pub authorizer: Arc<dyn Authorizer>,
    /// The user.
    pub user: UserInfo,
}

impl fmt::Debug for AuthorizerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizerContext").field("user", &self.user.name).finish_non_exhaustive()
    }
}

impl PartialEq for AuthorizerContext {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.authorizer, &other.authorizer) && self.user == other.user
    }
}

/// An incomplete check of a resource.
#[derive(Clone, Debug)]
pub struct ResourceCheck {
    /// The authorizer and the user.
    pub context: AuthorizerContext,
    /// The API group.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource; empty for the resource itself.
    pub subresource: String,
    /// The namespace; empty for all.
    pub namespace: String,
    /// The object's name; empty for all.
    pub name: String,
    /// The field selector; `None` also if it is invalid.
    pub fields: Option<FieldSelector>,
    /// The label selector; `None` also if it is invalid.
    pub labels: Option<Selector>,
}

impl PartialEq for ResourceCheck {
    fn eq(&self, other: &Self) -> bool {
        let key = |check: &Self| {
            [&check.group, &check.resource, &check.subresource, &check.namespace, &check.name]
                .map(String::clone)
        };
        self.context == other.context && key(self) == key(other)
    }
}

/// The authorizer's decision.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthorizationDecision(pub Decision);

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
