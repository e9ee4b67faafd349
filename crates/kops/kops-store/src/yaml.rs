//! Parses YAML documents.

use serde_json::Value;

/// Parses a YAML document. `what` names it in errors.
pub fn parse_yaml(what: &str, text: &[u8]) -> Result<Value, kops_api::Error> {
    api_codec::from_yaml(text)
        .map_err(|e| kops_api::Error::Yaml { what: what.to_owned(), cause: e.to_string() })
}
