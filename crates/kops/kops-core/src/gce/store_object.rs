//! Objects of the state store.

use super::family::*;
use crate::terraform::files::{StoreObject, gs_object, s3_object};

/// An object in S3.
#[derive(Debug)]
pub(crate) struct S3Object(pub(crate) StoreObject);

impl Operations for S3Object {
    fn kind(&self) -> Kind {
        Kind::S3Object
    }

    fn gce_name<'a>(&'a self, _name: &'a str) -> Option<&'a str> {
        None
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        s3_object(name, &self.0, &mut writer.files)
    }
}

/// An object in Google's Cloud Storage.
#[derive(Debug)]
pub(crate) struct GsObject(pub(crate) StoreObject);

impl Operations for GsObject {
    fn kind(&self) -> Kind {
        Kind::GsObject
    }

    fn gce_name<'a>(&'a self, _name: &'a str) -> Option<&'a str> {
        None
    }

    fn terraform(&self, name: &str, writer: &mut Writer<'_>) -> Result<Block, Error> {
        gs_object(name, &self.0, &mut writer.files)
    }
}
