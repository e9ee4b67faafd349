//! Route tables and their routes.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    ec2::{Listing, delete, has_owner, with_tags},
    family::*,
    fields::{fields, id},
};

const ROUTE_TABLES: Listing =
    Listing { operation: "DescribeRouteTables", list: "routeTableSet", id: "routeTableId" };
/// The members of a route in answers. One of them has a value, the route's target.
const TARGETS: [&str; 6] = [
    "gatewayId",
    "natGatewayId",
    "transitGatewayId",
    "vpcPeeringConnectionId",
    "instanceId",
    "egressOnlyInternetGatewayId",
];

/// A route table.
#[derive(Clone, Debug)]
pub struct RouteTable {
    /// The VPC.
    pub vpc: Ref,
    /// The value of its role tag.
    pub role: String,
}

impl Operations for RouteTable {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![ROUTE_TABLES.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        ROUTE_TABLES.find(scope, answers, |item| fields([("VPC", item.text("vpcId").to_owned())]))
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteRouteTable", "RouteTableId", found)
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc]
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        fields([("VPC", id(ids, &self.vpc))])
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let request = with_tags(json!({"VpcId": id(ids, &self.vpc)}), "route-table", own.tags);
        Ok(Creation::ec2("CreateRouteTable", request, "routeTable.routeTableId"))
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.tags(own.tags).value("vpc_id", writer.link(&self.vpc));
        Ok(block)
    }
}

/// The use of a route table by a subnet.
#[derive(Clone, Debug)]
pub struct RouteTableAssociation {
    /// The route table.
    pub table: Ref,
    /// The subnet.
    pub subnet: Ref,
}

impl Operations for RouteTableAssociation {
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let mut all = Vec::new();
        for table in ROUTE_TABLES.items(answers) {
            let entries = table.items("associationSet").iter();
            for entry in entries.filter(|entry| entry.has("subnetId")) {
                let found = ExistingResource {
                    id: entry.text("routeTableAssociationId").to_owned(),
                    fields: fields([("Table", table.text("routeTableId").to_owned())]),
                    owned: has_owner(scope, table),
                    context: String::new(),
                };
                all.push((entry.text("subnetId").to_owned(), found));
            }
        }
        all
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DisassociateRouteTable", "AssociationId", found)
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.table, &self.subnet]
    }

    fn identity(&self, _own: &Header<'_>, ids: &Ids) -> Option<String> {
        ids.get(&self.subnet).cloned()
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        fields([("Table", id(ids, &self.table))])
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let request =
            json!({"RouteTableId": id(ids, &self.table), "SubnetId": id(ids, &self.subnet)});
        Ok(Creation::ec2("AssociateRouteTable", request, "associationId"))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        let table = id(update.ids, &self.table);
        let request = json!({"AssociationId": update.id(), "RouteTableId": table});
        Ok(vec![Call::ec2("ReplaceRouteTableAssociation", request)])
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.value("route_table_id", writer.link(&self.table));
        block.value("subnet_id", writer.link(&self.subnet));
        Ok(block)
    }
}

/// A route of a route table.
#[derive(Clone, Debug)]
pub struct Route {
    /// The route table.
    pub table: Ref,
    /// The destination's range.
    pub to: String,
    /// The target.
    pub via: RouteTarget,
}

/// The target of a route.
#[derive(Clone, Debug)]
pub enum RouteTarget {
    /// An internet gateway of the model.
    Internet(Ref),
    /// An egress-only gateway of the model.
    EgressOnly(Ref),
    /// A NAT gateway of the model.
    Nat(Ref),
    /// The ID of an existing internet gateway.
    ExistingInternet(String),
    /// The ID of an existing egress-only gateway.
    ExistingEgressOnly(String),
    /// The ID of an existing NAT gateway.
    ExistingNat(String),
    /// The ID of a machine.
    Instance(String),
    /// The ID of a transit gateway.
    Transit(String),
    /// The ID of a peering connection.
    Peering(String),
}

impl RouteTarget {
    /// Returns the reference, if the target is a resource of the model.
    fn reference(&self) -> Option<&Ref> {
        match self {
            Self::Internet(to) | Self::EgressOnly(to) | Self::Nat(to) => Some(to),
            Self::ExistingInternet(_)
            | Self::ExistingEgressOnly(_)
            | Self::ExistingNat(_)
            | Self::Instance(_)
            | Self::Transit(_)
            | Self::Peering(_) => None,
        }
    }

    /// Returns the target's parameter in calls and its value.
    fn parameter(&self, ids: &Ids) -> (&'static str, String) {
        match self {
            Self::Internet(to) => ("GatewayId", id(ids, to)),
            Self::Nat(to) => ("NatGatewayId", id(ids, to)),
            Self::EgressOnly(to) => ("EgressOnlyInternetGatewayId", id(ids, to)),
            Self::ExistingInternet(id) => ("GatewayId", id.clone()),
            Self::ExistingNat(id) => ("NatGatewayId", id.clone()),
            Self::ExistingEgressOnly(id) => ("EgressOnlyInternetGatewayId", id.clone()),
            Self::Instance(id) => ("InstanceId", id.clone()),
            Self::Transit(id) => ("TransitGatewayId", id.clone()),
            Self::Peering(id) => ("VpcPeeringConnectionId", id.clone()),
        }
    }
}

impl Route {
    fn request(&self, ids: &Ids) -> Value {
        let destination =
            if self.to.contains(':') { "DestinationIpv6CidrBlock" } else { "DestinationCidrBlock" };
        let (parameter, target) = self.via.parameter(ids);
        json!({"RouteTableId": id(ids, &self.table), destination: self.to, parameter: target})
    }
}

impl Operations for Route {
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let mut all = Vec::new();
        for table in ROUTE_TABLES.items(answers) {
            let routes = table.items("routeSet").iter();
            for route in routes.filter(|route| route.text("gatewayId") != "local") {
                let destination = ["destinationCidrBlock", "destinationIpv6CidrBlock"]
                    .map(|field| route.text(field))
                    .concat();
                let identity = format!("{} {destination}", table.text("routeTableId"));
                let found = ExistingResource {
                    id: identity.clone(),
                    fields: fields([("Via", TARGETS.map(|member| route.text(member)).concat())]),
                    owned: has_owner(scope, table),
                    context: String::new(),
                };
                all.push((identity, found));
            }
        }
        all
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn terraform_name(name: &str) -> String {
        format!("route-{name}")
    }

    fn refs(&self) -> Vec<&Ref> {
        [Some(&self.table), self.via.reference()].into_iter().flatten().collect()
    }

    fn identity(&self, _own: &Header<'_>, ids: &Ids) -> Option<String> {
        Some(format!("{} {}", ids.get(&self.table)?, self.to))
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        fields([("Via", self.via.parameter(ids).1)])
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        Ok(Creation::new(Call::ec2("CreateRoute", self.request(ids)), IdSource::Name))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        Ok(vec![Call::ec2("ReplaceRoute", self.request(update.ids))])
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let field = if self.to.contains(':') {
            "destination_ipv6_cidr_block"
        } else {
            "destination_cidr_block"
        };
        block.text(field, &self.to).value("route_table_id", writer.link(&self.table));
        let (field, via) = match &self.via {
            RouteTarget::Internet(to) => ("gateway_id", writer.link(to)),
            RouteTarget::ExistingInternet(id) => ("gateway_id", Expr::text(id)),
            RouteTarget::EgressOnly(to) => ("egress_only_gateway_id", writer.link(to)),
            RouteTarget::ExistingEgressOnly(id) => ("egress_only_gateway_id", Expr::text(id)),
            RouteTarget::Nat(to) => ("nat_gateway_id", writer.link(to)),
            RouteTarget::ExistingNat(id) => ("nat_gateway_id", Expr::text(id)),
            RouteTarget::Transit(id) => ("transit_gateway_id", Expr::text(id)),
            RouteTarget::Peering(id) => ("vpc_peering_connection_id", Expr::text(id)),
            RouteTarget::Instance(id) => {
                return Err(Error::Unsupported {
                    what: format!("a route to {} by machine {id} with Terraform", self.to),
                    remedy: "since version 5 its provider supports only interfaces; use a NAT gateway",
                });
            }
        };
        block.value(field, via);
        Ok(block)
    }
}
