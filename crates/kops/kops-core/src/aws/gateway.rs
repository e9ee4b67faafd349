//! Gateways between a VPC and the internet, and their addresses.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{
    ec2::{Listing, delete, with_tags},
    family::*,
    fields::{fields, id},
};

const INTERNET_GATEWAYS: Listing = Listing {
    operation: "DescribeInternetGateways",
    list: "internetGatewaySet",
    id: "internetGatewayId",
};
const ADDRESSES: Listing =
    Listing { operation: "DescribeAddresses", list: "addressesSet", id: "allocationId" };
const NAT_GATEWAYS: Listing =
    Listing { operation: "DescribeNatGateways", list: "natGatewaySet", id: "natGatewayId" };

/// An internet gateway.
#[derive(Clone, Debug)]
pub struct InternetGateway {
    /// The VPC.
    pub vpc: Ref,
}

impl Operations for InternetGateway {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![INTERNET_GATEWAYS.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let vpc = |item: &Value| {
            let attachment = item.items("attachmentSet").first();
            attachment.map(|to| to.text("vpcId")).unwrap_or_default().to_owned()
        };
        let mut all = INTERNET_GATEWAYS.find(scope, answers, |item| fields([("VPC", vpc(item))]));
        for (_, found) in &mut all {
            found.context = found.fields.get("VPC").cloned().unwrap_or_default();
        }
        all
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        let mut calls = delete("DeleteInternetGateway", "InternetGatewayId", found);
        if !found.context.is_empty() {
            let request = json!({"InternetGatewayId": found.id, "VpcId": found.context});
            calls.insert(0, Call::ec2("DetachInternetGateway", request));
        }
        calls
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc]
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        fields([("VPC", id(ids, &self.vpc))])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request = with_tags(json!({}), "internet-gateway", own.tags);
        let path = "internetGateway.internetGatewayId";
        Ok(Creation::ec2("CreateInternetGateway", request, path).with_later(["VPC"]))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        // A gateway attached to another VPC is not taken from it.
        if !update.found.context.is_empty() {
            update.validate_fields(&[])?;
        }
        let request = json!({"InternetGatewayId": update.id(), "VpcId": id(update.ids, &self.vpc)});
        Ok(vec![Call::ec2("AttachInternetGateway", request)])
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.tags(own.tags).value("vpc_id", writer.link(&self.vpc));
        Ok(block)
    }
}

/// A gateway for outgoing IPv6 connections. Direct calls do not support it.
#[derive(Clone, Debug)]
pub struct EgressOnlyGateway {
    /// The VPC.
    pub vpc: Ref,
}

impl Operations for EgressOnlyGateway {
    fn find_existing(_scope: &Scope, _answers: &Answers) -> Vec<IdentifiedResource> {
        Vec::new()
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc]
    }

    fn direct_limit(&self) -> Option<Limit> {
        Some(Limit { feature: "a cluster with IPv6 alone", remedy: "use --target=terraform" })
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        Err(own.internal_error())
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.tags(own.tags).value("vpc_id", writer.link(&self.vpc));
        Ok(block)
    }
}

/// An elastic IP address.
#[derive(Clone, Debug)]
pub struct ElasticIp;

impl Operations for ElasticIp {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![ADDRESSES.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        ADDRESSES.find(scope, answers, |_| Fields::new())
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("ReleaseAddress", "AllocationId", found)
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request = with_tags(json!({"Domain": "vpc"}), "elastic-ip", own.tags);
        Ok(Creation::ec2("AllocateAddress", request, "allocationId"))
    }

    fn terraform(&self, own: &Header<'_>, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("domain", "vpc").tags(own.tags);
        Ok(block)
    }
}

/// A NAT gateway.
#[derive(Clone, Debug)]
pub struct NatGateway {
    /// The address.
    pub address: Option<Ref>,
    /// The subnet.
    pub subnet: Ref,
}

impl Operations for NatGateway {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![NAT_GATEWAYS.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let is_gone =
            |item: &Value| ["deleting", "deleted", "failed"].contains(&item.text("state"));
        let present = NAT_GATEWAYS.items(answers).filter(|item| !is_gone(item));
        let found = present.map(|item| {
            let address = item.items("natGatewayAddressSet").first();
            let address = address.map(|one| one.text("allocationId")).unwrap_or_default();
            let fields = fields([
                ("Subnet", item.text("subnetId").to_owned()),
                ("Address", address.to_owned()),
            ]);
            NAT_GATEWAYS.identified(scope, item, fields)
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteNatGateway", "NatGatewayId", found)
    }

    fn refs(&self) -> Vec<&Ref> {
        self.address.iter().chain([&self.subnet]).collect()
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        let mut all = fields([("Subnet", id(ids, &self.subnet))]);
        all.extend(self.address.as_ref().map(|to| ("Address".to_owned(), id(ids, to))));
        all
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"SubnetId": id(ids, &self.subnet)});
        let mut request = with_tags(request, "natgateway", own.tags);
        if let Some(address) = &self.address {
            request.put("AllocationId", id(ids, address));
        }
        Ok(Creation::ec2("CreateNatGateway", request, "natGateway.natGatewayId"))
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.opt_value("allocation_id", self.address.as_ref().map(|to| writer.link(to)));
        block.value("subnet_id", writer.link(&self.subnet)).tags(own.tags);
        Ok(block)
    }
}
