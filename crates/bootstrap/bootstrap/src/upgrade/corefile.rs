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
pub(super) const DNS: &str = "coredns";
/// The key of the ConfigMap with the Corefile before a migration. It is upstream's.
const BACKUP: &str = "Corefile-backup";
/// The time for the comparison of two Corefiles, which is exact for those of usual size.
const COMPARISON: Duration = Duration::from_secs(1);

/// A Corefile that is not the default one.
pub(super) struct CustomCorefile {
    text: String,
    review: CorefileReview,
}

impl CustomCorefile {
    /// Reads the Corefile of the cluster. `None` if it is the default one, or if CoreDNS is not installed.
    pub(super) async fn read(ctx: &Ctx, client: &Client) -> Result<Option<Self>, Error> {
        let cluster = &ctx.node.config.cluster;
        if cluster.dns.disabled
            || get(client, &Resource::DEPLOYMENTS, "kube-system", DNS).await?.is_none()
        {
            return Ok(None);
        }
        let map = get(client, &Resource::CONFIG_MAPS, "kube-system", DNS).await?;
        let text = map.as_ref().map_or("", |map| map.text("data.Corefile"));
        if text.is_empty() || text == addons::corefile(&cluster.networking.dns_domain) {
            return Ok(None);
        }
        let mut review = (ctx.review_corefile)(text);
        if !images::is_own(&images::coredns(cluster)) {
            // Another DNS server has other plugins.
            review.errors.clear();
        }
        Ok(Some(Self { text: text.to_owned(), review }))
    }

    /// Prints what the user has changed, and what a migration changes.
    pub(super) fn report(&self, ctx: &Ctx) {
        let default = addons::corefile(&ctx.node.config.cluster.networking.dns_domain);
        let diff = TextDiff::configure().timeout(COMPARISON).diff_lines(&default, &self.text);
        let diff = diff.unified_diff().context_radius(0).header("default", "yours").to_string();
        eprintln!(
            "[upgrade/addon] The Corefile in ConfigMap kube-system/{DNS} is not the default one and is kept:"
        );
        diff.lines().for_each(|line| eprintln!("\t{line}"));
        if !self.review.notices.is_empty() {
            eprintln!(
                "[upgrade/addon] The upgrade migrates it, and keeps the former one under the key {BACKUP}:"
            );
            self.review.notices.iter().for_each(|notice| eprintln!("\t{notice}"));
        }
    }

    /// Returns the check whether the DNS server accepts the Corefile.
    pub(super) fn check(&self) -> preflight::Check {
        preflight::unsupported_plugins(&self.review.errors)
    }

    /// Puts the Corefile into the ConfigMap of the add-on's objects. A migrated one has a backup.
    pub(super) fn keep(&self, objects: &mut Vec<Value>) {
        let is_map = |object: &Value| object["kind"] == "ConfigMap";
        if self.review.migrated == self.text {
            objects.retain(|object| !is_map(object));
            return;
        }
        for map in objects.iter_mut().filter(|object| is_map(object)) {
            map["data"] = json!({"Corefile": self.review.migrated, BACKUP: self.text});
        }
    }
}

#[cfg(test)]
mod tests {
    use api_config::kubeadm::ClusterConfiguration;
    use bootstrap_core::config::{Facts, default_cluster};

    use super::*;

    fn kept(migrated: &str) -> Vec<Value> {
        let mut cluster = ClusterConfiguration::default();
        default_cluster(&mut cluster, &Facts::default());
        let mut objects = addons::coredns(&cluster, 3).unwrap();
        let review = CorefileReview { migrated: migrated.to_owned(), ..CorefileReview::default() };
        CustomCorefile { text: "former".to_owned(), review }.keep(&mut objects);
        objects.retain(|object| object["kind"] == "ConfigMap");
        objects
    }

    #[test]
    fn keeps_a_changed_corefile_and_backs_up_a_migrated_one() {
        assert_eq!(kept("former"), [Value::Null; 0]);
        let written = kept("new");
        assert_eq!(written[0]["data"], json!({"Corefile": "new", "Corefile-backup": "former"}));
    }
}
