//! The volumes of etcd's members, which outlive their machines.

use api_meta::Tree as _;
use serde_json::Value;

use super::{
    context::{Context, text_at},
    graph::Model,
};
use crate::{
    aws::{Ebs, Tags, Volume},
    error::Error,
    model::queries::group_of_member,
    volumes::{SIZE, member_volume},
};

const CLASS: &str = "gp3";

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    for etcd in context.spec.items("etcdClusters") {
        for member in etcd.items("etcdMembers") {
            add_volume(context, model, etcd, member)?;
        }
    }
    Ok(())
}

fn add_volume(
    context: &Context<'_>,
    model: &mut Model,
    etcd: &Value,
    member: &Value,
) -> Result<(), Error> {
    let (name, own) = member_volume(context.name, etcd, member.text("name"));
    let ebs = disk(
        member.opt_int("volumeSize").filter(|size| *size > 0).unwrap_or(SIZE),
        text_at(member, "volumeType").as_deref().unwrap_or(CLASS),
        member.opt_int("volumeIOPS"),
        member.opt_int("volumeThroughput"),
    );
    let ebs =
        Ebs { encrypted: member.flag("encryptedVolume"), key: text_at(member, "kmsKeyID"), ..ebs };
    check(&name, &ebs)?;
    let mut tags: Tags = context.labels().collect();
    tags.extend(own);
    let zone = zone(context, &name, member)?;
    model.add(name, tags, Volume { zone, ebs });
    Ok(())
}

/// Returns a volume's zone, which must be that of the member's machine.
fn zone(context: &Context<'_>, volume: &str, member: &Value) -> Result<String, Error> {
    let group = group_of_member(context.groups, member)?;
    let subnets = context.subnets_of(group)?;
    let mut zones: Vec<&str> = subnets.iter().map(|one| one.text("zone")).collect();
    zones.sort_unstable();
    zones.dedup();
    match zones.as_slice() {
        [zone] => Ok((*zone).to_owned()),
        _ => {
            let reason = format!("has an etcd volume, {volume}, so it must be in one zone");
            Err(Error::value("instance group", group.name(), reason))
        }
    }
}

/// Returns a volume with the settings that its type needs. Values below AWS' minimum are raised to it.
pub(super) fn disk(size: i64, class: &str, iops: Option<i64>, throughput: Option<i64>) -> Ebs {
    let (iops, throughput) = match class {
        "gp3" => (Some(iops.unwrap_or(0).max(3000)), Some(throughput.unwrap_or(0).max(125))),
        "io1" | "io2" => (Some(iops.unwrap_or(0).max(100)), None),
        _ => (None, None),
    };
    Ebs { size, class: class.to_owned(), iops, throughput, ..Ebs::default() }
}

/// Checks AWS' limits on operations and throughput.
fn check(name: &str, ebs: &Ebs) -> Result<(), Error> {
    let iops = ebs.iops.unwrap_or_default();
    let most = match ebs.class.as_str() {
        "io1" => 50,
        "io2" => 500,
        "gp3" if iops > 3000 => 500,
        _ => i64::MAX,
    };
    if iops > ebs.size.saturating_mul(most) {
        let reason = format!("is more than {most} operations for each of its {} GiB", ebs.size);
        return Err(Error::value(&format!("volumeIOPS of {name}"), iops.to_string(), reason));
    }
    let throughput = ebs.throughput.unwrap_or_default();
    if throughput.saturating_mul(4) > iops && ebs.throughput.is_some() {
        let reason = format!("is more than a quarter of its {iops} operations");
        let field = format!("volumeThroughput of {name}");
        return Err(Error::value(&field, throughput.to_string(), reason));
    }
    Ok(())
}
