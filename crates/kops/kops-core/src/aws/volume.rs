//! EBS volumes.

use api_meta::Tree as _;
use serde_json::json;

use super::{
    ec2::{Listing, delete, with_tags},
    family::*,
    fields::fields,
};

const VOLUMES: Listing =
    Listing { operation: "DescribeVolumes", list: "volumeSet", id: "volumeId" };

/// A volume that outlives its machine.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The availability zone.
    pub zone: String,
    /// The settings.
    pub ebs: Ebs,
}

/// The settings of an EBS volume.
#[derive(Clone, Debug, Default)]
pub struct Ebs {
    /// The size in GiB.
    pub size: i64,
    /// The volume type, such as `gp3`.
    pub class: String,
    /// The provisioned operations per second.
    pub iops: Option<i64>,
    /// The throughput in MiB per second.
    pub throughput: Option<i64>,
    /// `true` if encrypted.
    pub encrypted: bool,
    /// The KMS key; `None` for the default key.
    pub key: Option<String>,
    /// `true` if deleted with its machine.
    pub deleted_with_machine: bool,
}

impl Ebs {
    /// Sets the volume's arguments in Terraform. `prefix` is added to some of those of a machine's disk.
    pub(super) fn set_arguments(&self, block: &mut Block, prefix: &str) {
        block.flag("encrypted", self.encrypted);
        block.opt_value("iops", self.iops.map(Expr::int));
        block.opt_value("kms_key_id", self.key.as_ref().map(Expr::text));
        block.int(&format!("{prefix}size"), self.size);
        block.opt_value("throughput", self.throughput.map(Expr::int));
        block.text(&format!("{prefix}type"), &self.class);
    }
}

impl Operations for Volume {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![VOLUMES.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        VOLUMES.find(scope, answers, |item| {
            let text = |path: &str| item.text(path).to_owned();
            let encrypted = if item.text("encrypted") == "true" { "true" } else { "false" };
            fields([
                ("Zone", text("availabilityZone")),
                ("Size", text("size")),
                ("Type", text("volumeType")),
                ("Encrypted", encrypted.to_owned()),
                ("IOPS", text("iops")),
                ("Throughput", text("throughput")),
            ])
        })
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteVolume", "VolumeId", found)
    }

    fn terraform_name(name: &str) -> String {
        let prefix = if name.starts_with(|c: char| c.is_ascii_digit()) { "ebs-" } else { "" };
        format!("{prefix}{name}")
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        let ebs = &self.ebs;
        let mut all = fields([
            ("Zone", self.zone.clone()),
            ("Size", ebs.size.to_string()),
            ("Type", ebs.class.clone()),
            ("Encrypted", ebs.encrypted.to_string()),
        ]);
        for (name, value) in [("IOPS", ebs.iops), ("Throughput", ebs.throughput)] {
            all.extend(value.map(|value| (name.to_owned(), value.to_string())));
        }
        all
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let ebs = &self.ebs;
        let mut request = json!({"AvailabilityZone": self.zone, "Size": ebs.size, "VolumeType": ebs.class,
            "Encrypted": ebs.encrypted, "Iops": ebs.iops, "Throughput": ebs.throughput});
        request.set("KmsKeyId", ebs.key.as_deref());
        Ok(Creation::ec2("CreateVolume", with_tags(request, "volume", own.tags), "volumeId"))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        update.validate_fields(&["Size", "Type", "IOPS", "Throughput"])?;
        let ebs = &self.ebs;
        let request = json!({"VolumeId": update.id(), "Size": ebs.size, "VolumeType": ebs.class,
            "Iops": ebs.iops, "Throughput": ebs.throughput});
        Ok(vec![Call::ec2("ModifyVolume", request)])
    }

    fn terraform(&self, own: &Header<'_>, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("availability_zone", &self.zone).tags(own.tags);
        self.ebs.set_arguments(&mut block, "");
        Ok(block)
    }
}
