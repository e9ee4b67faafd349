//! The service accounts of machines, and their roles in the project and on buckets.

use super::{
    kind::{Kind, Ref},
    operations::Operations,
    writer::Writer,
};
use crate::{error::Error, terraform::hcl::Block};

/// A service account.
#[derive(Debug)]
pub(crate) struct ServiceAccount {
    /// The part of the email address before the `@`.
    pub(crate) account: String,
    pub(crate) project: String,
    pub(crate) description: &'static str,
}

impl Operations for ServiceAccount {
    fn kind(&self) -> Kind {
        Kind::ServiceAccount
    }

    fn gce_name<'a>(&'a self, _name: &'a str) -> Option<&'a str> {
        Some(&self.account)
    }

    fn terraform(&self, name: &str, _writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("account_id", &self.account).text("description", self.description);
        block.text("display_name", name).text("project", &self.project);
        Ok(block)
    }
}

/// A role in the project.
#[derive(Debug)]
pub(crate) struct ProjectBinding {
    pub(crate) project: String,
    pub(crate) role: &'static str,
    pub(crate) member: Ref,
}

impl Operations for ProjectBinding {
    fn kind(&self) -> Kind {
        Kind::ProjectBinding
    }

    fn gce_name<'a>(&'a self, _name: &'a str) -> Option<&'a str> {
        None
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.member]
    }

    fn terraform(&self, _name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.list("members", vec![writer.member(&self.member)]);
        block.text("project", &self.project).text("role", self.role);
        Ok(block)
    }
}

/// A role on a bucket.
#[derive(Debug)]
pub(crate) struct BucketMember {
    pub(crate) bucket: String,
    pub(crate) role: &'static str,
    pub(crate) member: Ref,
}

impl Operations for BucketMember {
    fn kind(&self) -> Kind {
        Kind::BucketMember
    }

    fn gce_name<'a>(&'a self, _name: &'a str) -> Option<&'a str> {
        None
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.member]
    }

    fn terraform(&self, _name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("bucket", &self.bucket).text("role", self.role);
        block.value("member", writer.member(&self.member));
        Ok(block)
    }
}
