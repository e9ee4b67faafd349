//! Ignition's stages, in the order of a boot. Read [`run`] first.

mod acquire;
mod config_text;
mod device;
mod kargs;
mod mount;

use ignition::spec::Config;
use serde_json::Value;

use crate::{context::Context, disks, error::Error, fetch::Fetcher, files};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Stage {
    FetchOffline,
    Fetch,
    Kargs,
    Disks,
    Mount,
    Files,
    Umount,
}

impl Stage {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FetchOffline => "fetch-offline",
            Self::Fetch => "fetch",
            Self::Kargs => "kargs",
            Self::Disks => "disks",
            Self::Mount => "mount",
            Self::Files => "files",
            Self::Umount => "umount",
        }
    }
}

pub(crate) async fn run(stage: Stage, context: &Context) -> Result<(), Error> {
    match stage {
        Stage::FetchOffline => return acquire::offline(context).await,
        Stage::Fetch => return acquire::online(context).await,
        _ => {}
    }
    let config = read_config(context)?;
    let mut fetcher = Fetcher::new(true);
    if matches!(stage, Stage::Disks | Stage::Files) {
        fetcher.configure(&config.ignition).await?;
    }
    match stage {
        Stage::Kargs => kargs::run(context, &config.kernel_arguments),
        Stage::Disks => disks::run(context, &config, &fetcher).await,
        Stage::Mount => mount::mount(context, &config.storage.filesystems),
        Stage::Files => files::run(context, &config, &fetcher).await,
        Stage::Umount => mount::umount(context, &config.storage.filesystems),
        Stage::FetchOffline | Stage::Fetch => Ok(()),
    }
}

/// Reads the config that the fetch stage has stored.
fn read_config(context: &Context) -> Result<Config, Error> {
    let path = &context.config_cache;
    let text = std::fs::read_to_string(path)
        .map_err(Error::file("reading the config that the fetch stage left at", path))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| Error::File {
        operation: "reading",
        path: path.display().to_string(),
        source: error.into(),
    })?;
    ignition::typed(&value)
        .map_err(|source| Error::Config { origin: path.display().to_string(), source })
}
