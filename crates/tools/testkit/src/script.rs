use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes `body` as an executable shell script to `path`, and creates the folder. A former script is replaced.
///
/// A process of its own writes the file. If this process did, a program that another test starts at that moment
/// would inherit the open file until its `exec`, and running the script would fail with `ETXTBSY`.
///
/// # Panics
///
/// The file cannot be written.
pub fn write_script(path: &Path, body: &str) {
    let written = write(path, &format!("#!/bin/sh\n{body}\n"));
    assert!(
        matches!(written, Ok(true)),
        "writing the script {} failed: {written:?}",
        path.display()
    );
}

/// Returns whether the process that writes succeeded.
fn write(path: &Path, text: &str) -> std::io::Result<bool> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut writer = Command::new("/bin/sh")
        .args(["-c", "rm -f \"$1\" && cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = writer.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    Ok(writer.wait()?.success())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn script_runs_while_other_programs_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bin/program");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    Command::new("/bin/true").status().unwrap();
                }
            });
            for number in 0..100 {
                write_script(&path, &format!("echo {number}"));
                let output = Command::new(&path).output();
                if output.is_err() {
                    done.store(true, Ordering::Relaxed);
                }
                assert_eq!(output.unwrap().stdout, format!("{number}\n").into_bytes());
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}
