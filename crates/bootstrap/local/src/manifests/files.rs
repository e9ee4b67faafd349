//! The files of the directory: which there are, and the objects in them.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Read as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::{Duration, SystemTime},
};

use api_codec::YamlError;
use data_encoding::HEXLOWER;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::manifests_error::ManifestsError;

/// The directory below the cluster's root.
pub(crate) const DIRECTORY: &str = "manifests";
/// A file that changed more recently may be half-written.
pub(super) const SETTLED: Duration = Duration::from_secs(1);
/// The limits of the directory and of a file. The largest bundles that projects publish have 4 MB.
const MAX_FILES: usize = 1_000;
const MAX_BYTES: u64 = 16 << 20;
const MAX_OBJECTS: usize = 10_000;
/// The permission of all users to write.
const WRITABLE: u32 = 0o002;
const SUFFIXES: [&str; 3] = ["yaml", "yml", "json"];

/// The attributes of a file by which a change is noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: SystemTime,
    changed: (i64, i64),
    size: u64,
    inode: u64,
}

impl Stamp {
    /// Reports whether the file changed just before `now`. A time in the future counts as long ago.
    pub(super) fn is_recent(&self, now: SystemTime) -> bool {
        now.duration_since(self.modified).is_ok_and(|age| age < SETTLED)
    }
}

/// The objects of a file.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) hash: String,
    pub(super) objects: Vec<Value>,
}

/// The error of a file whose objects cannot be applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("reading it: {0}")]
    Read(#[from] std::io::Error),
    #[error("it is not a regular file")]
    NotRegular,
    #[error("every user may write to it; run chmod o-w")]
    Writable,
    #[error("it has more than {} MiB; split it", MAX_BYTES >> 20)]
    Size,
    #[error("it is not text in UTF-8")]
    Encoding,
    #[error(transparent)]
    Documents(#[from] YamlError),
    #[error("document {number}: {source}")]
    Document { number: usize, source: YamlError },
    #[error("it has more than {MAX_OBJECTS} objects; split it")]
    Objects,
}

/// Returns the manifests in a directory. Hidden files, which editors create, and files of other types are left out.
pub(super) fn scan(directory: &Path) -> Result<BTreeMap<String, Stamp>, ManifestsError> {
    let failed = |source| ManifestsError::Directory { path: directory.to_owned(), source };
    if fs::metadata(directory).map_err(failed)?.mode() & WRITABLE != 0 {
        return Err(ManifestsError::Writable { path: directory.to_owned() });
    }
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let is_manifest = Path::new(&name)
            .extension()
            .is_some_and(|suffix| SUFFIXES.iter().any(|known| suffix.eq_ignore_ascii_case(known)));
        if !is_manifest || name.starts_with('.') {
            continue;
        }
        // A link may lead to the file.
        let Ok(meta) = fs::metadata(entry.path()) else { continue };
        if meta.is_dir() {
            continue;
        }
        if files.len() == MAX_FILES {
            return Err(ManifestsError::Files { path: directory.to_owned(), limit: MAX_FILES });
        }
        let stamp = Stamp {
            modified: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: (meta.ctime(), meta.ctime_nsec()),
            size: meta.len(),
            inode: meta.ino(),
        };
        files.insert(name, stamp);
    }
    Ok(files)
}

/// Returns the hash of a file.
pub(super) fn hash(path: &Path) -> Result<String, FileError> {
    Ok(digest(&bytes(path)?))
}

fn digest(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}

/// Reads the objects of a file. The items of a List are objects of their own.
pub(super) fn read(path: &Path) -> Result<Content, FileError> {
    let bytes = bytes(path)?;
    let hash = digest(&bytes);
    let text = std::str::from_utf8(&bytes).map_err(|_| FileError::Encoding)?;
    let mut objects = Vec::new();
    for (index, document) in api_codec::yaml_documents(text)?.into_iter().enumerate() {
        let at = |source| FileError::Document { number: index + 1, source };
        match api_codec::from_yaml(document.as_bytes()).map_err(at)? {
            Value::Null => {}
            Value::Object(mut list)
                if list.get("items").is_some_and(Value::is_array)
                    && list.get("kind").and_then(Value::as_str).is_some_and(is_list) =>
            {
                if let Some(Value::Array(items)) = list.remove("items") {
                    objects.extend(items);
                }
            }
            object => objects.push(object),
        }
        if objects.len() > MAX_OBJECTS {
            return Err(FileError::Objects);
        }
    }
    Ok(Content { hash, objects })
}

fn is_list(kind: &str) -> bool {
    kind.ends_with("List")
}

fn bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    // A pipe would otherwise wait for its writer.
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(FileError::NotRegular);
    }
    if meta.mode() & WRITABLE != 0 {
        return Err(FileError::Writable);
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(FileError::Size);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &[u8]) -> Result<Vec<Value>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, text).unwrap();
        read(&path).map(|content| content.objects).map_err(|error| error.to_string())
    }

    fn names(text: &str) -> Vec<String> {
        let objects = read_text(text.as_bytes()).unwrap();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        objects.iter().map(name).collect()
    }

    #[test]
    fn reads_documents_lists_and_json() {
        let object = |name: &str| format!("kind: ConfigMap\nmetadata: {{name: {name}}}\n");
        let (a, b) = (object("a"), object("b"));
        assert_eq!(names(&format!("# text\n---\n{a}--- # next\n{b}---\n# end\n")), ["a", "b"]);
        assert_eq!(names(&format!("---\r\n{a}---   \r\n{b}")), ["a", "b"]);
        let list = r#"{"kind": "List", "items": [{"metadata": {"name": "c"}}, {"metadata": {"name": "d"}}]}"#;
        assert_eq!(names(&format!("{list}\n---\n{a}")), ["c", "d", "a"]);
        assert_eq!(names("metadata:\n  name: a\ndata:\n  text: |\n    x\n    ---\n    y\n"), ["a"]);
        assert_eq!(names(""), [""; 0]);
    }

    #[test]
    fn rejects_hostile_and_large_files() {
        let aliases: String = (1..40)
            .map(|n| format!("a{n}: &a{n} [{}]\n", format!("*a{},", n - 1).repeat(9)))
            .collect();
        for (text, words) in [
            ("a: [".as_bytes().to_vec(), "document 1: "),
            (b"a: 1\n---\n\tb: 2\n".to_vec(), "document 2: "),
            (b"a: 1\n--- {b: 2}\n".to_vec(), "line 2: only a comment may follow ---"),
            (b"a: \xff".to_vec(), "not text in UTF-8"),
            (format!("a0: &a0 [x]\n{aliases}").into_bytes(), "document 1: "),
            ("[".repeat(1 << 20).into_bytes(), "document 1: "),
            (vec![b'#'; 17 << 20], "more than 16 MiB"),
            ("---\na: 1\n".repeat(MAX_OBJECTS + 1).into_bytes(), "more than 10000 objects"),
        ] {
            let error = read_text(&text).unwrap_err();
            assert!(error.contains(words) && error.len() < 1_000, "{words}: {error}");
        }
        assert_eq!(
            read_text(&"---\na: 1\n".repeat(MAX_OBJECTS).into_bytes()).unwrap().len(),
            MAX_OBJECTS
        );
    }

    #[test]
    fn skips_other_files_and_does_not_wait_for_pipes() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a.yaml", "b.YML", "c.json", ".d.yaml", "e.yaml~", "README.md"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("f.yaml")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("g.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let found = scan(dir.path()).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.yaml", "b.YML", "c.json", "g.yaml"]);
        let error = read(&dir.path().join("g.yaml")).unwrap_err();
        assert!(matches!(error, FileError::NotRegular), "{error}");
        for number in 0..MAX_FILES {
            fs::write(dir.path().join(format!("{number}.yaml")), "").unwrap();
        }
        assert!(matches!(scan(dir.path()), Err(ManifestsError::Files { .. })));
        let gone = dir.path().join("gone");
        assert!(matches!(scan(&gone), Err(ManifestsError::Directory { .. })));
    }

    #[test]
    fn recent_change_is_not_settled() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), "").unwrap();
        let stamp = scan(dir.path()).unwrap().remove("a.yaml").unwrap();
        let after = |millis| stamp.modified + Duration::from_millis(millis);
        assert!(stamp.is_recent(after(0)) && stamp.is_recent(after(999)));
        assert!(!stamp.is_recent(after(1000)));
        assert!(!stamp.is_recent(stamp.modified - Duration::from_secs(1)));
    }
}
