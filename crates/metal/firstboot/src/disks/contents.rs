//! Identifies the contents of devices with blkid and wipefs.

use serde_json::Value;

use crate::{context::Context, error::Error};

/// The contents of a device according to blkid.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The type of the filesystem, volume or partition table; empty for an empty device.
    pub(super) kind: String,
    pub(super) label: String,
    pub(super) uuid: String,
}

/// Returns the contents of a device. If it has several signatures, that of the type `preferred` is
/// taken.
pub(super) fn probe(context: &Context, device: &str, preferred: &str) -> Result<Contents, Error> {
    let command = ["blkid", "--probe", "--output", "export", device];
    let output = context.programs.run(&command, &[])?;
    match output.code {
        Some(0) => {}
        // The device is empty.
        Some(2) => return Ok(Contents::default()),
        Some(8) => return probe_signatures(context, device, preferred),
        _ => {
            let reason = format!("blkid cannot identify its contents: {}", output.stderr.trim());
            return Err(Error::Refused { what: device.to_owned(), reason });
        }
    }
    let field = |name: &str| {
        let mut lines = output.stdout.lines().filter_map(|line| line.split_once('='));
        lines
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.replace('\\', ""))
            .unwrap_or_default()
    };
    // Partition tables are reported in PTTYPE.
    let kind = [field("TYPE"), field("PTTYPE")]
        .into_iter()
        .find(|kind| !kind.is_empty())
        .unwrap_or_default();
    Ok(Contents { kind, label: field("LABEL"), uuid: field("UUID") })
}

/// Returns the signature of the preferred type, or else the first one.
fn probe_signatures(context: &Context, device: &str, preferred: &str) -> Result<Contents, Error> {
    let output = context.programs.must(&["wipefs", "--json", device])?;
    let report: Value = serde_json::from_str(&output).map_err(|error| Error::Refused {
        what: device.to_owned(),
        reason: format!("the output of wipefs is not JSON: {error}"),
    })?;
    let signatures = report["signatures"].as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = signatures.iter().find(|one| one["type"] == preferred).or(signatures.first());
    let field =
        |name: &str| chosen.and_then(|one| one[name].as_str()).unwrap_or_default().to_owned();
    Ok(Contents { kind: field("type"), label: field("label"), uuid: field("uuid") })
}
