//! References between the resources of a Terraform configuration, and the files beside it.

use std::collections::BTreeMap;

use super::kind::Ref;
use crate::terraform::{files::Files, hcl::Expr, labels};

/// Renders references, and collects the files of a configuration.
pub(crate) struct Writer<'a> {
    /// The texts that refer to existing resources.
    pub(crate) existing: BTreeMap<&'a Ref, &'a str>,
    /// The collected files.
    pub(crate) files: Files,
}

impl Writer<'_> {
    /// Returns the expression by which others refer to a resource.
    pub(crate) fn link(&self, to: &Ref) -> Expr {
        if let Some(text) = self.existing.get(to) {
            return Expr::text(*text);
        }
        let (kind, attribute) = (to.kind.terraform_type(), to.kind.attribute());
        // An invalid name is rejected when its resource is rendered.
        let label = labels::label(&to.name).unwrap_or_default();
        Expr::Token(format!("{kind}.{label}.{attribute}"))
    }

    /// Returns the references to several resources.
    pub(crate) fn links(&self, all: &[Ref]) -> Vec<Expr> {
        all.iter().map(|to| self.link(to)).collect()
    }

    /// Returns the member that stands for a service account in IAM.
    pub(crate) fn member(&self, account: &Ref) -> Expr {
        let email = self.link(account).render();
        Expr::Token(format!("format(\"serviceAccount:%s\", {email})"))
    }
}
