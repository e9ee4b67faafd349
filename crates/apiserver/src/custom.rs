//! Custom kinds: from CustomResourceDefinitions to definitions like any other, and back to their status.

use std::sync::Arc;

use api_meta::{ErrorList, Path, Timestamp, human_duration};
use api_schema::{Schema, openapi};
use client::{Client, DeleteOptions, Error, ListOptions, PatchKind, Patched, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    definition::{Definition, Kinds, Served, ServedSubresource, api_version},
    health::KUBERNETES_VERSION,
    hub::Observer,
    jsonpath,
    object::{Read, Selectable},
    server::Server,
};

/// Keeps a definition until the objects of its kind are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Puts the name of every definition that changes into the queue that [`follow`] works off.
pub(crate) fn observer() -> (Observer, WorkQueue<String>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let observe = move |definition: &Definition, event: &crate::cache::Event| {
        if definition.is("apiextensions.k8s.io", "customresourcedefinitions") {
            changes.add(event.object.name().to_owned());
        }
    };
    (Box::new(observe), queue)
}

/// Serves, changes and withdraws custom kinds as their definitions say.
pub(crate) async fn follow(
    server: Arc<Server>,
    client: Client,
    queue: WorkQueue<String>,
    shutdown: rt::Shutdown,
) {
    while let Some(name) = shutdown.unless_stopping(queue.next()).await {
        match reconcile(&server, &client, &name).await {
            Ok(()) => queue.forget(&name),
            Err(error) => {
                tracing::warn!(definition = %name, %error, "serving a custom kind");
                queue.retry(name.clone());
            }
        }
        queue.done(&name);
    }
}

async fn reconcile(server: &Server, client: &Client, name: &str) -> Result<(), Error> {
    let resource = Resource::CUSTOM_RESOURCE_DEFINITIONS;
    let crd: Value = match client.get(&resource, "", name).await {
        Ok(crd) => crd,
        Err(error) if error.is_not_found() => {
            if let Some((plural, group)) = name.split_once('.') {
                server.hub.remove(group, plural).await;
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if !crd["metadata"]["deletionTimestamp"].is_null() {
        return finalize(client, &crd).await;
    }
    let conflict = name_conflict(&server.hub.kinds(), &crd);
    let definition = definition(&crd);
    let known = server
        .hub
        .kinds()
        .get(text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["plural"]))
        .map(|r| r.definition.clone());
    let changed =
        known.as_ref().and_then(|d| d.custom.as_ref()).is_none_or(|old| old["spec"] != crd["spec"]);
    if conflict.is_none() && changed {
        server.hub.add(Arc::new(definition)).await;
    }
    // Established only once the kind is served, so that who waits for it can use it at once.
    let status = status(&crd, conflict);
    if status != crd["status"] {
        let at = Patched { namespace: "", name, subresource: "status" };
        client.patch::<Value>(&resource, at, PatchKind::Merge, &json!({"status": status})).await?;
    }
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Deletes the kind's objects, then lets the definition go.
async fn finalize(client: &Client, crd: &Value) -> Result<(), Error> {
    let finalizers: Vec<&str> =
        crd["metadata"]["finalizers"].as_array().into_iter().flatten().map(text).collect();
    if !finalizers.contains(&CLEANUP) {
        return Ok(());
    }
    let spec = &crd["spec"];
    let served = spec["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|v| v["served"] == Value::Bool(true));
    if let Some(version) = served {
        let resource = Resource {
            group: text(&spec["group"]).to_owned().into(),
            version: text(&version["name"]).to_owned().into(),
            plural: text(&spec["names"]["plural"]).to_owned().into(),
            kind: text(&spec["names"]["kind"]).to_owned().into(),
            namespaced: spec["scope"] == "Namespaced",
        };
        let left = client.list::<Value>(&resource, "", &ListOptions::default()).await;
        for object in left.map(|l| l.items).unwrap_or_default() {
            let (namespace, name) =
                (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
            match client.delete(&resource, namespace, name, &DeleteOptions::default()).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        let left = client
            .list::<Value>(&resource, "", &ListOptions { limit: Some(1), ..ListOptions::default() })
            .await;
        if let Some(object) = left.ok().and_then(|l| l.items.into_iter().next()) {
            return Err(Error::Transport {
                operation: "waiting for the finalizers of",
                target: format!("{} {}", resource.plural, text(&object["metadata"]["name"])),
                source: "objects of the kind are still there".into(),
            });
        }
    }
    let kept: Vec<&str> = finalizers.into_iter().filter(|f| *f != CLEANUP).collect();
    let at = Patched { namespace: "", name: text(&crd["metadata"]["name"]), subresource: "" };
    let patch = json!({"metadata": {"finalizers": kept, "resourceVersion": crd["metadata"]["resourceVersion"]}});
    match client
        .patch::<Value>(&Resource::CUSTOM_RESOURCE_DEFINITIONS, at, PatchKind::Merge, &patch)
        .await
    {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// What is wrong with the schemas of a definition; on an update, with those that it changes.
pub(crate) fn schema_errors(crd: &Value, old: Option<&Value>) -> ErrorList {
    let (spec, path) = (&crd["spec"], Path::new("spec").child("versions"));
    let mut errors = ErrorList::new();
    for (i, version) in spec["versions"].as_array().into_iter().flatten().enumerate() {
        let given = &version["schema"]["openAPIV3Schema"];
        let before = old.and_then(|old| {
            old["spec"]["versions"].as_array()?.iter().find(|v| v["name"] == version["name"])
        });
        if given.is_null() || before.is_some_and(|b| b["schema"]["openAPIV3Schema"] == *given) {
            continue;
        }
        let path = path.index(i).child("schema").child("openAPIV3Schema");
        let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
        let made = Schema::from_crd(given, group, text(&version["name"]), kind, &path);
        errors.extend(made.err().unwrap_or_default());
    }
    errors
}

/// Two kinds of a group cannot share a name.
fn name_conflict(kinds: &Kinds, crd: &Value) -> Option<(&'static str, String)> {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let (group, plural) = (text(&spec["group"]), text(&names["plural"]));
    let others = kinds
        .all
        .values()
        .map(|r| &r.definition)
        .filter(|d| &*d.group == group && &*d.plural != plural);
    for other in others {
        for served in &other.served {
            let mut taken: Vec<&str> = vec![&other.plural, &served.singular];
            taken.extend(served.short_names.iter().map(|s| &**s));
            let mut wanted = vec![plural, text(&names["singular"])];
            wanted.extend(names["shortNames"].as_array().into_iter().flatten().map(text));
            if let Some(name) = wanted.iter().find(|w| !w.is_empty() && taken.contains(w)) {
                return Some(("NameConflict", format!("\"{name}\" is already in use")));
            }
            let kinds = [text(&names["kind"]), text(&names["listKind"])];
            if let Some(kind) = kinds
                .iter()
                .find(|k| !k.is_empty() && (**k == &*served.kind || **k == &*served.list_kind))
            {
                return Some(("KindConflict", format!("\"{kind}\" is already in use")));
            }
        }
    }
    None
}

fn status(crd: &Value, conflict: Option<(&'static str, String)>) -> Value {
    let spec = &crd["spec"];
    let mut status = if crd["status"].is_object() { crd["status"].clone() } else { json!({}) };
    if conflict.is_none() {
        status["acceptedNames"] = spec["names"].clone();
    }
    let mut stored: Vec<String> = crd["status"]["storedVersions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|v| text(v).to_owned())
        .collect();
    for version in spec["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|v| v["storage"] == Value::Bool(true))
    {
        let name = text(&version["name"]).to_owned();
        if !stored.contains(&name) {
            stored.push(name);
        }
    }
    status["storedVersions"] = json!(stored);
    let established = conflict.is_none();
    let (reason, message) = match &conflict {
        None => ("NoConflicts", "no conflicts found".to_owned()),
        Some((reason, message)) => (*reason, message.clone()),
    };
    set_condition(&mut status, "NamesAccepted", established, reason, &message);
    // Once established a kind stays so, whatever a later change of names meets.
    let was = crd["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == "Established" && c["status"] == "True");
    let (reason, message) = match established || was {
        true => ("InitialNamesAccepted", "the initial names have been accepted"),
        false => ("NotAccepted", "not all names are accepted"),
    };
    set_condition(&mut status, "Established", established || was, reason, message);
    status
}

fn set_condition(status: &mut Value, kind: &str, holds: bool, reason: &str, message: &str) {
    let truth = if holds { "True" } else { "False" };
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let same = |c: &Value| {
        c["type"] == kind
            && c["status"] == truth
            && c["reason"] == reason
            && c["message"] == message
    };
    if conditions.iter().any(same) {
        return;
    }
    conditions.retain(|c| c["type"] != kind);
    conditions.push(json!({"type": kind, "status": truth, "reason": reason, "message": message, "lastTransitionTime": crate::now().to_string()}));
    status["conditions"] = json!(conditions);
}

/// The definition that a CustomResourceDefinition describes. A schema that cannot be used keeps everything; the
/// definition's own validation has refused such schemas before they were stored.
pub(crate) fn definition(crd: &Value) -> Definition {
    let spec = &crd["spec"];
    let (group, names) = (text(&spec["group"]), &spec["names"]);
    let plural = text(&names["plural"]);
    let versions: Vec<&Value> = spec["versions"].as_array().into_iter().flatten().collect();
    let mut of: Vec<&Value> =
        versions.iter().copied().filter(|v| v["served"] == Value::Bool(true)).collect();
    let storage = versions.iter().copied().find(|v| v["storage"] == Value::Bool(true));
    if let Some(storage) = storage.filter(|s| !of.iter().any(|v| v["name"] == s["name"])) {
        of.push(storage);
    }
    let has_status = of.iter().any(|v| v["subresources"].get("status").is_some());
    let selectable = of.iter().flat_map(|v| v["selectableFields"].as_array().into_iter().flatten());
    let own = selectable.map(|field| {
        let path = text(&field["jsonPath"]).trim_start_matches('.');
        Selectable {
            name: path.into(),
            read: Read::Pointer(format!("/{}", path.replace('.', "/")).into()),
        }
    });
    let selectable: Vec<_> = Selectable::all(&[]).into_iter().chain(own).collect();
    let storage = of.iter().position(|v| v["storage"] == Value::Bool(true)).unwrap_or(0);
    let mut all: Vec<Served> = of.iter().map(|v| served(group, names, v)).collect();
    for i in (0..all.len()).filter(|i| of[*i]["schema"] != of[storage]["schema"]) {
        all[i].conversion = Some(crate::conversion::by_schema(&all[i], &all[storage]));
    }
    Definition {
        group: group.into(),
        plural: plural.into(),
        namespaced: spec["scope"] == "Namespaced",
        prefix: format!("/registry/{group}/{plural}/").into(),
        wanted: Selectable::wanted(&selectable),
        selectable,
        storage,
        served: all,
        custom: Some(Arc::new(crd.clone())),
        strategy: api_rules::Strategy::custom(has_status),
    }
}

fn served(group: &str, names: &Value, version: &Value) -> Served {
    let (name, kind) = (text(&version["name"]), text(&names["kind"]));
    let words =
        |list: &Value| list.as_array().into_iter().flatten().map(|w| Arc::from(text(w))).collect();
    let given = &version["schema"]["openAPIV3Schema"];
    let schema =
        Schema::from_crd(given, group, name, kind, &Path::new("spec")).unwrap_or_else(|errors| {
            tracing::warn!(
                group,
                kind,
                version = name,
                ?errors,
                "a custom kind's schema cannot be used"
            );
            Schema::free_form(group, name, kind)
        });
    let node = schema.kinds[0].node;
    let list_kind = match text(&names["listKind"]) {
        "" => format!("{kind}List"),
        given => given.to_owned(),
    };
    let singular = match text(&names["singular"]) {
        "" => kind.to_lowercase(),
        given => given.to_owned(),
    };
    Served {
        group: group.into(),
        version: name.into(),
        api_version: api_version(group, name).into(),
        kind: kind.into(),
        list_kind: list_kind.into(),
        singular: singular.into(),
        verbs: VERBS.iter().map(|v| Arc::from(*v)).collect(),
        short_names: words(&names["shortNames"]),
        categories: words(&names["categories"]),
        storage_version_hash: "".into(),
        subresources: subresources(group, name, kind, &version["subresources"]),
        schema: Arc::new(schema),
        node,
        conversion: None,
        warning: (version["deprecated"] == Value::Bool(true)).then(|| {
            match text(&version["deprecationWarning"]) {
                "" => format!("{group}/{name} {kind} is deprecated").into(),
                given => given.into(),
            }
        }),
        columns: Some(Arc::new(version["additionalPrinterColumns"].clone())),
        enabled: version["served"] == Value::Bool(true),
    }
}

fn subresources(group: &str, version: &str, kind: &str, given: &Value) -> Vec<ServedSubresource> {
    let verbs: Vec<Arc<str>> = ["get", "patch", "update"].map(Arc::from).to_vec();
    let of =
        |name: &str, group: &str, version: &str, kind: &str, foreign: bool| ServedSubresource {
            name: name.into(),
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            foreign,
            verbs: verbs.clone(),
        };
    let status = given.get("status").map(|_| of("status", group, version, kind, false));
    let scale = given.get("scale").map(|_| of("scale", "autoscaling", "v1", "Scale", true));
    status.into_iter().chain(scale).collect()
}

/// The columns of a custom kind's table: its name and what its definition adds, or its age.
pub(crate) fn columns(given: &Value) -> Value {
    let mut columns = vec![json!({
        "name": "Name",
        "type": "string",
        "format": "name",
        "priority": 0,
        "description": "Name must be unique within a namespace.",
    })];
    for column in each(given) {
        columns.push(json!({
            "name": column["name"],
            "type": column["type"],
            "format": text(&column["format"]),
            "priority": column["priority"].as_i64().unwrap_or(0),
            "description": text(&column["description"]),
        }));
    }
    json!(columns)
}

fn each(given: &Value) -> Vec<Value> {
    match given.as_array().filter(|c| !c.is_empty()) {
        Some(columns) => columns.clone(),
        None => vec![json!({
            "name": "Age",
            "type": "date",
            "jsonPath": ".metadata.creationTimestamp",
            "description": "CreationTimestamp is a timestamp representing the server time when this object was created.",
        })],
    }
}

pub(crate) fn cells(given: &Value, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![object["metadata"]["name"].clone()];
    for column in each(given) {
        let found = jsonpath::find(object, text(&column["jsonPath"]));
        cells.push(match (text(&column["type"]), found.as_slice()) {
            (_, []) | (_, [Value::Null]) => Value::Null,
            ("date", [time, ..]) => match text(time).parse::<Timestamp>() {
                Ok(time) => json!(human_duration(now.since(time))),
                Err(_) => json!("<invalid>"),
            },
            ("string", [Value::String(one)]) => json!(one),
            ("string", [one]) => json!(one.to_string()),
            ("string", many) => json!(
                many.iter()
                    .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                    .collect::<Vec<_>>()
                    .join(",")
            ),
            (_, [one, ..]) => (*one).clone(),
        });
    }
    cells
}

/// The OpenAPI document at `api/v1` or `apis/GROUP/VERSION`; `None` if nothing is served there.
pub(crate) fn openapi(kinds: &Kinds, path: &str) -> Option<Value> {
    let group_version = path.strip_prefix("apis/").or_else(|| path.strip_prefix("api/"))?;
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    let mut any = false;
    let mut custom = Vec::new();
    for resource in kinds.all.values() {
        let definition = &resource.definition;
        for served in
            definition.served.iter().filter(|s| &*s.group == group && &*s.version == version)
        {
            any = true;
            if definition.custom.is_some() {
                custom.push(openapi::CustomKind {
                    group,
                    version,
                    plural: &definition.plural,
                    kind: &served.kind,
                    list_kind: &served.list_kind,
                    namespaced: definition.namespaced,
                    open_api_v3: given_schema(definition, served),
                    status: served.subresource("status").is_some(),
                    scale: served.subresource("scale").is_some(),
                });
            }
        }
    }
    any.then(|| {
        let mut document = openapi::document(group, version, &custom, KUBERNETES_VERSION);
        api_docs::describe(&mut document);
        document
    })
}

fn given_schema<'a>(definition: &'a Definition, served: &Served) -> &'a Value {
    let versions = definition.custom.as_ref().and_then(|crd| crd["spec"]["versions"].as_array());
    let version = versions.into_iter().flatten().find(|v| v["name"] == *served.version);
    version.map_or(&Value::Null, |v| &v["schema"]["openAPIV3Schema"])
}
