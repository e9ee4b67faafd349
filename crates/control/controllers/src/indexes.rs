//! Shared indexes over informers, so that a change requires no scan of all objects.

use std::sync::Arc;

use api_meta::{ObjectMeta, Operator, Selector};
use client::Index;

use crate::{
    shared::Watched,
    views::{Labels, Pod},
};

/// An object with metadata.
pub(crate) trait HasMeta: Send + Sync + 'static {
    fn meta(&self) -> &ObjectMeta;
}

/// An object that selects others in its namespace by labels.
pub(crate) trait HasSelector: HasMeta {
    fn selector(&self) -> Selector;
}

macro_rules! impl_has_meta {
    ($($kind:ty),*) => {
        $(impl crate::indexes::HasMeta for $kind {
            fn meta(&self) -> &api_meta::ObjectMeta {
                &self.metadata
            }
        })*
    };
}
pub(crate) use impl_has_meta;

impl_has_meta!(
    Pod,
    crate::views::Service,
    crate::views::ReplicaSet,
    crate::views::Deployment,
    crate::views::Set,
    crate::views::Job,
    crate::views::ControllerRevision
);

macro_rules! impl_has_selector {
    ($($kind:ty),*) => {
        $(impl HasSelector for $kind {
            fn selector(&self) -> Selector {
                <$kind>::selector(self)
            }
        })*
    };
}

impl_has_selector!(
    crate::views::Service,
    crate::views::ReplicaSet,
    crate::views::Deployment,
    crate::views::Set,
    crate::views::Job
);

/// An index of objects by their controller.
pub(crate) struct OwnerIndex<T>(Index<T>);

impl<T> Clone for OwnerIndex<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The key of a namespace's objects without a controller. No uid contains a slash.
fn uncontrolled_key(namespace: &str) -> String {
    format!("/{namespace}")
}

impl<T: HasMeta> OwnerIndex<T> {
    pub(crate) fn of(watched: &Watched<T>) -> Self
    where
        T: serde::de::DeserializeOwned,
    {
        Self(watched.index("controller", |object| {
            let meta = object.meta();
            let controller = meta.controller().map(|owner| owner.uid.clone());
            vec![controller.unwrap_or_else(|| uncontrolled_key(&meta.namespace))]
        }))
    }

    /// Returns the objects that this uid controls.
    pub(crate) fn by(&self, uid: &str) -> Vec<Arc<T>> {
        self.0.get(uid)
    }

    /// Returns the objects that `owner` controls and those without a controller in its namespace, which it may adopt.
    pub(crate) fn claimable(&self, owner: &ObjectMeta) -> Vec<Arc<T>> {
        let mut all = self.by(&owner.uid);
        all.extend(self.0.get(&uncontrolled_key(&owner.namespace)));
        all
    }
}

/// An index of objects by their labels.
pub(crate) struct LabelIndex<T> {
    index: Index<T>,
    watched: Watched<T>,
}

impl<T> Clone for LabelIndex<T> {
    fn clone(&self) -> Self {
        Self { index: self.index.clone(), watched: self.watched.clone() }
    }
}

/// The index key of a label in a namespace. Neither namespaces nor label keys contain an equals sign.
fn label(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}={key}={value}")
}

fn labels(meta: &ObjectMeta) -> Vec<String> {
    meta.labels.iter().map(|(key, value)| label(&meta.namespace, key, value)).collect()
}

/// Returns the index keys of each requirement that lists values of a label; an object matches one of them.
fn required_labels(namespace: &str, selector: &Selector) -> Vec<Vec<String>> {
    let asks =
        |operator| matches!(operator, Operator::Equals | Operator::DoubleEquals | Operator::In);
    let requirements = selector.requirements().iter().filter(|r| asks(r.operator()));
    let of = |value: &String, key: &str| label(namespace, key, value);
    requirements.map(|r| r.values().iter().map(|v| of(v, r.key())).collect()).collect()
}

impl<T: HasMeta + serde::de::DeserializeOwned> LabelIndex<T> {
    pub(crate) fn of(watched: &Watched<T>) -> Self {
        let index = watched.index("label", |object| labels(object.meta()));
        Self { index, watched: watched.clone() }
    }

    /// Returns a namespace's selected objects, sorted by name. Checks only objects with the rarest required label.
    pub(crate) fn selected(&self, namespace: &str, selector: &Selector) -> Vec<Arc<T>> {
        if selector.matches_none() {
            return Vec::new();
        }
        let count =
            |values: &Vec<String>| values.iter().map(|v| self.index.count(v)).sum::<usize>();
        let mut objects: Vec<_> =
            match required_labels(namespace, selector).iter().min_by_key(|v| count(v)) {
                Some(rarest) => rarest.iter().flat_map(|value| self.index.get(value)).collect(),
                None => self.watched.in_namespace(namespace),
            };
        objects.retain(|object| selector.matches(&object.meta().labels));
        // Objects of several values were appended one value after the other.
        objects.sort_by(|a, b| a.meta().name.cmp(&b.meta().name));
        objects
    }
}

/// An index of objects with selectors by the labels that they require.
pub(crate) struct Selectors<T>(Index<T>);

impl<T> Clone for Selectors<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The key of the objects whose selector requires no value of a label.
fn any_label_key(namespace: &str) -> String {
    format!("{namespace}=")
}

impl<T: HasSelector + serde::de::DeserializeOwned> Selectors<T> {
    pub(crate) fn of(watched: &Watched<T>) -> Self {
        Self(watched.index("selector", |object| {
            let (namespace, selector) = (&object.meta().namespace, object.selector());
            if selector.matches_none() {
                return Vec::new();
            }
            // One requirement suffices, because all of them must match.
            let first = required_labels(namespace, &selector).into_iter().next();
            first.unwrap_or_else(|| vec![any_label_key(namespace)])
        }))
    }

    /// Returns the objects in a namespace that select these labels.
    pub(crate) fn selecting(&self, namespace: &str, labels: &Labels) -> Vec<Arc<T>> {
        let own = labels.iter().map(|(key, value)| label(namespace, key, value));
        let values = own.chain([any_label_key(namespace)]);
        let objects = values.flat_map(|value| self.0.get(&value));
        objects.filter(|object| object.selector().matches(labels)).collect()
    }

    /// Returns the keys of the objects in a namespace that select these labels.
    pub(crate) fn keys(&self, namespace: &str, labels: &Labels) -> Vec<String> {
        self.selecting(namespace, labels).iter().map(|object| object.meta().key()).collect()
    }
}

/// Indexes Pods by node; unscheduled ones have the empty name.
pub(crate) fn by_node(pods: &Watched<Pod>) -> Index<Pod> {
    pods.index("node", |pod| vec![pod.node().to_owned()])
}

/// Indexes Pods by the keys of their PodGroups.
pub(crate) fn by_group(pods: &Watched<Pod>) -> Index<Pod> {
    pods.index("pod group", |pod| pod.group_key().into_iter().collect())
}

/// Indexes Pods by the keys of their claims.
pub(crate) fn by_claim(pods: &Watched<Pod>) -> Index<Pod> {
    pods.index("claim", Pod::claim_keys)
}
