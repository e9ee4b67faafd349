//! The Node authorizer: a kubelet may read only the objects that the Pods on its node need.
//!
//! Invariant: `nodes` counts exactly the references of the Pods that are bound to each node, so that a decision is one
//! lookup. Only references of PersistentVolumes need a second one.

mod refs;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use api_config::FeatureGates;
use api_meta::{Attributes, Authorizer, Changed, Decision, GroupResource, Observer};
use parking_lot::{RwLock, RwLockWriteGuard};
use refs::{Object, Refs, pod_refs, volume_refs};
pub use refs::{POD_MEMBERS, secrets_of_pod};
use serde_json::Value;

use crate::rbac::{PolicyRule, node_rules};

/// Tracks Pods and volumes, and the objects that each node needs.
pub struct NodeAuthorizer {
    graph: RwLock<Graph>,
    /// The permissions of every node: the rules of `system:node`.
    rules: Vec<PolicyRule>,
    /// `true` if nodes may create PodCertificateRequests.
    has_certificates: bool,
}

#[derive(Default)]
struct Graph {
    nodes: HashMap<Arc<str>, HashMap<Arc<Object>, u32>>,
    /// The references that each bound Pod contributes to `nodes`.
    pods: HashMap<Arc<Object>, CountedRefs>,
    volumes: HashMap<String, Volume>,
    /// The volumes that refer to a Secret.
    volumes_of_secret: HashMap<Object, HashSet<String>>,
    /// The node of each VolumeAttachment.
    attachments: HashMap<String, String>,
}

struct CountedRefs {
    node: Arc<str>,
    objects: Box<[Arc<Object>]>,
}

impl CountedRefs {
    fn is(&self, refs: &Refs) -> bool {
        *self.node == *refs.node && self.objects.iter().map(|o| &**o).eq(&refs.objects)
    }
}

struct Volume {
    claim: Object,
    secrets: Vec<Object>,
}

const WATCHED: [GroupResource; 3] =
    [GroupResource::PODS, GroupResource::PERSISTENT_VOLUMES, GroupResource::VOLUME_ATTACHMENTS];

impl Default for NodeAuthorizer {
    fn default() -> Self {
        Self::with_features(&FeatureGates::default())
    }
}

impl NodeAuthorizer {
    /// Creates an authorizer without Pods, which denies everything that depends on Pods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an authorizer without Pods, with the permissions that the features give to nodes.
    pub fn with_features(features: &FeatureGates) -> Self {
        Self {
            graph: RwLock::default(),
            rules: node_rules(features),
            has_certificates: features.is_enabled("PodCertificateRequest"),
        }
    }

    /// Reports whether the node needs the object.
    fn is_related(&self, node: &str, object: &Object) -> bool {
        let graph = self.graph.read();
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

    /// Allows the given verbs on an object that the node needs.
    fn authorize_read(
        &self,
        node: &str,
        request: &Attributes<'_>,
        verbs: &[&str],
        object: impl FnOnce(&str, &str) -> Object,
    ) -> Decision {
        if !verbs.contains(&request.verb) || !request.subresource.is_empty() {
            return no_opinion("can only read resources of this type");
        }
        // A list or watch of a single name is a read of that object.
        let name = if request.name.is_empty() {
            request.pinned_field("metadata.name")
        } else {
            Some(request.name)
        };
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return no_opinion("No Object name found");
        };
        if self.is_related(node, &object(request.namespace, name)) {
            Decision::Allow(None)
        } else {
            no_relationship(node)
        }
    }

    fn on_service_account(&self, node: &str, request: &Attributes<'_>) -> Decision {
        let account = |namespace: &str, name: &str| Object::service_account(namespace, name);
        match (request.verb, request.subresource) {
            ("create", "token")
                if self.is_related(node, &account(request.namespace, request.name)) =>
            {
                Decision::Allow(None)
            }
            ("create", "token") => no_relationship(node),
            ("get", "") => self.authorize_read(node, request, &["get"], account),
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

/// Allows access to a node's own Node and the creation of Nodes. NodeRestriction limits the writes.
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
        // The name of a new object is in the body, which NodeRestriction checks.
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

/// Allows the creation of PodCertificateRequests, which NodeRestriction limits, and lists of those of the node.
fn on_certificate_request(node: &str, request: &Attributes<'_>) -> Decision {
    match (request.subresource, request.verb) {
        ("", "create") => Decision::Allow(None),
        ("", "list" | "watch") if request.pinned_field("spec.nodeName") == Some(node) => {
            Decision::Allow(None)
        }
        ("", "list" | "watch") => {
            no_opinion("can only list/watch podcertificaterequests with nodeName field selector")
        }
        _ => no_opinion("can only create, list and watch podcertificaterequests"),
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
        // NodeRestriction checks the node of a written object.
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
                ("", "secrets") => {
                    return self.authorize_read(node, request, &read, Object::secret);
                }
                ("", "configmaps") => {
                    return self.authorize_read(node, request, &read, Object::config_map);
                }
                ("", "persistentvolumeclaims") if request.subresource == "status" => {
                    let writes = ["update", "patch"].contains(&request.verb);
                    let plain = Attributes { verb: "get", subresource: "", ..*request };
                    return if writes || request.verb == "get" {
                        self.authorize_read(node, &plain, &["get"], Object::claim)
                    } else {
                        no_opinion("can only get/update/patch status")
                    };
                }
                ("", "persistentvolumeclaims") => {
                    return self.authorize_read(node, request, &["get"], Object::claim);
                }
                ("", "persistentvolumes") => {
                    return self.authorize_read(node, request, &["get"], |_, name| {
                        Object::Volume(name.into())
                    });
                }
                ("resource.k8s.io", "resourceclaims") => {
                    return self.authorize_read(node, request, &["get"], Object::resource_claim);
                }
                ("resource.k8s.io", "resourceslices") => return on_resource_slice(node, request),
                ("storage.k8s.io", "volumeattachments") => {
                    return self.authorize_read(node, request, &["get"], |_, name| {
                        Object::VolumeAttachment(name.into())
                    });
                }
                ("certificates.k8s.io", "podcertificaterequests") if self.has_certificates => {
                    return on_certificate_request(node, request);
                }
                ("", "serviceaccounts") => return self.on_service_account(node, request),
                ("coordination.k8s.io", "leases") => return on_lease(node, request),
                ("storage.k8s.io", "csinodes") => return on_csi_node(node, request),
                ("", "nodes") => return on_node(node, request),
                ("", "pods") => match (request.subresource, request.verb) {
                    ("", "get") => {
                        return self.authorize_read(node, request, &["get"], Object::pod);
                    }
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

    fn changed(&self, change: Changed<'_>) {
        let (namespace, name) = (change.namespace, change.name);
        match change.resource.resource.as_ref() {
            "pods" => self.change_pod(namespace, name, change.object),
            "persistentvolumes" => self.write().change_volume(name, change.object),
            _ => self.write().change_attachment(name, change.object),
        }
    }
}

impl NodeAuthorizer {
    fn write(&self) -> RwLockWriteGuard<'_, Graph> {
        self.graph.write()
    }

    fn change_pod(&self, namespace: &str, name: &str, pod: Option<&Value>) {
        let key = Object::pod(namespace, name);
        let refs = pod.and_then(|pod| pod_refs(namespace, name, pod));
        // Most changes of a Pod affect only its status. They take only the read lock.
        let graph = self.graph.read();
        let same = match (graph.pods.get(&key), &refs) {
            (Some(counted), Some(refs)) => counted.is(refs),
            (counted, refs) => counted.is_none() && refs.is_none(),
        };
        drop(graph);
        if !same {
            self.write().change_pod(key, refs);
        }
    }
}

impl Graph {
    fn change_pod(&mut self, pod: Object, refs: Option<Refs>) {
        let old = match refs {
            Some(refs) => {
                let counted = self.count(refs);
                // A Pod is among its own references.
                let own = counted.objects.iter().find(|object| ***object == pod).cloned();
                self.pods.insert(own.unwrap_or_else(|| Arc::new(pod)), counted)
            }
            None => self.pods.remove(&pod),
        };
        let Some(CountedRefs { node, objects }) = old else { return };
        let Some(counts) = self.nodes.get_mut(&node) else { return };
        for object in &objects {
            if let Some(count) = counts.get_mut(object) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(object);
                }
            }
        }
        if counts.is_empty() {
            self.nodes.remove(&node);
        }
    }

    /// Counts the references of a Pod. Objects that several Pods of a node need share one entry.
    fn count(&mut self, refs: Refs) -> CountedRefs {
        let known = self.nodes.get_key_value(refs.node.as_str()).map(|(node, _)| node.clone());
        let node = known.unwrap_or_else(|| refs.node.into());
        let counts = self.nodes.entry(node.clone()).or_default();
        let count = |object: Object| {
            let known = counts.get_key_value(&object).map(|(object, _)| object.clone());
            let object = known.unwrap_or_else(|| Arc::new(object));
            *counts.entry(object.clone()).or_default() += 1;
            object
        };
        CountedRefs { objects: refs.objects.into_iter().map(count).collect(), node }
    }

    fn change_volume(&mut self, name: &str, volume: Option<&Value>) {
        if let Some(volume) = self.volumes.remove(name) {
            for secret in volume.secrets {
                if let Some(volumes) = self.volumes_of_secret.get_mut(&secret) {
                    volumes.remove(name);
                    if volumes.is_empty() {
                        self.volumes_of_secret.remove(&secret);
                    }
                }
            }
        }
        if let Some((claim, secrets)) = volume.and_then(volume_refs) {
            for secret in &secrets {
                self.volumes_of_secret.entry(secret.clone()).or_default().insert(name.to_owned());
            }
            self.volumes.insert(name.to_owned(), Volume { claim, secrets });
        }
    }

    fn change_attachment(&mut self, name: &str, attachment: Option<&Value>) {
        self.attachments.remove(name);
        if let Some(node) = attachment.and_then(|object| object["spec"]["nodeName"].as_str()) {
            self.attachments.insert(name.to_owned(), node.to_owned());
        }
    }
}
