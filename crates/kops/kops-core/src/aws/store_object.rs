//! Objects of the state store, which only Terraform writes as resources.

use super::family::*;
pub use crate::terraform::files::StoreObject;
use crate::{
    error::Error,
    terraform::{files::s3_object, hcl::Block},
};

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
        s3_object(own.name, self, &mut writer.files)
    }
}
