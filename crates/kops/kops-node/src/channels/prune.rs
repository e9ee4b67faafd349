//! The objects that an add-on no longer has: found by the labels of its prune rules, and compared with its manifest.

use std::{collections::BTreeSet, fmt};

use client::{Client, DeleteOptions, ListOptions, Resource};
use kops_api::Spec as _;
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
            namespaces: rule.texts("namespaces").into_iter().map(str::to_owned).collect(),
        };
        addon.list("prune.kinds").iter().map(rule).collect()
    }

    /// Reports whether the rule selects only objects of one add-on. Any other rule would delete objects of users.
    fn selects_only(&self, addon: &str) -> bool {
        let own = format!("{ADDON_LABEL}={addon}");
        self.selector.split(',').any(|part| part.trim() == own)
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
    client: &Client,
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
        if !rule.selects_only(addon) {
            return Err(Error::PruneSelector {
                addon: addon.to_owned(),
                selector: rule.selector.clone(),
            });
        }
        let mut known = PRUNED_KINDS.into_iter();
        let known = known.find(|r| r.kind == rule.kind && r.group == rule.group);
        // Kinds that this program does not know are upstream's, and have no objects of its own add-ons.
        let Some(resource) = known else { continue };
        let everywhere = [String::new()];
        let namespaces = match &rule.namespaces[..] {
            [] => &everywhere[..],
            some => some,
        };
        for namespace in namespaces {
            let options = ListOptions::labels(&rule.selector);
            let found = client.list::<Value>(&resource, namespace, &options).await?;
            for object in found.items {
                if is_wanted(identity(&rule.kind, &object)) {
                    continue;
                }
                leftovers.push(LeftoverObject {
                    resource: resource.clone(),
                    namespace: object.text("metadata.namespace").to_owned(),
                    name: object.text("metadata.name").to_owned(),
                });
            }
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
        let found = find(&client, "dns", &rules(selector), &[kept]).await.unwrap();
        let shown: Vec<_> = found.iter().map(LeftoverObject::to_string).collect();
        assert_eq!(shown, ["ConfigMap kube-system/old", "ConfigMap other/kept"]);
        for object in &found {
            delete_leftover(&client, object).await.unwrap();
            delete_leftover(&client, object).await.unwrap();
        }
        assert_eq!(api.list(&Resource::CONFIG_MAPS, "").len(), 3);
    }

    #[tokio::test]
    async fn rejects_rules_that_select_other_objects() {
        let client = FakeApi::default().client("test");
        for hostile in [
            "",
            "app.kubernetes.io/managed-by=kops",
            "addon.kops.k8s.io/name",
            "addon.kops.k8s.io/name!=dns",
            "addon.kops.k8s.io/name=dns2",
        ] {
            let error = find(&client, "dns", &rules(hostile), &[]).await.unwrap_err().to_string();
            assert!(error.contains("add-on dns") && error.contains(hostile), "{error}");
        }
    }
}
