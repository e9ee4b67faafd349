//! Plans the deletion of a cluster's resources.

use super::{existing::ExistingResources, order::DELETION_ORDER};
use crate::aws::{Call, ExistingResource, Identity};

/// The deletion of one resource.
#[derive(Clone, Debug)]
pub struct Deletion {
    identity: Identity,
    found: ExistingResource,
    calls: Vec<Call>,
}

impl Deletion {
    /// Returns upstream's name of the kind.
    pub fn task(&self) -> &'static str {
        self.identity.0.task()
    }

    /// Returns the identifying value of the resource.
    pub fn name(&self) -> &str {
        &self.identity.1
    }

    /// Returns the resource's ID in AWS.
    pub fn id(&self) -> &str {
        &self.found.id
    }

    /// Returns the calls that delete the resource.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }
}

/// Returns the deletions of a cluster's own resources, in order.
pub fn plan_deletion(existing: &ExistingResources) -> Vec<Deletion> {
    let mut all = Vec::new();
    for kind in DELETION_ORDER {
        for (identity, found) in
            existing.all.iter().filter(|((other, _), found)| *other == kind && found.owned)
        {
            let calls = (kind.operations().delete)(&identity.1, found);
            if !calls.is_empty() {
                let (identity, found) = (identity.clone(), found.clone());
                all.push(Deletion { identity, found, calls });
            }
        }
    }
    all
}
