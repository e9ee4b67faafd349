//! The Node authoriser: a kubelet may read what the Pods on its node need, and no more.
//!
//! Invariant: `refs` of a node counts exactly the references of the Pods that are bound to it, so that a decision is one
//! look-up. Only what a PersistentVolume refers to takes a second one.

mod refs;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::{PoisonError, RwLock},
};

use api_meta::{Attributes, Authorizer, Decision, GroupResource, Observer, Tree as _};
pub use refs::POD_MEMBERS;
use refs::{Object, Refs, pod_refs, volume_refs};
use serde_json::Value;

use crate::rbac::{PolicyRule, node_rules};

/// Follows Pods and volumes, and knows by them what each node needs.
pub struct NodeAuthorizer {
    graph: RwLock<Graph>,
    /// What every node may do: the rules of `system:node`.
    rules: Vec<PolicyRule>,
}

#[derive(Default)]
struct Graph {
    nodes: HashMap<String, HashMap<Object, u32>>,
    volumes: HashMap<String, Volume>,
    /// Which volumes refer to a Secret.
    volumes_of_secret: HashMap<Object, HashSet<String>>,
    /// Volume attachments and their nodes.
    attachments: HashMap<String, String>,
}

struct Volume {
    claim: Object,
    secrets: Vec<Object>,
}

const WATCHED: [GroupResource; 3] =
    [GroupResource::PODS, GroupResource::PERSISTENT_VOLUMES, GroupResource::VOLUME_ATTACHMENTS];

impl Default for NodeAuthorizer {
    fn default() -> Self {
        Self { graph: RwLock::default(), rules: node_rules() }
    }
}

impl NodeAuthorizer {
    /// It knows of no Pod yet, and so refuses what only Pods give a right to.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the node needs the object.
    fn related(&self, node: &str, object: &Object) -> bool {
        let graph = self.graph.read().unwrap_or_else(PoisonError::into_inner);
        if let Object::VolumeAttachment(name) = object {
            return graph.attachments.get(name).is_some_and(|n| n == node);
        }
        let Some(refs) = graph.nodes.get(node) else { return false };
        let through = |volume: &String| {
            graph.volumes.get(volume).is_some_and(|v| refs.contains_key(&v.claim))
        };
        refs.contains_key(object)
            || matches!(object, Object::Volume(name) if through(name))
            || graph
                .volumes_of_secret
                .get(object)
                .is_some_and(|volumes| volumes.iter().any(through))
    }

    /// Allows reading, in one of these ways, an object that the node needs.
    fn needed(
        &self,
        node: &str,
        request: &Attributes<'_>,
        verbs: &[&str],
        object: impl FnOnce(&str, &str) -> Object,
    ) -> Decision {
        if !verbs.contains(&request.verb) || !request.subresource.is_empty() {
            return no_opinion("can only read resources of this type");
        }
        // A list or watch of one name is a read of that object.
        let name = if request.name.is_empty() {
            request.pinned_field("metadata.name")
        } else {
            Some(request.name)
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return no_opinion("No Object name found");
        };
        if self.related(node, &object(request.namespace, name)) {
            Decision::Allow(None)
        } else {
            no_relationship(node)
        }
    }

    fn on_service_account(&self, node: &str, request: &Attributes<'_>) -> Decision {
        let account = |namespace: &str, name: &str| Object::service_account(namespace, name);
        match (request.verb, request.subresource) {
            ("create", "token")
                if self.related(node, &account(request.namespace, request.name)) =>
            {
                Decision::Allow(None)
            }
            ("create", "token") => no_relationship(node),
            ("get", "") => self.needed(node, request, &["get"], account),
            _ => no_opinion("can only create tokens for individual service accounts"),
        }
    }
}

fn no_opinion(reason: &str) -> Decision {
    Decision::NoOpinion(Some(reason.into()))
}

fn no_relationship(node: &str) -> Decision {
    Decision::NoOpinion(Some(
        format!("no relationship found between node '{node}' and this object").into(),
    ))
}

/// A node's own Node, and the creation of one: NodeRestriction limits the writes.
fn on_node(node: &str, request: &Attributes<'_>) -> Decision {
    let asked = if request.name.is_empty() {
        request.pinned_field("metadata.name").unwrap_or("")
    } else {
        request.name
    };
    match (request.subresource, request.verb) {
        ("", "create" | "update" | "patch") | ("status", "update" | "patch") => {
            Decision::Allow(None)
        }
        ("", "get" | "list" | "watch") => match asked {
            "" => Decision::NoOpinion(Some(
                format!("node '{node}' cannot read all nodes, only its own Node object").into(),
            )),
            name if name == node => Decision::Allow(None),
            name => Decision::NoOpinion(Some(
                format!("node '{node}' cannot read '{name}', only its own Node object").into(),
            )),
        },
        _ => Decision::NoOpinion(None),
    }
}

fn on_lease(node: &str, request: &Attributes<'_>) -> Decision {
    match request.verb {
        _ if request.namespace != "kube-node-lease" => {
            no_opinion("can only access leases in the \"kube-node-lease\" system namespace")
        }
        // The name of what is created is in the body; NodeRestriction looks at it.
        "create" => Decision::Allow(None),
        "get" | "update" | "patch" | "delete" => own(node, request, "lease"),
        _ => no_opinion("can only get, create, update, patch, or delete a node lease"),
    }
}

fn on_csi_node(node: &str, request: &Attributes<'_>) -> Decision {
    match (request.subresource, request.verb) {
        ("", "create") => Decision::Allow(None),
        ("", "get" | "update" | "patch" | "delete") => own(node, request, "CSINode"),
        _ => no_opinion("can only get, create, update, patch, or delete a CSINode"),
    }
}

fn own(node: &str, request: &Attributes<'_>, kind: &str) -> Decision {
    if request.name == node {
        Decision::Allow(None)
    } else {
        Decision::NoOpinion(Some(
            format!("can only access {kind} with the same name as the requesting node").into(),
        ))
    }
}

fn on_resource_slice(node: &str, request: &Attributes<'_>) -> Decision {
    match (request.subresource, request.verb) {
        // NodeRestriction looks at the node of what is written.
        ("", "get" | "create" | "update" | "patch" | "delete") => Decision::Allow(None),
        ("", "list" | "watch" | "deletecollection")
            if request.pinned_field("spec.nodeName") == Some(node) =>
        {
            Decision::Allow(None)
        }
        ("", "list" | "watch" | "deletecollection") => no_opinion(
            "can only list/watch/deletecollection resourceslices with nodeName field selector",
        ),
        _ => no_opinion("cannot access this subresource of resourceslices"),
    }
}

impl Authorizer for NodeAuthorizer {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        let Some(node) = request.user.as_node() else { return Decision::NoOpinion(None) };
        if node.is_empty() {
            return Decision::NoOpinion(Some(
                format!("unknown node for user {:?}", request.user.name).into(),
            ));
        }
        let read = ["get", "list", "watch"];
        if request.is_resource {
            match (request.group, request.resource) {
                ("", "secrets") => return self.needed(node, request, &read, Object::secret),
                ("", "configmaps") => return self.needed(node, request, &read, Object::config_map),
                ("", "persistentvolumeclaims") if request.subresource == "status" => {
                    let writes = ["update", "patch"].contains(&request.verb);
                    let plain = Attributes { verb: "get", subresource: "", ..*request };
                    return match writes || request.verb == "get" {
                        true => self.needed(node, &plain, &["get"], Object::claim),
                        false => no_opinion("can only get/update/patch status"),
                    };
                }
                ("", "persistentvolumeclaims") => {
                    return self.needed(node, request, &["get"], Object::claim);
                }
                ("", "persistentvolumes") => {
                    return self
                        .needed(node, request, &["get"], |_, name| Object::Volume(name.into()));
                }
                ("resource.k8s.io", "resourceclaims") => {
                    return self.needed(node, request, &["get"], Object::resource_claim);
                }
                ("resource.k8s.io", "resourceslices") => return on_resource_slice(node, request),
                ("storage.k8s.io", "volumeattachments") => {
                    return self.needed(node, request, &["get"], |_, name| {
                        Object::VolumeAttachment(name.into())
                    });
                }
                ("", "serviceaccounts") => return self.on_service_account(node, request),
                ("coordination.k8s.io", "leases") => return on_lease(node, request),
                ("storage.k8s.io", "csinodes") => return on_csi_node(node, request),
                ("", "nodes") => return on_node(node, request),
                ("", "pods") => match (request.subresource, request.verb) {
                    ("", "get") => return self.needed(node, request, &["get"], Object::pod),
                    ("", "list" | "watch")
                        if request.pinned_field("spec.nodeName") != Some(node) =>
                    {
                        return no_opinion(
                            "can only list/watch pods with spec.nodeName field selector",
                        );
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        if self.rules.iter().any(|rule| rule.allows(request)) {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(None)
        }
    }
}

impl Observer for NodeAuthorizer {
    fn resources(&self) -> &[GroupResource] {
        &WATCHED
    }

    fn changed(&self, resource: &GroupResource, old: Option<&Value>, new: Option<&Value>) {
        // Most changes of a Pod are of its status, and touch no reference: they take no lock.
        if *resource == GroupResource::PODS && refs::same_refs(old, new) {
            return;
        }
        let mut graph = self.graph.write().unwrap_or_else(PoisonError::into_inner);
        match resource.resource.as_ref() {
            "pods" => graph.change_pod(old.and_then(pod_refs), new.and_then(pod_refs)),
            "persistentvolumes" => graph.change_volume(old, new),
            _ => graph.change_attachment(old, new),
        }
    }
}

impl Graph {
    fn change_pod(&mut self, old: Option<Refs>, new: Option<Refs>) {
        if let Some(Refs { node, objects }) = new {
            let counts = self.nodes.entry(node).or_default();
            for object in objects {
                *counts.entry(object).or_default() += 1;
            }
        }
        let Some(Refs { node, objects }) = old else { return };
        let Some(counts) = self.nodes.get_mut(&node) else { return };
        for object in objects {
            if let Some(count) = counts.get_mut(&object) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&object);
                }
            }
        }
        if counts.is_empty() {
            self.nodes.remove(&node);
        }
    }

    fn change_volume(&mut self, old: Option<&Value>, new: Option<&Value>) {
        if let Some((name, _, _)) = old.and_then(volume_refs)
            && let Some(volume) = self.volumes.remove(&name)
        {
            for secret in volume.secrets {
                if let Some(volumes) = self.volumes_of_secret.get_mut(&secret) {
                    volumes.remove(&name);
                    if volumes.is_empty() {
                        self.volumes_of_secret.remove(&secret);
                    }
                }
            }
        }
        if let Some((name, claim, secrets)) = new.and_then(volume_refs) {
            for secret in &secrets {
                self.volumes_of_secret.entry(secret.clone()).or_default().insert(name.clone());
            }
            self.volumes.insert(name, Volume { claim, secrets });
        }
    }

    fn change_attachment(&mut self, old: Option<&Value>, new: Option<&Value>) {
        let name = |object: &Value| object.opt_text("metadata.name").map(str::to_owned);
        if let Some(name) = old.and_then(name) {
            self.attachments.remove(&name);
        }
        if let Some((object, name)) = new.and_then(|object| Some((object, name(object)?)))
            && let Some(node) = object["spec"]["nodeName"].as_str()
        {
            self.attachments.insert(name, node.to_owned());
        }
    }
}
