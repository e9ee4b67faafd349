//! Prints the ends of the logs, the newest Events and the bootstrap timeline after a failed test.
//!
//! The output is bounded, and nothing here panics, because it runs while a failed test unwinds.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

/// The number of lines shown of each log, and of Events and timeline.
const LINES: usize = 50;
/// The number of logs shown: the most recently written ones.
const LOGS: usize = 16;
/// The length at which a line is cut, in bytes.
const WIDTH: usize = 400;
/// The maximum depth of the search for logs. The file systems of containers are deeper.
const DEPTH: usize = 9;

/// Prints the last lines that a command outputs, or the error of starting it.
pub(crate) fn print_output(title: &str, mut command: Command) {
    let text = match command.output() {
        Ok(output) => [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat(),
        Err(error) => format!("starting {command:?}: {error}"),
    };
    print(title, &text);
}

/// Prints the ends of the most recently written logs below a directory.
pub(crate) fn print_logs(directory: &Path) {
    let mut logs = Vec::new();
    collect(directory, DEPTH, &mut logs);
    logs.sort_by_key(|log| std::cmp::Reverse(log.written));
    for log in logs.into_iter().take(LOGS) {
        let text = sys::process::tail(&log.path, LINES);
        print(
            &log.path.display().to_string(),
            &text.unwrap_or_else(|error| format!("reading the log: {error}")),
        );
    }
}

struct Log {
    path: PathBuf,
    written: SystemTime,
}

fn collect(directory: &Path, depth: usize, logs: &mut Vec<Log>) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        // Do not follow links: the kubelet links to logs, which would appear twice.
        let Ok(about) = entry.metadata() else { continue };
        if about.is_dir() && depth > 0 && entry.file_name() != "rootfs" {
            collect(&path, depth - 1, logs);
        } else if about.is_file() && about.len() > 0 && path.extension().is_some_and(|e| e == "log")
        {
            let written = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            logs.push(Log { path, written });
        }
    }
}

fn print(title: &str, text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    eprintln!("--- {title}");
    for line in lines.iter().skip(lines.len().saturating_sub(LINES)) {
        let end = line.floor_char_boundary(WIDTH);
        eprintln!("{}", &line[..end]);
    }
}
