use std::{borrow::Cow, fmt, str::FromStr};

/// A string that is usually a constant and only dynamic for custom resources.
type Text = Cow<'static, str>;

/// An API group and version, written `apps/v1`, or `v1` for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// The API group; empty for the core group.
    pub group: Text,
    /// The version, such as `v1`.
    pub version: Text,
}

/// A group, version and kind: the schema of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// The API group; empty for the core group.
    pub group: Text,
    /// The version, such as `v1`.
    pub version: Text,
    /// The kind, such as `Deployment`.
    pub kind: Text,
}

/// A group, version and resource: the REST path of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    /// The API group; empty for the core group.
    pub group: Text,
    /// The version, such as `v1`.
    pub version: Text,
    /// The plural name in lower case, such as `deployments`.
    pub resource: Text,
}

/// A group and resource, written `deployments.apps`, or `pods` for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    /// The API group; empty for the core group.
    pub group: Text,
    /// The plural name in lower case, such as `deployments`.
    pub resource: Text,
}

/// A group and kind, written `Deployment.apps`, or `Pod` for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// The API group; empty for the core group.
    pub group: Text,
    /// The kind, such as `Deployment`.
    pub kind: Text,
}

/// The error for a string that is not `group/version`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected GroupVersion string: {0}")]
pub struct ParseGroupVersionError(String);

impl GroupVersion {
    /// Creates a group version. An empty group is the core group.
    pub fn new(group: impl Into<Text>, version: impl Into<Text>) -> Self {
        Self { group: group.into(), version: version.into() }
    }

    /// Returns a kind of this version.
    pub fn kind(&self, kind: impl Into<Text>) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: kind.into(),
        }
    }

    /// Returns a resource of this version.
    pub fn resource(&self, resource: impl Into<Text>) -> GroupVersionResource {
        GroupVersionResource {
            group: self.group.clone(),
            version: self.version.clone(),
            resource: resource.into(),
        }
    }
}

impl FromStr for GroupVersion {
    type Err = ParseGroupVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            None => Ok(Self::new("", text.to_owned())),
            Some((_, version)) if version.contains('/') => {
                Err(ParseGroupVersionError(text.to_owned()))
            }
            Some((group, version)) => Ok(Self::new(group.to_owned(), version.to_owned())),
        }
    }
}

impl GroupVersionKind {
    /// Creates a kind. An empty group is the core group.
    pub fn new(group: impl Into<Text>, version: impl Into<Text>, kind: impl Into<Text>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Returns the group and version, as in `apiVersion`.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion { group: self.group.clone(), version: self.version.clone() }
    }

    /// Returns the group and kind. Storage and messages do not depend on the version.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }
}

impl GroupVersionResource {
    /// Creates a resource. An empty group is the core group.
    pub fn new(
        group: impl Into<Text>,
        version: impl Into<Text>,
        resource: impl Into<Text>,
    ) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }

    /// Returns the group and version, which paths start with.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion { group: self.group.clone(), version: self.version.clone() }
    }

    /// Returns the group and resource. Authorization and quotas ignore the version.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.resource.clone() }
    }
}

impl GroupResource {
    /// Creates a group resource. An empty group is the core group.
    pub fn new(group: impl Into<Text>, resource: impl Into<Text>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl GroupKind {
    /// Creates a group kind. An empty group is the core group.
    pub fn new(group: impl Into<Text>, kind: impl Into<Text>) -> Self {
        Self { group: group.into(), kind: kind.into() }
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.version)
        } else {
            write!(f, "{}/{}", self.group, self.version)
        }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_dotted(f, &self.resource, &self.group)
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_dotted(f, &self.kind, &self.group)
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

fn write_dotted(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    if group.is_empty() { f.write_str(name) } else { write!(f, "{name}.{group}") }
}
