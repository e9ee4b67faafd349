use std::{borrow::Cow, fmt, str::FromStr};

/// Text that is mostly a constant of ours, and sometimes a custom resource's.
type Text = Cow<'static, str>;

/// An API group and version, written `apps/v1`, or `v1` for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    pub group: Text,
    pub version: Text,
}

/// Which schema an object has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    pub group: Text,
    pub version: Text,
    pub kind: Text,
}

/// Where objects are found; the plural of paths, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    pub group: Text,
    pub version: Text,
    pub resource: Text,
}

/// A group and resource, written `deployments.apps`, or `pods` for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    pub group: Text,
    pub resource: Text,
}

/// A group and kind, written `Deployment.apps`, or `Pod` for the core group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    pub group: Text,
    pub kind: Text,
}

/// What is no `group/version`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unexpected GroupVersion string: {0}")]
pub struct ParseGroupVersionError(String);

impl GroupVersion {
    /// An empty group is the core API's.
    pub fn new(group: impl Into<Text>, version: impl Into<Text>) -> Self {
        Self { group: group.into(), version: version.into() }
    }

    /// A kind of this version.
    pub fn kind(&self, kind: impl Into<Text>) -> GroupVersionKind {
        GroupVersionKind {
            group: self.group.clone(),
            version: self.version.clone(),
            kind: kind.into(),
        }
    }

    /// A resource of this version.
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
    /// An empty group is the core API's.
    pub fn new(group: impl Into<Text>, version: impl Into<Text>, kind: impl Into<Text>) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Without the kind, as `apiVersion` has it.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion { group: self.group.clone(), version: self.version.clone() }
    }

    /// Without the version, which storage and messages do not depend on.
    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }
}

impl GroupVersionResource {
    /// An empty group is the core API's.
    pub fn new(
        group: impl Into<Text>,
        version: impl Into<Text>,
        resource: impl Into<Text>,
    ) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }

    /// Without the resource, as paths begin with it.
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion { group: self.group.clone(), version: self.version.clone() }
    }

    /// Without the version: authorisation and quotas know a resource by this.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.resource.clone() }
    }
}

impl GroupResource {
    /// An empty group is the core API's.
    pub fn new(group: impl Into<Text>, resource: impl Into<Text>) -> Self {
        Self { group: group.into(), resource: resource.into() }
    }
}

impl GroupKind {
    /// An empty group is the core API's.
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
        dotted(f, &self.resource, &self.group)
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        dotted(f, &self.kind, &self.group)
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

fn dotted(f: &mut fmt::Formatter<'_>, name: &str, group: &str) -> fmt::Result {
    if group.is_empty() { f.write_str(name) } else { write!(f, "{name}.{group}") }
}
