//! Validates updates: the immutable fields of a Cluster.

use api_meta::{ErrorList, FieldError, Tree as _};
use serde_json::Value;

use super::{object::validate_cluster, paths::spec};
use crate::object::Object;

/// Validates an update of a Cluster and returns the field errors. `created` are the running etcd clusters, whose
/// members must stay in their groups, where their volumes are.
pub fn validate_cluster_update(new: &Object, old: &Object, created: &[&str]) -> ErrorList {
    let mut errors = validate_cluster(new, false);
    for before in old.spec.items("etcdClusters") {
        let name = before.text("name");
        let at = spec("etcdClusters").key(name);
        let Some(after) = named(new.spec.items("etcdClusters"), name) else {
            errors.push(FieldError::forbidden(&at, "EtcdClusters cannot be removed"));
            continue;
        };
        if !created.contains(&name) {
            continue;
        }
        for member in before.items("etcdMembers") {
            let name = member.text("name");
            let moved = named(after.items("etcdMembers"), name)
                .is_some_and(|after| after.text("instanceGroup") != member.text("instanceGroup"));
            if moved {
                let at = at.child("etcdMembers").key(name).child("instanceGroup");
                errors.push(FieldError::forbidden(&at, "instanceGroup cannot be changed"));
            }
        }
    }
    errors
}

fn named<'s>(items: &'s [Value], name: &str) -> Option<&'s Value> {
    items.iter().find(|item| item.text("name") == name)
}
