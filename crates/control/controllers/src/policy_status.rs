//! Type-checks the expressions of validating admission policies against the schemas of the matched kinds, and writes
//! warnings to the policy's status. The warnings have no effect on admission.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::{GroupVersionKind, ObjectMeta, Tree as _};
use api_rules::expressions::Scope;
use cel::{Composition, Decl, Issues, Program, Type};
use client::{Client, Error, NotFoundExt as _, PatchKind, PatchTarget, Resource, WorkQueue};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    context::{Context, synced},
    shared::Watched,
};

/// The number of kinds that are checked for one policy rule.
const MOST_KINDS: usize = 10;
const MANAGER: &str = "validatingadmissionpolicy-status";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    metadata: ObjectMeta,
    spec: Value,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: i64,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let policies = context.watch::<Policy>(Resource::VALIDATING_ADMISSION_POLICIES);
    policies.on_key(&queue);
    let waits = vec![synced(&policies)];
    let state = (context.clone(), policies);
    context.run(&queue, 1, waits, state, |(context, policies), key| async move {
        reconcile(&context, &policies, &key).await
    });
}

async fn reconcile(context: &Context, policies: &Watched<Policy>, name: &str) -> Result<(), Error> {
    let Some(policy) = policies.get(name) else { return Ok(()) };
    let generation = policy.metadata.generation;
    if generation <= policy.status.observed_generation {
        return Ok(());
    }
    let types = DeclaredTypes::of(&context.client, &policy.spec).await?;
    let warnings = warnings(&policy.spec, &types);
    let resource = Resource::VALIDATING_ADMISSION_POLICIES;
    let checked =
        if warnings.is_empty() { json!({}) } else { json!({"expressionWarnings": warnings}) };
    let status = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "status": {"observedGeneration": generation, "typeChecking": checked},
    });
    let at = PatchTarget { namespace: "", name, subresource: "status" };
    let applied = PatchKind::Apply { manager: MANAGER, force: true };
    let written: Result<Value, Error> = context.client.patch(&resource, at, applied, &status).await;
    written.or_none().map(drop)
}

/// The schemas of a policy's objects and parameters.
#[derive(Default)]
struct DeclaredTypes {
    /// The types of the objects by group, version and kind, in upstream's order.
    objects: BTreeMap<(String, String, String), Decl>,
    params: Option<Decl>,
}

impl DeclaredTypes {
    async fn of(client: &Client, spec: &Value) -> Result<Self, Error> {
        let mut api = Api { client, documents: BTreeMap::new() };
        let mut types = Self::default();
        for kind in api.kinds(spec).await? {
            if let Some(decl) = api.declared(&kind).await? {
                let GroupVersionKind { group, version, kind } = kind;
                types.objects.insert((group.into(), version.into(), kind.into()), decl);
            }
        }
        if let Some(version) = spec.at("paramKind.apiVersion").as_str() {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let kind = spec.text("paramKind.kind");
            let kind = GroupVersionKind::new(group.to_owned(), version.to_owned(), kind.to_owned());
            types.params = api.declared(&kind).await?;
        }
        Ok(types)
    }
}

/// The API's discovery and OpenAPI documents, each read once.
struct Api<'c> {
    client: &'c Client,
    documents: BTreeMap<String, Value>,
}

impl Api<'_> {
    /// Returns a document, or null if it does not exist.
    async fn document(&mut self, path: String) -> Result<&Value, Error> {
        if !self.documents.contains_key(&path) {
            let read = self.client.get_raw(&path).await.or_none()?.unwrap_or(Value::Null);
            self.documents.insert(path.clone(), read);
        }
        Ok(self.documents.get(&path).unwrap_or(&Value::Null))
    }

    /// Returns the kinds that a policy's rules match. Rules with a `*` are skipped.
    async fn kinds(&mut self, spec: &Value) -> Result<Vec<GroupVersionKind>, Error> {
        let mut kinds = Vec::new();
        for rule in spec.items("matchConstraints.resourceRules") {
            let (groups, versions) = (sorted(rule, "apiGroups"), sorted(rule, "apiVersions"));
            if groups.iter().chain(&versions).any(|text| text.contains('*')) {
                continue;
            }
            let mut resources = sorted(rule, "resources");
            resources.retain(|resource| !resource.contains(['*', '/']));
            let mut of_rule = Vec::new();
            for (group, version) in pairs(&groups, &versions) {
                let list = self.document(at("", &group, &version)).await?;
                let served = list
                    .items("resources")
                    .iter()
                    .filter(|served| resources.iter().any(|resource| served["name"] == **resource));
                of_rule.extend(served.filter_map(|served| served["kind"].as_str()).map(|kind| {
                    GroupVersionKind::new(group.clone(), version.clone(), kind.to_owned())
                }));
            }
            of_rule.truncate(MOST_KINDS);
            kinds.extend(of_rule);
        }
        Ok(kinds)
    }

    /// Returns the declared type of a kind.
    async fn declared(&mut self, kind: &GroupVersionKind) -> Result<Option<Decl>, Error> {
        let document = self.document(at("/openapi/v3", &kind.group, &kind.version)).await?;
        let schemas = document.at("components.schemas");
        let own = json!({"group": *kind.group, "version": *kind.version, "kind": *kind.kind});
        let is_own =
            |schema: &&Value| schema.items("x-kubernetes-group-version-kind").contains(&own);
        let Some(schema) = schemas.as_object().and_then(|all| all.values().find(is_own)) else {
            return Ok(None);
        };
        let whole = resolved(schema, schemas, &mut BTreeSet::new());
        Ok(api_schema::declared(&whole, &kind.kind))
    }
}

/// The path of a version's document below a prefix.
fn at(prefix: &str, group: &str, version: &str) -> String {
    match group {
        "" => format!("{prefix}/api/{version}"),
        group => format!("{prefix}/apis/{group}/{version}"),
    }
}

fn pairs(groups: &[&str], versions: &[&str]) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for group in groups {
        pairs.extend(versions.iter().map(|version| ((*group).to_owned(), (*version).to_owned())));
    }
    pairs
}

/// Returns the strings of a list, sorted so that the result does not depend on their order.
fn sorted<'v>(tree: &'v Value, list: &str) -> Vec<&'v str> {
    let mut texts: Vec<&str> = tree.items(list).iter().filter_map(Value::as_str).collect();
    texts.sort_unstable();
    texts
}

/// Returns a schema with its references resolved. As upstream does, a recursive type becomes an object without fields.
fn resolved<'s>(schema: &'s Value, all: &'s Value, within: &mut BTreeSet<&'s str>) -> Value {
    let reference = schema["$ref"].as_str().or_else(|| schema["allOf"][0]["$ref"].as_str());
    if let Some(name) = reference.and_then(|reference| reference.rsplit('/').next()) {
        if !within.insert(name) {
            return json!({"type": "object"});
        }
        let referenced = resolved(&all[name], all, within);
        within.remove(name);
        return referenced;
    }
    let Some(members) = schema.as_object() else { return schema.clone() };
    let mut declaration = serde_json::Map::new();
    for (key, value) in members {
        let value = match (key.as_str(), value.as_object()) {
            ("properties", Some(properties)) => {
                let each = properties.iter();
                each.map(|(name, value)| (name.clone(), resolved(value, all, within))).collect()
            }
            ("items" | "additionalProperties", Some(_)) => resolved(value, all, within),
            ("description" | "default", _) => continue,
            _ => value.clone(),
        };
        declaration.insert(key.clone(), value);
    }
    // The form that built-in types use.
    if declaration.get("format").is_some_and(|format| format == "int-or-string") {
        declaration.insert("x-kubernetes-int-or-string".to_owned(), Value::Bool(true));
    }
    Value::Object(declaration)
}

/// Returns a warning for each expression that does not compile, with the issues by the kinds that the policy matches.
fn warnings(spec: &Value, types: &DeclaredTypes) -> Vec<Value> {
    let checks: Vec<_> = types
        .objects
        .iter()
        .map(|(kind, object)| (kind, Check::new(spec, object, types)))
        .collect();
    let mut warnings = Vec::new();
    for (i, validation) in spec.items("validations").iter().enumerate() {
        for field in ["expression", "messageExpression"] {
            let Some(text) = validation[field].as_str().filter(|text| !text.is_empty()) else {
                continue;
            };
            let problems: Vec<String> = checks
                .iter()
                .filter_map(|((group, version, kind), check)| {
                    let issues = check.compile(text).err()?;
                    Some(format!("{group}/{version}, Kind={kind}: {issues}\n"))
                })
                .collect();
            if !problems.is_empty() {
                let place = format!("spec.validations[{i}].{field}");
                warnings.push(json!({"fieldRef": place, "warning": problems.join("\n")}));
            }
        }
    }
    warnings
}

/// The type check of a policy's expressions against one kind, with the policy's variables compiled once.
struct Check<'k> {
    has_params: bool,
    object: &'k Decl,
    params: Option<&'k Decl>,
    variables: Composition,
}

impl<'k> Check<'k> {
    fn new(spec: &Value, object: &'k Decl, types: &'k DeclaredTypes) -> Self {
        let (has_params, params) = (spec["paramKind"].is_object(), types.params.as_ref());
        let mut check = Self { has_params, object, params, variables: Composition::default() };
        for variable in spec.items("variables") {
            let program = check.compile(variable.text("expression"));
            let program = program.map_err(|issues| issues.to_string());
            check.variables.add(variable.text("name"), program);
        }
        check
    }

    fn compile(&self, text: &str) -> Result<Program, Issues> {
        let scope =
            Scope { params: self.has_params, authorizer: true, composition: Some(&self.variables) };
        let params = self.params.map_or(Type::Dyn, Decl::cel_type);
        let env = scope.env(text, self.object.cel_type(), params);
        Program::compile(&env, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> DeclaredTypes {
        let schemas = json!({
            "Spec": {"type": "object", "properties": {
                "replicas": {"type": "integer"}, "port": {"type": "string", "format": "int-or-string"},
                "self": {"$ref": "#/components/schemas/Spec"},
            }},
            "Deployment": {"type": "object", "properties": {
                "spec": {"allOf": [{"$ref": "#/components/schemas/Spec"}], "default": {}},
            }},
        });
        let whole = resolved(&schemas["Deployment"], &schemas, &mut BTreeSet::new());
        let decl = api_schema::declared(&whole, "Deployment").unwrap();
        let kind = |group: &str| (group.to_owned(), "v1".to_owned(), "Deployment".to_owned());
        let objects = [(kind("apps"), decl.clone()), (kind("other"), decl)].into();
        DeclaredTypes { objects, params: None }
    }

    #[test]
    fn type_checks_expressions_against_schemas() {
        let check = |expression: &str, variables: Value| {
            let spec = json!({"validations": [{"expression": "true"}, {"expression": expression}],
                "variables": variables});
            warnings(&spec, &known())
        };
        for fine in [
            "object.spec.replicas > 1 && oldObject.spec.replicas < 3",
            "object.spec.port == 'http' || object.spec.port == 8080",
            "has(object.spec.self)",
            "object.metadata.name == 'x' && variables.many",
        ] {
            let variables = json!([{"name": "many", "expression": "object.spec.replicas > 9"}]);
            assert_eq!(check(fine, variables), [json!(null); 0], "{fine}");
        }
        let found = check("object.replicas > 1", json!([]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0]["fieldRef"], "spec.validations[1].expression");
        let one =
            "ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n";
        assert_eq!(
            found[0]["warning"],
            format!("apps/v1, Kind=Deployment: {one}\nother/v1, Kind=Deployment: {one}")
        );
        let typed = check(
            "variables.n == 'a'",
            json!([{"name": "n", "expression": "object.spec.replicas"}]),
        );
        assert!(
            typed[0]["warning"].as_str().unwrap().contains("found no matching overload"),
            "{typed:?}"
        );
    }
}
