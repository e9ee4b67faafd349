//! `upgrade cluster`: the Kubernetes version and the images that a channel recommends for a cluster.
//!
//! A cluster is upgraded by at most one minor version, never downgraded, and never beyond the version of kOps. Read
//! [`plan_upgrade`] first.

use api_meta::Tree as _;
use kops_api::Object;

use crate::{
    channel::Channel, cluster::Cluster as _, error::Error, version::Version, world::World,
};

/// The beginnings of images' names that channels have recommended. Other images are the user's own.
const RECOMMENDED_IMAGES: [&str; 4] = [
    "kope.io/k8s-",
    "099720109477/ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-",
    "099720109477/ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-",
    "099720109477/ubuntu/images/hvm-ssd/ubuntu-focal-20.04-",
];
/// The annotation of clusters that kOps did not create, and its value.
const MANAGEMENT: &str = "kops.kubernetes.io/management";
const IMPORTED: &str = "imported";

/// The inputs of an upgrade.
#[derive(Clone, Copy, Debug)]
pub struct UpgradeInputs<'a> {
    /// The channel's name or location, which the cluster follows from now on.
    pub location: &'a str,
    /// The channel.
    pub channel: &'a Channel,
    /// The wanted version of Kubernetes; empty for the channel's.
    pub version: &'a str,
    /// The version of kOps.
    pub kops: &'a Version,
    /// Facts about machine types.
    pub world: &'a World,
}

/// A changed field of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeAction {
    /// The object.
    pub item: String,
    /// The field.
    pub property: &'static str,
    /// The present value.
    pub old: String,
    /// The recommended value.
    pub new: String,
}

/// The plan of an upgrade.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// The changes.
    pub actions: Vec<UpgradeAction>,
    /// The reasons why something else is not upgraded.
    pub warnings: Vec<String>,
    /// The cluster with the changes.
    pub cluster: Object,
    /// All groups with the changes.
    pub groups: Vec<Object>,
}

/// Returns the changes that bring a cluster and its groups to the recommended versions.
pub fn plan_upgrade(
    cluster: &Object,
    groups: &[Object],
    inputs: &UpgradeInputs<'_>,
) -> Result<Upgrade, Error> {
    let management = cluster.metadata.at(&["annotations", MANAGEMENT]);
    if management == IMPORTED {
        let what = "the upgrade of an imported cluster".to_owned();
        return Err(Error::Unsupported { what, remedy: "set spec.kubernetesVersion with edit" });
    }
    let mut plan = Upgrade {
        actions: Vec::new(),
        warnings: Vec::new(),
        cluster: cluster.clone(),
        groups: groups.to_vec(),
    };
    if cluster.spec.text("channel") != inputs.location {
        plan.change_cluster("Channel", "channel", inputs.location);
    }
    let text = cluster.spec.text("kubernetesVersion").to_owned();
    let current = text.parse::<Version>().ok();
    if current.is_none() {
        plan.warnings.push(format!("error parsing KubernetesVersion {text:?}"));
    }
    let proposed = plan.propose_version(inputs, current.as_ref())?;
    if let (Some(current), Some(proposed)) = (&current, &proposed)
        && current != proposed
    {
        plan.change_cluster("KubernetesVersion", "kubernetesVersion", &proposed.to_string());
    }
    if let Some(version) = proposed.or(current)
        && !cluster.cloud().is_bare()
    {
        plan.propose_images(inputs, &version);
    }
    Ok(plan)
}

impl Upgrade {
    fn change_cluster(&mut self, property: &'static str, field: &str, new: &str) {
        let old = self.cluster.spec.text(field).to_owned();
        self.cluster.spec.put(field, new);
        let item = "Cluster".to_owned();
        self.actions.push(UpgradeAction { item, property, old, new: new.to_owned() });
    }

    /// Returns the version that the cluster should have.
    fn propose_version(
        &mut self,
        inputs: &UpgradeInputs<'_>,
        current: Option<&Version>,
    ) -> Result<Option<Version>, Error> {
        let Some(current) = current else {
            return match inputs.version {
                "" => inputs.channel.kubernetes(inputs.kops).map(str::parse).transpose(),
                version => version.parse().map(Some),
            };
        };
        if !inputs.version.is_empty() {
            let wanted: Version = inputs.version.parse()?;
            check_skew("--kubernetes-version", current, &wanted, inputs.kops)?;
            return Ok(Some(wanted));
        }
        let Some(recommended) = inputs.channel.recommended(current) else {
            self.warnings.push(format!(
                "unable to find version information for kubernetes version {current} in channel"
            ));
            return Ok(None);
        };
        let mut proposed: Version = recommended.parse()?;
        let next = Version::release(proposed.major, proposed.minor + 1);
        if next <= *inputs.kops
            && let Some(recommended) = inputs.channel.recommended(&next)
        {
            proposed = recommended.parse()?;
        }
        if proposed < *current {
            self.warnings.push(format!(
                "cluster version {:?} is greater than the desired version {:?}",
                current.to_string(),
                proposed.to_string()
            ));
            return Ok(Some(current.clone()));
        }
        check_skew("the channel's recommended version", current, &proposed, inputs.kops)?;
        Ok(Some(proposed))
    }

    /// Replaces the recommended images of older channels. The user's own images stay.
    fn propose_images(&mut self, inputs: &UpgradeInputs<'_>, version: &Version) {
        let cloud = self.cluster.cloud().word();
        for group in &mut self.groups {
            let architecture = inputs.world.architecture(group.spec.text("machineType"));
            let Some(new) = inputs.channel.image(cloud, version, architecture) else {
                let warning = "No matching images specified in channel; cannot prompt for upgrade";
                self.warnings.push(format!("instance group {:?}: {warning}", group.name()));
                continue;
            };
            let old = group.spec.text("image").to_owned();
            if !old.is_empty() && !RECOMMENDED_IMAGES.iter().any(|start| old.starts_with(start)) {
                self.warnings.push(format!(
                    "Custom image ({old}) has been provided for Instance Group {:?}; not updating image",
                    group.name()
                ));
            } else if old != new {
                let item = format!("InstanceGroup/{}", group.name());
                group.spec.put("image", new);
                let new = new.to_owned();
                self.actions.push(UpgradeAction { item, property: "Image", old, new });
            }
        }
    }
}

/// Rejects a downgrade, a skipped minor version, and a minor version that this kOps does not know.
fn check_skew(what: &str, current: &Version, new: &Version, kops: &Version) -> Result<(), Error> {
    let minor = |version: &Version| (version.major, version.minor);
    let reason = if new < current {
        format!("is older than the cluster's {current}: Kubernetes cannot be downgraded")
    } else if new.major != current.major || new.minor > current.minor + 1 {
        let next = Version::release(current.major, current.minor + 1);
        format!(
            "skips a minor version of Kubernetes after the cluster's {current}: upgrade to {}.{} first",
            next.major, next.minor
        )
    } else if minor(new) > minor(kops) && minor(new) != minor(current) {
        format!("is newer than kOps {kops} supports: use a newer kOps")
    } else {
        return Ok(());
    };
    Err(Error::value(what, new.to_string(), reason))
}

#[cfg(test)]
mod tests {
    use kops_api::Kind;
    use serde_json::json;

    use super::*;

    const NOBLE: &str = "099720109477/ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-2";
    const OLD: &str = "099720109477/ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-1";

    fn channel() -> Channel {
        let text = format!(
            "spec:\n  images:\n  - {{name: {NOBLE}, providerID: aws, architectureID: amd64, kubernetesVersion: '>=1.32.0'}}\n  kubernetesVersions:\n  - {{range: '>=1.36.0', recommendedVersion: 1.36.3}}\n  - {{range: '>=1.35.0', recommendedVersion: 1.35.7}}\n  - {{range: '>=1.34.0', recommendedVersion: 1.34.10}}\n  - {{range: '>=1.20.0 <1.21.0', recommendedVersion: 1.30.1}}\n"
        );
        Channel::read("test", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"))
    }

    fn cluster(version: &str) -> Object {
        let mut cluster = Object::new(Kind::Cluster, "a.example.com");
        cluster.spec =
            json!({"channel": "/c", "kubernetesVersion": version, "cloudProvider": {"aws": {}}});
        cluster
    }

    fn group(image: &str, machine: &str) -> Object {
        let mut group = Object::new(Kind::InstanceGroup, "nodes");
        group.spec = json!({"role": "Node", "machineType": machine, "image": image});
        group
    }

    fn plan(from: &str, to: &str, groups: &[Object]) -> Result<Upgrade, String> {
        let (channel, kops) = (channel(), Version::release(1, 36));
        let inputs = UpgradeInputs {
            location: "/c",
            channel: &channel,
            version: to,
            kops: &kops,
            world: &World::default(),
        };
        plan_upgrade(&cluster(from), groups, &inputs).map_err(|e| e.to_string())
    }

    #[test]
    fn proposes_versions_within_skew() {
        for (from, to, new) in [
            ("1.36.1", "", "1.36.3"),
            ("v1.36.3", "", "1.36.3"),
            ("1.35.0", "", "1.36.3"),
            ("1.34.2", "", "1.35.7"),
            ("1.36.9", "", "1.36.9"),
            ("1.30.0", "", "1.30.0"),
            ("1.35.0", "1.36.0", "1.36.0"),
            ("1.35.0", "v1.35.2", "1.35.2"),
        ] {
            let plan = plan(from, to, &[]).unwrap_or_else(|e| panic!("{from}: {e}"));
            let version = plan.cluster.spec.text("kubernetesVersion");
            assert_eq!(version.trim_start_matches('v'), new, "{from} {to}");
            let changed = from.trim_start_matches('v') != new;
            assert_eq!(plan.actions.len(), usize::from(changed), "{:?}", plan.actions);
        }
        let stays = plan("1.36.9", "", &[]).unwrap_or_else(|e| panic!("{e}"));
        assert!(stays.warnings[0].contains("is greater than the desired version"));
    }

    #[test]
    fn rejects_downgrades_and_skipped_versions() {
        for (from, to, reason) in [
            ("1.36.1", "1.36.0", "cannot be downgraded"),
            ("1.36.1", "1.35.9", "cannot be downgraded"),
            ("1.34.1", "1.36.0", "upgrade to 1.35 first"),
            ("1.34.1", "2.0.0", "upgrade to 1.35 first"),
            ("1.36.1", "1.37.0", "is newer than kOps 1.36.0 supports"),
            ("1.36.1", "latest", "is not a version"),
            // A mistaken or foreign channel.
            ("1.20.1", "", "the channel's recommended version: \"1.30.1\" skips a minor version"),
        ] {
            let error = plan(from, to, &[]).expect_err("rejected");
            assert!(error.contains(reason), "{from} {to}: {error}");
        }
    }

    #[test]
    fn replaces_only_recommended_images() {
        let new = |image: &str, machine: &str| {
            let plan =
                plan("1.36.3", "", &[group(image, machine)]).unwrap_or_else(|e| panic!("{e}"));
            (plan.groups[0].spec.text("image").to_owned(), plan.warnings.join(","))
        };
        assert_eq!(new(OLD, "t3.medium"), (NOBLE.to_owned(), String::new()));
        assert_eq!(new("", "t3.medium").0, NOBLE);
        assert_eq!(new(NOBLE, "t3.medium"), (NOBLE.to_owned(), String::new()));
        let (image, warning) = new("ami-1", "t3.medium");
        assert!(image == "ami-1" && warning.contains("Custom image (ami-1)"), "{image} {warning}");
        // The channel has no image for arm64.
        let (image, warning) = new(OLD, "m6g.large");
        assert!(image == OLD && warning.contains("No matching images"), "{image} {warning}");
    }

    #[test]
    fn rejects_imported_clusters() {
        let (channel, kops) = (channel(), Version::release(1, 36));
        let (location, world) = ("/other", World::default());
        let inputs =
            UpgradeInputs { location, channel: &channel, version: "", kops: &kops, world: &world };
        let mut imported = cluster("1.36.1");
        let plan = plan_upgrade(&imported, &[], &inputs).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((plan.actions[0].property, plan.actions[0].new.as_str()), ("Channel", "/other"));
        imported.metadata = json!({"name": "a", "annotations": {MANAGEMENT: IMPORTED}});
        let error = plan_upgrade(&imported, &[], &inputs).expect_err("rejected").to_string();
        assert!(error.contains("imported cluster"), "{error}");
    }
}
