//! Renders the table of machines for a terminal, and formats times for it and the web pages.

use std::{io, path::Path};

use super::{
    inventory,
    registry::{Entry, Machine},
    stage::Outcome,
};

/// Formats the time since an event.
pub(super) fn format_age(at: u64, now: u64) -> String {
    format!("{} ago", format_duration(now.saturating_sub(at)))
}

/// Formats milliseconds with two or three significant digits and a unit.
pub(super) fn format_duration(milliseconds: u64) -> String {
    match milliseconds {
        0..1000 => format!("{milliseconds} ms"),
        1000..10_000 => format!("{}.{} s", milliseconds / 1000, milliseconds % 1000 / 100),
        10_000..120_000 => format!("{} s", milliseconds / 1000),
        120_000..7_200_000 => format!("{} min", milliseconds / 60_000),
        7_200_000..172_800_000 => format!("{} h", milliseconds / 3_600_000),
        _ => format!("{} d", milliseconds / 86_400_000),
    }
}

/// Describes the last entry of a machine's timeline.
pub(super) fn format_stage(machine: &Machine) -> String {
    match machine.last() {
        None => "–".to_owned(),
        Some(entry) => match entry.outcome {
            Outcome::Succeeded => entry.stage.title().to_owned(),
            Outcome::Started => format!("{} …", entry.stage.title()),
            Outcome::Failed => format!("{} failed", entry.stage.title()),
        },
    }
}

/// Returns the duration of the machine's last boot in milliseconds.
pub(super) fn boot_duration(machine: &Machine) -> u64 {
    let at = |entry: Option<&Entry>| entry.map_or(0, |entry| entry.at);
    at(machine.timeline.last()).saturating_sub(at(machine.timeline.first()))
}

/// Sorts failed machines first, then by the time of the last contact, newest first.
pub(super) fn sort(machines: &mut [&Machine]) {
    let failed = |machine: &Machine| machine.last().is_some_and(|e| e.outcome == Outcome::Failed);
    machines.sort_by_key(|machine| (!failed(machine), std::cmp::Reverse(machine.seen)));
}

/// Returns the table of the machines in a server's file.
pub fn table(path: &Path, now: u64) -> io::Result<String> {
    let machines = inventory::read(path)?;
    let mut machines: Vec<&Machine> = machines.iter().collect();
    sort(&mut machines);
    Ok(format_table(&machines, now))
}

/// Returns one machine of that file with the timeline of its last boot; `None` if the id is unknown.
pub fn timeline(path: &Path, id: &str, now: u64) -> io::Result<Option<String>> {
    let machines = inventory::read(path)?;
    let Some(machine) = machines.iter().find(|machine| machine.id == id) else { return Ok(None) };
    let start = machine.timeline.first().map_or(0, |entry| entry.at);
    let mut out = format_table(&[machine], now);
    for entry in &machine.timeline {
        let after = format_duration(entry.at - start);
        let (stage, outcome) = (entry.stage.title(), entry.outcome.name());
        let detail = entry.detail.replace('\n', "\n            ");
        out.push_str(format!("{after:>10}  {stage:<22} {outcome:<9}  {detail}").trim_end());
        out.push('\n');
    }
    Ok(Some(out))
}

/// Requests the reinstallation of a machine from the server that writes the file.
pub fn reinstall(path: &Path, id: &str) -> io::Result<()> {
    if !inventory::read(path)?.iter().any(|machine| machine.id == id) {
        return Err(io::Error::other(format!("no machine {id} is in {}", path.display())));
    }
    inventory::reinstall(path, id)
}

fn format_table(machines: &[&Machine], now: u64) -> String {
    let head = ["MACHINE", "NAME", "ADDRESS", "GROUP", "STAGE", "SEEN", "BOOT", "LAST ERROR"];
    let rows = machines.iter().map(|machine| {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".into());
        let address = machine.address.map(|address| address.to_string());
        let failure = machine.failure.as_ref().map(|failure| {
            let first = failure.text.lines().next().unwrap_or_default();
            format!("{}: {first}", failure.stage.title())
        });
        [
            machine.id.clone(),
            text(&machine.hostname),
            text(&address),
            text(&machine.group),
            format_stage(machine),
            format_age(machine.seen, now),
            format_duration(boot_duration(machine)),
            text(&failure),
        ]
    });
    let rows: Vec<[String; 8]> = [head.map(str::to_owned)].into_iter().chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..head.len()).filter_map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
