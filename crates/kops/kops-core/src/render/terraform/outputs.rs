//! Outputs, as values and as locals, for use in other configurations.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    aws::{
        Body, Ref, Resource,
        terraform::{
            hcl::{Block, Expr, Item},
            labels,
            writer::Writer,
        },
    },
    error::Error,
    model::aws::Model,
};

/// The outputs of a configuration.
#[derive(Default)]
pub(super) struct Outputs {
    values: BTreeMap<String, Expr>,
    lists: BTreeMap<String, BTreeSet<String>>,
}

impl Outputs {
    /// Sets an output.
    pub(super) fn set(&mut self, name: impl Into<String>, value: Expr) {
        self.values.insert(name.into(), value);
    }

    /// Adds an item to a list.
    fn push(&mut self, name: impl Into<String>, value: &Expr) {
        self.lists.entry(name.into()).or_default().insert(value.render());
    }

    /// Returns the locals and the outputs.
    pub(super) fn render(&self) -> Result<String, Error> {
        let mut all = self.values.clone();
        for (name, items) in &self.lists {
            let items = items.iter().map(|item| Expr::Token(item.clone())).collect();
            all.insert(name.clone(), Expr::List(items));
        }
        let mut locals = Block::default();
        for (name, value) in all {
            locals.set_named(labels::label(&name)?, Item::Value(value));
        }
        let mut text = locals.render(0, "locals") + "\n";
        for (name, item) in locals.members() {
            let mut block = Block::default();
            block.set("value", item.clone());
            text.push_str(&block.render(0, &format!("output \"{name}\"")));
            text.push('\n');
        }
        Ok(text)
    }

    /// Adds the outputs of a resource.
    pub(super) fn add(&mut self, resource: &Resource, model: &Model, writer: &Writer<'_>) {
        let own = resource.reference();
        let link = writer.link(&own);
        match &resource.body {
            Body::Vpc(_) => self.add_vpc(resource, &own, writer),
            Body::Subnet(subnet) => {
                if resource.shared.is_some() {
                    self.push("subnet_ids", &link);
                }
                self.set(format!("subnet_{}_id", subnet.short), link);
            }
            Body::RouteTable(table) => {
                self.set(format!("route_table_{}_id", table.role), link);
            }
            Body::Role(role) => {
                let name = &role.output;
                let arn = writer.property(&own, "arn");
                self.set(format!("{name}_role_arn"), arn);
                self.set(format!("{name}_role_name"), link);
            }
            Body::OidcProvider(provider) => {
                let url = &provider.url;
                let issuer = url.split_once("://").map_or(url.as_str(), |(_, issuer)| issuer);
                self.set("iam_openid_connect_provider_arn", link);
                self.set("iam_openid_connect_provider_issuer", Expr::text(issuer));
            }
            Body::ScalingGroup(group) => {
                let role = &group.role;
                self.push(format!("{role}_autoscaling_group_ids"), &link);
                if let Some(Body::LaunchTemplate(template)) =
                    model.find(&group.template).map(|found| &found.body)
                {
                    for one in &template.security_groups {
                        let one = writer.link(one);
                        self.push(format!("{role}_security_group_ids"), &one);
                    }
                }
                for subnet in group.subnets.iter().filter(|_| role == "node") {
                    let subnet = writer.link(subnet);
                    self.push("node_subnet_ids", &subnet);
                }
            }
            _ => {}
        }
    }

    fn add_vpc(&mut self, resource: &Resource, own: &Ref, writer: &Writer<'_>) {
        self.set("vpc_id", writer.link(own));
        for field in ["cidr_block", "ipv6_cidr_block"] {
            let property = match resource.shared {
                Some(_) => Expr::Token(format!("data.{}", writer.property(own, field).render())),
                None => writer.property(own, field),
            };
            self.set(format!("vpc_{field}"), property);
        }
        // The prefix length of the VPC's own IPv6 range, if it has one.
        let length = r#"local.vpc_ipv6_cidr_block == "" ? null : tonumber(regex(".*/(\\d+)", local.vpc_ipv6_cidr_block)[0])"#;
        self.set("vpc_ipv6_cidr_length", Expr::Token(length.to_owned()));
    }
}
