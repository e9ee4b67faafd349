use std::{fs::File, os::fd::AsFd, path::Path};

use nix::sched::{CloneFlags, unshare};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Error, Kernel, LinkChange, Net};

/// A network namespace, kept by an open file: it goes when the file, its threads and its processes are gone.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    path: String,
}

impl Namespace {
    /// A new one without a name, with its loopback up.
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

    /// The one that the file at `path` stands for.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Ok(Self { file, path: name }),
            Err(source) => Err(Error::Namespace { path: name, action: "opening", source }),
        }
    }

    /// The open namespace, to be handed to the kernel: it stays whatever becomes of its name.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Runs `work` on a thread of its own inside the namespace. A thread that is never reused needs no way
    /// back, and so cannot fail to take it.
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

    /// The namespace's configuration.
    pub fn kernel(&self) -> Result<Kernel, Error> {
        self.run(Kernel::open)?
    }
}

fn on_new_thread<T: Send>(work: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
    let ended = std::thread::scope(|scope| scope.spawn(work).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
