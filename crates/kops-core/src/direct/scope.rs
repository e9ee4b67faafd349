//! Where a cluster's things are looked for, beside those that its tag leads to.

use std::collections::BTreeSet;

use crate::model::aws::{Body, Kind, Model, names};

/// What is asked about.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub cluster: String,
    pub queue: String,
    /// What the names of its event rules begin with.
    pub rules: String,
    /// The zone in Route 53 with the cluster's names, and those names; empty without one.
    pub zone: String,
    pub names: BTreeSet<String>,
    /// Whether a private zone is to be asked who uses it.
    pub zone_is_private: bool,
    /// The issuer that is an OIDC provider, if there is one.
    pub issuer: String,
    /// Whether it is for a deletion: then it is asked whose things are that have no tags where they are listed.
    pub erases: bool,
}

/// The names that a cluster has in its zone.
const NAMES: [&str; 4] = ["api", "api.internal", "bastion", "kops-controller.internal"];

impl Scope {
    /// What belongs to a cluster by its name alone.
    pub fn of_name(cluster: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            queue: names::queue(cluster),
            rules: names::rule_prefix(cluster),
            ..Self::default()
        }
    }

    /// All that a deletion looks for. `zone` is empty if no names are published, and so is `issuer` of who has none.
    pub fn of_deletion(cluster: &str, zone: &str, issuer: &str) -> Self {
        let names = match zone {
            "" => BTreeSet::new(),
            _ => NAMES.iter().map(|name| format!("{name}.{cluster}")).collect(),
        };
        Self {
            zone: zone.to_owned(),
            names,
            issuer: issuer.to_owned(),
            erases: true,
            ..Self::of_name(cluster)
        }
    }

    /// What a model is compared with.
    pub fn of_model(cluster: &str, model: &Model) -> Self {
        let mut scope = Self::of_name(cluster);
        if model.of_kind(Kind::Queue).next().is_none() {
            (scope.queue, scope.rules) = (String::new(), String::new());
        }
        for resource in model.resources.values() {
            match &resource.body {
                Body::Record { name, .. } => drop(scope.names.insert(name.clone())),
                Body::Zone => {
                    let id = resource.shared.as_deref().unwrap_or_default();
                    id.trim_start_matches("/hostedzone/").clone_into(&mut scope.zone);
                }
                Body::ZoneAssociation { .. } => scope.zone_is_private = true,
                Body::OidcProvider { url, .. } => url.clone_into(&mut scope.issuer),
                _ => {}
            }
        }
        scope
    }
}
