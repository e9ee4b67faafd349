//! Stores former templates of DaemonSets and StatefulSets as ControllerRevisions for rollbacks.

use api_meta::Tree as _;
use std::sync::Arc;

use client::{Error, NotFoundExt as _, Resource};
use serde_json::{Value, json};

use crate::{
    context::Context,
    pods::OwnerOf,
    views::{ControllerRevision, Set},
};

/// Returns a short hash of some data in upstream's alphabet, which cannot form words.
pub(crate) fn short_hash(data: &Value, collisions: i64) -> String {
    const SAFE: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let collisions = if collisions > 0 { collisions.to_string() } else { String::new() };
    let mut hash: u32 = 0x811c_9dc5;
    for byte in data.to_string().bytes().chain(collisions.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    hash.to_string()
        .bytes()
        .map(|digit| char::from(SAFE[usize::from(digit) % SAFE.len()]))
        .collect()
}

/// Returns the content of a revision: a patch that restores the template.
fn data(template: &Value) -> Value {
    let mut template = template.clone();
    template.put(&["$patch"], json!("replace"));
    json!({"spec": {"template": template}})
}

/// The action that makes the newest revision one of the current template.
#[derive(Debug, PartialEq)]
enum Plan<'a> {
    Current(&'a Arc<ControllerRevision>),
    /// The template was rolled back: make its revision the newest.
    Renew(&'a Arc<ControllerRevision>, i64),
    Create {
        name: String,
        hash: String,
        number: i64,
    },
}

fn plan<'a>(set: &Set, all: &'a [Arc<ControllerRevision>], collisions: i64) -> Plan<'a> {
    let desired = data(&set.spec.template);
    let newest = all.iter().map(|r| r.revision).max().unwrap_or(0);
    let same = all.iter().filter(|r| r.data == desired).max_by_key(|r| r.revision);
    match same {
        Some(same) if same.revision == newest => Plan::Current(same),
        Some(same) => Plan::Renew(same, newest + 1),
        None => {
            let hash = short_hash(&desired, collisions);
            Plan::Create { name: format!("{}-{hash}", set.metadata.name), hash, number: newest + 1 }
        }
    }
}

/// The revision of the current template.
pub(crate) struct CurrentRevision {
    pub(crate) name: String,
    pub(crate) hash: String,
    /// The collision count, increased if another template had the same hash.
    pub(crate) collisions: i64,
}

pub(crate) const HASH_LABEL: &str = "controller-revision-hash";

impl Context {
    /// Ensures that the newest revision is of the current template.
    pub(crate) async fn current_revision(
        &self,
        owner: &OwnerOf,
        set: &Set,
        all: &[Arc<ControllerRevision>],
    ) -> Result<CurrentRevision, Error> {
        let collisions = set.status.int("collisionCount");
        let resource = &Resource::CONTROLLER_REVISIONS;
        let of = |revision: &ControllerRevision| CurrentRevision {
            name: revision.metadata.name.clone(),
            hash: revision.metadata.labels.get(HASH_LABEL).cloned().unwrap_or_default(),
            collisions,
        };
        let (name, hash, number) = match plan(set, all, collisions) {
            Plan::Current(revision) => return Ok(of(revision)),
            Plan::Renew(revision, number) => {
                self.merge(resource, &revision.metadata, json!({"revision": number})).await?;
                return Ok(of(revision));
            }
            Plan::Create { name, hash, number } => (name, hash, number),
        };
        let mut labels = set.spec.template.at("metadata.labels").clone();
        labels.put(&[HASH_LABEL], json!(hash));
        let namespace = &set.metadata.namespace;
        let revision = json!({
            "metadata": {"name": name, "namespace": namespace, "labels": labels,
                "annotations": set.metadata.annotations, "ownerReferences": [owner.reference()]},
            "data": data(&set.spec.template),
            "revision": number,
        });
        match self.client.create::<_, ControllerRevision>(resource, namespace, &revision).await {
            Ok(_) => Ok(CurrentRevision { name, hash, collisions }),
            Err(error) if error.is_already_exists() => {
                let existing: ControllerRevision =
                    self.client.get(resource, namespace, &name).await?;
                let same = existing.data == data(&set.spec.template);
                Ok(CurrentRevision { name, hash, collisions: collisions + i64::from(!same) })
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes the oldest revisions beyond the limit, except for the revisions `live` that Pods use.
    pub(crate) async fn trim_history(
        &self,
        set: &Set,
        all: &[Arc<ControllerRevision>],
        live: &[String],
    ) -> Result<(), Error> {
        let limit = usize::try_from(set.spec.revision_history_limit.unwrap_or(10)).unwrap_or(10);
        let is_live = |r: &&Arc<ControllerRevision>| {
            let hash = r.metadata.labels.get(HASH_LABEL);
            live.iter().any(|l| *l == r.metadata.name || Some(l) == hash)
        };
        let mut old: Vec<_> = all.iter().filter(|r| !is_live(r)).collect();
        old.sort_by_key(|r| r.revision);
        for revision in &old[..old.len().saturating_sub(limit)] {
            let (meta, resource) = (&revision.metadata, &Resource::CONTROLLER_REVISIONS);
            self.client
                .delete(resource, &meta.namespace, &meta.name, &Default::default())
                .await
                .or_none()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_renews_revision() {
        let set = |x: i64| -> Set {
            serde_json::from_value(
                json!({"metadata": {"name": "s"}, "spec": {"template": {"spec": {"x": x}}}}),
            )
            .unwrap()
        };
        let revision = |x: i64, number: i64| {
            Arc::new(ControllerRevision {
                data: data(&set(x).spec.template),
                revision: number,
                ..Default::default()
            })
        };
        let all = [revision(1, 1), revision(2, 2)];
        assert_eq!(plan(&set(2), &all, 0), Plan::Current(&all[1]));
        assert_eq!(plan(&set(1), &all, 0), Plan::Renew(&all[0], 3));
        assert!(matches!(plan(&set(3), &all, 0), Plan::Create { number: 3, .. }));
    }
}
