//! Disks that outlive their machines.

use super::family::*;

/// A disk.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) zone: String,
    /// The size in GiB.
    pub(crate) size: i64,
    pub(crate) class: String,
    pub(crate) iops: Option<i64>,
    /// The throughput in MiB per second.
    pub(crate) throughput: Option<i64>,
    pub(crate) labels: Labels,
}

impl Operations for Disk {
    fn kind(&self) -> Kind {
        Kind::Disk
    }

    fn terraform(&self, name: &str, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text_map("labels", &self.labels).text("name", name).int("size", self.size);
        block.text("type", &self.class).text("zone", &self.zone);
        block.opt_value("provisioned_iops", self.iops.map(Expr::int));
        block.opt_value("provisioned_throughput", self.throughput.map(Expr::int));
        Ok(block)
    }
}
