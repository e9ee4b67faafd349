//! Prints values as documents, in the formats of `--output`.

use std::io::Write;

use serde_json::Value;

use crate::error::Error;

/// Prints a value as YAML, or as one line of JSON.
pub(crate) fn print(out: &mut dyn Write, output: &str, value: &Value) -> Result<(), Error> {
    match output {
        "yaml" => write!(out, "{}", kops_api::yaml::to_string(value))?,
        _ => writeln!(out, "{value}")?,
    }
    Ok(())
}
