//! Questions to the user.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::{Error, FlagError};

/// Asks whether `command` proceeds. Without a terminal, the flag that answers the question is required.
pub(super) fn confirmed(command: &'static str, flag: &'static str) -> Result<bool, Error> {
    if !std::io::stdin().is_terminal() {
        return Err(FlagError::NoTerminal { command, flag }.into());
    }
    eprint!("[{command}] Are you sure you want to proceed? [y/N]: ");
    let io = |source| Error::Io { operation: "ask on", path: "/dev/stdin".into(), source };
    std::io::stderr().flush().map_err(io)?;
    let mut reply = String::new();
    std::io::stdin().lock().read_line(&mut reply).map_err(io)?;
    Ok(matches!(reply.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
