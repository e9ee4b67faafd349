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
    use super::*;

    #[test]
    fn this_process_never_opens_the_script() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bin/program");
        // Writing 20 MB takes long enough to read the list of open files often.
        let body = format!("echo hello\n{}", "# comment\n".repeat(2_000_000));
        let is_script = |file: std::fs::DirEntry| {
            std::fs::read_link(file.path()).is_ok_and(|target| target == path)
        };
        let (mut looks, mut is_open) = (0, false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_script(&path, &body));
            while !writer.is_finished() {
                is_open |= std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(is_script);
                looks += 1;
            }
        });
        assert!(!is_open && looks > 1, "{looks} looks");
        assert_eq!(Command::new(&path).output().unwrap().stdout, b"hello\n");
    }
}
