//! Outputs, as values and as locals, for use in other configurations.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Writer,
    hcl::{Block, Expr, Item},
    names,
};
use crate::{
    Error,
    model::aws::{Body, Ref, Resource},
};

#[derive(Default)]
pub(super) struct Outputs {
    values: BTreeMap<String, Expr>,
    lists: BTreeMap<String, BTreeSet<String>>,
}

impl Outputs {
    pub(super) fn one(&mut self, name: impl Into<String>, value: Expr) {
        self.values.insert(name.into(), value);
    }

    fn among(&mut self, name: impl Into<String>, value: &Expr) {
        self.lists.entry(name.into()).or_default().insert(value.written());
    }

    pub(super) fn written(&self) -> Result<String, Error> {
        let mut all = self.values.clone();
        for (name, items) in &self.lists {
            let items = items.iter().map(|item| Expr::Token(item.clone())).collect();
            all.insert(name.clone(), Expr::List(items));
        }
        let mut locals = Block::default();
        for (name, value) in all {
            locals.set_named(names::label(&name)?, Item::Value(value));
        }
        let mut text = locals.written(0, "locals") + "\n";
        for (name, item) in locals.members() {
            let mut block = Block::default();
            block.set("value", item.clone());
            text.push_str(&block.written(0, &format!("output \"{name}\"")));
            text.push('\n');
        }
        Ok(text)
    }
}

impl Writer<'_> {
    /// Adds the outputs of a resource.
    pub(super) fn add_outputs(&mut self, resource: &Resource) {
        let own = Ref::new(resource.kind(), resource.name.clone());
        let link = self.link(&own);
        match &resource.body {
            Body::Vpc { .. } => self.add_vpc_outputs(resource, &own, link),
            Body::Subnet(subnet) => {
                if resource.shared.is_some() {
                    self.outputs.among("subnet_ids", &link);
                }
                self.outputs.one(format!("subnet_{}_id", subnet.short), link);
            }
            Body::RouteTable { role, .. } => {
                self.outputs.one(format!("route_table_{role}_id"), link);
            }
            Body::Role { known, .. } => {
                let arn = self.property(&own, "arn");
                self.outputs.one(format!("{known}_role_arn"), arn);
                self.outputs.one(format!("{known}_role_name"), link);
            }
            Body::OidcProvider { url, .. } => {
                let issuer = url.split_once("://").map_or(url.as_str(), |(_, issuer)| issuer);
                self.outputs.one("iam_openid_connect_provider_arn", link);
                self.outputs.one("iam_openid_connect_provider_issuer", Expr::text(issuer));
            }
            Body::ScalingGroup(group) => {
                let role = &group.role;
                self.outputs.among(format!("{role}_autoscaling_group_ids"), &link);
                if let Some(Body::LaunchTemplate(template)) =
                    self.model.find(&group.template).map(|found| &found.body)
                {
                    for one in &template.security_groups {
                        let one = self.link(one);
                        self.outputs.among(format!("{role}_security_group_ids"), &one);
                    }
                }
                for subnet in group.subnets.iter().filter(|_| role == "node") {
                    let subnet = self.link(subnet);
                    self.outputs.among("node_subnet_ids", &subnet);
                }
            }
            _ => {}
        }
    }

    fn add_vpc_outputs(&mut self, resource: &Resource, own: &Ref, link: Expr) {
        self.outputs.one("vpc_id", link);
        for field in ["cidr_block", "ipv6_cidr_block"] {
            let property = match resource.shared {
                Some(_) => Expr::Token(format!("data.{}", self.property(own, field).written())),
                None => self.property(own, field),
            };
            self.outputs.one(format!("vpc_{field}"), property);
        }
        // The prefix length of the VPC's own IPv6 range, if it has one.
        let length = r#"local.vpc_ipv6_cidr_block == "" ? null : tonumber(regex(".*/(\\d+)", local.vpc_ipv6_cidr_block)[0])"#;
        self.outputs.one("vpc_ipv6_cidr_length", Expr::Token(length.to_owned()));
    }
}
