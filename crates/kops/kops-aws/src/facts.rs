//! The user's table of facts about a cloud: `update cluster --target=terraform` calls no cloud.

use std::collections::BTreeMap;

use kops_core::{CloudName, DnsZone, Hashes, Image, MachineType, Network, Subnet, World};
use serde::Deserialize;

use crate::error::Error;

/// The table. Unknown fields are rejected, because a misspelt one would silently be ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct CloudFacts {
    account: String,
    /// The partition in ARNs, such as `aws-cn`, if it does not follow from the region.
    partition: String,
    images: BTreeMap<String, ImageEntry>,
    machine_types: BTreeMap<String, MachineTypeEntry>,
    /// The default machine types by role.
    default_machine_types: BTreeMap<String, String>,
    networks: BTreeMap<String, NetworkEntry>,
    dns_zones: Vec<ZoneEntry>,
    bucket_regions: BTreeMap<String, String>,
    /// The files that machines download, in the format of upstream's `kops get assets -o yaml`.
    files: Vec<FileEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ImageEntry {
    id: String,
    root_device: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MachineTypeEntry {
    architecture: String,
    #[serde(default)]
    gpu: bool,
    /// The number of instance stores.
    #[serde(default)]
    disks: u8,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct NetworkEntry {
    cidr: String,
    internet_gateway: String,
    egress_only_gateway: String,
    subnets: Vec<SubnetEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubnetEntry {
    id: String,
    zone: String,
    cidr: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ZoneEntry {
    id: String,
    name: String,
    #[serde(default)]
    private: bool,
    #[serde(default)]
    networks: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileEntry {
    canonical: String,
    sha: String,
    /// The location of a copy; the spec's own repository determines it.
    #[serde(default, rename = "download")]
    _download: String,
}

impl CloudFacts {
    /// Reads a table from a file; without a file the table is empty.
    pub fn read(path: Option<&str>) -> Result<Self, Error> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read(path)
            .map_err(kops_store::Error::file("reading the table of existing resources", path))?;
        Self::parse(path, &text)
    }

    fn parse(what: &str, text: &[u8]) -> Result<Self, Error> {
        let wrong = |cause: String| kops_api::Error::Yaml { what: what.to_owned(), cause };
        let tree = api_codec::from_yaml(text).map_err(|e| wrong(e.to_string()))?;
        if !tree.is_object() {
            return Err(wrong("is not a table".to_owned()).into());
        }
        let facts: Self = serde_json::from_value(tree).map_err(|e| wrong(e.to_string()))?;
        if let Some(file) = facts.files.iter().find(|file| !is_sha256(&file.sha)) {
            let cause = format!(
                "files: {} of {} is not a SHA-256 in hexadecimal",
                file.sha, file.canonical
            );
            return Err(wrong(cause).into());
        }
        Ok(facts)
    }

    /// Rejects facts that have no effect on the cluster's cloud, by name.
    pub fn check(&self, cloud: CloudName) -> Result<(), Error> {
        let types = || self.machine_types.values();
        let of_aws = [
            ("account", !self.account.is_empty()),
            ("partition", !self.partition.is_empty()),
            ("images", !self.images.is_empty()),
            ("defaultMachineTypes", !self.default_machine_types.is_empty()),
            ("networks", !self.networks.is_empty()),
            ("machineTypes[].gpu", types().any(|one| one.gpu)),
            ("machineTypes[].disks", types().any(|one| one.disks > 0)),
        ];
        match of_aws.into_iter().find(|(_, is_given)| *is_given) {
            Some((fact, _)) if cloud != CloudName::Aws => {
                Err(Error::Fact { fact, cloud: cloud.word() })
            }
            _ => Ok(()),
        }
    }

    /// Returns the hashes of files by URL.
    pub fn hashes(&self) -> Hashes {
        let files = self.files.iter();
        files.map(|file| (file.canonical.clone(), file.sha.to_ascii_lowercase())).collect()
    }

    /// Returns the region of a bucket, which must be in the table.
    pub fn region_of(&self, bucket: &str) -> Result<String, Error> {
        let region = self.bucket_regions.get(bucket).cloned();
        let problem = "is in no known region; set it under bucketRegions in the file of --known";
        region.ok_or_else(|| kops_store::Error::object("bucket", bucket, problem).into())
    }

    /// Returns the facts for a model.
    pub fn world(&self) -> World {
        let image =
            |one: &ImageEntry| Image { id: one.id.clone(), root_device: one.root_device.clone() };
        let machine = |one: &MachineTypeEntry| MachineType {
            architecture: one.architecture.clone(),
            gpu: one.gpu,
            disks: one.disks,
        };
        let zone = |one: &ZoneEntry| DnsZone {
            id: one.id.clone(),
            name: one.name.clone(),
            private: Some(one.private),
            networks: one.networks.clone(),
        };
        World {
            account: self.account.clone(),
            partition: self.partition.clone(),
            images: mapped(&self.images, image),
            machine_types: mapped(&self.machine_types, machine),
            default_machine_types: self.default_machine_types.clone(),
            networks: mapped(&self.networks, NetworkEntry::network),
            zones: self.dns_zones.iter().map(zone).collect(),
            bucket_regions: self.bucket_regions.clone(),
            ..World::default()
        }
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn mapped<T, U>(map: &BTreeMap<String, T>, each: impl Fn(&T) -> U) -> BTreeMap<String, U> {
    map.iter().map(|(name, one)| (name.clone(), each(one))).collect()
}

impl NetworkEntry {
    fn network(&self) -> Network {
        let subnet = |one: &SubnetEntry| Subnet {
            id: one.id.clone(),
            zone: one.zone.clone(),
            cidr: one.cidr.clone(),
        };
        Network {
            cidr: self.cidr.clone(),
            subnets: self.subnets.iter().map(subnet).collect(),
            internet_gateway: self.internet_gateway.clone(),
            egress_only_gateway: self.egress_only_gateway.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_misspelt_fields() {
        let good = "account: \"123456789012\"\nimages: {a: {id: ami-1, rootDevice: /dev/sda1}}\nfiles:\n- {canonical: https://x/y, download: https://z, sha: SUM}\n";
        let known =
            CloudFacts::parse("x", good.replace("SUM", &"A".repeat(64)).as_bytes()).unwrap();
        assert_eq!(known.hashes().get("https://x/y"), Some(&"a".repeat(64)));
        assert_eq!(known.world().images["a"].root_device, "/dev/sda1");
        for (wrong, reason) in [
            ("acount: x", "unknown field `acount`"),
            ("images: {a: {id: b}}", "missing field `rootDevice`"),
            ("files: [{canonical: a, sha: '; rm -rf /'}]", "is not a SHA-256"),
            ("machineTypes: {a: {architecture: amd64, disks: -1}}", "expected u8"),
            ("[]", "is not a table"),
        ] {
            let error = CloudFacts::parse("table.yaml", wrong.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("table.yaml") && error.contains(reason), "{wrong}: {error}");
        }
    }

    #[test]
    fn rejects_facts_of_aws_on_gce() {
        let all = "bucketRegions: {store: eu-west-1}\ndnsZones: [{id: Z1, name: example.com}]\n\
                   images: {}\nmachineTypes: {a: {architecture: arm64}}\n";
        let known = CloudFacts::parse("x", all.as_bytes()).unwrap();
        assert!(known.check(CloudName::Gce).is_ok());
        for (fact, text) in [
            ("account", "account: '1'"),
            ("partition", "partition: aws-cn"),
            ("images", "images: {a: {id: b, rootDevice: c}}"),
            ("defaultMachineTypes", "defaultMachineTypes: {Node: a}"),
            ("networks", "networks: {a: {cidr: 10.0.0.0/8}}"),
            ("machineTypes[].gpu", "machineTypes: {a: {architecture: amd64, gpu: true}}"),
            ("machineTypes[].disks", "machineTypes: {a: {architecture: amd64, disks: 1}}"),
        ] {
            let known = CloudFacts::parse("x", text.as_bytes()).unwrap();
            assert!(known.check(CloudName::Aws).is_ok(), "{fact}");
            let error = known.check(CloudName::Gce).unwrap_err().to_string();
            assert!(error.starts_with(fact) && error.contains("no effect on gce"), "{error}");
        }
    }
}
