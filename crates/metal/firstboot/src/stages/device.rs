//! Reads a config from a filesystem that the kernel command line names by its label.

use std::{fs, time::Duration};

use super::{Context, acquire::text};
use crate::{Error, disks::appear, init::cmdline, root::Root};

const LABEL: &str = "ignition.config.device";
const PATH: &str = "ignition.config.path";
/// The time to wait for the filesystem, as upstream does.
const PATIENCE: Duration = Duration::from_secs(30);
const PLACE: &str = "/run/ignition-config";

/// Returns the config and its origin; `None` if the command line names none.
pub(super) fn config(context: &Context, line: &str) -> Result<Option<(String, String)>, Error> {
    let given = |name| cmdline::value(line, name).filter(|value| !value.is_empty());
    let (label, path) = match (given(LABEL), given(PATH)) {
        (None, None) => return Ok(None),
        (Some(label), Some(path)) => (label, path),
        _ => return refused(format!("{LABEL} and {PATH} go together, and one is missing")),
    };
    if label.contains('/') || label == "." || label == ".." {
        return refused(format!("{LABEL}={label:?} is not a label"));
    }
    let device = format!("/dev/disk/by-label/{label}");
    appear(context.patience.min(PATIENCE), &device)?;
    fs::create_dir_all(PLACE).map_err(Error::file("making", PLACE))?;
    context.programs.must(&["mount", "-o", "ro", "-t", "auto", &device, PLACE])?;
    let path = format!("/{}", path.trim_start_matches('/'));
    let found = Root::open(PLACE.as_ref()).and_then(|root| root.read(&path));
    context.programs.must(&["umount", PLACE])?;
    match found? {
        Some(bytes) => Ok(Some((format!("{path} of {device}"), text(&bytes)))),
        None => refused(format!("{device} has no {path}")),
    }
}

fn refused<T>(reason: String) -> Result<T, Error> {
    Err(Error::Refused { what: "the config that the kernel's command line names".into(), reason })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sys::{ProgramOutput, RecordedPrograms};

    use super::*;

    #[test]
    fn requires_both_label_and_path() {
        let context = Context {
            platform: "file".into(),
            root: "/".into(),
            config_cache: "/x".into(),
            neednet: "/x".into(),
            state_file: "/x".into(),
            fetch_timeout: Duration::ZERO,
            programs: Arc::new(RecordedPrograms::new(|_| ProgramOutput::default())),
            patience: Duration::ZERO,
        };
        let outcome = |line| match config(&context, line) {
            Ok(found) => format!("{found:?}"),
            Err(error) => error.to_string(),
        };
        for (line, want) in [
            ("quiet ignition.config.device=", "None"),
            ("ignition.config.device=A", "go together"),
            ("ignition.config.path=/a", "go together"),
            ("ignition.config.device=../sda ignition.config.path=/a", "is not a label"),
            ("ignition.config.device=NONE-SUCH ignition.config.path=/a", "did not appear"),
        ] {
            let found = outcome(line);
            assert!(found.contains(want), "{line}: {found}");
        }
    }
}
