//! Objects of the state store, which only Terraform writes as resources.

use super::{
    answers::Answers,
    call::Call,
    existing::{ExistingResource, IdentifiedResource, Ids},
    operations::{Creation, Header, Operations},
    scope::Scope,
    terraform::{
        hcl::{Block, Expr},
        writer::Writer,
    },
};
use crate::error::Error;

/// An object of the state store in a bucket.
#[derive(Clone, Debug)]
pub struct StoreObject {
    /// The bucket.
    pub bucket: String,
    /// The object's key.
    pub key: String,
    /// The content.
    pub content: String,
}

impl Operations for StoreObject {
    fn find_existing(_scope: &Scope, _answers: &Answers) -> Vec<IdentifiedResource> {
        Vec::new()
    }

    fn delete(_identity: &str, _found: &ExistingResource) -> Vec<Call> {
        Vec::new()
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        Err(own.internal_error())
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("bucket", &self.bucket).text("key", &self.key);
        block.value("content", writer.text_file(own.kind, own.name, "content", &self.content)?);
        block.value("provider", Expr::Token("aws.files".to_owned()));
        block.text("server_side_encryption", "AES256");
        Ok(block)
    }
}
