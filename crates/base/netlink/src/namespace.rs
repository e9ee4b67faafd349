//! Network namespaces.

use std::{fs::File, os::fd::AsFd, path::Path};

use nix::sched::{CloneFlags, unshare};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    error::Error,
    kernel::Kernel,
    net::{LinkChange, Net},
};

/// A network namespace, kept alive by an open file. It ends with the file, its threads and its processes.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    path: String,
}

impl Namespace {
    /// Creates a namespace without a name, with its loopback up.
    pub fn new() -> Result<Self, Error> {
        let path = "/proc/thread-self/ns/net".to_owned();
        let failed = |action| {
            let path = path.clone();
            move |source| Error::Namespace { path, action, source }
        };
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)?;
            File::open(&path)
        };
        let file = on_new_thread(make).map_err(failed("making it (are you root?)"))?;
        let namespace = Self { file, path: "a new one".to_owned() };
        let kernel = namespace.kernel()?;
        if let Some(loopback) = kernel.link("lo")? {
            kernel.change_link(
                loopback.index,
                &LinkChange { up: Some(true), ..LinkChange::default() },
            )?;
        }
        Ok(namespace)
    }

    /// Opens the namespace of the file at `path`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Ok(Self { file, path: name }),
            Err(source) => Err(Error::Namespace { path: name, action: "opening", source }),
        }
    }

    /// Returns the open file, to pass the namespace to the kernel. It stays valid if its name is removed.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Runs `work` inside the namespace on a new thread. The thread is not reused, so it need not return to its
    /// namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let entered = on_new_thread(|| {
            move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        });
        entered.map_err(|source| Error::Namespace {
            path: self.path.clone(),
            action: "entering",
            source,
        })
    }

    /// Opens the namespace's network configuration.
    pub fn kernel(&self) -> Result<Kernel, Error> {
        self.run(Kernel::open)?
    }
}

fn on_new_thread<T: Send>(work: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
    let ended = std::thread::scope(|scope| scope.spawn(work).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
