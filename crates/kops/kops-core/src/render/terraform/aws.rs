//! The configuration of a cluster on AWS.

use std::collections::BTreeMap;

use super::settings::{MAIN, Settings};
use crate::{
    aws::{
        Body, Ref, Resource,
        writer::{Target, Writer},
    },
    direct::Selection,
    error::Error,
    model::aws::Model,
    terraform::{
        configuration::{Configuration, Keyword},
        files::{Files, S3_OBJECT},
        hcl::{Block, Expr},
        outputs::Outputs,
    },
};

/// Renders the selected part of a model. Resources that Terraform does not support are rejected by name.
pub fn aws(model: &Model, settings: &Settings, selection: &Selection) -> Result<Files, Error> {
    let mut writer = Writer { targets: targets(model), files: Files::new() };
    let mut configuration = Configuration::default();
    configuration.outputs.set("cluster_name", Expr::text(&settings.cluster));
    configuration.outputs.set("region", Expr::text(&model.region));
    let is_selected = |resource: &&Resource| selection.lifecycle(resource.kind()).is_applied();
    for resource in model.resources.values().filter(is_selected) {
        add_outputs(&mut configuration.outputs, resource, model, &writer);
        add_block(&mut configuration, resource, &mut writer)?;
    }
    configuration.add_provider("aws", [("region", &model.region)], &settings.provider);
    if configuration.has(S3_OBJECT) {
        let region = [("region", settings.files_region.as_str())];
        configuration.add_files_provider("aws", region, &settings.files_provider);
    }
    let mut files = writer.files;
    files.insert(MAIN.to_owned(), configuration.render()?.into_bytes());
    Ok(files)
}

/// Returns the resources that others may refer to.
fn targets(model: &Model) -> BTreeMap<Ref, Target<'_>> {
    let mut targets = BTreeMap::new();
    for (to, resource) in &model.resources {
        let operations = to.kind.operations();
        let name = (operations.terraform_name)(&to.name);
        let (shared, reference) = (resource.shared.as_deref(), (operations.terraform_reference)());
        targets.insert(to.clone(), Target { name, shared, reference });
    }
    targets
}

/// Adds a resource's block; most existing resources have none.
fn add_block(
    configuration: &mut Configuration,
    resource: &Resource,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    let kind = resource.kind().terraform_type();
    let name = (resource.kind().operations().terraform_name)(&resource.name);
    if let Some(id) = &resource.shared {
        let Body::Vpc(_) = resource.body else { return Ok(()) };
        let mut block = Block::default();
        block.text("id", id);
        return configuration.add(Keyword::Data, kind, &name, block);
    }
    let block = resource.body.operations().terraform(&resource.metadata(), writer)?;
    configuration.add(Keyword::Resource, kind, &name, block)
}

/// Adds the outputs of a resource.
fn add_outputs(outputs: &mut Outputs, resource: &Resource, model: &Model, writer: &Writer<'_>) {
    let own = resource.reference();
    let link = writer.link(&own);
    match &resource.body {
        Body::Vpc(_) => add_vpc(outputs, resource, &own, writer),
        Body::Subnet(subnet) => {
            if resource.shared.is_some() {
                outputs.push("subnet_ids", &link);
            }
            outputs.set(format!("subnet_{}_id", subnet.short), link);
        }
        Body::RouteTable(table) => {
            outputs.set(format!("route_table_{}_id", table.role), link);
        }
        Body::Role(role) => {
            let name = &role.output;
            let arn = writer.property(&own, "arn");
            outputs.set(format!("{name}_role_arn"), arn);
            outputs.set(format!("{name}_role_name"), link);
        }
        Body::OidcProvider(provider) => {
            let url = &provider.url;
            let issuer = url.split_once("://").map_or(url.as_str(), |(_, issuer)| issuer);
            outputs.set("iam_openid_connect_provider_arn", link);
            outputs.set("iam_openid_connect_provider_issuer", Expr::text(issuer));
        }
        Body::ScalingGroup(group) => {
            let role = &group.role;
            outputs.push(format!("{role}_autoscaling_group_ids"), &link);
            if let Some(Body::LaunchTemplate(template)) =
                model.find(&group.template).map(|found| &found.body)
            {
                for one in &template.security_groups {
                    let one = writer.link(one);
                    outputs.push(format!("{role}_security_group_ids"), &one);
                }
            }
            for subnet in group.subnets.iter().filter(|_| role == "node") {
                let subnet = writer.link(subnet);
                outputs.push("node_subnet_ids", &subnet);
            }
        }
        _ => {}
    }
}

fn add_vpc(outputs: &mut Outputs, resource: &Resource, own: &Ref, writer: &Writer<'_>) {
    outputs.set("vpc_id", writer.link(own));
    for field in ["cidr_block", "ipv6_cidr_block"] {
        let property = match resource.shared {
            Some(_) => Expr::Token(format!("data.{}", writer.property(own, field).render())),
            None => writer.property(own, field),
        };
        outputs.set(format!("vpc_{field}"), property);
    }
    // The prefix length of the VPC's own IPv6 range, if it has one.
    let length = r#"local.vpc_ipv6_cidr_block == "" ? null : tonumber(regex(".*/(\\d+)", local.vpc_ipv6_cidr_block)[0])"#;
    outputs.set("vpc_ipv6_cidr_length", Expr::Token(length.to_owned()));
}
