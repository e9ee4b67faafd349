//! The disks of etcd's members, which outlive their machines.

use api_meta::Tree as _;
use serde_json::Value;

use super::{context::Context, graph::Model, names};
use crate::{
    error::Error,
    gce::{Disk, operations::Labels},
    model::queries::{group_of_member, text_at},
    volumes::SIZE,
};

const CLASS: &str = "pd-ssd";

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    for etcd in context.spec.items("etcdClusters") {
        for member in etcd.items("etcdMembers") {
            add_disk(context, model, etcd.text("name"), member)?;
        }
    }
    Ok(())
}

/// Adds the disk of a member. etcd-manager finds it by its labels.
fn add_disk(
    context: &Context<'_>,
    model: &mut Model,
    etcd: &str,
    member: &Value,
) -> Result<(), Error> {
    let own = member.text("name");
    let group = group_of_member(context.groups, member)?;
    let zone = context.only_zone(group, "has an etcd disk")?.to_owned();
    let encoded = names::encode_label(&format!("{own}/{own}"));
    let labels: Labels = [
        context.cluster_label(),
        (format!("k8s-io-etcd-{etcd}"), encoded),
        ("k8s-io-role-master".to_owned(), "master".to_owned()),
    ]
    .into();
    let prefix = format!("{own}-etcd-{etcd}").replace('.', "-");
    let starts_badly = prefix.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let prefix = if starts_badly { format!("d{prefix}") } else { prefix };
    let positive = |field: &str| member.opt_int(field).filter(|number| *number > 0);
    let disk = Disk {
        zone,
        size: positive("volumeSize").unwrap_or(SIZE),
        class: text_at(member, "volumeType").unwrap_or_else(|| CLASS.to_owned()),
        iops: positive("volumeIOPS"),
        throughput: positive("volumeThroughput"),
        labels,
    };
    model.add(context.resource_name(&prefix)?, disk);
    Ok(())
}
