//! The VPC, its ranges and its DHCP options.

use api_meta::Tree as _;
use serde_json::json;

use super::{
    ec2::{Listing, delete, has_owner, with_tags},
    family::*,
    fields::{TAG, fields, id, sorted},
};

const VPCS: Listing = Listing { operation: "DescribeVpcs", list: "vpcSet", id: "vpcId" };
const DHCP_OPTIONS: Listing =
    Listing { operation: "DescribeDhcpOptions", list: "dhcpOptionsSet", id: "dhcpOptionsId" };

/// A VPC.
#[derive(Clone, Debug)]
pub struct Vpc {
    /// The main IPv4 range.
    pub cidr: String,
}

impl Operations for Vpc {
    fn queries(scope: &Scope, answers: &Answers) -> Vec<Call> {
        let mut all = vec![VPCS.query(scope)];
        for item in VPCS.items(answers) {
            let request = json!({"VpcId": item.text("vpcId"), "Attribute": "enableDnsHostnames"});
            all.push(Call::ec2("DescribeVpcAttribute", request));
        }
        all
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        VPCS.find(scope, answers, |item| {
            let names = answers.about("DescribeVpcAttribute", "VpcId", item.text("vpcId"));
            let names = names.map(|answer| answer.text("enableDnsHostnames.value"));
            let ipv6 = !item.items("ipv6CidrBlockAssociationSet").is_empty();
            fields([
                ("CIDR", item.text("cidrBlock").to_owned()),
                ("IPv6", ipv6.to_string()),
                ("DNSHostnames", names.unwrap_or("false").to_owned()),
            ])
        })
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteVpc", "VpcId", found)
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields([
            ("CIDR", self.cidr.clone()),
            ("IPv6", "true".to_owned()),
            ("DNSHostnames", "true".to_owned()),
        ])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"CidrBlock": self.cidr, "AmazonProvidedIpv6CidrBlock": true});
        let creation = Creation::ec2("CreateVpc", with_tags(request, "vpc", own.tags), "vpc.vpcId");
        Ok(creation.with_later(["DNSHostnames"]))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        update.validate_fields(&["DNSHostnames"])?;
        let request = json!({"VpcId": update.id(), "EnableDnsHostnames": {"Value": true}});
        Ok(vec![Call::ec2("ModifyVpcAttribute", request)])
    }

    fn terraform(&self, own: &Header<'_>, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.flag("assign_generated_ipv6_cidr_block", true).text("cidr_block", &self.cidr);
        block.flag("enable_dns_hostnames", true).flag("enable_dns_support", true).tags(own.tags);
        Ok(block)
    }
}

/// An additional range of a VPC.
#[derive(Clone, Debug)]
pub struct VpcCidr {
    /// The VPC.
    pub vpc: Ref,
    /// The IPv4 range.
    pub cidr: String,
}

impl Operations for VpcCidr {
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let mut all = Vec::new();
        for vpc in VPCS.items(answers) {
            for block in vpc.items("cidrBlockAssociationSet") {
                let cidr = block.text("cidrBlock").to_owned();
                if cidr != vpc.text("cidrBlock") {
                    let owned = has_owner(scope, vpc);
                    let id = cidr.clone();
                    all.push((cidr, ExistingResource { id, owned, ..ExistingResource::default() }));
                }
            }
        }
        all
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn terraform_name(name: &str) -> String {
        format!("cidr-{name}")
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc]
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"VpcId": id(ids, &self.vpc), "CidrBlock": self.cidr});
        Ok(Creation::new(Call::ec2("AssociateVpcCidrBlock", request), IdSource::Name))
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("cidr_block", &self.cidr).value("vpc_id", writer.link(&self.vpc));
        Ok(block)
    }
}

/// The DHCP options of a VPC.
#[derive(Clone, Debug)]
pub struct DhcpOptions {
    /// The domain of the machines' names.
    pub domain: String,
    /// The DNS servers.
    pub servers: Vec<String>,
}

impl Operations for DhcpOptions {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![DHCP_OPTIONS.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        DHCP_OPTIONS.find(scope, answers, |item| {
            let option = |key: &str| {
                let all = item.items("dhcpConfigurationSet").iter();
                let values = all.filter(|set| set.text("key") == key);
                let values = values.flat_map(|set| set.items("valueSet"));
                sorted(values.map(|value| value.text("value").to_owned()).collect())
            };
            fields([
                ("DomainName", option("domain-name")),
                ("Servers", option("domain-name-servers")),
            ])
        })
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteDhcpOptions", "DhcpOptionsId", found)
    }

    fn desired_fields(&self, _own: &Header<'_>, _ids: &Ids) -> Fields {
        fields([("DomainName", self.domain.clone()), ("Servers", sorted(self.servers.clone()))])
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let options =
            [("domain-name", json!([self.domain])), ("domain-name-servers", json!(self.servers))];
        let options = options.map(|(key, value)| json!({"Key": key, "Value": value}));
        let request = with_tags(json!({"DhcpConfiguration": options}), "dhcp-options", own.tags);
        let mut creation = Creation::ec2("CreateDhcpOptions", request, "dhcpOptions.dhcpOptionsId");
        // Some servers ignore the tags of this call, so set them afterwards.
        creation.later = own.tags.keys().map(|key| format!("{TAG}{key}")).collect();
        Ok(creation)
    }

    fn terraform(&self, own: &Header<'_>, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("domain_name", &self.domain).tags(own.tags);
        block.value("domain_name_servers", Expr::texts(&self.servers));
        Ok(block)
    }
}

/// The use of DHCP options in a VPC.
#[derive(Clone, Debug)]
pub struct DhcpOptionsAssociation {
    /// The VPC.
    pub vpc: Ref,
    /// The DHCP options.
    pub options: Ref,
}

impl Operations for DhcpOptionsAssociation {
    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = VPCS.items(answers).map(|vpc| {
            let id = vpc.text("dhcpOptionsId").to_owned();
            let fields = fields([("Options", id.clone())]);
            let owned = has_owner(scope, vpc);
            let context = String::new();
            (vpc.text("vpcId").to_owned(), ExistingResource { id, fields, owned, context })
        });
        found.collect()
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.vpc, &self.options]
    }

    fn identity(&self, _own: &Header<'_>, ids: &Ids) -> Option<String> {
        ids.get(&self.vpc).cloned()
    }

    fn desired_fields(&self, _own: &Header<'_>, ids: &Ids) -> Fields {
        fields([("Options", id(ids, &self.options))])
    }

    fn create(&self, _own: &Header<'_>, ids: &Ids) -> Result<Creation, Error> {
        let request = json!({"VpcId": id(ids, &self.vpc), "DhcpOptionsId": id(ids, &self.options)});
        Ok(Creation::new(Call::ec2("AssociateDhcpOptions", request), IdSource::Name))
    }

    fn change(&self, update: &Update<'_>) -> Result<Vec<Call>, Error> {
        Ok(vec![self.create(&update.own, update.ids)?.call])
    }

    fn terraform(&self, _own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.value("dhcp_options_id", writer.link(&self.options));
        block.value("vpc_id", writer.link(&self.vpc));
        Ok(block)
    }
}
