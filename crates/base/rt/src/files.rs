use std::{fmt::Display, fs, os::unix::fs::MetadataExt, path::PathBuf, sync::Arc};

use parking_lot::Mutex;

/// A value built from files and rebuilt when they change. A renewed certificate is used without a restart.
///
/// There is no task and no notification: each read of the value checks the files' metadata. This is cheap compared with
/// the handshake that needs the value.
pub struct FromFiles<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, Box<dyn Display>> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    /// The files' stamps at the last read, whether that read gave a value or not.
    stamps: Vec<Option<Stamp>>,
}

/// The metadata of a file that changes when the file is replaced or written.
#[derive(PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    ctime: i64,
    ctime_nsec: i64,
    length: u64,
}

impl<T> FromFiles<T> {
    /// Builds the value. `make` is called again when one of `files` has changed.
    pub fn new<E: Display + 'static>(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Take the stamps before reading, so that the next call notices a change in between.
        let stamps = stamps(&files);
        let value = Arc::new(make()?);
        let make = Box::new(move || make().map_err(|error| Box::new(error) as Box<dyn Display>));
        Ok(Self { files, make, state: Mutex::new(State { value, stamps }) })
    }

    /// Returns the value for the current files. If the changed files are unusable, such as a certificate whose key is
    /// not written yet, the previous value is returned.
    pub fn current(&self) -> Arc<T> {
        let stamps = stamps(&self.files);
        let mut state = self.state.lock();
        if state.stamps != stamps {
            match (self.make)() {
                Ok(value) => {
                    tracing::info!(files = ?self.files, "reloaded changed files");
                    state.value = Arc::new(value);
                }
                Err(error) => {
                    tracing::warn!(
                        files = ?self.files,
                        %error,
                        "failed to load changed files; keeping the previous value"
                    );
                }
            }
            state.stamps = stamps;
        }
        state.value.clone()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let meta = fs::metadata(path).ok()?;
        Some(Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            ctime: meta.ctime(),
            ctime_nsec: meta.ctime_nsec(),
            length: meta.len(),
        })
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloads_value_when_changed_files_match() {
        let dir = std::env::temp_dir().join(format!("rt-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (cert, key) = (dir.join("cert"), dir.join("key"));
        let write = |path: &PathBuf, text: &str| {
            // As all writers of the workspace do: write beside the file, then rename.
            let beside = path.with_extension("new");
            fs::write(&beside, text).unwrap();
            fs::rename(beside, path).unwrap();
        };
        write(&cert, "one");
        write(&key, "one");
        let (c, k) = (cert.clone(), key.clone());
        let made = FromFiles::new(vec![cert.clone(), key.clone()], move || {
            let (cert, key) = (fs::read_to_string(&c).unwrap(), fs::read_to_string(&k).unwrap());
            if cert == key { Ok(cert) } else { Err("they do not fit") }
        })
        .unwrap();
        let first = made.current();
        assert_eq!(*first, "one");
        assert!(Arc::ptr_eq(&first, &made.current()), "rebuilt without a change");
        write(&key, "two");
        assert_eq!(*made.current(), "one");
        write(&cert, "two");
        assert_eq!(*made.current(), "two");
        fs::remove_dir_all(&dir).unwrap();
    }
}
