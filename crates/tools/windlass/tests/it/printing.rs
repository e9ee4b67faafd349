//! Tests the output of commands.

use std::process::Command;

use crate::processes::WINDLASS;

#[test]
fn ends_silently_when_output_is_closed() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(WINDLASS);
    let ended = command.args(["config", "images", "list"]).stdout(writer).output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), stderr.as_ref()), (Some(141), ""));
}
