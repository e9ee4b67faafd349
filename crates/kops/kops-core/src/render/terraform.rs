//! Renders a model as a Terraform configuration: `kubernetes.tf`, and multi-line content under `data/`. Names, order
//! and layout are upstream's, so that switching from upstream's `kops` shows no changes. Read [`terraform`] first.

mod aws;
mod hcl;
mod machines;
mod names;
mod outputs;

use std::collections::BTreeMap;

use self::{
    hcl::{Block, Expr, Item},
    outputs::Outputs,
};
use crate::{Error, model::aws::Model};

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
}

/// Files by their names within the configuration's directory.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Renders a model. Resources that Terraform does not support are rejected by name.
pub fn terraform(model: &Model, settings: &Settings) -> Result<Files, Error> {
    let mut writer = Writer { model, files: Files::new(), outputs: Outputs::default() };
    let mut resources: BTreeMap<(&str, &str, String), Block> = BTreeMap::new();
    writer.outputs.one("cluster_name", Expr::text(&settings.cluster));
    writer.outputs.one("region", Expr::text(&model.region));
    for resource in model.resources.values() {
        writer.add_outputs(resource);
        for written in writer.resource(resource)? {
            let key = (written.keyword, written.kind, names::label(&written.name)?);
            if let Some((keyword, kind, label)) =
                resources.insert(key.clone(), written.block).map(|_| key)
            {
                let reason = format!(
                    "names two resources: Terraform knows both as {keyword} {kind} {label}"
                );
                return Err(Error::value(kind, &resource.name, reason));
            }
        }
    }
    let mut text = writer.outputs.written()?;
    text.push_str(&providers(model, settings)?);
    // Resources come before data sources.
    for keyword in ["resource", "data"] {
        for ((_, kind, label), block) in resources.iter().filter(|((of, ..), _)| *of == keyword) {
            text.push_str(&block.written(0, &format!("{keyword} \"{kind}\" \"{label}\"")));
            text.push('\n');
        }
    }
    text.push_str(&requirements());
    let mut files = writer.files;
    files.insert("kubernetes.tf".to_owned(), text.into_bytes());
    Ok(files)
}

struct Writer<'a> {
    model: &'a Model,
    files: Files,
    outputs: Outputs,
}

/// A top-level block.
struct TopLevelBlock {
    keyword: &'static str,
    kind: &'static str,
    name: String,
    block: Block,
}

impl Writer<'_> {
    /// Adds a file with this content, and returns an expression that reads it.
    fn file(
        &mut self,
        kind: &str,
        name: &str,
        field: &str,
        content: &[u8],
        binary: bool,
    ) -> Result<Expr, Error> {
        let file = names::file(&format!("{kind}_{name}_{field}"))?;
        let function = if binary { "filebase64" } else { "file" };
        let path = format!("data/{file}");
        let token = Expr::Token(format!("{function}(\"${{path.module}}/{path}\")"));
        self.files.insert(path, content.to_vec());
        Ok(token)
    }
}

fn providers(model: &Model, settings: &Settings) -> Result<String, Error> {
    let main = [("region".to_owned(), model.region.clone())];
    let files = [
        ("alias".to_owned(), "files".to_owned()),
        ("region".to_owned(), settings.files_region.clone()),
    ];
    let mut text = String::new();
    for (own, given) in [(&main[..], &settings.provider), (&files[..], &settings.files_provider)] {
        let mut block = Block::default();
        for (name, value) in own.iter().map(|(name, value)| (name, value)).chain(given) {
            block.set_named(names::identifier(name)?, Item::Value(Expr::text(value)));
        }
        text.push_str(&block.written(0, "provider \"aws\""));
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
        hcl::map(&BTreeMap::from(provider), 4, "aws")
    )
}
