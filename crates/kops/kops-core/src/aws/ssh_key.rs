//! The SSH keys of machines.

use api_meta::Tree as _;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;

use super::{
    ec2::{Listing, delete, with_tags},
    family::*,
};

const KEY_PAIRS: Listing = Listing { operation: "DescribeKeyPairs", list: "keySet", id: "keyName" };

/// An SSH key.
#[derive(Clone, Debug)]
pub struct SshKey {
    /// The public key.
    pub public: String,
}

impl Operations for SshKey {
    fn queries(scope: &Scope, _answers: &Answers) -> Vec<Call> {
        vec![KEY_PAIRS.query(scope)]
    }

    fn find_existing(scope: &Scope, answers: &Answers) -> Vec<IdentifiedResource> {
        let found = KEY_PAIRS.items(answers).map(|item| {
            (item.text("keyName").to_owned(), KEY_PAIRS.existing(scope, item, Fields::new()))
        });
        found.collect()
    }

    fn delete(_identity: &str, found: &ExistingResource) -> Vec<Call> {
        delete("DeleteKeyPair", "KeyName", found)
    }

    fn terraform_name(name: &str) -> String {
        name.replace(':', "")
    }

    fn create(&self, own: &Header<'_>, _ids: &Ids) -> Result<Creation, Error> {
        let request =
            json!({"KeyName": own.name, "PublicKeyMaterial": STANDARD.encode(&self.public)});
        Ok(Creation::ec2("ImportKeyPair", with_tags(request, "key-pair", own.tags), "keyName"))
    }

    fn terraform(&self, own: &Header<'_>, writer: &mut Writer<'_>) -> Result<Block, Error> {
        let mut block = Block::default();
        block.text("key_name", own.name).tags(own.tags);
        let name = Self::terraform_name(own.name);
        block.value("public_key", writer.text_file(own.kind, &name, "public_key", &self.public)?);
        Ok(block)
    }
}
