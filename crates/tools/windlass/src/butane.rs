//! The command `windlass butane`: translates Butane and Container Linux configs to Ignition configs, with the flags of
//! upstream's butane.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Component, Path, PathBuf},
};

use ignition::butane::{Directory, DirectoryError, TreeEntry};

use crate::failure::Failure;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The config [default: standard input]
    input: Option<PathBuf>,
    /// Check the config, and write nothing
    #[arg(short, long)]
    check: bool,
    /// The directory of the files that `local` names
    #[arg(short = 'd', long, value_name = "DIR")]
    files_dir: Option<PathBuf>,
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write JSON over several lines
    #[arg(short, long)]
    pretty: bool,
    /// Write Ignition, which is the default: the supported variants have no other form
    #[arg(short, long)]
    raw: bool,
    /// Fail on any warning
    #[arg(short, long)]
    strict: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let text = match &args.input {
        Some(path) => fs::read_to_string(path).map_err(|e| about("reading", path, &e))?,
        None => {
            let mut text = String::new();
            let read = io::stdin().read_to_string(&mut text);
            read.map_err(|e| format!("reading standard input: {e}"))?;
            text
        }
    };
    let local = args.files_dir.clone().map(LocalDirectory);
    let files = local.as_ref().map(|local| local as &dyn Directory);
    let translation = match ignition::translate(&text, files) {
        Ok(translation) => translation,
        // The position and error are on a line of their own, as upstream prints them.
        Err(error @ ignition::butane::Error::At(_)) => {
            eprintln!("{error}");
            return Err("Error translating config: source config is invalid".into());
        }
        Err(error) => return Err(format!("Error translating config: {error}").into()),
    };
    for warning in &translation.warnings {
        eprintln!("warning at {warning}");
    }
    if args.strict && !translation.warnings.is_empty() {
        return Err("Config produced warnings and --strict was specified".into());
    }
    if args.check {
        return Ok(());
    }
    let json = if args.pretty {
        serde_json::to_string_pretty(&translation.config)?
    } else {
        translation.config.to_string()
    };
    match &args.output {
        Some(path) => fs::write(path, json + "\n").map_err(|e| about("writing", path, &e))?,
        None => writeln!(io::stdout(), "{json}")?,
    }
    Ok(())
}

fn about(doing: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{doing} {}: {error}", path.display())
}

/// A directory of this machine. File names cannot leave it.
struct LocalDirectory(PathBuf);

impl LocalDirectory {
    fn path(&self, name: &str) -> Result<PathBuf, DirectoryError> {
        let below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if Path::new(name).components().all(below) {
            Ok(self.0.join(name))
        } else {
            Err("it is not below the directory of files".into())
        }
    }
}

impl Directory for LocalDirectory {
    fn read(&self, name: &str) -> Result<Vec<u8>, DirectoryError> {
        Ok(fs::read(self.path(name)?)?)
    }

    fn below(&self, name: &str) -> Result<Vec<(String, TreeEntry)>, DirectoryError> {
        let root = self.path(name)?;
        let metadata = fs::metadata(&root).map_err(|e| about("looking at", &root, &e))?;
        if !metadata.is_dir() {
            return Err("root of tree must be a directory".into());
        }
        let mut out = Vec::new();
        walk(&root, String::new(), &mut out).map_err(|e| about("reading", &root, &e))?;
        Ok(out)
    }
}

/// Appends `below`, a path relative to `root`, and everything under it.
fn walk(root: &Path, below: String, out: &mut Vec<(String, TreeEntry)>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let path = root.join(&below);
    let metadata = if below.is_empty() { path.metadata()? } else { path.symlink_metadata()? };
    let entry = match metadata.file_type() {
        kind if kind.is_dir() => {
            let mut names = Vec::new();
            for entry in path.read_dir()? {
                let name = entry?.file_name().into_string();
                names
                    .push(name.map_err(|name| io::Error::other(format!("{name:?} is not UTF-8")))?);
            }
            names.sort_unstable();
            out.push((below.clone(), TreeEntry::Directory));
            let prefix = if below.is_empty() { below } else { below + "/" };
            return names.into_iter().try_for_each(|n| walk(root, format!("{prefix}{n}"), out));
        }
        kind if kind.is_file() => {
            TreeEntry::File { executable: metadata.permissions().mode() & 0o111 != 0 }
        }
        kind if kind.is_symlink() => {
            TreeEntry::Link { target: path.read_link()?.to_string_lossy().into_owned() }
        }
        _ => TreeEntry::Other,
    };
    out.push((below, entry));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn walks_tree_in_order_without_leaving_it() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("t/b")).unwrap();
        for (name, mode) in [("t/b/run", 0o700), ("t/a", 0o640), ("secret", 0o600)] {
            fs::write(dir.path().join(name), name).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("../secret", dir.path().join("t/l")).unwrap();
        let local = LocalDirectory(dir.path().into());
        let want = [
            ("", TreeEntry::Directory),
            ("a", TreeEntry::File { executable: false }),
            ("b", TreeEntry::Directory),
            ("b/run", TreeEntry::File { executable: true }),
            ("l", TreeEntry::Link { target: "../secret".into() }),
        ];
        assert_eq!(local.below("t").unwrap(), want.map(|(name, found)| (name.to_owned(), found)));
        assert_eq!(local.read("./t/a").unwrap(), b"t/a");
        assert!(local.below("t/a").unwrap_err().to_string().contains("must be a directory"));
        let inner = LocalDirectory(dir.path().join("t"));
        for name in ["../secret", "b/../../secret", "/etc/passwd"] {
            assert!(inner.read(name).unwrap_err().to_string().contains("not below"), "{name}");
        }
    }
}
