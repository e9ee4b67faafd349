//! Reads a config from a filesystem that the kernel command line names by its label.

use std::{fs, time::Duration};

use super::config_text::ConfigText;
use crate::{cmdline, context::Context, device::wait_for_device, error::Error, root::Root};

const LABEL: &str = "ignition.config.device";
const PATH: &str = "ignition.config.path";
/// The time to wait for the filesystem, as upstream does.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);
const MOUNT_POINT: &str = "/run/ignition-config";

/// Returns the config; `None` if the command line names none.
pub(super) fn config(context: &Context, line: &str) -> Result<Option<ConfigText>, Error> {
    let argument = |name| cmdline::value(line, name).filter(|value| !value.is_empty());
    let (label, path) = match (argument(LABEL), argument(PATH)) {
        (None, None) => return Ok(None),
        (Some(label), Some(path)) => (label, path),
        _ => return refused(format!("{LABEL} and {PATH} go together, and one is missing")),
    };
    if label.contains('/') || label == "." || label == ".." {
        return refused(format!("{LABEL}={label:?} is not a label"));
    }
    let device = format!("/dev/disk/by-label/{label}");
    wait_for_device(context.device_timeout.min(DEVICE_TIMEOUT), &device)?;
    fs::create_dir_all(MOUNT_POINT).map_err(Error::file("making", MOUNT_POINT))?;
    context.programs.must(&["mount", "-o", "ro", "-t", "auto", &device, MOUNT_POINT])?;
    let path = format!("/{}", path.trim_start_matches('/'));
    let contents = Root::open(MOUNT_POINT.as_ref()).and_then(|root| root.read(&path));
    context.programs.must(&["umount", MOUNT_POINT])?;
    match contents? {
        Some(bytes) => Ok(Some(ConfigText::new(&format!("{path} of {device}"), &bytes))),
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
        let programs = Arc::new(RecordedPrograms::new(|_| ProgramOutput::default()));
        let context = Context::below(std::path::Path::new("/"), programs);
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
