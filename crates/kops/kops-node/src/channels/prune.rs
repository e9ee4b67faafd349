//! The objects that an add-on no longer has: found by the labels of its prune rules, and compared with its manifest.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt,
};

use api_meta::{Operator, Requirement, Selector, Tree as _};
use client::{Client, DeleteOptions, ListOptions, Resource};
use serde_json::Value;

use crate::error::Error;

/// The kinds whose objects are deleted once an add-on no longer has them. No kind with data of users is among them.
pub const PRUNED_KINDS: [Resource; 10] = [
    Resource::CONFIG_MAPS,
    Resource::SERVICES,
    Resource::SERVICE_ACCOUNTS,
    Resource::DAEMON_SETS,
    Resource::DEPLOYMENTS,
    Resource::STATEFUL_SETS,
    Resource::CLUSTER_ROLES,
    Resource::CLUSTER_ROLE_BINDINGS,
    Resource::ROLES,
    Resource::ROLE_BINDINGS,
];
/// The label with the add-on of an object, which a rule must select.
pub const ADDON_LABEL: &str = "addon.kops.k8s.io/name";

/// A rule of a channel: the objects of a kind that belong to an add-on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PruneRule {
    group: String,
    kind: String,
    selector: String,
    /// The namespaces; empty for all.
    namespaces: Vec<String>,
}

impl PruneRule {
    /// Parses the rules of an add-on in a channel.
    pub(super) fn parse_all(addon: &Value) -> Vec<Self> {
        let text = |rule: &Value, field| rule.text(field).to_owned();
        let rule = |rule: &Value| Self {
            group: text(rule, "group"),
            kind: text(rule, "kind"),
            selector: text(rule, "labelSelector"),
            namespaces: rule.texts("namespaces").map(str::to_owned).collect(),
        };
        addon.items("prune.kinds").iter().map(rule).collect()
    }

    /// Returns the selector, if it selects only objects of one add-on. Any other one would delete objects of users.
    fn selector(&self, addon: &str) -> Option<Selector> {
        let selector: Selector = self.selector.parse().ok()?;
        let is_own = |requirement: &Requirement| {
            let equals =
                matches!(requirement.operator(), Operator::Equals | Operator::DoubleEquals);
            requirement.key() == ADDON_LABEL && equals && requirement.values() == [addon]
        };
        selector.requirements().iter().any(is_own).then_some(selector)
    }
}

/// The objects of add-ons, which are listed once for each kind.
pub(super) struct LabelledObjects<'a> {
    client: &'a Client,
    lists: BTreeMap<String, Vec<Value>>,
}

impl<'a> LabelledObjects<'a> {
    pub(super) fn new(client: &'a Client) -> Self {
        Self { client, lists: BTreeMap::new() }
    }

    /// Returns the objects of a kind that have the label of an add-on.
    async fn of(&mut self, resource: &Resource) -> Result<&[Value], Error> {
        match self.lists.entry(format!("{}.{}", resource.plural, resource.group)) {
            Entry::Occupied(listed) => Ok(listed.into_mut()),
            Entry::Vacant(free) => {
                let options = ListOptions::labels(ADDON_LABEL);
                let listed = self.client.list::<Value>(resource, "", &options).await?;
                Ok(free.insert(listed.items))
            }
        }
    }
}

/// An object that an add-on no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverObject {
    resource: Resource,
    namespace: String,
    name: String,
}

impl fmt::Display for LeftoverObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.resource.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.resource.kind, self.name),
        }
    }
}

/// Returns the objects that the rules of an add-on select and its manifest lacks.
pub(super) async fn find(
    objects: &mut LabelledObjects<'_>,
    addon: &str,
    rules: &[PruneRule],
    manifest: &[Value],
) -> Result<Vec<LeftoverObject>, Error> {
    let identity = |kind: &str, object: &Value| {
        let text = |path| object.text(path).to_owned();
        (kind.to_owned(), text("metadata.namespace"), text("metadata.name"))
    };
    let wanted: BTreeSet<_> =
        manifest.iter().map(|object| identity(object.text("kind"), object)).collect();
    // An object without a namespace in the manifest is kept in every namespace.
    let is_wanted = |(kind, namespace, name): (String, String, String)| {
        wanted.contains(&(kind.clone(), String::new(), name.clone()))
            || wanted.contains(&(kind, namespace, name))
    };
    let mut leftovers = Vec::new();
    for rule in rules {
        let Some(selector) = rule.selector(addon) else {
            return Err(Error::PruneSelector {
                addon: addon.to_owned(),
                selector: rule.selector.clone(),
            });
        };
        let mut known = PRUNED_KINDS.into_iter();
        let known = known.find(|r| r.kind == rule.kind && r.group == rule.group);
        // Kinds that this program does not know are upstream's, and have no objects of its own add-ons.
        let Some(resource) = known else { continue };
        for object in objects.of(&resource).await? {
            let namespace = object.text("metadata.namespace");
            let is_selected = rule.namespaces.is_empty()
                || rule.namespaces.iter().any(|selected| selected == namespace);
            let labels = object.at("metadata.labels").as_object();
            if !is_selected
                || !selector.matches_json(labels)
                || is_wanted(identity(&rule.kind, object))
            {
                continue;
            }
            leftovers.push(LeftoverObject {
                resource: resource.clone(),
                namespace: namespace.to_owned(),
                name: object.text("metadata.name").to_owned(),
            });
        }
    }
    Ok(leftovers)
}

/// Deletes an object; one that is gone already is no error.
pub async fn delete_leftover(client: &Client, object: &LeftoverObject) -> Result<(), Error> {
    let options = DeleteOptions::default();
    match client.delete(&object.resource, &object.namespace, &object.name, &options).await {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use testkit::FakeApi;

    use super::*;

    fn config_map(namespace: &str, name: &str, addon: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": namespace, "name": name, "labels": {
                "addon.kops.k8s.io/name": addon, "app.kubernetes.io/managed-by": "kops",
            }},
        })
    }

    fn rules(selector: &str) -> Vec<PruneRule> {
        PruneRule::parse_all(&json!({"prune": {"kinds": [
            {"kind": "ConfigMap", "labelSelector": selector},
            {"kind": "NodePool", "group": "karpenter.sh", "labelSelector": selector},
        ]}}))
    }

    #[tokio::test]
    async fn finds_and_deletes_only_what_the_manifest_lacks() {
        let api = FakeApi::default();
        let kept = config_map("kube-system", "kept", "dns");
        for object in [
            kept.clone(),
            config_map("kube-system", "old", "dns"),
            config_map("other", "kept", "dns"),
            config_map("kube-system", "of-another", "proxy"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "users"}}),
        ] {
            api.create(&Resource::CONFIG_MAPS, object).await;
        }
        let client = api.client("test");
        let selector = "addon.kops.k8s.io/name=dns,app.kubernetes.io/managed-by=kops";
        let mut objects = LabelledObjects::new(&client);
        let found = find(&mut objects, "dns", &rules(selector), &[kept]).await.unwrap();
        let shown: Vec<_> = found.iter().map(LeftoverObject::to_string).collect();
        assert_eq!(shown, ["ConfigMap kube-system/old", "ConfigMap other/kept"]);
        for object in &found {
            delete_leftover(&client, object).await.unwrap();
            delete_leftover(&client, object).await.unwrap();
        }
        assert_eq!(api.list(&Resource::CONFIG_MAPS, "").len(), 3);
    }

    #[tokio::test]
    async fn lists_each_kind_once_for_all_add_ons() {
        let api = FakeApi::default();
        for addon in ["dns", "proxy"] {
            api.create(&Resource::CONFIG_MAPS, config_map("kube-system", addon, addon)).await;
        }
        let client = api.client("test");
        let mut objects = LabelledObjects::new(&client);
        for addon in ["dns", "proxy"] {
            let selector = format!("addon.kops.k8s.io/name={addon}");
            let found = find(&mut objects, addon, &rules(&selector), &[]).await.unwrap();
            let shown: Vec<_> = found.iter().map(LeftoverObject::to_string).collect();
            assert_eq!(shown, [format!("ConfigMap kube-system/{addon}")]);
            // The list is the one from before.
            api.set_away(true);
        }
    }

    #[tokio::test]
    async fn rejects_rules_that_select_other_objects() {
        let client = FakeApi::default().client("test");
        let mut objects = LabelledObjects::new(&client);
        for hostile in [
            "",
            "!",
            "app in (a,addon.kops.k8s.io/name=dns)",
            "addon.kops.k8s.io/name in (dns,proxy)",
            "app.kubernetes.io/managed-by=kops",
            "addon.kops.k8s.io/name",
            "addon.kops.k8s.io/name!=dns",
            "addon.kops.k8s.io/name=dns2",
        ] {
            let found = find(&mut objects, "dns", &rules(hostile), &[]).await;
            let error = found.unwrap_err().to_string();
            assert!(error.contains("add-on dns") && error.contains(hostile), "{error}");
        }
    }
}
