//! The ways in which an object comes in, composed of the pure crates in the order of the API server's handlers.
//!
//! An answer of one step that would end a request ends nothing here: the steps behind it are counted all the same.

use std::{hint::black_box, sync::Arc};

use admission::{Chain, Operation, Outcome, Request};
use api_meta::{
    Attributes, Authorizer, Decision, ErrorList, GroupKind, GroupResource, GroupVersionKind,
    GroupVersionResource, Objects, Status, Timestamp, Tree as _, UserInfo,
};
use api_patch::{Context, FieldSet};
use api_rules::Strategy;
use api_schema::{ApiResource, Fill, NodeId, Schema};
use serde_json::{Value, json};

const NOW: &str = "2026-01-02T03:04:05Z";

/// A built-in kind as requests meet it.
pub(crate) struct Kind {
    pub(crate) resource: &'static ApiResource,
    pub(crate) schema: &'static Schema,
    pub(crate) node: NodeId,
    strategy: &'static Strategy,
    pub(crate) api_version: String,
    chain: Arc<Chain>,
    authorizer: Arc<dyn Authorizer>,
}

/// A cluster that has one object of every name.
struct Cluster;

impl Objects for Cluster {
    fn get(&self, _: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
        Some(Arc::new(json!({"metadata": {"name": name, "namespace": namespace}})))
    }

    fn list(&self, _: &GroupResource, _: &str) -> Vec<Arc<Value>> {
        Vec::new()
    }

    fn resource_of(&self, _: &str, _: &str) -> Option<(GroupResource, bool)> {
        Some((GroupResource::PODS, true))
    }
}

struct AllowNone;

impl Authorizer for AllowNone {
    fn authorize(&self, _: &Attributes<'_>) -> Decision {
        Decision::NoOpinion(None)
    }
}

impl Kind {
    /// Returns all stored kinds with an admission chain of all plugins that can be enabled.
    pub(crate) fn all() -> Vec<Self> {
        let schema: &'static Schema = Schema::builtin();
        let chain = Arc::new(Chain::new::<&str>(&PLUGINS, &[]).unwrap_or_else(|e| panic!("{e}")));
        let stored = api_schema::resources().iter().filter(|r| r.verbs.contains(&"create"));
        stored
            .filter_map(|resource| {
                let (group, version) = (resource.group, resource.version);
                Some(Self {
                    resource,
                    schema,
                    node: schema.kind(group, version, resource.kind)?,
                    strategy: api_rules::strategy(group, resource.name),
                    api_version: match group {
                        "" => version.to_owned(),
                        group => format!("{group}/{version}"),
                    },
                    chain: chain.clone(),
                    authorizer: Arc::new(AllowNone),
                })
            })
            .collect()
    }

    fn context<'a>(
        &'a self,
        manager: &'a str,
        subresource: &'a str,
        reset: Option<&'a FieldSet>,
    ) -> Context<'a> {
        Context {
            schema: self.schema,
            node: Some(self.node),
            manager,
            api_version: &self.api_version,
            versions: None,
            subresource,
            now: NOW,
            reset,
            force: false,
        }
    }

    fn put_type(&self, tree: &mut Value) {
        tree.put(&["kind"], self.resource.kind);
        tree.put(&["apiVersion"], self.api_version.as_str());
    }

    /// A body as JSON, read as that of a create or update.
    pub(crate) fn decode(&self, body: &Value) -> Value {
        self.decode_text(&body.to_string())
    }

    pub(crate) fn decode_text(&self, body: &str) -> Value {
        self.decoded(api_schema::decode(self.schema, self.node, body.as_bytes(), Fill::Defaults))
    }

    fn decoded(&self, decoded: Result<api_schema::Decoded, api_schema::DecodeError>) -> Value {
        let Ok(mut decoded) = decoded else { return json!({"metadata": {}}) };
        black_box(decoded.findings());
        self.put_type(&mut decoded.value);
        decoded.value
    }

    /// A patched object, read again.
    fn decode_again(&self, tree: Value) -> Value {
        self.decoded(api_schema::decode_value(self.schema, self.node, tree, Fill::Defaults))
    }

    fn defaults(&self, tree: &mut Value) {
        black_box(api_schema::apply_defaults(self.schema, self.node, tree)).ok();
        self.strategy.defaults(tree);
    }

    /// A new object, from its body to its bytes. A dry run does all of this.
    pub(crate) fn create(&self, body: &Value) -> Value {
        let mut tree = self.decode(body);
        self.strategy.defaults(&mut tree);
        let managed = api_patch::created(&self.context("m", "", None), &tree);
        if managed.is_none() {
            api_patch::update(&self.context("m", "", None), None, &mut tree);
        }
        self.admit(Operation::Create, &mut tree, None, "");
        self.defaults(&mut tree);
        self.strategy.prepare_create(&mut tree, NOW);
        let mut errors = self.strategy.create_errors(&tree, self.resource.namespaced);
        api_rules::refuse_privileged(self.strategy, &tree, &mut errors);
        self.answer(&tree, errors);
        black_box((self.strategy.warnings)(&tree, None));
        self.store(&tree);
        if let Some(managed) = managed {
            let owners: Value = serde_json::from_slice(&managed).unwrap_or_default();
            tree.put(&["metadata", "managedFields"], owners);
        }
        tree
    }

    /// A changed object from what its caller wants to its bytes, by the main endpoint.
    pub(crate) fn update(&self, old: &Value, mut new: Value, tracked: bool) -> Value {
        self.defaults(&mut new);
        if tracked {
            api_patch::update(&self.context("other", "", None), Some(old), &mut new);
        }
        self.strategy.prepare_update(&mut new, old, NOW);
        self.admit(Operation::Update, &mut new, Some(old), "");
        self.defaults(&mut new);
        let mut errors = self.strategy.update_errors(&new, old, self.resource.namespaced);
        api_rules::refuse_privileged(self.strategy, &new, &mut errors);
        self.answer(&new, errors);
        black_box((self.strategy.warnings)(&new, Some(old)));
        black_box(new == *old);
        self.store(&new);
        new
    }

    /// The same by the status endpoint and the kind's other subresources.
    pub(crate) fn update_parts(&self, old: &Value, new: &Value) {
        let mut status = new.clone();
        let fields = self.strategy.reset_fields("status");
        let reset = FieldSet::of(fields);
        let reset = (!fields.is_empty()).then_some(&reset);
        api_patch::update(&self.context("s", "status", reset), Some(old), &mut status);
        self.strategy.prepare_status(&mut status, old, NOW);
        self.admit(Operation::Update, &mut status, Some(old), "status");
        let namespaced = self.resource.namespaced;
        self.answer(&status, self.strategy.status_errors(&status, old, namespaced, NOW));
        for part in self.strategy.subresources {
            let mut changed = new.clone();
            black_box(self.strategy.prepare_subresource(part.name, &mut changed, old, NOW));
            self.admit(Operation::Update, &mut changed, Some(old), part.name);
            let namespaced = self.resource.namespaced;
            let errors = self.strategy.subresource_errors(part.name, &changed, old, namespaced);
            self.answer(&changed, errors);
        }
    }

    /// Converts an object between the storage version of its kind and each version that differs.
    pub(crate) fn convert(&self, object: &Value) {
        let versions = api_schema::resources().iter().filter(|r| r.kind == self.resource.kind);
        for version in versions {
            let conversion = api_schema::conversion(version.group, version.version, version.name);
            let Some(conversion) = conversion else { continue };
            let mut tree = object.clone();
            if std::ptr::eq(version, self.resource) {
                (conversion.to_storage)(&mut tree);
                (conversion.from_storage)(&mut tree);
            } else {
                (conversion.from_storage)(&mut tree);
                (conversion.to_storage)(&mut tree);
            }
            black_box(tree);
        }
    }

    /// A JSON patch, which is a webhook's too.
    pub(crate) fn json_patch(&self, old: &Value, patch: &Value) {
        if let Ok(patched) = api_patch::json_patch(old, patch.to_string().as_bytes()) {
            self.update(old, self.decode_again(patched), true);
        }
    }

    pub(crate) fn merge_patch(&self, old: &Value, patch: &Value) {
        let mut patched = old.clone();
        black_box(api_patch::merge_patch(&mut patched, patch)).ok();
        self.update(old, self.decode_again(patched), true);
    }

    pub(crate) fn strategic_patch(&self, old: &Value, patch: &Value) {
        let mut patched = old.clone();
        let merged = api_patch::strategic(self.schema, Some(self.node), &mut patched, patch);
        if merged.is_ok() {
            self.update(old, self.decode_again(patched), true);
        }
    }

    /// Applies a configuration. Returns the object, or the old one after a conflict.
    pub(crate) fn apply(
        &self,
        old: &Value,
        configuration: &Value,
        manager: &str,
        force: bool,
    ) -> Value {
        let mut configuration = configuration.clone();
        self.put_type(&mut configuration);
        configuration.remove(&["metadata", "uid"]);
        let json = configuration.to_string();
        let Ok(tree) = api_codec::from_yaml(json.as_bytes()) else { return old.clone() };
        let read = api_schema::decode(self.schema, self.node, json.as_bytes(), Fill::Given);
        black_box(read).ok();
        let context = Context { force, ..self.context(manager, "", None) };
        match api_patch::apply(&context, Some(old), &tree) {
            Ok(merged) => self.update(old, self.decode_again(merged), false),
            Err(error) => {
                black_box(error.to_string());
                old.clone()
            }
        }
    }

    fn admit(
        &self,
        operation: Operation,
        tree: &mut Value,
        old: Option<&Value>,
        subresource: &str,
    ) {
        let resource = self.resource;
        let kind = GroupVersionKind::new(resource.group, resource.version, resource.kind);
        let of = GroupVersionResource::new(resource.group, resource.version, resource.name);
        let (user, name) = (UserInfo::new("alice", &[]), tree.name().to_owned());
        let request = Request {
            operation,
            kind: &kind,
            resource: &of,
            subresource,
            namespace: if resource.namespaced { "ns" } else { "" },
            name: &name,
            user: &user,
            old,
            options: &Value::Null,
            dry_run: false,
            objects: &Cluster,
            authorizer: &self.authorizer,
            now: Timestamp::from_unix(1_700_000_000, 0),
            random: &|_| 0,
        };
        let mut outcome = Outcome::default();
        black_box(self.chain.mutate(&request, tree, &mut |_, _| ())).ok();
        black_box(self.chain.validate(&request, tree, &mut outcome, &mut |_, _| ())).ok();
        black_box(self.chain.charge(&request, tree)).ok();
    }

    fn answer(&self, tree: &Value, errors: ErrorList) {
        let kind = GroupKind::new(self.resource.group, self.resource.kind);
        let status = Status::invalid(&kind, tree.name(), &errors);
        black_box(serde_json::to_vec(&status)).ok();
    }

    /// Writes and reads back the object: protobuf, JSON, table rows, usage and selectable fields.
    fn store(&self, tree: &Value) {
        let resource = GroupResource::new(self.resource.group, self.resource.name);
        let stored = api_codec::encode_stored(tree);
        let mut sent = Vec::new();
        let (kind, api_version) = (self.resource.kind, self.api_version.as_str());
        api_codec::splice(&mut sent, &stored, 7, api_codec::Form::Full { kind, api_version });
        let written = api_codec::protobuf::to_protobuf(self.schema, api_version, kind, tree);
        if let Ok(bytes) = written {
            black_box(api_codec::protobuf::from_protobuf(self.schema, &bytes)).ok();
        }
        let now = Timestamp::from_unix(1_800_000_000, 0);
        black_box(api_rules::table::cells(self.resource.group, self.resource.name, tree, now));
        black_box(api_rules::quota::usage(&resource, tree));
        for (_, read) in self.strategy.selectable {
            black_box(read(tree));
        }
    }
}

/// Plugins that are off by default and change or judge objects.
const PLUGINS: [&str; 9] = [
    "NamespaceExists",
    "LimitPodHardAntiAffinityTopology",
    "NodeRestriction",
    "AlwaysPullImages",
    "PodNodeSelector",
    "PodTolerationRestriction",
    "ExtendedResourceToleration",
    "OwnerReferencesPermissionEnforcement",
    "DenyServiceExternalIPs",
];
