//! The flags of the store, and the etcd servers of single resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use api_config::GoDuration;
use api_meta::GroupResource;
use http::Uri;

use crate::registry::builtin::builtin;

/// Flags of the store
#[derive(clap::Args, Clone, Debug)]
pub struct Storage {
    /// The URLs of the etcd servers
    #[arg(
        long,
        value_delimiter = ',',
        required_unless_present = "store_dir",
        conflicts_with = "store_dir"
    )]
    pub etcd_servers: Vec<String>,
    /// The etcd servers of single built-in resources: GROUP/RESOURCE#URL;URL, several with commas
    #[arg(long, value_delimiter = ',', conflicts_with = "store_dir")]
    pub etcd_servers_overrides: Vec<String>,
    /// Authorities that verify the certificates of etcd
    #[arg(long)]
    pub etcd_cafile: Option<PathBuf>,
    /// The client certificate for etcd
    #[arg(long, requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// The key of the client certificate for etcd
    #[arg(long, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// The interval of compaction; 0 turns it off
    #[arg(long, default_value = "5m0s")]
    pub etcd_compaction_interval: GoDuration,
    /// Only /registry
    #[arg(long, default_value = "/registry")]
    pub etcd_prefix: String,
    /// Store objects in this directory instead of etcd; not a flag of upstream
    #[arg(long)]
    pub store_dir: Option<PathBuf>,
    /// Save snapshots of all objects in this directory; not a flag of upstream
    #[arg(long)]
    pub snapshot_dir: Option<PathBuf>,
    /// The interval of snapshots; not a flag of upstream
    #[arg(long, default_value = "1h", requires = "snapshot_dir")]
    pub snapshot_interval: GoDuration,
    /// The number of snapshots to keep; not a flag of upstream
    #[arg(long, default_value_t = 24, requires = "snapshot_dir")]
    pub snapshot_keep: usize,
}

impl Storage {
    /// Returns the schedule of snapshots, or `None` without a directory.
    pub fn schedule(&self) -> Option<store::Schedule> {
        let (every, keep) = (self.snapshot_interval.to_std(), self.snapshot_keep);
        let every = every.max(std::time::Duration::from_secs(1));
        Some(store::Schedule { directory: self.snapshot_dir.clone()?, every, keep })
    }

    /// Returns the etcd servers of single resources, by `--etcd-servers-overrides`. Resources with the same servers are
    /// in one store. Resources with the servers of `--etcd-servers` stay in the main store.
    ///
    /// # Errors
    ///
    /// Returns an error if a value is malformed, if it names a resource twice or one that is not built in and stored,
    /// or if it separates resources that must be in one store.
    pub fn overrides(&self) -> Result<Vec<EtcdOverride>, OverrideError> {
        if self.etcd_servers_overrides.is_empty() {
            return Ok(Vec::new());
        }
        if self.snapshot_dir.is_some() {
            return Err(OverrideError::Snapshots);
        }
        let known = builtin().into_iter().filter(|d| d.is_stored()).map(|d| d.group_resource());
        let known: Vec<_> = known.collect();
        let mut homes = BTreeMap::new();
        for value in &self.etcd_servers_overrides {
            let (resource, servers) = parse(value)?;
            check(&resource, &known)?;
            if homes.insert(resource.to_string(), (resource, servers)).is_some() {
                return Err(OverrideError::Twice { value: shown(value) });
            }
        }
        let servers = |name: &str| homes.get(name).map(|(_, servers)| servers);
        for [first, second] in TOGETHER {
            if servers(first) != servers(second) {
                return Err(OverrideError::Separated { first, second });
            }
        }
        let main: BTreeSet<_> = self.etcd_servers.iter().map(|url| server(url)).collect();
        let mut stores: BTreeMap<BTreeSet<String>, Vec<GroupResource>> = BTreeMap::new();
        for (resource, servers) in homes.into_values().filter(|(_, servers)| *servers != main) {
            stores.entry(servers).or_default().push(resource);
        }
        let stores = stores.into_iter().map(|(servers, resources)| EtcdOverride {
            resources,
            servers: servers.into_iter().collect(),
        });
        Ok(stores.collect())
    }
}

/// The etcd servers of some resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdOverride {
    /// The resources, by their stored group.
    pub resources: Vec<GroupResource>,
    /// The URLs of the servers.
    pub servers: Vec<String>,
}

/// The error for a value of `--etcd-servers-overrides`.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// Upstream's message, with the value.
    #[error(
        "--etcd-servers-overrides={value}… invalid, must be of format: group/resource#servers, where servers are \
         URLs, semicolon separated"
    )]
    Format { value: String },
    #[error(
        "--etcd-servers-overrides={value}#…: a server is not a URL such as https://127.0.0.1:4002, without user, \
         password and path"
    )]
    Url { value: String },
    #[error(
        "--etcd-servers-overrides: {resource} is not a built-in resource that is stored; custom resources are always \
         in the store of --etcd-servers"
    )]
    Unknown { resource: String },
    #[error("--etcd-servers-overrides: {resource} is stored as {stored}; name that")]
    StoredAs { resource: String, stored: &'static str },
    #[error("--etcd-servers-overrides={value}#…: the resource was given before; name it once")]
    Twice { value: String },
    #[error(
        "--etcd-servers-overrides: {first} and {second} must be in the same store, because their revisions are \
         compared; give both the same servers"
    )]
    Separated { first: &'static str, second: &'static str },
    #[error(
        "--snapshot-dir with --etcd-servers-overrides is not supported: a snapshot holds one store; use `windlass \
         snapshot save` for each"
    )]
    Snapshots,
}

/// Resources whose revisions this server compares: an address that is newer than the write of its Service belongs to a
/// later Service of the same name.
const TOGETHER: [[&str; 2]; 1] = [["services", "ipaddresses.networking.k8s.io"]];

fn parse(value: &str) -> Result<(GroupResource, BTreeSet<String>), OverrideError> {
    let format = || OverrideError::Format { value: shown(value) };
    let (resource, servers) = value.split_once('#').ok_or_else(format)?;
    let (group, resource) = resource.split_once('/').ok_or_else(format)?;
    if resource.is_empty() || resource.contains('/') || servers.contains('#') {
        return Err(format());
    }
    if !servers.split(';').all(is_server) {
        return Err(OverrideError::Url { value: shown(value) });
    }
    let resource = GroupResource::new(group.to_owned(), resource.to_owned());
    Ok((resource, servers.split(';').map(server).collect()))
}

/// Returns the URL of a server in the form in which URLs are compared.
fn server(url: &str) -> String {
    url.trim_end_matches('/').to_owned()
}

/// Returns the value for a message: short, and without the servers, which may contain a password.
fn shown(value: &str) -> String {
    value.split('#').next().unwrap_or_default().chars().take(128).collect()
}

fn is_server(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    matches!(url.scheme_str(), Some("http" | "https"))
        && url.authority().is_some_and(|a| !a.host().is_empty() && !a.as_str().contains('@'))
        && matches!(url.path(), "" | "/")
        && url.query().is_none()
}

fn check(resource: &GroupResource, known: &[GroupResource]) -> Result<(), OverrideError> {
    if (&*resource.group, &*resource.resource) == ("events.k8s.io", "events") {
        let (resource, stored) = (resource.to_string(), "/events");
        return Err(OverrideError::StoredAs { resource, stored });
    }
    if known.contains(resource) {
        return Ok(());
    }
    Err(OverrideError::Unknown { resource: resource.to_string().chars().take(128).collect() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        storage: Storage,
    }

    fn given(values: &str) -> Result<Vec<EtcdOverride>, OverrideError> {
        given_with(values, &[])
    }

    fn given_with(values: &str, more: &[&str]) -> Result<Vec<EtcdOverride>, OverrideError> {
        let flag = format!("--etcd-servers-overrides={values}");
        let main = "--etcd-servers=https://a:2379,https://b:2379";
        let flags = ["kube-apiserver", main, &flag].into_iter().chain(more.iter().copied());
        Cli::try_parse_from(flags).unwrap().storage.overrides()
    }

    fn text(overrides: &[EtcdOverride]) -> Vec<String> {
        let one = |o: &EtcdOverride| {
            let resources: Vec<_> = o.resources.iter().map(GroupResource::to_string).collect();
            format!("{} at {}", resources.join(" "), o.servers.join(" "))
        };
        overrides.iter().map(one).collect()
    }

    #[test]
    fn groups_resources_by_servers() {
        // The value that kOps writes.
        let kops = given("/events#https://127.0.0.1:4002").unwrap();
        assert_eq!(text(&kops), ["events at https://127.0.0.1:4002"]);
        let many = "/pods#http://x:1;http://y:1,coordination.k8s.io/leases#http://z:1/,/events#http://z:1,\
                    /nodes#http://y:1;http://x:1,/secrets#https://b:2379;https://a:2379";
        let wanted = [
            "nodes pods at http://x:1 http://y:1",
            "events leases.coordination.k8s.io at http://z:1",
        ];
        assert_eq!(text(&given(many).unwrap()), wanted);
        let both = "/services#http://x:1,networking.k8s.io/ipaddresses#http://x:1";
        assert_eq!(given(both).unwrap().len(), 1);
    }

    #[test]
    fn rejects_values_by_name() {
        let long = "x".repeat(1 << 20);
        let (unknown, server) = (format!("/{long}#http://x:1"), format!("/pods#http://{long}@x"));
        for (values, words) in [
            ("events#http://x:1", "events… invalid, must be of format: group/resource#servers"),
            ("/events", "must be of format"),
            ("/events#http://x:1#http://y:1", "must be of format"),
            ("a/b/events#http://x:1", "must be of format"),
            ("/#http://x:1", "must be of format"),
            ("", "must be of format"),
            ("/events#", "/events#…: a server is not a URL"),
            ("/events#http://x:1;", "is not a URL"),
            ("/events#x:1", "is not a URL"),
            ("/events#unix:///run/etcd.sock", "is not a URL"),
            ("/events#http://x:1/path", "is not a URL"),
            ("/events#http://root:secret@x:1", "is not a URL"),
            (&server, "is not a URL"),
            ("/eventz#http://x:1", "eventz is not a built-in resource that is stored"),
            ("apps/events#http://x:1", "events.apps is not a built-in resource"),
            ("example.com/widgets#http://x:1", "widgets.example.com is not a built-in resource"),
            ("/bindings#http://x:1", "bindings is not a built-in resource that is stored"),
            ("apps/*#http://x:1", "*.apps is not a built-in resource"),
            (&unknown, "is not a built-in resource"),
            ("events.k8s.io/events#http://x:1", "events.events.k8s.io is stored as /events"),
            ("/events#http://x:1,/events#http://y:1", "/events#…: the resource was given before"),
            (
                "/services#http://x:1",
                "services and ipaddresses.networking.k8s.io must be in the same",
            ),
        ] {
            let message = given(values).unwrap_err().to_string();
            let short: String = values.chars().take(60).collect();
            assert!(message.contains(words), "{short}: {message}");
            assert!(message.contains("--etcd-servers-overrides"), "{message}");
            assert!(message.len() < 400 && !message.contains("secret"), "{message}");
        }
        let snapshots = given_with("/events#http://x:1", &["--snapshot-dir=/s"]).unwrap_err();
        assert!(snapshots.to_string().starts_with("--snapshot-dir with --etcd-servers-overrides"));
    }

    #[test]
    fn rejects_overrides_of_embedded_store() {
        let flags = ["x", "--store-dir=/s", "--etcd-servers-overrides=/events#http://x:1"];
        let message = Cli::try_parse_from(flags).err().unwrap().to_string();
        assert!(message.contains("--etcd-servers-overrides"), "{message}");
    }
}
