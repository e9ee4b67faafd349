//! Queries the facts that the creation of a cluster needs from AWS: existing networks, machine types and DNS zones.

use api_meta::Tree as _;
use aws::Client;
use kops_api::Object;
use kops_core::{World, create::Options, default_machine_types};
use serde_json::json;

use crate::{
    client::open_client,
    error::Error,
    world::{machine_type, query_network, query_zones},
};

/// Adds the facts that are still missing for a new cluster.
pub async fn query_creation(
    options: &Options,
    mut world: World,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<World, Error> {
    let zone = options.zones.first().map(String::as_str).unwrap_or_default();
    let mut letters = zone.chars();
    letters.next_back();
    let client = Client::open(letters.as_str(), environment)?;
    add_network(&client, options, &mut world).await?;
    let sizes = options.control_plane_sizes.iter().chain(&options.node_sizes);
    add_machine_types(&client, sizes.map(String::as_str), &mut world).await?;
    let is_published =
        !options.dns_zone.is_empty() || !["", "none"].contains(&&*options.dns.to_lowercase());
    if is_published && world.zones.is_empty() {
        world.zones = query_zones(&client).await?;
    }
    Ok(world)
}

/// Adds the existing network that the options name, or that has the subnets that they name.
async fn add_network(client: &Client, options: &Options, world: &mut World) -> Result<(), Error> {
    let mut network = options.network_id.clone();
    let subnets = &options.subnet_ids;
    if network.is_empty() && !subnets.is_empty() {
        let parameters = json!({"SubnetId": subnets});
        let pages = client.pages("ec2", "DescribeSubnets", &parameters).await?;
        let mut found = pages.iter().flat_map(|page| page.items("subnetSet"));
        network = found.next().map(|subnet| subnet.text("vpcId").to_owned()).unwrap_or_default();
    }
    if !network.is_empty() && !world.networks.contains_key(&network) {
        let found = query_network(client, &network).await?;
        world.networks.insert(network, found);
    }
    Ok(())
}

/// Adds the default machine types of all roles in a cluster's region.
pub async fn query_machine_types(
    cluster: &Object,
    mut world: World,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<World, Error> {
    let client = open_client(cluster, environment)?;
    add_machine_types(&client, std::iter::empty(), &mut world).await?;
    Ok(world)
}

/// Adds the named machine types, and the default ones of the other roles.
async fn add_machine_types<'a>(
    client: &Client,
    sizes: impl Iterator<Item = &'a str>,
    world: &mut World,
) -> Result<(), Error> {
    let roles = ["ControlPlane", "Node", "Bastion"];
    let mut names: Vec<&str> = roles.into_iter().flat_map(default_machine_types).copied().collect();
    names.extend(sizes);
    names.retain(|name| !world.machine_types.contains_key(*name));
    // A filter, unlike a list of names, accepts types that the region lacks.
    let filter = json!({"Filter": [{"Name": "instance-type", "Value": names}]});
    let pages = client.pages("ec2", "DescribeInstanceTypes", &filter).await?;
    for one in pages.iter().flat_map(|page| page.items("instanceTypeSet")) {
        world.machine_types.insert(one.text("instanceType").to_owned(), machine_type(one));
    }
    for role in roles {
        let exists = |name: &&&str| world.machine_types.contains_key(**name);
        if let Some(name) = default_machine_types(role).iter().find(exists) {
            let name = (*name).to_owned();
            world.default_machine_types.entry(role.to_owned()).or_insert(name);
        }
    }
    Ok(())
}
