//! What the registry knows of a kind: where it is served and stored, and its schema. A kind is data: a
//! built-in and a custom one differ only in where this comes from.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use api_meta::{GroupKind, GroupResource};
use api_schema::{ApiResource, NodeId, Schema};
use auth::authz::node::POD_MEMBERS;
use serde_json::Value;

use super::{conversion::Converter, object::Selectable, projection::Wanted};
use crate::{flags::RuntimeConfig, watch_cache::cache::Cache};

/// A resource as it is stored, with all the groups and versions that serve it.
pub(crate) struct Definition {
    pub(crate) group: Arc<str>,
    pub(crate) plural: Arc<str>,
    pub(crate) namespaced: bool,
    /// `/registry/pods/`, or `/registry/GROUP/PLURAL/` for custom kinds.
    pub(crate) prefix: Arc<str>,
    pub(crate) selectable: Vec<Selectable>,
    /// What of an object is read to know its labels and selectable fields, and for indexes.
    pub(crate) wanted: Wanted,
    /// Whether that is all that indexes look at; they read other kinds' objects whole.
    pub(crate) indexed: bool,
    pub(crate) served: Vec<Served>,
    /// Which of `served` the stored form is.
    pub(crate) storage: usize,
    /// The CustomResourceDefinition that a custom kind comes from.
    pub(crate) custom: Option<Arc<Value>>,
    /// Where somebody else converts between a custom kind's versions: its objects are kept in the version that they
    /// were written in, and those in another are made when they are asked for.
    pub(crate) converter: Option<Arc<Converter>>,
    pub(crate) strategy: &'static api_rules::Strategy,
}

/// One group and version of a resource.
pub(crate) struct Served {
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    /// `v1`, `apps/v1`.
    pub(crate) api_version: Arc<str>,
    pub(crate) kind: Arc<str>,
    pub(crate) list_kind: Arc<str>,
    pub(crate) singular: Arc<str>,
    pub(crate) verbs: Vec<Arc<str>>,
    pub(crate) short_names: Vec<Arc<str>>,
    pub(crate) categories: Vec<Arc<str>>,
    pub(crate) storage_version_hash: Arc<str>,
    pub(crate) subresources: Vec<ServedSubresource>,
    pub(crate) schema: Arc<Schema>,
    pub(crate) node: NodeId,
    pub(crate) conversion: Option<Conversion>,
    /// Sent as a `Warning` header with every write.
    pub(crate) warning: Option<Arc<str>>,
    /// For custom kinds: `additionalPrinterColumns`.
    pub(crate) columns: Option<Arc<Value>>,
    /// A custom kind's versions need not be served, even the one that is stored.
    pub(crate) enabled: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ServedSubresource {
    pub(crate) name: Arc<str>,
    pub(crate) group: Arc<str>,
    pub(crate) version: Arc<str>,
    pub(crate) kind: Arc<str>,
    pub(crate) foreign: bool,
    pub(crate) verbs: Vec<Arc<str>>,
}

/// Between a served version and the stored one, on whole objects.
#[derive(Clone)]
pub(crate) struct Conversion {
    pub(crate) to_storage: Convert,
    pub(crate) from_storage: Convert,
}

pub(crate) type Convert = Arc<dyn Fn(&mut Value) + Send + Sync>;

impl Definition {
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.to_string(), self.plural.to_string())
    }

    pub(crate) fn stored(&self) -> &Served {
        &self.served[self.storage]
    }

    /// One of its versions, by `apps/v1`.
    pub(crate) fn version(&self, api_version: &str) -> Option<&Served> {
        self.served.iter().find(|served| &*served.api_version == api_version)
    }

    /// `/registry/pods/default/web`; for a collection with an empty name, the prefix of its keys.
    pub(crate) fn key(&self, namespace: &str, name: &str) -> String {
        let mut key = self.prefix.to_string();
        if self.namespaced && !(namespace.is_empty() && name.is_empty()) {
            key.push_str(namespace);
            key.push('/');
        }
        key.push_str(name);
        key
    }

    /// Reviews and bindings are not stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored().has_verb("list") && !self.is("", "componentstatuses")
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        &*self.group == group && &*self.plural == plural
    }
}

impl Served {
    pub(crate) fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.group.to_string(), self.kind.to_string())
    }

    pub(crate) fn subresource(&self, name: &str) -> Option<&ServedSubresource> {
        self.subresources.iter().find(|s| &*s.name == name)
    }

    pub(crate) fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| &**v == verb)
    }
}

/// A definition in use, with its cache; reviews and bindings, which are not stored, have none.
#[derive(Clone)]
pub(crate) struct Resource {
    pub(crate) definition: Arc<Definition>,
    pub(crate) cache: Option<Arc<Cache>>,
}

/// Every resource that is served, replaced as a whole when custom kinds come and go.
#[derive(Clone, Default)]
pub(crate) struct Kinds {
    /// By `GROUP/VERSION/PLURAL`.
    by_path: HashMap<String, (Resource, usize)>,
    /// Definitions by `(group, plural)` of their storage.
    pub(crate) all: BTreeMap<(Arc<str>, Arc<str>), Resource>,
    /// Grows with every change, so that what was made from the kinds knows when it is out of date.
    pub(crate) generation: u64,
}

impl Kinds {
    pub(crate) fn insert(&mut self, resource: Resource) {
        let definition = resource.definition.clone();
        self.remove(&definition.group, &definition.plural);
        self.generation += 1;
        for (index, served) in definition.served.iter().enumerate().filter(|(_, s)| s.enabled) {
            let path = api_path(&served.group, &served.version, &definition.plural);
            self.by_path.insert(path, (resource.clone(), index));
        }
        self.all.insert((definition.group.clone(), definition.plural.clone()), resource);
    }

    pub(crate) fn remove(&mut self, group: &str, plural: &str) -> Option<Resource> {
        let gone = self.all.remove(&(Arc::from(group), Arc::from(plural)))?;
        self.generation += 1;
        self.by_path
            .retain(|_, (resource, _)| !Arc::ptr_eq(&resource.definition, &gone.definition));
        Some(gone)
    }

    /// The resource behind `/apis/GROUP/VERSION/…/PLURAL`, and which of its served versions that is.
    pub(crate) fn find(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<(&Resource, usize)> {
        self.by_path
            .get(&api_path(group, version, plural))
            .map(|(resource, index)| (resource, *index))
    }

    /// The resource stored under a group and plural name.
    pub(crate) fn get(&self, group: &str, plural: &str) -> Option<&Resource> {
        self.all.get(&(Arc::from(group), Arc::from(plural)))
    }
}

/// Where upstream's etcd keys do not follow the plural name.
fn storage_path(group: &str, plural: &str) -> String {
    let path = match (group, plural) {
        ("", "nodes") => "minions",
        ("", "services") => "services/specs",
        ("", "endpoints") => "services/endpoints",
        ("", "replicationcontrollers") => "controllers",
        ("networking.k8s.io", "ingresses") => "ingress",
        ("apiextensions.k8s.io" | "apiregistration.k8s.io", _) => {
            return format!("{group}/{plural}");
        }
        _ => plural,
    };
    path.to_owned()
}

/// What the kinds that are stored and do not act yet say to whoever writes them.
fn warning(group: &str, plural: &str) -> Option<&'static str> {
    match (group, plural) {
        ("admissionregistration.k8s.io", _) => Some(
            "this server stores admission webhooks and policies and does not call or evaluate them yet",
        ),
        ("apiregistration.k8s.io", "apiservices") => {
            Some("this server stores APIServices and does not aggregate other API servers yet")
        }
        _ => None,
    }
}

/// The built-in definitions.
pub(crate) fn builtin() -> Vec<Arc<Definition>> {
    let mut groups: Vec<(String, Vec<&'static ApiResource>)> = Vec::new();
    for resource in api_schema::resources() {
        let (group, plural) = storage_home(resource.group, resource.name);
        let home = format!("{group}/{plural}");
        match groups.iter_mut().find(|(h, _)| *h == home) {
            Some((_, versions)) => versions.push(resource),
            None => groups.push((home, vec![resource])),
        }
    }
    groups.into_iter().map(|(_, versions)| Arc::new(builtin_definition(&versions))).collect()
}

/// Those that are served by a configuration. What is not served is stored all the same, as it is with upstream.
pub(crate) fn configured(runtime: &RuntimeConfig) -> Vec<Arc<Definition>> {
    let mut all = builtin();
    for definition in &mut all {
        // Nobody else has them yet.
        let Some(definition) = Arc::get_mut(definition) else { continue };
        let plural = definition.plural.clone();
        for served in &mut definition.served {
            served.enabled = runtime.serves(&served.group, &served.version, &plural);
        }
    }
    all
}

/// Events of both groups are one resource.
fn storage_home<'a>(group: &'a str, plural: &'a str) -> (&'a str, &'a str) {
    match (group, plural) {
        ("events.k8s.io", "events") => ("", "events"),
        _ => (group, plural),
    }
}

fn builtin_definition(versions: &[&'static ApiResource]) -> Definition {
    let first = versions[0];
    let (group, plural) = storage_home(first.group, first.name);
    let strategy = api_rules::strategy(group, plural);
    let selectable = Selectable::all(strategy.selectable);
    let indexed = if (group, plural) == ("", "pods") { &POD_MEMBERS[..] } else { &[] };
    let shown: Vec<Served> = versions.iter().map(|r| served(r)).collect();
    Definition {
        group: group.into(),
        plural: plural.into(),
        namespaced: first.namespaced,
        prefix: format!("/registry/{}/", storage_path(group, plural)).into(),
        wanted: Selectable::wanted(&selectable, indexed),
        indexed: !indexed.is_empty(),
        selectable,
        // Where a resource has several versions, all but the stored one are converted.
        storage: shown.iter().position(|version| version.conversion.is_none()).unwrap_or(0),
        served: shown,
        custom: None,
        converter: None,
        strategy,
    }
}

fn served(resource: &'static ApiResource) -> Served {
    let schema = Schema::builtin();
    let node = schema.kind(resource.group, resource.version, resource.kind).unwrap_or(NodeId(0));
    let shared = |words: &[&'static str]| words.iter().map(|w| Arc::from(*w)).collect();
    Served {
        group: resource.group.into(),
        version: resource.version.into(),
        api_version: api_version(resource.group, resource.version).into(),
        kind: resource.kind.into(),
        list_kind: format!("{}List", resource.kind).into(),
        singular: resource.singular.into(),
        verbs: shared(&resource.verbs),
        short_names: shared(&resource.short_names),
        categories: shared(&resource.categories),
        storage_version_hash: resource.storage_version_hash.into(),
        subresources: resource
            .subresources
            .iter()
            .map(|s| ServedSubresource {
                name: s.name.into(),
                group: s.group.into(),
                version: s.version.into(),
                kind: s.kind.into(),
                foreign: s.foreign,
                verbs: shared(&s.verbs),
            })
            .collect(),
        schema: schema.clone(),
        node,
        conversion: crate::registry::conversion::between(
            resource.group,
            resource.version,
            resource.name,
        ),
        warning: warning(resource.group, resource.name).map(Arc::from),
        columns: None,
        enabled: true,
    }
}

fn api_path(group: &str, version: &str, plural: &str) -> String {
    [group, "/", version, "/", plural].concat()
}

pub(crate) fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}
