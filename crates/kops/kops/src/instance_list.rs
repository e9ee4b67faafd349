//! Lists the machines of a cluster of cloud local or metal.

use std::{collections::BTreeSet, io::Write};

use api_meta::Tree as _;
use client::{ListOptions, Resource};
use instances::Fleet;
use kops_local::{
    COMMAND_PERIOD, MachineProblem, check_cloud, fleet, is_outdated, machine_problems,
};
use kops_store::Registry;
use serde_json::{Value, json};

use crate::{
    cloud::{GroupState, MachineState, Observe as _, metal::MetalCloud},
    document,
    environment::CommandEnvironment,
    error::Error,
    flags::Connection,
    get,
    role::role_word,
    table,
};

/// Prints the machines that a deletion would terminate.
pub(crate) fn describe(fleet: &Fleet, out: &mut dyn Write) -> Result<(), Error> {
    let Some(spec) = fleet.spec()? else { return Ok(()) };
    let rows = spec.addresses.iter();
    let rows =
        rows.map(|(name, address)| ["instance".to_owned(), name.clone(), address.to_string()]);
    table::print(out, ["TYPE", "NAME", "ID"], rows.collect())
}

/// Returns upstream's word for the state of a machine.
pub(crate) fn status(detached: bool, outdated: bool) -> &'static str {
    if detached {
        "Detached"
    } else if outdated {
        "NeedsUpdate"
    } else {
        "UpToDate"
    }
}

/// The selection of `get instances`.
pub(crate) struct InstanceSelection<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) output: &'a str,
}

/// Runs `kops get instances`.
pub(crate) async fn run(
    registry: &Registry,
    wanted: &InstanceSelection<'_>,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let cluster = get::find_cluster(registry, name)?;
    if let Some(cloud) = MetalCloud::open(registry, &cluster)? {
        let client = wanted.connection.open(registry, &cluster, None, COMMAND_PERIOD, context)?;
        let state = cloud.observe(Some(&client)).await?;
        return print_rows(rows_of_nodes(&state.groups), wanted.output, context.out);
    }
    check_cloud(&cluster)?;
    let fleet = fleet(registry, name);
    let spec = fleet.spec()?.unwrap_or_default();
    // Show the machines even without an API server.
    let nodes = match wanted.connection.open(registry, &cluster, None, COMMAND_PERIOD, context) {
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
            let status = status(!counted.contains(&name), is_outdated(&machine, group));
            rows.push(Row {
                id: machine.id,
                node: if node { name } else { String::new() },
                status,
                role: if group.trusted { "control-plane" } else { "node" },
                address: machine.address.to_string(),
                external: String::new(),
                group: group.name.clone(),
            });
        }
    }
    print_rows(rows, wanted.output, context.out)?;
    if wanted.output == "table" {
        for MachineProblem { machine, message } in machine_problems(&fleet, &spec) {
            writeln!(context.out, "\n{machine}: {message}")?;
        }
    }
    Ok(())
}

/// Returns the rows of machines that only the API knows. It does not say whether a machine is up to date.
fn rows_of_nodes(groups: &[GroupState]) -> Vec<Row> {
    let row = |group: &GroupState, machine: &MachineState| {
        let address = |kind: &str| {
            let all = machine.node.iter().flat_map(|node| node.items("status.addresses"));
            let mut own = all.filter(|one| one.text("type") == kind);
            own.next().map(|one| one.text("address").to_owned()).unwrap_or_default()
        };
        Row {
            id: machine.id.clone(),
            node: machine.node_name().unwrap_or_default().to_owned(),
            status: "",
            role: role_word(&group.role),
            address: address("InternalIP"),
            external: address("ExternalIP"),
            group: group.name.clone(),
        }
    };
    groups
        .iter()
        .flat_map(|group| group.machines.iter().map(move |machine| row(group, machine)))
        .collect()
}

/// A machine as it is shown. Its machine type and state are not known.
struct Row {
    id: String,
    /// The name of the Node; empty if the machine has none.
    node: String,
    /// Upstream's word for the state; empty if it is not known.
    status: &'static str,
    role: &'static str,
    address: String,
    /// The external address; empty on cloud local.
    external: String,
    group: String,
}

fn print_rows(rows: Vec<Row>, output: &str, out: &mut dyn Write) -> Result<(), Error> {
    let document = |row: &Row| {
        let mut document = json!({
            "id": row.id, "status": row.status, "roles": [row.role], "internalIP": row.address,
            "externalIP": row.external, "instanceGroup": row.group, "machineType": "", "state": "",
        });
        if !row.node.is_empty() {
            document.put("nodeName", row.node.clone());
        }
        document
    };
    let documents = || Value::from(rows.iter().map(document).collect::<Vec<_>>());
    match output {
        "yaml" | "json" => document::print(out, output, &documents())?,
        _ => {
            writeln!(out)?;
            let header = [
                "ID",
                "NODE-NAME",
                "STATUS",
                "ROLES",
                "STATE",
                "INTERNAL-IP",
                "EXTERNAL-IP",
                "INSTANCE-GROUP",
                "MACHINE-TYPE",
            ];
            let none = String::new;
            let cells = |row: Row| {
                let (status, role) = (row.status.to_owned(), row.role.to_owned());
                let external = row.external;
                [row.id, row.node, status, role, none(), row.address, external, row.group, none()]
            };
            table::print(out, header, rows.into_iter().map(cells).collect())?;
        }
    }
    Ok(())
}
