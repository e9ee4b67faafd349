//! The text of `kubernetes.tf`: outputs, providers, resources and requirements, in upstream's order.

use std::collections::BTreeMap;

use super::{
    hcl::{Block, Expr, Item, map},
    labels,
    outputs::Outputs,
};
use crate::error::Error;

/// The providers with their required versions.
const VERSIONS: [(&str, &str); 2] = [("aws", ">= 5.0.0"), ("google", ">= 5.11.0")];
/// The alias of the provider that writes the state store.
const FILES: &str = "files";

/// A provider with its arguments.
struct Provider {
    name: &'static str,
    /// `true` for the provider that writes the state store.
    writes_files: bool,
    arguments: BTreeMap<String, String>,
}

/// The keyword, type and label of a top-level block. Resources come before data sources.
type Address = (Keyword, &'static str, String);

/// The keyword of a top-level block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keyword {
    Resource,
    Data,
}

impl Keyword {
    fn word(self) -> &'static str {
        match self {
            Self::Resource => "resource",
            Self::Data => "data",
        }
    }
}

/// A configuration.
#[derive(Default)]
pub(crate) struct Configuration {
    /// The outputs.
    pub(crate) outputs: Outputs,
    providers: Vec<Provider>,
    blocks: BTreeMap<Address, Block>,
}

impl Configuration {
    /// Adds a provider. `user` has the user's arguments.
    pub(crate) fn add_provider<const N: usize>(
        &mut self,
        name: &'static str,
        arguments: [(&str, &str); N],
        user: &BTreeMap<String, String>,
    ) {
        self.put_provider(name, arguments, user, false);
    }

    /// Adds the provider that writes the state store.
    pub(crate) fn add_files_provider<const N: usize>(
        &mut self,
        name: &'static str,
        arguments: [(&str, &str); N],
        user: &BTreeMap<String, String>,
    ) {
        self.put_provider(name, arguments, user, true);
    }

    fn put_provider<const N: usize>(
        &mut self,
        name: &'static str,
        arguments: [(&str, &str); N],
        user: &BTreeMap<String, String>,
        writes_files: bool,
    ) {
        let own = arguments.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut arguments = BTreeMap::from(own);
        arguments.extend(writes_files.then(|| ("alias".to_owned(), FILES.to_owned())));
        arguments.extend(user.clone());
        self.providers.push(Provider { name, writes_files, arguments });
    }

    /// Reports whether there is a block of a type.
    pub(crate) fn has(&self, kind: &str) -> bool {
        self.blocks.keys().any(|(_, one, _)| *one == kind)
    }

    /// Adds a top-level block. Two names with one label are rejected.
    pub(crate) fn add(
        &mut self,
        keyword: Keyword,
        kind: &'static str,
        name: &str,
        block: Block,
    ) -> Result<(), Error> {
        let label = labels::label(name)?;
        if self.blocks.insert((keyword, kind, label.clone()), block).is_some() {
            let word = keyword.word();
            let reason =
                format!("names two resources: Terraform knows both as {word} {kind} {label}");
            return Err(Error::value(kind, name, reason));
        }
        Ok(())
    }

    /// Returns the text.
    pub(crate) fn render(&self) -> Result<String, Error> {
        let mut text = self.outputs.render()?;
        for provider in &self.providers {
            let mut block = Block::default();
            for (name, value) in &provider.arguments {
                block.set_named(labels::identifier(name)?, Item::Value(Expr::text(value)));
            }
            text.push_str(&block.render(0, &format!("provider \"{}\"", provider.name)));
            text.push('\n');
        }
        for ((keyword, kind, label), block) in &self.blocks {
            let head = format!("{} \"{kind}\" \"{label}\"", keyword.word());
            text.push_str(&block.render(0, &head));
            text.push('\n');
        }
        text.push_str(&self.requirements());
        Ok(text)
    }

    /// Returns the required versions of Terraform and of the providers.
    fn requirements(&self) -> String {
        let mut out = "terraform {\n  required_version = \">= 0.15.0\"\n".to_owned();
        out.push_str("  required_providers {\n");
        for (name, version) in VERSIONS {
            let mut used = self.providers.iter().filter(|provider| provider.name == name);
            if used.clone().next().is_none() {
                continue;
            }
            let source = Expr::text(format!("hashicorp/{name}"));
            let mut provider = BTreeMap::from([
                ("source".to_owned(), source),
                ("version".to_owned(), Expr::text(version)),
            ]);
            if used.any(|provider| provider.writes_files) {
                let alias = Expr::List(vec![Expr::Token(format!("{name}.{FILES}"))]);
                provider.insert("configuration_aliases".to_owned(), alias);
            }
            out.push_str(&map(&provider, 4, name));
        }
        out.push_str("  }\n}\n");
        out
    }
}
