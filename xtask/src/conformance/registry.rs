//! The registry from which the nodes pull the stand-ins of upstream's images, because a test of image volumes has the
//! pull policy `Always`. It is the program of Debian's package `docker-registry`.

use std::{
    path::Path,
    process::{Child, Command},
};

use super::namespace::inside;
use crate::{
    error::{During, Result},
    file::{create_directory, write},
    machine,
    run::{log_to, output},
};

/// The address of the registry, which is the first node's.
const ADDRESS: &str = "192.0.2.10:5000";
/// The host in the names of upstream's images.
const HOST: &str = "registry.k8s.io";
const PROGRAM: &str = "docker-registry";

/// A running registry. Dropping it ends the process.
pub(super) struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Registry {
    /// Starts a registry without images, with its files in `directory`.
    pub(super) fn start(directory: &Path) -> Result<Self> {
        machine::install(&[(PROGRAM, "docker-registry"), ("ctr", "containerd")])?;
        let directory = directory.join("registry");
        create_directory(&directory)?;
        let file = directory.join("config.yml");
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: '{}'}}}}\nhttp: {{addr: '{ADDRESS}'}}\n",
            directory.display()
        );
        write(&file, config)?;
        let mut serve = inside(PROGRAM);
        serve.arg("serve").arg(&file);
        log_to(&mut serve, &directory.join("log"))?;
        Ok(Self(serve.spawn().during("starting", PROGRAM)?))
    }

    /// Writes a configuration for `windlass up`, with which the nodes use this registry before upstream's.
    pub(super) fn configure(file: &Path) -> Result<()> {
        let text = format!(
            "apiVersion: windlass.io/v1alpha1\nkind: Cluster\nregistries:\n\
             - {{host: {HOST}, mirrors: ['http://{ADDRESS}']}}\n"
        );
        write(file, text)
    }

    /// Copies the images of [`HOST`] to this registry from the containerd that listens on `socket`.
    pub(super) fn fill(&self, socket: &Path) -> Result<()> {
        let ctr = || {
            let mut command: Command = inside("ctr");
            command.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images"]);
            command
        };
        let names = output(ctr().args(["list", "--quiet"]))?;
        for name in names.lines() {
            let Some(path) = name.strip_prefix(HOST).filter(|path| !path.contains('@')) else {
                continue;
            };
            let target = format!("{ADDRESS}{path}");
            output(ctr().args(["push", "--plain-http", &target, name]))?;
        }
        Ok(())
    }
}
