//! Subnets.

use api_meta::Tree as _;
use serde_json::json;

use super::{
    ec2::{Listing, delete, with_tags},
    family::*,
    fields::{fields, id},
};

const SUBNETS: Listing =
    Listing { operation: "DescribeSubnets", list: "subnetSet", id: "subnetId" };

/// A subnet. Without an IPv4 range it has only IPv6.
#[derive(Clone, Debug)]
pub struct Subnet {
    /// The subnet's name in the spec.
    pub short: String,
    /// The VPC.
    pub vpc: Ref,
    /// The availability zone.
    pub zone: String,
    /// The IPv4 range; empty for none.
    pub cidr: String,
    /// The IPv6 range, or `/SIZE#NUMBER` within the VPC's; empty for none.
    pub ipv6: String,
    /// `true` if machines are named by their IDs.
    pub named_by_id: bool,
}

impl Operations for Subnet {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![SUBNETS.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        SUBNETS.find(scope, answers, |item| {
            let text = |path: &str| item.text(path).to_owned();
            fields([
                ("VPC", text("vpcId")),
                ("CIDR", text("cidrBlock")),
                ("Zone", text("availabilityZone")),
                ("NamedByID", text("privateDnsNameOptionsOnLaunch.enableResourceNameDnsARecord")),
            ])
        })
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteSubnet", "SubnetId", found)
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc]
    }

    fn direct_limit(&self) -> Option<Limit> {
        let feature = "a subnet with a range of IPv6";
        (!self.ipv6.is_empty()).then_some(Limit { feature, remedy: "use --target=terraform" })
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        let mut all = fields([
            ("VPC", id(ids, &self.vpc)),
            ("CIDR", self.cidr.clone()),
            ("Zone", self.zone.clone()),
        ]);
        if self.named_by_id {
            all.insert("NamedByID".to_owned(), "true".to_owned());
        }
        all
    }

    fn create(&self, own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"VpcId": id(ids, &self.vpc), "CidrBlock": self.cidr, "AvailabilityZone": self.zone});
        let request = with_tags(request, "subnet", own.tags);
        let creation = Creation::ec2("CreateSubnet", request, "subnet.subnetId");
        Ok(creation.with_later(self.named_by_id.then_some("NamedByID")))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        update.validate_fields(&["NamedByID"])?;
        let id = update.id();
        // The compared attribute is set last, because it stands for both.
        let requests = [
            json!({"SubnetId": id, "PrivateDnsHostnameTypeOnLaunch": "resource-name"}),
            json!({"SubnetId": id, "EnableResourceNameDnsARecordOnLaunch": {"Value": true}}),
        ];
        Ok(requests.map(|request| Call::ec2("ModifySubnetAttribute", request)).into())
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        let (v4, v6) = (!self.cidr.is_empty(), !self.ipv6.is_empty());
        block.text("availability_zone", &self.zone).tags(own.tags);
        block.value("vpc_id", writer.link(&self.vpc));
        if v4 {
            block.text("cidr_block", &self.cidr);
        } else {
            block.flag("enable_dns64", true).flag("ipv6_native", true);
        }
        if v6 {
            block.flag("assign_ipv6_address_on_creation", true);
            block.value("ipv6_cidr_block", ipv6_range(&self.ipv6)?);
        }
        if self.named_by_id {
            block.text("private_dns_hostname_type_on_launch", "resource-name");
            for (holds, record) in [(v4, "a"), (v6, "aaaa")] {
                if holds {
                    let name = format!("enable_resource_name_dns_{record}_record_on_launch");
                    block.flag(&name, true);
                }
            }
        }
        Ok(block)
    }
}

/// Returns a subnet's IPv6 range, which may be part of the VPC's: `/64#1a` is part number 1a, in hexadecimal.
fn ipv6_range(text: &str) -> Result<Expr, Error> {
    let Some(part) = text.strip_prefix('/') else { return Ok(Expr::text(text)) };
    let parsed = part.split_once('#').and_then(|(size, number)| {
        Some((size.parse::<u8>().ok()?, u64::from_str_radix(number, 16).ok()?))
    });
    let Some((size, number)) = parsed else {
        let reason = "is not a part of a range such as /64#1a";
        return Err(Error::value("spec.subnets[].ipv6CIDR", text, reason));
    };
    let (block, length) = ("local.vpc_ipv6_cidr_block", "local.vpc_ipv6_cidr_length");
    Ok(Expr::Token(format!("cidrsubnet({block}, {size} - {length}, {number})")))
}
