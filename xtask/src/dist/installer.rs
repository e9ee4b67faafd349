//! Tests of the installer, with a script in the place of the binary.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use super::{INSTALLER, write_checksums};
use crate::{
    file::{make_executable, write},
    run::program,
};

/// A release and a directory to install it into, which are removed at the end of the test.
struct Scene {
    root: PathBuf,
}

/// Returns a script that prints a version, and writes the page of one command.
fn script(version: &str, command: &str) -> String {
    format!(
        "#!/bin/sh\nif [ \"$1\" = internal ]; then\n    mkdir -p \"$3\" && : >\"$3/windlass-{command}.1\"\nfi\necho \
         {version}\n"
    )
}

impl Scene {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let scene = Self { root };
        fs::create_dir_all(scene.release()).unwrap();
        scene.add("windlass", &script("v1", "up"));
        scene.add("install.sh", INSTALLER);
        write_checksums(&scene.release()).unwrap();
        scene
    }

    fn release(&self) -> PathBuf {
        self.root.join("release")
    }

    fn prefix(&self) -> PathBuf {
        self.root.join("prefix")
    }

    fn binary(&self) -> PathBuf {
        self.prefix().join("bin/windlass")
    }

    fn manual(&self) -> PathBuf {
        self.prefix().join("share/man/man1")
    }

    fn pages(&self) -> Vec<String> {
        let pages = fs::read_dir(self.manual()).unwrap().flatten();
        let mut names: Vec<_> = pages.map(|page| page.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn add(&self, name: &str, text: &str) {
        let path = self.release().join(name);
        write(&path, text).unwrap();
        make_executable(&path).unwrap();
    }

    fn install(&self, args: &[&str]) -> Output {
        let mut script = program(self.release().join("install.sh"), ["--prefix"]);
        script.arg(self.prefix()).args(args).output().unwrap()
    }

    /// Asserts that an installation fails with this message.
    fn refuses(&self, args: &[&str], message: &str) {
        let output = self.install(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(message), "{message}: {stderr}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn installs_replaces_and_removes_the_binary() {
    let scene = Scene::new("install");
    let output = scene.install(&[]);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("installed v1 as"));
    assert_eq!(scene.pages(), ["windlass-up.1"]);
    write(&scene.manual().join("other.1"), "").unwrap();
    scene.add("windlass", &script("v2", "down"));
    fs::remove_file(scene.release().join("SHA256SUMS")).unwrap();
    write_checksums(&scene.release()).unwrap();
    assert!(scene.install(&[]).status.success());
    assert!(text(&scene.binary()).contains("v2"));
    assert_eq!(scene.pages(), ["other.1", "windlass-down.1"]);
    assert!(scene.install(&["--remove"]).status.success());
    assert!(!scene.binary().exists());
    assert_eq!(scene.pages(), ["other.1"]);
}

#[test]
fn refuses_binaries_that_do_not_match_their_checksum() {
    let scene = Scene::new("refuse");
    assert!(scene.install(&[]).status.success());
    let sums = scene.release().join("SHA256SUMS");
    let listed = text(&sums);
    scene.add("windlass", "#!/bin/sh\necho evil\n");
    scene.refuses(&[], "does not match its checksum");
    // A second line of the same name does not help.
    scene.add("other", "");
    write(&sums, format!("{}  windlass\n{listed}", "0".repeat(64))).unwrap();
    scene.refuses(&[], "does not match its checksum");
    write(&sums, listed.replace("  windlass", "  Windlass")).unwrap();
    scene.refuses(&[], "does not name windlass");
    fs::remove_file(&sums).unwrap();
    scene.refuses(&[], "SHA256SUMS is missing");
    assert!(text(&scene.binary()).contains("v1"));
    scene.refuses(&["--fast"], "unknown argument --fast");
    if !Path::new("/run/systemd/system").exists() {
        scene.refuses(&["--service"], "--service needs systemd");
    }
}
