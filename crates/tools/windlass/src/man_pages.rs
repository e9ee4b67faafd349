//! The manual pages of all commands, which releases contain: one page each, such as `windlass-up.1`.

use std::{fs, path::Path};

use clap::CommandFactory;

use crate::{cli::Cli, failure::Failure};

/// Writes the pages into a directory, which is created if it is missing.
pub(crate) fn write(directory: &Path) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| format!("writing manual pages to {}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    let command = bootstrap::cmd::shape(Cli::command());
    Ok(clap_mangen::generate_to(command, directory).map_err(failed)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Command;

    use super::*;

    fn names(command: &Command, path: &str, found: &mut BTreeSet<String>) {
        found.insert(format!("{path}.1"));
        for below in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            names(below, &format!("{path}-{}", below.get_name()), found);
        }
    }

    #[test]
    fn writes_a_page_for_every_command() {
        let directory = tempfile::tempdir().unwrap();
        let pages = directory.path().join("man1");
        for _ in 0..2 {
            write(&pages).unwrap();
        }
        let mut wanted = BTreeSet::new();
        let mut command = bootstrap::cmd::shape(Cli::command()).disable_help_subcommand(true);
        // Phases are added when the command is built.
        command.build();
        names(&command, "windlass", &mut wanted);
        let written = fs::read_dir(&pages).unwrap();
        let written: BTreeSet<String> =
            written.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(written, wanted);
        let up = fs::read_to_string(pages.join("windlass-up.1")).unwrap();
        assert!(up.starts_with(".ie") && up.contains("Brings up a cluster on this host"), "{up}");
        assert!(!written.contains("windlass-internal.1"));
        let error = write(Path::new("/proc/none")).unwrap_err().to_string();
        assert!(error.starts_with("writing manual pages to /proc/none: "), "{error}");
    }
}
