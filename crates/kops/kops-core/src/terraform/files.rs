//! The files beside `kubernetes.tf`, and the state store's objects that Terraform writes from them.

use std::collections::BTreeMap;

use super::{
    hcl::{Block, Expr},
    labels,
};
use crate::error::Error;

/// Files by their names within the configuration's directory.
pub type Files = BTreeMap<String, Vec<u8>>;

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

/// The type of objects in S3.
pub(crate) const S3_OBJECT: &str = "aws_s3_object";
/// The type of objects in Google's Cloud Storage.
pub(crate) const GS_OBJECT: &str = "google_storage_bucket_object";

/// The field of a resource that is read from a file.
#[derive(Clone, Copy)]
pub(crate) struct FileField<'a> {
    /// The resource's type.
    pub(crate) kind: &'a str,
    /// The resource's name.
    pub(crate) name: &'a str,
    /// The field.
    pub(crate) field: &'a str,
}

impl FileField<'_> {
    /// Adds a file with this text, and returns an expression that reads it.
    pub(crate) fn add_text(self, files: &mut Files, text: &str) -> Result<Expr, Error> {
        let path = self.add(files, text.as_bytes())?;
        Ok(Expr::Token(format!("file(\"${{path.module}}/{path}\")")))
    }

    /// Adds a file with this content, and returns an expression that reads it as base64.
    pub(crate) fn add_binary(self, files: &mut Files, content: &[u8]) -> Result<Expr, Error> {
        let path = self.add(files, content)?;
        Ok(Expr::Token(format!("filebase64(\"${{path.module}}/{path}\")")))
    }

    /// Adds a file and returns its path.
    fn add(self, files: &mut Files, content: &[u8]) -> Result<String, Error> {
        let Self { kind, name, field } = self;
        let path = format!("data/{}", labels::file(&format!("{kind}_{name}_{field}"))?);
        files.insert(path.clone(), content.to_vec());
        Ok(path)
    }
}

/// Returns the block of an object in S3.
pub(crate) fn s3_object(
    name: &str,
    object: &StoreObject,
    files: &mut Files,
) -> Result<Block, Error> {
    let mut block = Block::default();
    block.text("bucket", &object.bucket).text("key", &object.key);
    let content = FileField { kind: S3_OBJECT, name, field: "content" };
    block.value("content", content.add_text(files, &object.content)?);
    block.value("provider", Expr::Token("aws.files".to_owned()));
    block.text("server_side_encryption", "AES256");
    Ok(block)
}

/// Returns the block of an object in Google's Cloud Storage.
pub(crate) fn gs_object(
    name: &str,
    object: &StoreObject,
    files: &mut Files,
) -> Result<Block, Error> {
    let mut block = Block::default();
    block.text("bucket", &object.bucket).text("name", &object.key);
    let content = FileField { kind: GS_OBJECT, name, field: "content" };
    block.value("content", content.add_text(files, &object.content)?);
    block.value("provider", Expr::Token("google.files".to_owned()));
    Ok(block)
}
