//! Queries the facts that the model needs from AWS: the account, and the spec's images, machine types, zones and
//! networks.

use std::collections::BTreeSet;

use aws::Client;
use kops_api::{Object, Spec as _};
use kops_core::{
    Cluster as _, Dns, DnsZone, Image, MachineType, Network, Subnet, World, direct::Scope,
};
use kops_store::Registry;
use serde_json::{Value, json};

use crate::{error::Error, model::complete_objects};

/// Adds the facts that are still missing.
pub async fn query_world(
    client: &Client,
    user: &Object,
    groups: &[Object],
    mut world: World,
) -> Result<World, Error> {
    let user = user.normalized();
    if world.account.is_empty() {
        let own = client.call("sts", "GetCallerIdentity", &Value::Null).await?;
        own.text("Account").clone_into(&mut world.account);
    }
    query_images(client, groups, &mut world).await?;
    query_machine_types(client, groups, &mut world).await?;
    if user.publishes_dns() && world.zones.is_empty() {
        world.zones = query_zones(client).await?;
        if user.dns() == Dns::Private {
            for zone in world.zones.iter_mut().filter(|zone| zone.private == Some(true)) {
                let response =
                    client.call("route53", "GetHostedZone", &json!({"Id": zone.id})).await?;
                let vpcs = response.list("VPCs").iter().map(|vpc| vpc.text("VPCId").to_owned());
                zone.networks = vpcs.collect();
            }
        }
    }
    let network = user.spec.text("networking.networkID");
    if !network.is_empty() && !world.networks.contains_key(network) {
        world.networks.insert(network.to_owned(), query_network(client, network).await?);
    }
    Ok(world)
}

/// Returns the distinct unknown values of a field of groups.
fn unknown_values<'a>(
    groups: &'a [Object],
    field: &str,
    known: impl Fn(&str) -> bool,
) -> BTreeSet<&'a str> {
    let names = groups.iter().flat_map(|group| group.spec.text(field).split(','));
    names.filter(|name| !name.is_empty() && !known(name)).collect()
}

/// Adds images by ID, or by owner and name as `OWNER/NAME`; the newest match wins.
async fn query_images(client: &Client, groups: &[Object], world: &mut World) -> Result<(), Error> {
    let names = unknown_values(groups, "image", |name| world.images.contains_key(name));
    let (ids, names): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| name.starts_with("ami-"));
    let mut queries = Vec::new();
    if !ids.is_empty() {
        queries.push((None, json!({"ImageId": ids})));
    }
    for name in names {
        let (owner, short) = name.split_once('/').unwrap_or(("self", name));
        let owner = if owner == "ubuntu" { "099720109477" } else { owner };
        let filter = json!([{"Name": "name", "Value": [short]}]);
        queries.push((Some(name), json!({"Owner": [owner], "Filter": filter})));
    }
    for (name, parameters) in queries {
        let pages = match client.pages("ec2", "DescribeImages", &parameters).await {
            Err(error) if error.is_absent() => Vec::new(),
            pages => pages?,
        };
        let mut found: Vec<&Value> = pages.iter().flat_map(|page| page.list("imagesSet")).collect();
        found.sort_by_key(|image| image.text("creationDate"));
        for image in found {
            let id = image.text("imageId").to_owned();
            let root_device = image.text("rootDeviceName").to_owned();
            let key = name.map_or_else(|| id.clone(), str::to_owned);
            world.images.insert(key, Image { id, root_device });
        }
    }
    Ok(())
}

async fn query_machine_types(
    client: &Client,
    groups: &[Object],
    world: &mut World,
) -> Result<(), Error> {
    let names =
        unknown_values(groups, "machineType", |name| world.machine_types.contains_key(name));
    if names.is_empty() {
        return Ok(());
    }
    let pages =
        client.pages("ec2", "DescribeInstanceTypes", &json!({"InstanceType": names})).await?;
    for one in pages.iter().flat_map(|page| page.list("instanceTypeSet")) {
        world.machine_types.insert(one.text("instanceType").to_owned(), machine_type(one));
    }
    Ok(())
}

/// Reads a machine type from AWS' answer.
pub(crate) fn machine_type(one: &Value) -> MachineType {
    let architectures = one.texts("processorInfo.supportedArchitectures");
    let architecture = if architectures.contains(&"arm64") { "arm64" } else { "amd64" };
    let disks = one.list("instanceStorageInfo.disks").iter();
    let disks: u64 = disks.filter_map(|disk| disk.text("count").parse::<u64>().ok()).sum();
    MachineType {
        architecture: architecture.to_owned(),
        gpu: one.has("gpuInfo.gpus"),
        disks: u8::try_from(disks).unwrap_or(u8::MAX),
    }
}

pub(crate) async fn query_zones(client: &Client) -> Result<Vec<DnsZone>, Error> {
    let pages = client.pages("route53", "ListHostedZones", &Value::Null).await?;
    let zone = |one: &Value| DnsZone {
        id: one.text("Id").trim_start_matches("/hostedzone/").to_owned(),
        name: one.text("Name").to_owned(),
        private: Some(one.text("Config.PrivateZone") == "true"),
        networks: Vec::new(),
    };
    Ok(pages.iter().flat_map(|page| page.list("HostedZones")).map(zone).collect())
}

/// Queries an existing network with its subnets and gateways.
pub(crate) async fn query_network(client: &Client, id: &str) -> Result<Network, Error> {
    let filter = |name: &str| json!({"Filter": [{"Name": name, "Value": [id]}]});
    let vpcs = client.call("ec2", "DescribeVpcs", &json!({"VpcId": [id]})).await?;
    let subnets = client.pages("ec2", "DescribeSubnets", &filter("vpc-id")).await?;
    let gateways =
        client.call("ec2", "DescribeInternetGateways", &filter("attachment.vpc-id")).await?;
    let first = |response: &Value, list: &str, field: &str| {
        response.list(list).first().map(|one| one.text(field).to_owned()).unwrap_or_default()
    };
    let subnet = |one: &Value| Subnet {
        id: one.text("subnetId").to_owned(),
        zone: one.text("availabilityZone").to_owned(),
        cidr: one.text("cidrBlock").to_owned(),
    };
    Ok(Network {
        cidr: first(&vpcs, "vpcSet", "cidrBlock"),
        subnets: subnets.iter().flat_map(|page| page.list("subnetSet")).map(subnet).collect(),
        internet_gateway: first(&gateways, "internetGatewaySet", "internetGatewayId"),
        egress_only_gateway: String::new(),
    })
}

/// Returns the scope of a deletion. A cluster whose spec is invalid can be deleted, too.
pub async fn deletion_scope(
    client: &Client,
    registry: &Registry,
    user: &Object,
) -> Result<Scope, Error> {
    let world = World { zones: public_zones(client, user).await?, ..World::default() };
    let whole = complete_objects(registry, user, world).ok();
    let text = |path: &str| {
        let spec = whole.as_ref().map_or(&user.spec, |whole| &whole.cluster.spec);
        spec.text(path).to_owned()
    };
    let zone = text("dnsZone");
    let zone = zone.trim_start_matches('/').trim_start_matches("hostedzone/");
    let zone = if user.publishes_dns() && !zone.contains('.') { zone } else { "" };
    let issuer = text("kubeAPIServer.serviceAccountIssuer");
    Ok(Scope::of_deletion(user.name(), zone, &issuer))
}

async fn public_zones(client: &Client, user: &Object) -> Result<Vec<DnsZone>, Error> {
    if user.publishes_dns() { query_zones(client).await } else { Ok(Vec::new()) }
}
