//! Creates RAID arrays with mdadm.

use std::path::Path;

use ignition::spec::Raid;

use crate::{context::Context, error::Error};

pub(super) fn apply(context: &Context, array: &Raid) -> Result<(), Error> {
    let place = format!("/dev/md/{}", array.name);
    let level = array.level.as_deref().unwrap_or_default();
    if Path::new(&place).exists() && is_as_configured(context, array, &place)? {
        tracing::info!(device = place, "the array needs no change");
        return Ok(());
    }
    let spares = array.spares.unwrap_or(0);
    let active = array.devices.len().saturating_sub(spares as usize).to_string();
    let spares_text = spares.to_string();
    let mut command =
        vec!["mdadm", "--create", &array.name, "--force", "--run", "--homehost", "any"];
    command.extend(["--level", level, "--raid-devices", &active]);
    if spares > 0 {
        command.extend(["--spare-devices", &spares_text]);
    }
    command.extend(array.options.iter().map(String::as_str));
    command.extend(array.devices.iter().map(String::as_str));
    tracing::info!(device = place, level, "making an array");
    context.programs.must(&command)?;
    Ok(())
}

/// Returns `true` if the array has the configured level and number of devices.
fn is_as_configured(context: &Context, array: &Raid, place: &str) -> Result<bool, Error> {
    let output = context.programs.run(&["mdadm", "--detail", "--export", place], &[])?;
    if output.code != Some(0) {
        return Ok(false);
    }
    let field = |name: &str| {
        let mut lines = output.stdout.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let digits = |text: &str| text.trim_start_matches("raid").to_owned();
    let level = array.level.as_deref().unwrap_or_default();
    let active =
        array.devices.len() - (array.spares.unwrap_or(0) as usize).min(array.devices.len());
    let same = field("MD_LEVEL").is_some_and(|actual| digits(&actual) == digits(level));
    Ok(same && field("MD_DEVICES").is_some_and(|count| count == active.to_string()))
}
