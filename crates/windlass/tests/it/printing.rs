//! What commands print, and to whom.

use std::process::Command;

use crate::processes::WINDLASS;

#[test]
fn a_command_that_nobody_listens_to_ends_without_a_word() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(WINDLASS);
    let ended = command.args(["config", "images", "list"]).stdout(writer).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), said.as_ref()), (Some(141), ""));
}
