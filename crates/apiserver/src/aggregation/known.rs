//! What is known of all groups at one moment.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    outbound::aggregated::Reference,
    registry::{Definition, Served, definition::version_rank, priority},
    watch_cache::Kinds,
};

/// Comes before all others, as upstream has it.
const FIRST: &str = "apiregistration.k8s.io";

/// What one APIService says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiService {
    pub(crate) group: String,
    pub(crate) version: String,
    /// Of the group and of the version.
    pub(crate) priority: (i64, i64),
    pub(crate) serves: Serves,
}

/// Who answers for a group and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    /// This server.
    Local,
    Remote(Remote),
    /// This server, although a Service is named.
    BuiltIn,
}

/// A server of another group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) reference: Reference,
    /// Whether the APIService's condition says so.
    pub(crate) available: bool,
}

/// What the server of a group and version has said that it serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Learned {
    /// In the form of aggregated discovery.
    pub(crate) resources: Vec<Value>,
    /// Whether the server said so when it was asked last.
    pub(crate) fresh: bool,
    /// Of its OpenAPI document of version 3; `None` if it has none.
    pub(crate) hash: Option<String>,
    /// What it adds to OpenAPI of version 2: paths and definitions.
    pub(crate) open_api: Option<Arc<Value>>,
    /// By which it knows whether that is still so.
    pub(crate) open_api_etag: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Grows when documents made from this are out of date.
    pub(crate) generation: u64,
    /// By the APIService's name.
    pub(super) services: BTreeMap<String, Arc<ApiService>>,
    /// By the same name, of remote ones only.
    pub(super) learned: BTreeMap<String, Arc<Learned>>,
}

/// A group as discovery shows it, its preferred version first.
pub(crate) struct Group<'a> {
    pub(crate) name: &'a str,
    pub(crate) versions: Vec<Version<'a>>,
}

pub(crate) struct Version<'a> {
    pub(crate) name: &'a str,
    /// Who serves it, if not this server: what is known of it.
    pub(crate) remote: Option<Option<&'a Learned>>,
    priority: (i64, i64),
}

impl Known {
    pub(crate) fn service(&self, name: &str) -> Option<&Arc<ApiService>> {
        self.services.get(name)
    }

    /// Who answers for a group and version, if another server does.
    pub(crate) fn remote(&self, group: &str, version: &str) -> Option<&Remote> {
        match &self.services.get(&format!("{version}.{group}"))?.serves {
            Serves::Remote(remote) => Some(remote),
            Serves::Local | Serves::BuiltIn => None,
        }
    }

    pub(crate) fn learned(&self, group: &str, version: &str) -> Option<&Arc<Learned>> {
        self.learned.get(&format!("{version}.{group}"))
    }

    /// The groups and versions of other servers.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = &ApiService> {
        let services = self.services.values().map(|service| &**service);
        services.filter(|service| matches!(service.serves, Serves::Remote(_)))
    }

    /// All groups but the legacy one, as clients are to prefer them.
    pub(crate) fn groups<'a>(&'a self, kinds: &'a Kinds) -> Vec<Group<'a>> {
        let mut groups: BTreeMap<&str, Vec<Version<'_>>> = BTreeMap::new();
        for service in self.remotes() {
            let learned = self.learned(&service.group, &service.version).map(|l| &**l);
            groups.entry(&service.group).or_default().push(Version {
                name: &service.version,
                remote: Some(learned),
                priority: service.priority,
            });
        }
        for served in served(kinds).map(|(_, served)| served).filter(|s| !s.group.is_empty()) {
            let versions = groups.entry(&served.group).or_default();
            if !versions.iter().any(|version| *version.name == *served.version) {
                let priority = self.priority(&served.group, &served.version);
                versions.push(Version { name: &served.version, remote: None, priority });
            }
        }
        let mut groups: Vec<Group<'_>> =
            groups.into_iter().map(|(name, versions)| Group { name, versions }).collect();
        groups.sort_by_cached_key(Group::rank);
        for group in &mut groups {
            group.versions.sort_by_key(|v| Reverse((v.priority.1, version_rank(v.name))));
        }
        groups
    }

    fn priority(&self, group: &str, version: &str) -> (i64, i64) {
        let service = self.services.get(&format!("{version}.{group}"));
        service.map_or_else(|| priority::of(group, version), |service| service.priority)
    }
}

impl Group<'_> {
    /// The group with the highest priority comes first; of equal ones the APIServices' names decide.
    fn rank(&self) -> (bool, Option<(Reverse<i64>, String)>) {
        let versions = self.versions.iter();
        let ranks = versions.map(|v| (Reverse(v.priority.0), format!("{}.{}", v.name, self.name)));
        (self.name != FIRST, ranks.min())
    }
}

/// What this server serves itself.
pub(crate) fn served(kinds: &Kinds) -> impl Iterator<Item = (&Arc<Definition>, &Served)> {
    kinds.all.values().flat_map(|r| {
        r.definition.served.iter().filter(|s| s.enabled).map(move |s| (&r.definition, s))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_versions_come_by_priority_then_by_name() {
        let services = [
            ("b.example.com", "v1", 100, 10),
            ("a.example.com", "v1", 100, 10),
            ("c.example.com", "v2alpha1", 200, 10),
            ("c.example.com", "v1beta1", 50, 10),
            ("c.example.com", "v1", 50, 10),
            ("c.example.com", "v9alpha1", 50, 20),
            ("apiregistration.k8s.io", "v1", 1, 1),
        ];
        let spec = serde_json::json!({"service": {"namespace": "n", "name": "s", "port": 1}});
        let reference = Reference::of(&spec).unwrap();
        let mut known = Known::default();
        for (group, version, of_group, of_version) in services {
            let service = ApiService {
                group: group.to_owned(),
                version: version.to_owned(),
                priority: (of_group, of_version),
                serves: Serves::Remote(Remote { reference: reference.clone(), available: true }),
            };
            known.services.insert(format!("{version}.{group}"), Arc::new(service));
        }
        let kinds = Kinds::default();
        let shown: Vec<String> = known
            .groups(&kinds)
            .iter()
            .map(|g| {
                let versions: Vec<&str> = g.versions.iter().map(|v| v.name).collect();
                format!("{}: {}", g.name, versions.join(" "))
            })
            .collect();
        assert_eq!(
            shown,
            [
                "apiregistration.k8s.io: v1",
                "c.example.com: v9alpha1 v1 v1beta1 v2alpha1",
                "a.example.com: v1",
                "b.example.com: v1",
            ]
        );
    }

    #[test]
    fn versions_sort_as_kubernetes_has_it() {
        let mut versions =
            ["foo10", "v1beta1", "v11alpha2", "v10", "v2", "v1", "v3beta1", "v12alpha1"];
        versions.sort_by_key(|v| Reverse(version_rank(v)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v3beta1", "v1beta1", "v12alpha1", "v11alpha2", "foo10"]
        );
    }
}
