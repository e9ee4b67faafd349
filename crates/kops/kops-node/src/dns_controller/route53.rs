//! The provider `aws-route53`.

use std::collections::BTreeSet;

use api_meta::Tree as _;
use aws::Client;
use kops_core::{
    dns::{Change, TTL, Zone},
    dns_name,
};
use serde_json::{Value, json};

use super::provider::{Effect, Provider, ProviderError, Reply};

/// The types of records that are changed.
const TYPES: [&str; 3] = ["A", "AAAA", "CNAME"];
/// The most record sets of one name, including those with a routing policy.
const MOST_SETS: usize = 100;

/// The reason why a name cannot have the wanted records.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NameError {
    #[error(
        "{name} has {kind} records with a routing policy or an alias, which were made by others; delete them, or use \
         another name"
    )]
    Foreign { name: String, kind: String },
    #[error("{name} has too many record sets; use another name")]
    TooManySets { name: String },
}

impl From<NameError> for ProviderError {
    fn from(error: NameError) -> Self {
        Self::new(Effect::Rejected, error)
    }
}

impl From<aws::Error> for ProviderError {
    fn from(error: aws::Error) -> Self {
        let effect = match (&error, error.code()) {
            (_, "InvalidChangeBatch" | "InvalidInput") => Effect::Rejected,
            (
                aws::Error::Credentials { .. }
                | aws::Error::InvalidSetting { .. }
                | aws::Error::Unknown { .. }
                | aws::Error::Refused { status: 400..=499, .. },
                _,
            ) => Effect::Refused,
            _ => Effect::Unknown,
        };
        Self::new(effect, error)
    }
}

/// The hosted zones of an AWS account.
pub(super) struct Route53 {
    pub(super) client: Client,
}

impl Provider for Route53 {
    fn zones(&self) -> Reply<'_, Vec<Zone>> {
        Box::pin(async {
            let pages = self.client.pages("route53", "ListHostedZones", &Value::Null).await?;
            let zone = |one: &Value| {
                Zone::new(one.text("Id").trim_start_matches("/hostedzone/"), one.text("Name"))
            };
            Ok(pages.iter().flat_map(|page| page.items("HostedZones")).filter_map(zone).collect())
        })
    }

    fn apply<'a>(&'a self, zone: &'a Zone, changes: &'a [Change]) -> Reply<'a, ()> {
        Box::pin(async move {
            let mut batch = Vec::new();
            for change in changes {
                batch.extend(set_changes(change, &self.sets(zone, &change.name).await?)?);
            }
            if batch.is_empty() {
                return Ok(());
            }
            let request = json!({"Id": zone.id, "ChangeBatch": {"Changes": {"Change": batch}}});
            self.client.call("route53", "ChangeResourceRecordSets", &request).await?;
            Ok(())
        })
    }
}

impl Route53 {
    /// Returns the record sets of a name.
    async fn sets(&self, zone: &Zone, name: &str) -> Result<Vec<Value>, ProviderError> {
        let most = MOST_SETS.to_string();
        let request = json!({"Id": zone.id, "name": name, "maxitems": most});
        let mut page = self.client.call("route53", "ListResourceRecordSets", &request).await?;
        // The listing begins with the name, and continues with those after it.
        let Value::Array(mut sets) = page.take_at("ResourceRecordSets") else {
            return Ok(Vec::new());
        };
        sets.retain(|set| dns_name(set.text("Name")) == name);
        if sets.len() >= MOST_SETS {
            return Err(NameError::TooManySets { name: name.to_owned() }.into());
        }
        Ok(sets)
    }
}

/// Returns the changes of record sets that give a name its records. Records that are right already are not changed.
fn set_changes(change: &Change, existing: &[Value]) -> Result<Vec<Value>, NameError> {
    let mut changes = Vec::new();
    let wanted = change.records.by_type();
    for set in existing.iter().filter(|set| TYPES.contains(&set.text("Type"))) {
        let kind = set.text("Type");
        if set.items("ResourceRecords").is_empty() || set.has("SetIdentifier") {
            let (name, kind) = (change.name.clone(), kind.to_owned());
            return Err(NameError::Foreign { name, kind });
        }
        if !wanted.iter().any(|(wanted, _)| *wanted == kind) {
            let own = values(set).map(str::to_owned).collect::<Vec<_>>();
            changes.push(set_change("DELETE", &change.name, kind, set.text("TTL"), &own));
        }
    }
    for (kind, own) in &wanted {
        let current = existing.iter().find(|set| set.text("Type") == *kind);
        if current.is_none_or(|set| !has_values(set, own)) {
            changes.push(set_change("UPSERT", &change.name, kind, &TTL.to_string(), own));
        }
    }
    Ok(changes)
}

fn values(set: &Value) -> impl Iterator<Item = &str> {
    set.items("ResourceRecords").iter().map(|record| record.text("Value"))
}

/// Reports whether a record set has these values and our TTL.
fn has_values(set: &Value, wanted: &[String]) -> bool {
    let current: BTreeSet<_> = values(set).map(|value| value.trim_end_matches('.')).collect();
    let wanted: BTreeSet<_> = wanted.iter().map(String::as_str).collect();
    current == wanted && set.text("TTL") == TTL.to_string()
}

fn set_change(action: &str, name: &str, kind: &str, ttl: &str, values: &[String]) -> Value {
    let records: Vec<_> = values.iter().map(|value| json!({"Value": value})).collect();
    json!({
        "Action": action,
        "ResourceRecordSet": {
            "Name": name, "Type": kind, "TTL": ttl,
            "ResourceRecords": {"ResourceRecord": records},
        },
    })
}

#[cfg(test)]
mod tests;
