//! Lists the machines of a cluster of cloud local.

use std::{collections::BTreeSet, io::Write};

use client::{ListOptions, Resource};
use instances::Fleet;
use kops_api::Spec as _;
use kops_local::{MachineProblem, fleet, machine_problems, open_client};
use kops_store::Registry;
use serde_json::{Value, json};

use crate::{error::Error, flags::Show, get, table};

/// Prints the machines that a deletion would terminate.
pub(crate) fn describe(fleet: &Fleet, out: &mut dyn Write) -> Result<(), Error> {
    let Some(spec) = fleet.spec()? else { return Ok(()) };
    let rows = spec.addresses.iter();
    let rows =
        rows.map(|(name, address)| ["instance".to_owned(), name.clone(), address.to_string()]);
    table::print(out, ["TYPE", "NAME", "ID"], rows.collect())
}

/// Runs `kops get instances`.
pub(crate) async fn run(
    registry: &Registry,
    show: &Show,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    let fleet = fleet(registry, name);
    let spec = fleet.spec()?.unwrap_or_default();
    // Show the machines even without an API server.
    let nodes = match open_client(registry, &cluster, rt::now()) {
        Ok(client) => {
            client.list::<Value>(&Resource::NODES, "", &ListOptions::default()).await.ok()
        }
        Err(_) => None,
    };
    let nodes = nodes.map(|list| list.items).unwrap_or_default();
    let mut rows = Vec::new();
    for group in &spec.groups {
        let counted: BTreeSet<_> = group.members().collect();
        for name in group.names() {
            let Some(machine) = fleet.machine(&name)? else { continue };
            let node = nodes.iter().any(|node| node.text("metadata.name") == name);
            let status = if !counted.contains(&name) {
                "Detached"
            } else if machine.version() == group.version() {
                "UpToDate"
            } else {
                "NeedsUpdate"
            };
            let role = if group.trusted { "control-plane" } else { "node" };
            rows.push([
                machine.id,
                if node { name.clone() } else { String::new() },
                status.to_owned(),
                role.to_owned(),
                machine.address.to_string(),
                group.name.clone(),
            ]);
        }
    }
    if show.output != "table" {
        return print_documents(&rows, &show.output, out);
    }
    table::print(
        out,
        ["ID", "NODE-NAME", "STATUS", "ROLES", "INTERNAL-IP", "INSTANCE-GROUP"],
        rows,
    )?;
    for MachineProblem { machine, message } in machine_problems(&fleet, &spec) {
        writeln!(out, "\n{machine}: {message}")?;
    }
    Ok(())
}

/// Prints machines as documents with upstream's fields.
fn print_documents(rows: &[[String; 6]], output: &str, out: &mut dyn Write) -> Result<(), Error> {
    let rows = rows.iter().map(|[id, node, status, role, address, group]| {
        json!({
            "id": id, "nodeName": node, "status": status, "roles": [role],
            "internalIP": address, "externalIP": "", "instanceGroup": group, "machineType": "", "state": "",
        })
    });
    let all = Value::from(rows.collect::<Vec<_>>());
    match output {
        "json" => writeln!(out, "{all}")?,
        _ => write!(out, "{}", kops_api::yaml::to_string(&all))?,
    }
    Ok(())
}
