//! References between the resources of a Terraform configuration, and the files beside it.

use std::collections::BTreeMap;

use super::kind::{Kind, Ref};
use crate::{
    error::Error,
    terraform::{
        files::{FileField, Files},
        hcl::Expr,
        labels,
    },
};

/// Renders references, and collects the files of a configuration.
pub(crate) struct Writer<'a> {
    /// The resources of the configuration.
    pub(crate) targets: BTreeMap<Ref, Target<'a>>,
    /// The collected files.
    pub(crate) files: Files,
}

/// A resource that others refer to.
pub(crate) struct Target<'a> {
    /// The name in Terraform.
    pub(crate) name: String,
    /// The ID of an existing resource.
    pub(crate) shared: Option<&'a str>,
    /// The attribute by which others refer to the resource.
    pub(crate) reference: &'static str,
}

impl Writer<'_> {
    /// Returns the expression by which others refer to a resource.
    pub(crate) fn link(&self, to: &Ref) -> Expr {
        self.property(to, self.targets.get(to).map_or("id", |target| target.reference))
    }

    /// Returns the references to several resources.
    pub(crate) fn links(&self, all: &[Ref]) -> Vec<Expr> {
        all.iter().map(|to| self.link(to)).collect()
    }

    /// Returns the references to several resources, sorted by their text.
    pub(crate) fn sorted_links<'r>(&self, all: impl IntoIterator<Item = &'r Ref>) -> Vec<Expr> {
        let mut links: Vec<_> = all.into_iter().map(|to| self.link(to)).collect();
        links.sort_by_key(Expr::render);
        links
    }

    /// Returns a property of a resource; for an existing resource, its ID.
    pub(crate) fn property(&self, to: &Ref, property: &str) -> Expr {
        let target = self.targets.get(to);
        // The range of an existing VPC is read from a data source.
        let looked_up = to.kind == Kind::Vpc && property != "id";
        if let Some(id) = target.and_then(|target| target.shared).filter(|_| !looked_up) {
            return Expr::text(id);
        }
        let name = target.map_or(&to.name, |target| &target.name);
        // An invalid name is rejected when its resource is rendered.
        let label = labels::label(name).unwrap_or_default();
        Expr::Token(format!("{}.{label}.{property}", to.kind.terraform_type()))
    }

    /// Adds a file with this content, and returns an expression that reads it as base64.
    pub(crate) fn binary_file(
        &mut self,
        kind: Kind,
        name: &str,
        field: &str,
        content: &[u8],
    ) -> Result<Expr, Error> {
        let field = FileField { kind: kind.terraform_type(), name, field };
        field.add_binary(&mut self.files, content)
    }

    /// Adds a file with this text, and returns an expression that reads it.
    pub(crate) fn text_file(
        &mut self,
        kind: Kind,
        name: &str,
        field: &str,
        text: &str,
    ) -> Result<Expr, Error> {
        FileField { kind: kind.terraform_type(), name, field }.add_text(&mut self.files, text)
    }
}
