//! The bulk queries about a cluster in AWS, and the existing resources in the answers.

use std::collections::BTreeMap;

use crate::aws::{Answers, Call, ExistingResource, Group, Identity, Kind, Scope, groups};

/// Returns the next queries; empty once everything is known.
pub fn next_queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
    let all = Kind::ALL.iter().flat_map(|kind| (kind.operations().queries)(scope, answers));
    all.filter(|call| !answers.has(call)).collect()
}

/// The existing resources of a cluster.
#[derive(Clone, Debug, Default)]
pub struct ExistingResources {
    /// The resources by identity.
    pub(super) all: BTreeMap<Identity, ExistingResource>,
    /// Identities shared by two resources, with the ID of the first one.
    pub(super) duplicates: Vec<(Identity, String)>,
    /// The scaling groups with their machines, by name.
    pub groups: BTreeMap<String, Group>,
}

impl ExistingResources {
    /// Parses the answers to all queries.
    pub fn read(scope: &Scope, answers: &Answers) -> Self {
        let mut existing = Self { groups: groups(answers, &scope.cluster), ..Self::default() };
        for kind in Kind::ALL {
            for (name, found) in (kind.operations().find_existing)(scope, answers) {
                existing.insert((*kind, name), found);
            }
        }
        existing
    }

    fn insert(&mut self, identity: Identity, found: ExistingResource) {
        let id = found.id.clone();
        // A resource of another owner may have the name of one of the cluster's.
        let named = [Kind::Vpc, Kind::Subnet, Kind::SecurityGroup].contains(&identity.0);
        if named && !found.owned {
            return;
        }
        if let Some(other) = self.all.insert(identity.clone(), found)
            && other.id != id
        {
            self.duplicates.push((identity.clone(), other.id.clone()));
            // A deletion must find both.
            let (kind, name) = identity;
            self.all.insert((kind, format!("{name} {}", other.id)), other);
        }
    }

    /// Returns the resource with this identity.
    pub fn find(&self, identity: &Identity) -> Option<&ExistingResource> {
        self.all.get(identity)
    }

    /// Returns the number of resources.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Reports whether there are no resources.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
