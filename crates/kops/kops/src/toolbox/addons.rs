//! Runs `kops toolbox addons`: lists and applies the add-ons of a cluster.

use api_meta::Tree as _;
use client::{Client, Resource};
use kops_local::{COMMAND_PERIOD, list_objects};
use kops_node::channels::{self, AddonUpdate, ChannelAddons};
use kops_store::Registry;
use serde_json::Value;

use crate::{environment::CommandEnvironment, error::Error, flags::Connection, get, table};

/// The prefix of a namespace's annotations that record the applied add-ons.
const PREFIX: &str = "addons.k8s.io/";

/// Opens a client of the cluster's API.
pub(crate) fn connect(
    registry: &Registry,
    name: &str,
    connection: &Connection,
    context: &CommandEnvironment<'_>,
) -> Result<Client, Error> {
    let cluster = get::find_cluster(registry, name)?;
    connection.open(registry, &cluster, None, COMMAND_PERIOD, context)
}

/// Lists the applied add-ons.
pub(crate) async fn list(
    client: &Client,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let namespaces = list_objects(client, &Resource::NAMESPACES, "").await?;
    let rows = applied_addons(&namespaces);
    if rows.is_empty() {
        writeln!(context.out, "\nNo managed addons found")?;
        return Ok(());
    }
    table::print(context.out, ["NAMESPACE", "NAME", "HASH", "CHANNEL"], rows)?;
    writeln!(context.out)?;
    Ok(())
}

/// Returns the recorded add-ons: namespace, name, hash and channel.
fn applied_addons(namespaces: &[Value]) -> Vec<[String; 4]> {
    let mut rows = Vec::new();
    for namespace in namespaces {
        for (key, record) in namespace.pairs("metadata.annotations") {
            let Some(addon) = key.strip_prefix(PREFIX) else { continue };
            let record = record.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
            let text = |field: &str, absent: &str| match &record {
                None => "-".to_owned(),
                Some(record) => record.opt_text(field).unwrap_or(absent).to_owned(),
            };
            let (hash, channel) = (text("manifestHash", ""), text("channel", "?"));
            rows.push([namespace.name().to_owned(), addon.to_owned(), hash, channel]);
        }
    }
    rows
}

/// Applies the add-ons of a channel that differ from the applied ones.
pub(crate) async fn apply(
    client: &Client,
    channel: &ChannelAddons,
    yes: bool,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let updates = channels::find_updates(client, channel).await?;
    if updates.is_empty() {
        writeln!(context.out, "No update required")?;
        return Ok(());
    }
    let row = |update: &AddonUpdate| [update.name.clone(), update.old.clone(), update.new.clone()];
    table::print(context.out, ["NAME", "CURRENT", "UPDATE"], updates.iter().map(row).collect())?;
    if !yes {
        writeln!(context.out, "\nMust specify --yes to update")?;
        return Ok(());
    }
    for update in &updates {
        channels::apply_update(client, update).await?;
        writeln!(context.out, "Updated {:?}", update.name)?;
    }
    writeln!(context.out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_recorded_addons() {
        let record = json!({"manifestHash": "abc", "channel": "file:///c"}).to_string();
        let namespaces = [
            json!({"metadata": {"name": "kube-system", "annotations": {
                "addons.k8s.io/dns": record, "addons.k8s.io/odd": "not json", "addons.k8s.io/bare": "{}", "other": "x",
            }}}),
            json!({"metadata": {"name": "default"}}),
        ];
        let rows = applied_addons(&namespaces);
        let find = |name: &str| rows.iter().find(|row| row[1] == name).map(|row| row.join(" "));
        assert_eq!(rows.len(), 3);
        assert_eq!(find("dns").as_deref(), Some("kube-system dns abc file:///c"));
        assert_eq!(find("odd").as_deref(), Some("kube-system odd - -"));
        assert_eq!(find("bare").as_deref(), Some("kube-system bare  ?"));
    }
}
