//! Queries the facts that the model needs from AWS: the account, and the spec's images, machine types, zones and
//! networks.

use std::collections::{BTreeMap, BTreeSet};

use api_meta::Tree as _;
use aws::Client;
use kops_api::Object;
use kops_core::{
    Cluster as _, Dns, DnsZone, Image, MachineType, Network, Subnet, World, direct::Scope,
};
use kops_store::Registry;
use serde_json::{Value, json};

use crate::{error::Error, model::complete_objects};

/// The most values of a filter in one query.
const FILTER_VALUES: usize = 200;
/// The most machine types in one query.
const TYPES: usize = 100;

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
                let vpcs = response.items("VPCs").iter().map(|vpc| vpc.text("VPCId").to_owned());
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

/// A query for images.
#[derive(Debug)]
struct ImageQuery<'a> {
    parameters: Value,
    /// The names in specs; empty for images given by their IDs.
    names: Vec<ImageName<'a>>,
}

/// The name of images in a spec.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ImageName<'a> {
    /// The whole name, with the owner.
    whole: &'a str,
    /// The images' own name, or a pattern of names.
    own: &'a str,
}

impl ImageName<'_> {
    fn is_pattern(&self) -> bool {
        self.own.contains(['*', '?'])
    }
}

/// Returns the queries for images by ID, or by owner and name as `OWNER/NAME`.
fn image_queries(names: BTreeSet<&str>) -> Vec<ImageQuery<'_>> {
    let (ids, names): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| name.starts_with("ami-"));
    let by_id =
        |ids: &[&str]| ImageQuery { parameters: json!({"ImageId": ids}), names: Vec::new() };
    let mut queries: Vec<_> = ids.chunks(FILTER_VALUES).map(by_id).collect();
    let mut owners: BTreeMap<&str, Vec<ImageName<'_>>> = BTreeMap::new();
    for whole in names {
        let (owner, own) = whole.split_once('/').unwrap_or(("self", whole));
        let owner = if owner == "ubuntu" { "099720109477" } else { owner };
        owners.entry(owner).or_default().push(ImageName { whole, own });
    }
    for (owner, names) in owners {
        // The answer does not contain the pattern that an image matches.
        let (patterns, plain): (Vec<_>, Vec<_>) =
            names.into_iter().partition(ImageName::is_pattern);
        for names in plain.chunks(FILTER_VALUES).chain(patterns.chunks(1)) {
            let values: Vec<&str> = names.iter().map(|name| name.own).collect();
            let filter = json!([{"Name": "name", "Value": values}]);
            let parameters = json!({"Owner": [owner], "Filter": filter});
            queries.push(ImageQuery { parameters, names: names.to_vec() });
        }
    }
    queries
}

/// Adds the images that groups name; the newest match of a name wins.
async fn query_images(client: &Client, groups: &[Object], world: &mut World) -> Result<(), Error> {
    let names = unknown_values(groups, "image", |name| world.images.contains_key(name));
    for ImageQuery { parameters, names } in image_queries(names) {
        let pages = match client.pages("ec2", "DescribeImages", &parameters).await {
            Err(error) if error.is_absent() => Vec::new(),
            pages => pages?,
        };
        let mut found: Vec<&Value> =
            pages.iter().flat_map(|page| page.items("imagesSet")).collect();
        found.sort_by_key(|image| image.text("creationDate"));
        for image in found {
            let id = image.text("imageId").to_owned();
            let root_device = image.text("rootDeviceName").to_owned();
            let known = Image { id: id.clone(), root_device };
            let matches =
                |name: &&ImageName<'_>| name.is_pattern() || name.own == image.text("name");
            for name in names.iter().filter(matches) {
                world.images.insert(name.whole.to_owned(), known.clone());
            }
            if names.is_empty() {
                world.images.insert(id, known);
            }
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
    let names: Vec<&str> = names.into_iter().collect();
    for names in names.chunks(TYPES) {
        let parameters = json!({"InstanceType": names});
        let pages = client.pages("ec2", "DescribeInstanceTypes", &parameters).await?;
        for one in pages.iter().flat_map(|page| page.items("instanceTypeSet")) {
            world.machine_types.insert(one.text("instanceType").to_owned(), machine_type(one));
        }
    }
    Ok(())
}

/// Reads a machine type from AWS' answer.
pub(crate) fn machine_type(one: &Value) -> MachineType {
    let arm = one.texts("processorInfo.supportedArchitectures").any(|name| name == "arm64");
    let disks = one.items("instanceStorageInfo.disks").iter();
    let disks: u64 = disks.filter_map(|disk| disk.text("count").parse::<u64>().ok()).sum();
    MachineType {
        architecture: if arm { "arm64" } else { "amd64" }.to_owned(),
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
    Ok(pages.iter().flat_map(|page| page.items("HostedZones")).map(zone).collect())
}

/// Queries an existing network with its subnets and gateways.
pub(crate) async fn query_network(client: &Client, id: &str) -> Result<Network, Error> {
    let filter = |name: &str| json!({"Filter": [{"Name": name, "Value": [id]}]});
    let vpcs = client.call("ec2", "DescribeVpcs", &json!({"VpcId": [id]})).await?;
    let subnets = client.pages("ec2", "DescribeSubnets", &filter("vpc-id")).await?;
    let gateways =
        client.call("ec2", "DescribeInternetGateways", &filter("attachment.vpc-id")).await?;
    let first = |response: &Value, list: &str, field: &str| {
        response.items(list).first().map(|one| one.text(field).to_owned()).unwrap_or_default()
    };
    let subnet = |one: &Value| Subnet {
        id: one.text("subnetId").to_owned(),
        zone: one.text("availabilityZone").to_owned(),
        cidr: one.text("cidrBlock").to_owned(),
    };
    Ok(Network {
        cidr: first(&vpcs, "vpcSet", "cidrBlock"),
        subnets: subnets.iter().flat_map(|page| page.items("subnetSet")).map(subnet).collect(),
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
    let groups = registry.groups(user.name()).unwrap_or_default();
    let whole = complete_objects(user, &groups, world).ok();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_for_images_in_bulk() {
        let ids: Vec<String> = (0..300).map(|number| format!("ami-{number:03}")).collect();
        let names: Vec<String> = (0..99).map(|number| format!("ubuntu/a{number:02}")).collect();
        let all = ids.iter().chain(&names).map(String::as_str);
        let queries = image_queries(all.chain(["own", "ubuntu/b*", "123/a00"]).collect());
        let sizes: Vec<_> = queries.iter().map(|query| query.names.len()).collect();
        assert_eq!(sizes, [0, 0, 99, 1, 1, 1]);
        assert_eq!(queries[0].parameters.items("ImageId").len(), FILTER_VALUES);
        assert_eq!(queries[1].parameters.items("ImageId").len(), 100);
        let ubuntu = &queries[2];
        assert_eq!(ubuntu.parameters.items("Owner"), ["099720109477"]);
        assert_eq!(ubuntu.names[7], ImageName { whole: "ubuntu/a07", own: "a07" });
        assert_eq!(queries[3].names, [ImageName { whole: "ubuntu/b*", own: "b*" }]);
        assert_eq!(queries[5].names, [ImageName { whole: "own", own: "own" }]);
        assert!(image_queries(BTreeSet::new()).is_empty());
    }
}
