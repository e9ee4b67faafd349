//! Renders a model as a Terraform configuration: `kubernetes.tf`, and multi-line content under `data/`. Names, order
//! and layout are upstream's, so that switching from upstream's `kops` shows no changes. Read [`terraform`] first.

mod outputs;

use std::collections::BTreeMap;

use self::outputs::Outputs;
pub use crate::aws::terraform::writer::Files;
use crate::{
    aws::{
        Body, Ref, Resource,
        terraform::{
            hcl::{Block, Expr, Item, map},
            labels,
            writer::{Target, Writer},
        },
    },
    direct::Selection,
    error::Error,
    model::aws::Model,
};

/// The settings of the configuration besides the resources.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The cluster's name.
    pub cluster: String,
    /// The user's arguments for the provider.
    pub provider: BTreeMap<String, String>,
    /// The user's arguments for the provider that writes the state store.
    pub files_provider: BTreeMap<String, String>,
    /// The region of the state store's bucket.
    pub files_region: String,
    /// The part of the model that the configuration contains.
    pub selection: Selection,
}

/// Renders the selected part of a model. Resources that Terraform does not support are rejected by name.
pub fn terraform(model: &Model, settings: &Settings) -> Result<Files, Error> {
    let mut writer = Writer { targets: targets(model), files: Files::new() };
    let mut outputs = Outputs::default();
    let mut resources: BTreeMap<(&str, &str, String), Block> = BTreeMap::new();
    outputs.set("cluster_name", Expr::text(&settings.cluster));
    outputs.set("region", Expr::text(&model.region));
    let is_selected =
        |resource: &&Resource| settings.selection.lifecycle(resource.kind()).is_applied();
    for resource in model.resources.values().filter(is_selected) {
        outputs.add(resource, model, &writer);
        if let Some(top) = top_level_block(resource, &mut writer)? {
            let key = (top.keyword, top.kind, labels::label(&top.name)?);
            if let Some((keyword, kind, label)) =
                resources.insert(key.clone(), top.block).map(|_| key)
            {
                let reason = format!(
                    "names two resources: Terraform knows both as {keyword} {kind} {label}"
                );
                return Err(Error::value(kind, &resource.name, reason));
            }
        }
    }
    let mut text = outputs.render()?;
    text.push_str(&providers(model, settings)?);
    // Resources come before data sources.
    for keyword in ["resource", "data"] {
        for ((_, kind, label), block) in resources.iter().filter(|((of, ..), _)| *of == keyword) {
            text.push_str(&block.render(0, &format!("{keyword} \"{kind}\" \"{label}\"")));
            text.push('\n');
        }
    }
    text.push_str(&requirements());
    let mut files = writer.files;
    files.insert("kubernetes.tf".to_owned(), text.into_bytes());
    Ok(files)
}

/// A top-level block.
struct TopLevelBlock {
    keyword: &'static str,
    kind: &'static str,
    name: String,
    block: Block,
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

/// Returns a resource's block; most existing resources have none.
fn top_level_block(
    resource: &Resource,
    writer: &mut Writer<'_>,
) -> Result<Option<TopLevelBlock>, Error> {
    let kind = resource.kind().terraform_type();
    let name = (resource.kind().operations().terraform_name)(&resource.name);
    if let Some(id) = &resource.shared {
        let Body::Vpc(_) = resource.body else { return Ok(None) };
        let mut block = Block::default();
        block.text("id", id);
        return Ok(Some(TopLevelBlock { keyword: "data", kind, name, block }));
    }
    let block = resource.body.operations().terraform(&resource.metadata(), writer)?;
    Ok(Some(TopLevelBlock { keyword: "resource", kind, name, block }))
}

fn providers(model: &Model, settings: &Settings) -> Result<String, Error> {
    let main = [("region".to_owned(), model.region.clone())];
    let files = [
        ("alias".to_owned(), "files".to_owned()),
        ("region".to_owned(), settings.files_region.clone()),
    ];
    let mut text = String::new();
    for (own, user) in [(&main[..], &settings.provider), (&files[..], &settings.files_provider)] {
        let mut block = Block::default();
        for (name, value) in own.iter().map(|(name, value)| (name, value)).chain(user) {
            block.set_named(labels::identifier(name)?, Item::Value(Expr::text(value)));
        }
        text.push_str(&block.render(0, "provider \"aws\""));
        text.push('\n');
    }
    Ok(text)
}

/// Returns the required versions of Terraform and of its provider.
fn requirements() -> String {
    let provider = [
        ("configuration_aliases", Expr::List(vec![Expr::Token("aws.files".to_owned())])),
        ("source", Expr::text("hashicorp/aws")),
        ("version", Expr::text(">= 5.0.0")),
    ];
    let provider = provider.map(|(name, value)| (name.to_owned(), value));
    format!(
        "terraform {{\n  required_version = \">= 0.15.0\"\n  required_providers {{\n{}  }}\n}}\n",
        map(&BTreeMap::from(provider), 4, "aws")
    )
}
