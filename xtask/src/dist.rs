//! Makes a release: `cargo xtask dist`.
//!
//! The release is a directory: the binary, Debian packages, images, a bill of materials, an installer, and the
//! checksums of all of them. Everything is reproducible: a second build of the same commit elsewhere gives the same
//! bytes, which `--verify` checks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    build::{self, Commit, Profile, Tree},
    error::{During, Result, fail},
    file::{create_directory, make_executable, read, write},
    run::{output, pass, program, step, target_directory, workspace_root},
};

#[cfg(test)]
mod installer;
mod packages;
mod release;
mod sbom;

use release::Release;

const USAGE: &str = "usage: cargo xtask dist [--out DIR] [--quick] [--verify]";
const INSTALLER: &str = include_str!("dist/install.sh");
/// The checksums of the other files, in the format of `sha256sum`.
const CHECKSUMS: &str = "SHA256SUMS";

/// The arguments of `cargo xtask dist`.
#[derive(Debug, PartialEq)]
struct Options {
    out: PathBuf,
    /// `true` for a binary that builds quickly, for trying the release itself.
    quick: bool,
    /// `true` to build twice and compare.
    verify: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let out = target_directory().join("dist");
        let mut options = Self { out, quick: false, verify: false };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--out" => options.out = args.next().ok_or(USAGE)?.into(),
                "--quick" => options.quick = true,
                "--verify" => options.verify = true,
                _ => return fail(USAGE),
            }
        }
        Ok(options)
    }

    fn profile(&self) -> Profile {
        if self.quick { Profile::Quick } else { Profile::Release }
    }
}

/// Runs `cargo xtask dist`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let commit = Commit::current()?;
    if options.verify && commit.hash.ends_with("-dirty") {
        return fail(
            "files have been changed since the last commit; commit them, and verify again",
        );
    }
    make(&Tree::workspace(), &options.out, options.profile(), &commit)?;
    print!("{}", read(&options.out.join(CHECKSUMS))?);
    if options.verify { step("second build", || verify(&options, &commit)) } else { Ok(()) }
}

/// Makes a release of a source tree in a new directory, in the place of an earlier release.
fn make(tree: &Tree, out: &Path, profile: Profile, commit: &Commit) -> Result<()> {
    if !may_replace(out) {
        return fail(format!("{} is not a release; choose another --out", out.display()));
    }
    let binary = step("build windlass", || build::reproducible(tree, profile, commit))?;
    if out.exists() {
        fs::remove_dir_all(out).during("removing the former release", out.display())?;
    }
    create_directory(out)?;
    let release = Release { version: version(tree)?, architecture: architecture()?, commit };
    let copy = out.join("windlass");
    fs::copy(&binary, &copy).during("copying to", copy.display())?;
    step("packages", || packages::build(&tree.root, &copy, out, &release))?;
    step("images", || images(&copy, out))?;
    step("bill of materials", || sbom::build(tree, out, &release))?;
    let installer = out.join("install.sh");
    write(&installer, INSTALLER)?;
    make_executable(&installer)?;
    write_checksums(out)
}

/// Reports whether a directory is missing, or has only files of releases, complete or not. Others are not removed.
fn may_replace(out: &Path) -> bool {
    let is_own = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let is_known = ["images.tar", "install.sh", CHECKSUMS].contains(&&*name);
        name.starts_with(".windlass") || is_file && (is_known || name.starts_with("windlass"))
    };
    match fs::read_dir(out) {
        Ok(mut entries) => entries.all(|entry| entry.is_ok_and(is_own)),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Reads the release's version from the crate that reports it.
fn version(tree: &Tree) -> Result<String> {
    let manifest = read(&tree.root.join("crates/base/version/Cargo.toml"))?;
    let version =
        manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    Ok(version.ok_or("crates/base/version/Cargo.toml has no version")?.to_owned())
}

fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => fail(format!("there are no releases for {other}")),
    }
}

/// Packs the images of all components into one archive, in which they share a layer.
fn images(binary: &Path, out: &Path) -> Result<()> {
    let archive = out.join("images.tar");
    output(program(binary, ["images", "build", "--output"]).arg(archive)).map(drop)
}

fn write_checksums(out: &Path) -> Result<()> {
    let entries = fs::read_dir(out).during("listing", out.display())?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let sums = output(program("sha256sum", names).current_dir(out))?;
    write(&out.join(CHECKSUMS), sums)
}

/// Makes the release of the same commit again in another directory, and compares the checksums.
fn verify(options: &Options, commit: &Commit) -> Result<()> {
    let directory = target_directory().join("verify");
    let tree = Tree { root: directory.join("source"), target: directory.join("target") };
    prepare(&directory, commit)?;
    create_directory(&tree.root)?;
    let archive = directory.join("source.tar");
    let mut git = program("git", ["archive", "--output"]);
    pass(git.arg(&archive).arg("HEAD").current_dir(workspace_root()))?;
    pass(program("tar", ["-xf"]).arg(&archive).arg("-C").arg(&tree.root))?;
    let out = directory.join("dist");
    make(&tree, &out, options.profile(), commit)?;
    let (first, second) = (read(&options.out.join(CHECKSUMS))?, read(&out.join(CHECKSUMS))?);
    let differing = differing(&first, &second);
    if !differing.is_empty() {
        let (first, second) = (options.out.display(), out.display());
        return fail(format!("{first} and {second} differ: {}", differing.join(", ")));
    }
    fs::remove_dir_all(&directory).during("removing", directory.display())
}

/// Empties the directory of the second build. What an interrupted verification of the same commit has compiled stays,
/// so that a repetition continues it. cargo decides by the times of files, which it cannot do for another commit.
fn prepare(directory: &Path, commit: &Commit) -> Result<()> {
    let mark = directory.join("commit");
    let is_same = fs::read_to_string(&mark).is_ok_and(|hash| hash == commit.hash);
    let stale = if is_same { directory.join("source") } else { directory.to_owned() };
    if stale.exists() {
        fs::remove_dir_all(&stale).during("removing", stale.display())?;
    }
    create_directory(directory)?;
    write(&mark, &commit.hash)
}

/// Returns the names of the files whose checksums differ, and of those that only one list contains.
fn differing(first: &str, second: &str) -> Vec<String> {
    let lines =
        |text: &'_ str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let (first, second) = (lines(first), lines(second));
    let name = |line: &String| line.rsplit(' ').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = first.symmetric_difference(&second).map(name).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_options_and_rejects_unknown_ones() {
        let parse = |line: &str| {
            Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let all = Options { out: "/r".into(), quick: true, verify: true };
        assert_eq!(parse("--quick --out /r --verify").unwrap(), all);
        for line in ["--out", "--fast", "dir"] {
            assert_eq!(parse(line).unwrap_err().to_string(), USAGE, "{line}");
        }
    }

    #[test]
    fn replaces_releases_and_no_other_directories() {
        let root = std::env::temp_dir().join(format!("xtask-dist-{}", std::process::id()));
        assert!(may_replace(&root));
        create_directory(&root).unwrap();
        assert!(may_replace(&root));
        for file in ["windlass", "windlass_1_amd64.deb", "images.tar", "install.sh", CHECKSUMS] {
            write(&root.join(file), "").unwrap();
        }
        create_directory(&root.join(".windlass/DEBIAN")).unwrap();
        assert!(may_replace(&root));
        assert!(!may_replace(&root.join("install.sh")));
        // A directory of programs may have the installed binary.
        write(&root.join("notes"), "mine").unwrap();
        assert!(!may_replace(&root));
        fs::remove_file(root.join("notes")).unwrap();
        create_directory(&root.join("windlass-data")).unwrap();
        assert!(!may_replace(&root));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn second_build_continues_for_the_same_commit_only() {
        let root = std::env::temp_dir().join(format!("xtask-verify-{}", std::process::id()));
        let commit = |hash: &str| Commit { hash: hash.into(), date: "".into(), epoch: "1".into() };
        let object = root.join("target/object");
        for (hash, stays) in [("a", true), ("b", false)] {
            prepare(&root, &commit("a")).unwrap();
            for directory in ["source", "target"] {
                create_directory(&root.join(directory)).unwrap();
            }
            write(&object, "").unwrap();
            prepare(&root, &commit(hash)).unwrap();
            assert_eq!(object.exists(), stays, "{hash}");
            assert!(!root.join("source").exists());
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn names_files_that_differ_or_are_missing() {
        let first = "aa  install.sh\nbb  windlass\ncc  old.deb\n";
        let second = "aa  install.sh\nbd  windlass\ndd  new.deb\n";
        assert_eq!(differing(first, second), ["new.deb", "old.deb", "windlass"]);
        assert!(differing(first, first).is_empty());
    }
}
