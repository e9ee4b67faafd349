//! The service accounts of machines, and their roles in the project and on buckets.

use super::family::*;

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

/// A role that a member has in a project or on a bucket.
#[derive(Debug)]
pub(crate) struct RoleBinding {
    pub(crate) scope: RoleScope,
    pub(crate) role: &'static str,
    pub(crate) member: Ref,
}

/// The resource to which a role applies.
#[derive(Debug)]
pub(crate) enum RoleScope {
    Project(String),
    Bucket(String),
}

impl Operations for RoleBinding {
    fn kind(&self) -> Kind {
        match self.scope {
            RoleScope::Project(_) => Kind::ProjectBinding,
            RoleScope::Bucket(_) => Kind::BucketMember,
        }
    }

    fn gce_name<'a>(&'a self, _name: &'a str) -> Option<&'a str> {
        None
    }

    fn refs(&self) -> Vec<&Ref> {
        vec![&self.member]
    }

    fn terraform(&self, _name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let (mut block, member) = (Block::default(), writer.member(&self.member));
        match &self.scope {
            RoleScope::Project(project) => {
                block.list("members", vec![member]);
                block.text("project", project).text("role", self.role);
            }
            RoleScope::Bucket(bucket) => {
                block.text("bucket", bucket).text("role", self.role);
                block.value("member", member);
            }
        }
        Ok(block)
    }
}
