//! Machines: instance templates, and the managers that keep groups of them at their size.

use std::collections::BTreeMap;

use super::family::*;
use crate::terraform::{files::FileField, hcl::Item};

/// The disk that a machine boots from. It is deleted with the machine.
#[derive(Debug)]
pub(crate) struct BootDisk {
    /// The URL of the image.
    pub(crate) image: String,
    /// The size in GiB.
    pub(crate) size: i64,
    pub(crate) class: String,
    /// The provisioned operations per second; 0 for the class' default.
    pub(crate) iops: i64,
    /// The provisioned throughput in MiB per second; 0 for the class' default.
    pub(crate) throughput: i64,
}

/// GPUs of a machine.
#[derive(Debug)]
pub(crate) struct Accelerator {
    pub(crate) class: String,
    pub(crate) count: i64,
}

/// A range for the Pods of a machine, taken from a secondary range of its subnet.
#[derive(Debug)]
pub(crate) struct AliasRange {
    pub(crate) name: String,
    /// The size, such as `/24`.
    pub(crate) size: String,
}

/// The treatment of a machine when its host is maintained or needed for others.
#[derive(Debug)]
pub(crate) struct Scheduling {
    /// `true` if GCE may end the machine at any time.
    pub(crate) preemptible: bool,
    /// `true` if the machine can move to another host while it runs.
    pub(crate) migrates: bool,
}

/// A template of machines.
#[derive(Debug)]
pub(crate) struct InstanceTemplate {
    /// The name without the suffix that Terraform appends.
    pub(crate) prefix: String,
    pub(crate) machine_type: String,
    pub(crate) disk: BootDisk,
    pub(crate) scheduling: Scheduling,
    pub(crate) accelerators: Vec<Accelerator>,
    pub(crate) network: Ref,
    pub(crate) subnet: Ref,
    /// `true` if machines have public addresses.
    pub(crate) is_public: bool,
    /// The range of the machine's Pods, if Pods have addresses of the network.
    pub(crate) alias_range: Option<AliasRange>,
    pub(crate) account: Ref,
    pub(crate) scopes: Vec<&'static str>,
    pub(crate) labels: Labels,
    pub(crate) metadata: BTreeMap<&'static str, String>,
    pub(crate) tags: Vec<String>,
}

impl InstanceTemplate {
    fn disk_block(&self) -> Block {
        let (disk, mut block) = (&self.disk, Block::default());
        block.flag("auto_delete", true).flag("boot", true);
        block.text("device_name", "persistent-disks-0").text("disk_name", "");
        block.int("disk_size_gb", disk.size).text("disk_type", &disk.class);
        block.text("interface", "").text("mode", "READ_WRITE");
        block.int("provisioned_iops", disk.iops).int("provisioned_throughput", disk.throughput);
        block.text("source", "").text("source_image", &disk.image).text("type", "PERSISTENT");
        block
    }

    fn scheduling_block(&self) -> Block {
        let (Scheduling { preemptible, migrates }, mut block) =
            (&self.scheduling, Block::default());
        block.flag("automatic_restart", !preemptible).flag("preemptible", *preemptible);
        block.text("on_host_maintenance", if *migrates { "MIGRATE" } else { "TERMINATE" });
        block.text("provisioning_model", if *preemptible { "SPOT" } else { "STANDARD" });
        block
    }

    fn interface_block(&self, writer: &Writer<'_>) -> Block {
        let mut block = Block::default();
        if self.is_public {
            block.block("access_config", Block::default());
        }
        if let Some(range) = &self.alias_range {
            let mut alias = Block::default();
            alias.text("ip_cidr_range", &range.size).text("subnetwork_range_name", &range.name);
            block.block("alias_ip_range", alias);
        }
        block.value("network", writer.link(&self.network)).text("stack_type", "IPV4_ONLY");
        block.value("subnetwork", writer.link(&self.subnet));
        block
    }

    /// Returns the metadata. Texts of several lines are files.
    fn metadata_item(&self, name: &str, writer: &mut Writer<'_>) -> Result<Item, Error> {
        let mut members = BTreeMap::new();
        for (key, text) in &self.metadata {
            let value = if text.contains('\n') {
                let field = format!("metadata_{key}");
                let kind = self.kind().terraform_type();
                FileField { kind, name, field: &field }.add_text(&mut writer.files, text)?
            } else {
                Expr::text(text)
            };
            members.insert((*key).to_owned(), value);
        }
        Ok(Item::Map(members))
    }
}

impl Operations for InstanceTemplate {
    fn kind(&self) -> Kind {
        Kind::InstanceTemplate
    }

    fn gce_name<'a>(&'a self, _name: &'a str) -> Option<&'a str> {
        Some(&self.prefix)
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.network, &self.subnet, &self.account]
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, mut lifecycle, mut account) =
            (Block::default(), Block::default(), Block::default());
        lifecycle.flag("create_before_destroy", true);
        account.value("email", writer.link(&self.account));
        account.list("scopes", self.scopes.iter().map(|scope| Expr::text(*scope)).collect());
        // With a range of addresses for Pods, GCE forwards their traffic by itself.
        block.flag("can_ip_forward", self.alias_range.is_none());
        block.block("disk", self.disk_block()).block("lifecycle", lifecycle);
        let accelerator = |one: &Accelerator| {
            let mut accelerator = Block::default();
            accelerator.int("count", one.count).text("type", &one.class);
            accelerator
        };
        block.blocks("guest_accelerator", self.accelerators.iter().map(accelerator).collect());
        block.text_map("labels", &self.labels).text("machine_type", &self.machine_type);
        let metadata = self.metadata_item(name, writer)?;
        block.set("metadata", metadata).text("name_prefix", &format!("{}-", self.prefix));
        block.block("network_interface", self.interface_block(writer));
        block.block("scheduling", self.scheduling_block()).block("service_account", account);
        block.list("tags", self.tags.iter().map(Expr::text).collect());
        Ok(block)
    }
}

/// The machines of an instance group in one zone.
#[derive(Debug)]
pub(crate) struct InstanceGroupManager {
    /// The prefix of the machines' names.
    pub(crate) base_name: String,
    pub(crate) zone: String,
    /// The size at creation. The cluster autoscaler may change it.
    pub(crate) size: i64,
    pub(crate) template: Ref,
    pub(crate) pools: Vec<Ref>,
}

impl Operations for InstanceGroupManager {
    fn kind(&self) -> Kind {
        Kind::InstanceGroupManager
    }

    fn refs(&self) -> Vec<&Ref> {
        self.pools.iter().chain([&self.template]).collect()
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, mut lifecycle, mut policy, mut version) =
            (Block::default(), Block::default(), Block::default(), Block::default());
        lifecycle.list("ignore_changes", vec![Expr::Token("target_size".to_owned())]);
        policy.text("minimal_action", "REPLACE").text("type", "OPPORTUNISTIC");
        version.value("instance_template", writer.link(&self.template));
        block.text("base_instance_name", &self.base_name).block("lifecycle", lifecycle);
        block.text("list_managed_instances_results", "PAGINATED").text("name", name);
        block.list("target_pools", writer.links(&self.pools)).int("target_size", self.size);
        block.block("update_policy", policy).block("version", version).text("zone", &self.zone);
        Ok(block)
    }
}
