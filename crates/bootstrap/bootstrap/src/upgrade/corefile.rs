//! The Corefile of the cluster's DNS: its check before an upgrade, and its migration.

use std::time::Duration;

use api_meta::Tree as _;
use bootstrap_core::{addons, images};
use client::{Client, Resource};
use serde_json::{Value, json};
use similar::TextDiff;

use super::context::{CorefileReview, Ctx};
use crate::{Error, cluster::get, preflight};

/// The name of the Deployment and of the ConfigMap.
const DNS: &str = "coredns";
/// The key of the ConfigMap with the Corefile before a migration. It is upstream's.
const BACKUP: &str = "Corefile-backup";
/// The time for the comparison of two Corefiles, which is exact for those of usual size.
const COMPARISON: Duration = Duration::from_secs(1);

/// The Corefile of the cluster's DNS.
pub(super) struct Corefile {
    /// The text; empty without one.
    text: String,
    /// The default text.
    default: String,
    /// The resourceVersion of the ConfigMap; empty without one.
    version: String,
    review: CorefileReview,
}

/// Reads the Deployment of CoreDNS. `None` if CoreDNS is disabled or not installed.
pub(super) async fn deployment(ctx: &Ctx, client: &Client) -> Result<Option<Value>, Error> {
    if ctx.node.config.cluster.dns.disabled {
        return Ok(None);
    }
    get(client, &Resource::DEPLOYMENTS, "kube-system", DNS).await
}

impl Corefile {
    /// Reads the Corefile of a cluster that has CoreDNS.
    pub(super) async fn read(ctx: &Ctx, client: &Client) -> Result<Self, Error> {
        let cluster = &ctx.node.config.cluster;
        let map = get(client, &Resource::CONFIG_MAPS, "kube-system", DNS).await?;
        let map = map.unwrap_or_default();
        let text = map.text("data.Corefile");
        let default = addons::corefile(&cluster.networking.dns_domain);
        let mut review = if text.is_empty() || text == default {
            CorefileReview { migrated: default.clone(), ..CorefileReview::default() }
        } else {
            (ctx.review_corefile)(text)
        };
        if !images::is_own(&images::coredns(cluster)) {
            // Another DNS server has other plugins.
            review.errors.clear();
        }
        let version = map.text("metadata.resourceVersion").to_owned();
        Ok(Self { text: text.to_owned(), default, version, review })
    }

    /// Prints what the user has changed, and what a migration changes.
    pub(super) fn report(&self) {
        if self.text.is_empty() || self.text == self.default {
            return;
        }
        let diff = TextDiff::configure().timeout(COMPARISON).diff_lines(&self.default, &self.text);
        let diff = diff.unified_diff().context_radius(0).header("default", "yours").to_string();
        eprintln!(
            "[upgrade/addon] The Corefile in ConfigMap kube-system/{DNS} is not the default one and is kept:"
        );
        diff.lines().for_each(|line| eprintln!("\t{}", printable(line)));
        if !self.review.notices.is_empty() {
            eprintln!(
                "[upgrade/addon] The upgrade migrates it, and keeps the former one under the key {BACKUP}:"
            );
            self.review.notices.iter().for_each(|notice| eprintln!("\t{}", printable(notice)));
        }
    }

    /// Returns the check whether the DNS server accepts the Corefile.
    pub(super) fn check(&self) -> preflight::Check {
        let errors: Vec<_> = self.review.errors.iter().map(|error| printable(error)).collect();
        preflight::unsupported_plugins(&errors)
    }

    /// Puts the Corefile into the ConfigMap of the add-on's objects, for the version that was read. A migrated one has
    /// a backup.
    pub(super) fn keep(&self, objects: &mut Vec<Value>) {
        let is_map = |object: &Value| object["kind"] == "ConfigMap";
        if self.review.migrated == self.text {
            objects.retain(|object| !is_map(object));
            return;
        }
        for map in objects.iter_mut().filter(|object| is_map(object)) {
            map["data"] = json!({"Corefile": self.review.migrated});
            if !self.text.is_empty() {
                map.put(&["data", BACKUP], self.text.clone());
            }
            map.put(&["metadata", "resourceVersion"], self.version.clone());
        }
    }
}

/// Escapes control characters, which could change what a terminal shows of other lines.
fn printable(line: &str) -> String {
    let escape = |c: char| match c {
        '\t' => c.to_string(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    line.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use api_config::kubeadm::ClusterConfiguration;
    use bootstrap_core::config::{Facts, default_cluster};

    use super::*;

    fn kept(text: &str, migrated: &str) -> Vec<Value> {
        let mut cluster = ClusterConfiguration::default();
        default_cluster(&mut cluster, &Facts::default());
        let mut objects = addons::coredns(&cluster, 3).unwrap();
        let review = CorefileReview { migrated: migrated.to_owned(), ..CorefileReview::default() };
        let (text, version) = (text.to_owned(), "7".to_owned());
        Corefile { text, default: "new".to_owned(), version, review }.keep(&mut objects);
        objects.retain(|object| object["kind"] == "ConfigMap");
        objects
    }

    #[test]
    fn keeps_a_changed_corefile_and_backs_up_a_migrated_one() {
        assert_eq!(kept("former", "former"), [Value::Null; 0]);
        let written = kept("former", "new");
        assert_eq!(written[0]["data"], json!({"Corefile": "new", "Corefile-backup": "former"}));
        assert_eq!(written[0]["metadata"]["resourceVersion"], "7");
        assert_eq!(kept("", "new")[0]["data"], json!({"Corefile": "new"}));
    }

    #[test]
    fn prints_no_control_characters_of_a_corefile() {
        assert_eq!(printable("\tforward . 192.0.2.53 # ä"), "\tforward . 192.0.2.53 # ä");
        let hostile = "\u{1b}[2J\u{9b}1A\rnothing\u{7}";
        assert_eq!(printable(hostile), "\\u{1b}[2J\\u{9b}1A\\rnothing\\u{7}");
        assert_eq!(printable(&"\u{1b}".repeat(100_000)).len(), 600_000);
    }
}
