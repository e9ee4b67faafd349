//! The resources that a server serves, by default or on demand.

use std::sync::LazyLock;

use crate::builtin::lines;

const RESOURCES: &str = include_str!("../facts/resources.tsv");
const ON_DEMAND: &str = include_str!("../facts/on-demand.tsv");

/// A resource with its subresources.
#[derive(Clone, Debug)]
pub struct ApiResource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The API version.
    pub version: &'static str,
    /// The plural name in paths.
    pub name: &'static str,
    /// The singular name.
    pub singular: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// `true` if the resource is namespaced.
    pub namespaced: bool,
    /// The supported verbs.
    pub verbs: Vec<&'static str>,
    /// The short names for kubectl.
    pub short_names: Vec<&'static str>,
    /// The categories, such as `all`.
    pub categories: Vec<&'static str>,
    /// The hash of the storage version; empty for resources that are not stored (reviews).
    pub storage_version_hash: &'static str,
    /// The subresources.
    pub subresources: Vec<Subresource>,
    /// `true` if the server serves the version only on demand (`--runtime-config`).
    pub on_demand: bool,
}

/// A subresource, such as `pods/log` or `deployments/scale`.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// The name after the slash.
    pub name: &'static str,
    /// The group of the subresource's kind, which may differ from the resource's (`autoscaling/v1` Scale).
    pub group: &'static str,
    /// The version of the subresource's kind.
    pub version: &'static str,
    /// The subresource's kind.
    pub kind: &'static str,
    /// `true` if `group` and `version` differ from the resource's, so that discovery lists them.
    pub foreign: bool,
    /// The supported verbs.
    pub verbs: Vec<&'static str>,
}

/// Returns all resources: the core group first, then groups in the order of `/apis`. Versions that are served on demand
/// come last.
pub fn resources() -> &'static [ApiResource] {
    static RESOURCES: LazyLock<Vec<ApiResource>> = LazyLock::new(read);
    &RESOURCES
}

/// Returns a resource by group, version and plural name.
pub fn resource(group: &str, version: &str, name: &str) -> Option<&'static ApiResource> {
    resources().iter().find(|r| r.group == group && r.version == version && r.name == name)
}

/// Reports whether a deletion returns the deleted object instead of a Status.
pub fn returns_deleted(group: &str, name: &str) -> bool {
    match group {
        "" => matches!(
            name,
            "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        "resource.k8s.io" => true,
        "storage.k8s.io" => name != "csistoragecapacities",
        _ => false,
    }
}

fn read() -> Vec<ApiResource> {
    let mut out: Vec<ApiResource> = Vec::new();
    let by_default = lines(RESOURCES).map(|line| (line, false));
    for (line, on_demand) in by_default.chain(lines(ON_DEMAND).map(|line| (line, true))) {
        let mut cells = line.split('\t');
        let mut cell = || cells.next().unwrap_or_default();
        let (group, version, name, singular, kind, scope) =
            (cell(), cell(), cell(), cell(), cell(), cell());
        let (verbs, short_names, categories) = (words(cell()), words(cell()), words(cell()));
        let Some((parent, subresource)) = name.split_once('/') else {
            out.push(ApiResource {
                group,
                version,
                name,
                singular,
                kind,
                namespaced: scope == "namespaced",
                verbs,
                short_names,
                categories,
                storage_version_hash: cell(),
                subresources: Vec::new(),
                on_demand,
            });
            continue;
        };
        let mut parts = kind.rsplitn(3, '/');
        let mut part = || parts.next();
        let (kind, version_of_kind, group_of_kind) = (part().unwrap_or_default(), part(), part());
        let owner =
            out.iter_mut().find(|r| (r.group, r.version, r.name) == (group, version, parent));
        if let Some(owner) = owner {
            owner.subresources.push(Subresource {
                name: subresource,
                group: group_of_kind.unwrap_or(group),
                version: version_of_kind.unwrap_or(version),
                kind,
                foreign: version_of_kind.is_some(),
                verbs,
            });
        }
    }
    out
}

fn words(cell: &'static str) -> Vec<&'static str> {
    cell.split(',').filter(|w| !w.is_empty()).collect()
}
