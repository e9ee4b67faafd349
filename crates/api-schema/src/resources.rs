//! The resources that a server serves by default, as its discovery tells them.

use std::sync::LazyLock;

use crate::builtin::lines;

const RESOURCES: &str = include_str!("../facts/resources.tsv");

/// A resource with its subresources.
#[derive(Clone, Debug)]
pub struct ApiResource {
    pub group: &'static str,
    pub version: &'static str,
    /// The plural name, as in paths.
    pub name: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    pub verbs: Vec<&'static str>,
    pub short_names: Vec<&'static str>,
    pub categories: Vec<&'static str>,
    /// Empty for what is not stored (reviews).
    pub storage_version_hash: &'static str,
    pub subresources: Vec<Subresource>,
}

/// `pods/log`, `deployments/scale`.
#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: &'static str,
    /// The kind it takes and gives: not always of the resource's group and version (`autoscaling/v1` Scale).
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    /// Whether `group` and `version` differ from the resource's, so that discovery names them.
    pub foreign: bool,
    pub verbs: Vec<&'static str>,
}

/// All resources: the core group first, then groups in the order in which `/apis` lists them.
pub fn resources() -> &'static [ApiResource] {
    static RESOURCES: LazyLock<Vec<ApiResource>> = LazyLock::new(read);
    &RESOURCES
}

/// The resource of a group and version by its plural name.
pub fn resource(group: &str, version: &str, name: &str) -> Option<&'static ApiResource> {
    resources().iter().find(|r| r.group == group && r.version == version && r.name == name)
}

/// Whether deleting an object answers with the object as it last was, rather than with a Status.
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
    for line in lines(RESOURCES) {
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
