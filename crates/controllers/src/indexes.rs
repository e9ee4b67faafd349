//! What controllers look objects up by, so that a change of one costs no look at the others. An index is shared by all
//! controllers that share its informer.

use std::sync::Arc;

use api_meta::{ObjectMeta, Operator, Selector};
use client::Index;

use crate::{
    shared::Watched,
    views::{Labels, Pod},
};

/// What has metadata.
pub(crate) trait Described: Send + Sync + 'static {
    fn meta(&self) -> &ObjectMeta;
}

/// What selects others of its namespace by their labels.
pub(crate) trait Selecting: Described {
    fn selector(&self) -> Selector;
}

macro_rules! described {
    ($($kind:ty),*) => {
        $(impl crate::indexes::Described for $kind {
            fn meta(&self) -> &api_meta::ObjectMeta {
                &self.metadata
            }
        })*
    };
}
pub(crate) use described;

described!(
    Pod,
    crate::views::Service,
    crate::views::ReplicaSet,
    crate::views::Deployment,
    crate::views::Set,
    crate::views::Job,
    crate::views::ControllerRevision
);

macro_rules! selecting {
    ($($kind:ty),*) => {
        $(impl Selecting for $kind {
            fn selector(&self) -> Selector {
                <$kind>::selector(self)
            }
        })*
    };
}

selecting!(
    crate::views::Service,
    crate::views::ReplicaSet,
    crate::views::Deployment,
    crate::views::Set,
    crate::views::Job
);

/// Objects by who controls them.
pub(crate) struct Controlled<T>(Index<T>);

impl<T> Clone for Controlled<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What nobody controls is found by its namespace. No uid has a slash in it.
fn nobodys(namespace: &str) -> String {
    format!("/{namespace}")
}

impl<T: Described> Controlled<T> {
    pub(crate) fn of(watched: &Watched<T>) -> Self
    where
        T: serde::de::DeserializeOwned,
    {
        Self(watched.index("controller", |object| {
            let meta = object.meta();
            let controller = meta.controller().map(|owner| owner.uid.clone());
            vec![controller.unwrap_or_else(|| nobodys(&meta.namespace))]
        }))
    }

    /// What this one controls.
    pub(crate) fn by(&self, uid: &str) -> Vec<Arc<T>> {
        self.0.get(uid)
    }

    /// What this one controls, and what it may adopt, being of its namespace and controlled by nobody.
    pub(crate) fn claimable(&self, owner: &ObjectMeta) -> Vec<Arc<T>> {
        let mut all = self.by(&owner.uid);
        all.extend(self.0.get(&nobodys(&owner.namespace)));
        all
    }
}

/// Objects by their labels.
pub(crate) struct Labelled<T> {
    index: Index<T>,
    watched: Watched<T>,
}

impl<T> Clone for Labelled<T> {
    fn clone(&self) -> Self {
        Self { index: self.index.clone(), watched: self.watched.clone() }
    }
}

/// A label of an object of a namespace. Neither namespaces nor the keys of labels have an equals sign in them.
fn label(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}={key}={value}")
}

fn labels(meta: &ObjectMeta) -> Vec<String> {
    meta.labels.iter().map(|(key, value)| label(&meta.namespace, key, value)).collect()
}

/// For each requirement that asks for values of a label, what has one of them.
fn asked(namespace: &str, selector: &Selector) -> Vec<Vec<String>> {
    let asks =
        |operator| matches!(operator, Operator::Equals | Operator::DoubleEquals | Operator::In);
    let requirements = selector.requirements().iter().filter(|r| asks(r.operator()));
    let of = |value: &String, key: &str| label(namespace, key, value);
    requirements.map(|r| r.values().iter().map(|v| of(v, r.key())).collect()).collect()
}

impl<T: Described + serde::de::DeserializeOwned> Labelled<T> {
    pub(crate) fn of(watched: &Watched<T>) -> Self {
        let index = watched.index("label", |object| labels(object.meta()));
        Self { index, watched: watched.clone() }
    }

    /// What a selector selects of a namespace, in the order of names. Only what has the rarest of the labels that it
    /// asks for is looked at.
    pub(crate) fn selected(&self, namespace: &str, selector: &Selector) -> Vec<Arc<T>> {
        if selector.matches_none() {
            return Vec::new();
        }
        let count =
            |values: &Vec<String>| values.iter().map(|v| self.index.count(v)).sum::<usize>();
        let mut found: Vec<_> = match asked(namespace, selector).iter().min_by_key(|v| count(v)) {
            Some(rarest) => rarest.iter().flat_map(|value| self.index.get(value)).collect(),
            None => self.watched.in_namespace(namespace),
        };
        found.retain(|object| selector.matches(&object.meta().labels));
        // Several values were found one after the other.
        found.sort_by(|a, b| a.meta().name.cmp(&b.meta().name));
        found
    }
}

/// Selecting objects by what they select.
pub(crate) struct Selectors<T>(Index<T>);

impl<T> Clone for Selectors<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Under this stands what selects by no value of a label.
fn others(namespace: &str) -> String {
    format!("{namespace}=")
}

impl<T: Selecting + serde::de::DeserializeOwned> Selectors<T> {
    pub(crate) fn of(watched: &Watched<T>) -> Self {
        Self(watched.index("selector", |object| {
            let (namespace, selector) = (&object.meta().namespace, object.selector());
            if selector.matches_none() {
                return Vec::new();
            }
            // One requirement is enough: all of them must hold.
            let first = asked(namespace, &selector).into_iter().next();
            first.unwrap_or_else(|| vec![others(namespace)])
        }))
    }

    /// Those of a namespace that select these labels.
    pub(crate) fn selecting(&self, namespace: &str, labels: &Labels) -> Vec<Arc<T>> {
        let own = labels.iter().map(|(key, value)| label(namespace, key, value));
        let values = own.chain([others(namespace)]);
        let found = values.flat_map(|value| self.0.get(&value));
        found.filter(|object| object.selector().matches(labels)).collect()
    }

    /// The same, by their keys.
    pub(crate) fn keys(&self, namespace: &str, labels: &Labels) -> Vec<String> {
        self.selecting(namespace, labels).iter().map(|object| object.meta().key()).collect()
    }
}

/// Pods by their node; those that have none yet are under the empty name.
pub(crate) fn by_node(pods: &Watched<Pod>) -> Index<Pod> {
    pods.index("node", |pod| vec![pod.node().to_owned()])
}

/// Pods by the keys of their claims.
pub(crate) fn by_claim(pods: &Watched<Pod>) -> Index<Pod> {
    pods.index("claim", Pod::claim_keys)
}
