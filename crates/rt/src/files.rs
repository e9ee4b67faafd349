use std::{
    fmt::Display,
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// A value made from files, and made again when they change: so a renewed certificate comes into use without a restart.
///
/// There is no task and no notification: whoever wants the value pays for a look at the files' metadata, which is
/// little beside the handshake that needs the value.
pub struct FromFiles<T> {
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    /// What the files looked like when they were read last, whether that gave a value or not.
    seen: Vec<Option<Stamp>>,
}

/// Device and inode, time of change, length: a file that was replaced or written has another.
type Stamp = (u64, u64, i64, i64, u64);

impl<T> FromFiles<T> {
    /// Makes the value; `make` is called again whenever one of `files` has changed.
    pub fn new<E: Display>(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Looked at before they are read: a change in between is then seen the next time.
        let seen = stamps(&files);
        let value = Arc::new(make()?);
        let make = Box::new(move || make().map_err(|error| error.to_string()));
        Ok(Self { files, make, state: Mutex::new(State { value, seen }) })
    }

    /// The value of the files as they are. Files that give none, such as a certificate whose key is not yet written,
    /// leave the value that was there.
    pub fn current(&self) -> Arc<T> {
        let stamps = stamps(&self.files);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.seen != stamps {
            match (self.make)() {
                Ok(value) => {
                    tracing::info!(files = ?self.files, "files changed; what they say is used from now on");
                    state.value = Arc::new(value);
                }
                Err(error) => {
                    tracing::warn!(files = ?self.files, %error, "files changed and cannot be used; keeping what was there");
                }
            }
            state.seen = stamps;
        }
        state.value.clone()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let meta = fs::metadata(path).ok()?;
        Some((meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec(), meta.len()))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_follows_its_files_when_they_fit_each_other() {
        let dir = std::env::temp_dir().join(format!("rt-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (cert, key) = (dir.join("cert"), dir.join("key"));
        let write = |path: &PathBuf, text: &str| {
            // As all our writers do: beside, then in place.
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
        assert!(Arc::ptr_eq(&first, &made.current()), "made anew without a change");
        write(&key, "two");
        assert_eq!(*made.current(), "one");
        write(&cert, "two");
        assert_eq!(*made.current(), "two");
        fs::remove_dir_all(&dir).unwrap();
    }
}
