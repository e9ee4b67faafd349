//! A snapshot of all APIServices, with the discovery data of remote ones.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use serde_json::Value;

use crate::{
    outbound::aggregated::Reference,
    registry::{Definition, ServedVersion, definition::version_rank, priority},
    watch_cache::Kinds,
};

/// The group that is listed before all others, as upstream does.
const FIRST: &str = "apiregistration.k8s.io";

/// A decoded APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiService {
    pub(crate) group: String,
    pub(crate) version: String,
    /// `groupPriorityMinimum` and `versionPriority`.
    pub(crate) priority: (i64, i64),
    pub(crate) serves: GroupServer,
}

/// The server of a group and version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupServer {
    /// This server.
    Local,
    Remote(Remote),
    /// This server, although the APIService names a Service: the group is built in.
    BuiltIn,
}

/// An API server behind a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) reference: Reference,
    /// `true` if the APIService's condition `Available` is true.
    pub(crate) available: bool,
}

/// The discovery data of a remote group and version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RemoteApi {
    /// The resources, in the format of aggregated discovery.
    pub(crate) resources: Vec<Value>,
    /// `true` if the last fetch succeeded.
    pub(crate) fresh: bool,
    /// The hash of its OpenAPI v3 document; `None` without a document.
    pub(crate) hash: Option<String>,
    /// Its part of OpenAPI v2: paths and definitions.
    pub(crate) open_api: Option<Arc<Value>>,
    /// The ETag of `open_api`, for conditional requests.
    pub(crate) open_api_etag: String,
}

/// All APIServices and the discovery data of remote ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiServices {
    /// Increases whenever documents built from this snapshot become outdated.
    pub(crate) generation: u64,
    /// The APIServices by name.
    pub(super) services: BTreeMap<String, Arc<ApiService>>,
    /// The discovery data of remote APIServices, by the APIService's name.
    pub(super) learned: BTreeMap<String, Arc<RemoteApi>>,
}

/// A group for discovery, with its preferred version first.
pub(crate) struct Group<'a> {
    pub(crate) name: &'a str,
    pub(crate) versions: Vec<Version<'a>>,
}

/// A version of a group for discovery.
pub(crate) struct Version<'a> {
    pub(crate) name: &'a str,
    /// `None` if this server serves it. Otherwise the discovery data of the other server, if already fetched.
    pub(crate) remote: Option<Option<&'a RemoteApi>>,
    priority: (i64, i64),
}

impl ApiServices {
    pub(crate) fn service(&self, name: &str) -> Option<&Arc<ApiService>> {
        self.services.get(name)
    }

    /// Returns the server of a group and version, if it is another one.
    pub(crate) fn remote(&self, group: &str, version: &str) -> Option<&Remote> {
        match &self.services.get(&format!("{version}.{group}"))?.serves {
            GroupServer::Remote(remote) => Some(remote),
            GroupServer::Local | GroupServer::BuiltIn => None,
        }
    }

    pub(crate) fn remote_api(&self, group: &str, version: &str) -> Option<&Arc<RemoteApi>> {
        self.learned.get(&format!("{version}.{group}"))
    }

    /// Returns the APIServices that other servers serve.
    pub(crate) fn remotes(&self) -> impl Iterator<Item = &ApiService> {
        let services = self.services.values().map(|service| &**service);
        services.filter(|service| matches!(service.serves, GroupServer::Remote(_)))
    }

    /// Returns all groups except the legacy one, in order of preference.
    pub(crate) fn groups<'a>(&'a self, kinds: &'a Kinds) -> Vec<Group<'a>> {
        let mut groups: BTreeMap<&str, Vec<Version<'_>>> = BTreeMap::new();
        for service in self.remotes() {
            let learned = self.remote_api(&service.group, &service.version).map(|l| &**l);
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
    /// Returns the sort key: the highest priority first, then the name of the APIService.
    fn rank(&self) -> (bool, Option<(Reverse<i64>, String)>) {
        let versions = self.versions.iter();
        let ranks = versions.map(|v| (Reverse(v.priority.0), format!("{}.{}", v.name, self.name)));
        (self.name != FIRST, ranks.min())
    }
}

/// Returns the resources that this server itself serves.
pub(crate) fn served(kinds: &Kinds) -> impl Iterator<Item = (&Arc<Definition>, &ServedVersion)> {
    kinds.all.iter().flat_map(|r| {
        r.definition.served.iter().filter(|s| s.enabled).map(move |s| (&r.definition, s))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_groups_by_priority_then_name() {
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
        let mut known = ApiServices::default();
        for (group, version, of_group, of_version) in services {
            let service = ApiService {
                group: group.to_owned(),
                version: version.to_owned(),
                priority: (of_group, of_version),
                serves: GroupServer::Remote(Remote {
                    reference: reference.clone(),
                    available: true,
                }),
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
    fn sorts_versions_like_upstream() {
        let mut versions =
            ["foo10", "v1beta1", "v11alpha2", "v10", "v2", "v1", "v3beta1", "v12alpha1"];
        versions.sort_by_key(|v| Reverse(version_rank(v)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v3beta1", "v1beta1", "v12alpha1", "v11alpha2", "foo10"]
        );
    }
}
