//! `channels`: applies the add-ons of a channel, each if its hash differs from the applied one.

mod prune;

use std::{path::PathBuf, time::Duration};

use api_config::GoDuration;
use api_meta::Tree as _;
use client::{Client, PatchKind, PatchTarget, Resource};
use data_encoding::HEXLOWER;
use kops_api::yaml;
use kops_store::parse_yaml;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use vfs::Store;

pub use self::prune::{ADDON_LABEL, LeftoverObject, PRUNED_KINDS, delete_leftover};
use self::prune::{LabelledObjects, PruneRule};
use crate::{error::Error, store_access::open};

/// Applies add-ons
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Applies the listed add-ons
    #[command(subcommand)]
    Apply(Apply),
}

/// The subcommands of `channels apply`.
#[derive(clap::Subcommand, Debug)]
pub enum Apply {
    /// Applies the add-ons of channels
    Channel(Args),
}

/// The flags of `channels apply channel`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The channels: file:///path
    #[arg(required = true)]
    channels: Vec<String>,
    /// Apply them instead of only listing them
    #[arg(long)]
    yes: bool,
    /// Repeat with this interval
    #[arg(long)]
    interval: Option<GoDuration>,
    /// The kubeconfig to use
    #[arg(long)]
    kubeconfig: PathBuf,
}

const NAMESPACE: &str = "kube-system";
/// The prefix of the namespace's annotations that record the applied versions.
const PREFIX: &str = "addons.k8s.io";
/// Incremented to reapply all add-ons.
const GENERATION: i64 = 1;
/// The interval until everything has been applied once.
const FIRST_INTERVAL: Duration = Duration::from_secs(5);

/// An add-on in a channel.
#[derive(Clone, Debug, PartialEq)]
struct Addon {
    name: String,
    id: String,
    hash: String,
    /// The manifest's name, relative to the channel's directory.
    manifest: String,
    /// The rules that find the objects of earlier versions.
    prune: Vec<PruneRule>,
}

/// Runs `channels`, once or repeatedly until shutdown.
pub async fn run(command: &Command, tasks: &rt::Tasks) -> Result<(), Error> {
    let Command::Apply(Apply::Channel(args)) = command;
    loop {
        let done = apply_all(args).await;
        let Some(interval) = args.interval else { return done };
        let pause = match done {
            Ok(()) => interval.to_std(),
            Err(error) => {
                tracing::warn!(%error, "applying add-ons");
                FIRST_INTERVAL
            }
        };
        if tasks.shutdown().unless_stopping(tokio::time::sleep(pause)).await.is_none() {
            return Ok(());
        }
    }
}

/// The add-ons of a channel.
pub struct ChannelAddons {
    location: String,
    store: Store,
    addons: Vec<Addon>,
}

/// An add-on that differs from the applied one.
pub struct AddonUpdate<'a> {
    /// The name.
    pub name: String,
    /// The hash of the applied manifest; `-` if none is applied.
    pub old: String,
    /// The hash of the channel's manifest.
    pub new: String,
    channel: &'a ChannelAddons,
    addon: &'a Addon,
}

/// Reads a channel.
pub fn read_channel(location: &str) -> Result<ChannelAddons, Error> {
    let (base, name) = location.rsplit_once('/').unwrap_or(("", location));
    let store = open(base)?;
    let addons = parse_channel(location, &read_object(&store, name)?)?;
    Ok(ChannelAddons { location: location.to_owned(), store, addons })
}

/// Returns the add-ons of a channel that differ from the applied ones.
pub async fn find_updates<'a>(
    client: &Client,
    channel: &'a ChannelAddons,
) -> Result<Vec<AddonUpdate<'a>>, Error> {
    let namespace: Value = client.get(&Resource::NAMESPACES, "", NAMESPACE).await?;
    let due = channel.addons.iter().filter(|addon| is_due(addon, &namespace));
    let update = |addon: &'a Addon| {
        let record = record(addon, &namespace);
        let old = if record.is_null() { "-" } else { record.text("manifestHash") };
        let (name, old, new) = (addon.name.clone(), old.to_owned(), addon.hash.clone());
        AddonUpdate { name, old, new, channel, addon }
    };
    Ok(due.map(update).collect())
}

/// Applies an add-on.
pub async fn apply_update(client: &Client, update: &AddonUpdate<'_>) -> Result<(), Error> {
    apply(client, &update.channel.store, &update.channel.location, update.addon).await
}

/// Applies all due add-ons. One that fails does not block the others.
async fn apply_all(args: &Args) -> Result<(), Error> {
    let client = Client::from_kubeconfig_file(&args.kubeconfig, &version::user_agent("channels"))?;
    let mut failed = None;
    for location in &args.channels {
        let channel = read_channel(location)?;
        for update in find_updates(&client, &channel).await? {
            if !args.yes {
                tracing::info!(addon = update.name, "would be applied; use --yes to apply");
                continue;
            }
            match apply_update(&client, &update).await {
                Ok(()) => tracing::info!(addon = update.name, "applied"),
                Err(error) => {
                    tracing::warn!(%error, addon = update.name, "could not apply an add-on");
                    failed = Some(error);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

fn read_object(store: &Store, name: &str) -> Result<Vec<u8>, Error> {
    let found = store.read(name)?;
    found.map(|(content, _)| content).ok_or_else(|| Error::Manifest { name: name.to_owned() })
}

/// Parses a channel. A later add-on replaces an earlier one of the same name.
fn parse_channel(channel: &str, content: &[u8]) -> Result<Vec<Addon>, Error> {
    let tree = parse_yaml(channel, content)?;
    if tree.text("kind") != "Addons" {
        let (channel, kind) = (channel.to_owned(), tree.text("kind").to_owned());
        return Err(Error::Channel { channel, kind });
    }
    let mut all: Vec<Addon> = Vec::new();
    for addon in tree.items("spec.addons") {
        let text = |field| addon.text(field).to_owned();
        let addon = Addon {
            name: text("name"),
            id: text("id"),
            hash: text("manifestHash"),
            manifest: text("manifest"),
            prune: PruneRule::parse_all(addon),
        };
        all.retain(|other| other.name != addon.name);
        all.push(addon);
    }
    Ok(all)
}

/// Returns the record of an applied add-on in the namespace's annotation; `null` if there is none.
fn record(addon: &Addon, namespace: &Value) -> Value {
    let record = namespace.annotation(&format!("{PREFIX}/{}", addon.name));
    record.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Reports whether an add-on differs from the applied one.
fn is_due(addon: &Addon, namespace: &Value) -> bool {
    let record = record(addon, namespace);
    record.text("manifestHash") != addon.hash
        || record.text("id") != addon.id
        || record.int("systemGeneration") < GENERATION
}

/// Returns the objects of an add-on's manifest.
fn read_manifest(store: &Store, addon: &Addon) -> Result<Vec<Value>, Error> {
    let content = read_object(store, &addon.manifest)?;
    let sum = HEXLOWER.encode(&Sha256::digest(&content));
    if sum != addon.hash {
        // The channel is written last, so the manifest is either newer than the channel or written by another program.
        return Err(Error::ManifestHash { manifest: addon.manifest.clone() });
    }
    Ok(yaml::parse_all(&addon.manifest, &String::from_utf8_lossy(&content))?)
}

/// Returns the objects that the add-ons of a channel no longer have.
pub async fn find_leftovers(
    client: &Client,
    channel: &ChannelAddons,
) -> Result<Vec<LeftoverObject>, Error> {
    let (mut all, mut labelled) = (Vec::new(), LabelledObjects::new(client));
    for addon in &channel.addons {
        let objects = read_manifest(&channel.store, addon)?;
        all.extend(prune::find(&mut labelled, &addon.name, &addon.prune, &objects).await?);
    }
    Ok(all)
}

async fn apply(client: &Client, store: &Store, channel: &str, addon: &Addon) -> Result<(), Error> {
    let objects = read_manifest(store, addon)?;
    for object in &objects {
        bootstrap::cluster::apply(client, object).await?;
    }
    let mut labelled = LabelledObjects::new(client);
    for leftover in prune::find(&mut labelled, &addon.name, &addon.prune, &objects).await? {
        tracing::info!(addon = addon.name, object = %leftover, "deleting what the add-on no longer has");
        prune::delete_leftover(client, &leftover).await?;
    }
    let record = json!({
        "channel": channel, "id": addon.id, "manifestHash": addon.hash, "systemGeneration": GENERATION,
    });
    let annotation = (format!("{PREFIX}/{}", addon.name), Value::from(record.to_string()));
    let annotations: serde_json::Map<_, _> = [annotation].into_iter().collect();
    let patch = json!({"metadata": {"annotations": annotations}});
    let at = PatchTarget { namespace: "", name: NAMESPACE, subresource: "" };
    client.patch::<Value>(&Resource::NAMESPACES, at, PatchKind::Merge, &patch).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL: &str = "kind: Addons\nspec:\n  addons:\n  - {name: a, id: old, manifest: a/old.yaml, manifestHash: \"1\"}\n  \
                           - {name: a, id: new, manifest: a/new.yaml, manifestHash: \"2\"}\n";

    #[test]
    fn add_on_is_due_until_applied() {
        let all = parse_channel("c", CHANNEL.as_bytes()).unwrap();
        assert_eq!(all.iter().map(|addon| addon.id.as_str()).collect::<Vec<_>>(), ["new"]);
        let due = |kept: Value| {
            let annotations = json!({"addons.k8s.io/a": kept.to_string()});
            is_due(&all[0], &json!({"metadata": {"annotations": annotations}}))
        };
        assert!(is_due(&all[0], &json!({})));
        assert!(!due(json!({"id": "new", "manifestHash": "2", "systemGeneration": 1})));
        assert!(due(json!({"id": "new", "manifestHash": "1", "systemGeneration": 1})));
        assert!(due(json!({"id": "old", "manifestHash": "2", "systemGeneration": 1})));
        assert!(due(json!({"id": "new", "manifestHash": "2"})));
        assert!(parse_channel("c", b"kind: Pod\n").is_err());
    }
}
