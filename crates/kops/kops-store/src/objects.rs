//! A cluster's objects as one listing shows them. A command lists them once, and reads only the contents that it needs.

use std::collections::BTreeMap;

use kops_api::{Kind, Object};
use vfs::{ObjectInfo, Secrecy, Version};

use crate::{error::Error, layout::GROUP_COPIES, registry::Registry};

/// The smallest number of instance groups that are copied into one object. Fewer are read one by one.
const COPIED: usize = 8;

/// The objects in a cluster's directory. An object that is created later counts as absent.
pub struct ClusterObjects<'a> {
    registry: &'a Registry,
    cluster: &'a str,
    infos: BTreeMap<String, ObjectInfo>,
}

/// A cluster's instance groups.
pub struct StoredGroups {
    /// The groups, sorted by name.
    pub objects: Vec<Object>,
    /// The object to store with copies of all groups, so that the next command reads them by one request; `None` if
    /// that saves little.
    pub copies: Option<StoredObject>,
}

/// An object for the store.
#[derive(Debug)]
pub struct StoredObject {
    /// The object's name below the cluster's directory.
    pub name: String,
    /// The content.
    pub content: String,
    /// The readers of the object.
    pub secrecy: Secrecy,
    /// The kind shown in the plan.
    pub kind: &'static str,
}

impl<'a> ClusterObjects<'a> {
    /// Lists the objects of a cluster.
    pub fn list(registry: &'a Registry, cluster: &'a str) -> Result<Self, Error> {
        let infos = registry.describe_objects(cluster)?;
        let infos = infos.into_iter().map(|info| (info.name.clone(), info)).collect();
        Ok(Self { registry, cluster, infos })
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        self.cluster
    }

    /// Returns the full names of all objects below a directory of the cluster.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let prefix = format!("{}/{directory}/", self.cluster);
        let found = self.infos.range(prefix.clone()..).map(|(name, _)| name);
        found.take_while(|name| name.starts_with(&prefix)).cloned().collect()
    }

    /// Returns an object by its full name. An object that is not listed needs no request.
    pub fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Version)>, Error> {
        if self.infos.contains_key(name) { self.registry.read_object(name) } else { Ok(None) }
    }

    /// Reports whether an object with this full name exists.
    pub fn has(&self, name: &str) -> bool {
        self.infos.contains_key(name)
    }

    /// Reports whether an object is certain to have this content, without reading it.
    pub fn has_content(&self, name: &str, content: &[u8]) -> bool {
        self.infos.get(name).is_some_and(|info| info.has_content(content))
    }

    /// Returns the cluster's instance groups. A copy is used if the listing proves that it equals the group's object.
    pub fn groups(&self) -> Result<StoredGroups, Error> {
        let names = self.names("instancegroup");
        let is_copied = names.len() >= COPIED && !self.registry.is_local();
        let mut copies = if is_copied { self.copies()? } else { BTreeMap::new() };
        let (mut objects, mut kept) = (Vec::new(), BTreeMap::new());
        for path in names {
            let Some((_, name)) = path.rsplit_once('/') else { continue };
            let copy = copies.remove(name).filter(|copy| self.has_content(&path, copy.as_bytes()));
            let content = match copy {
                Some(copy) => copy.into_bytes(),
                None => match self.registry.read_object(&path)? {
                    Some((content, _)) => content,
                    // Another command has deleted it since.
                    None => continue,
                },
            };
            objects.push(Registry::parse(&path, Kind::InstanceGroup, name, &content)?);
            kept.insert(name.to_owned(), String::from_utf8_lossy(&content).into_owned());
        }
        let copies = is_copied.then(|| StoredObject {
            name: GROUP_COPIES.to_owned(),
            content: serde_json::json!(kept).to_string(),
            secrecy: Secrecy::Open,
            kind: "ManagedFile",
        });
        Ok(StoredGroups { objects, copies })
    }

    /// Returns the stored copies of groups. Content that cannot be parsed is ignored, because the next update replaces
    /// it.
    fn copies(&self) -> Result<BTreeMap<String, String>, Error> {
        let found = self.read(&format!("{}/{GROUP_COPIES}", self.cluster))?;
        let copies = found.and_then(|(content, _)| serde_json::from_slice(&content).ok());
        Ok(copies.unwrap_or_default())
    }
}
