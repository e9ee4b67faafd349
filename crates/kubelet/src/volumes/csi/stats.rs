//! How full volumes are, as their drivers tell it: nobody else knows of what is no file system, or of one that is shared.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};

use super::{
    Csi,
    files::{Held, Layout},
};

pub(crate) use super::files::IN_POD;

/// How long a driver has for an answer, lest whoever asks the kubelet for its metrics gives up.
const ANSWER: Duration = Duration::from_secs(5);
/// So many questions are asked at once.
const AT_ONCE: usize = 8;

/// A driver's volume as a Pod has it.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    /// The PersistentVolume's name, or the Pod's own for it.
    pub(crate) name: String,
    driver: String,
    handle: String,
    target: PathBuf,
}

/// What a driver says of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Figures(csi::VolumeStats),
    /// It does not tell.
    Nothing,
    NotAnswered,
}

/// What the Pod has of drivers, by what is on the disk of the kubelet with this root.
pub(crate) fn published(root: &Path, uid: &str) -> Vec<Published> {
    // Of what cannot be read nothing is told; whoever mounts and unmounts says why.
    let held = Layout::new(root).of_pod(uid).unwrap_or_default();
    let published = |Held { record, target, .. }: Held| Published {
        name: record.spec_name,
        driver: record.driver,
        handle: record.handle,
        target,
    };
    held.into_iter().map(published).collect()
}

/// A driver while it is asked about all of its volumes.
struct Asked {
    /// `None` if it does not tell how full volumes are.
    driver: Option<csi::Driver>,
    /// It has not answered, and is not asked again now.
    silent: AtomicBool,
}

impl Asked {
    async fn new(csi: &Csi, name: &str) -> Self {
        let mut asked = Self { driver: None, silent: AtomicBool::new(true) };
        let Some(driver) = csi.driver(name) else { return asked };
        let driver = driver.with_timeout(ANSWER);
        match driver.capabilities().await {
            Ok(can) => {
                asked.driver = can.volume_stats.then_some(driver);
                asked.silent = AtomicBool::new(false);
            }
            Err(error) => tracing::debug!(driver = name, %error, "the driver tells nothing"),
        }
        asked
    }

    async fn about(&self, volume: &Published) -> Said {
        if self.silent.load(Ordering::Relaxed) {
            return Said::NotAnswered;
        }
        let Some(driver) = &self.driver else { return Said::Nothing };
        match driver.volume_stats(&volume.handle, &volume.target).await {
            Ok(Some(stats)) => Said::Figures(stats),
            Ok(None) => Said::Nothing,
            Err(error) => {
                // One that refuses has answered, and may know of the next volume.
                self.silent.fetch_or(!error.is_final(), Ordering::Relaxed);
                tracing::debug!(volume = volume.name, %error, "it is not known how full it is");
                Said::NotAnswered
            }
        }
    }
}

/// Asks the drivers how full their volumes are; the answers are in the volumes' order.
pub(crate) async fn ask(csi: &Csi, volumes: &[&Published]) -> Vec<Said> {
    let names: BTreeSet<&str> = volumes.iter().map(|volume| volume.driver.as_str()).collect();
    // The futures have their type spelt out, or the compiler does not see that they may cross threads.
    let mut asking: Vec<BoxFuture<'_, (&str, Asked)>> = Vec::new();
    for name in names {
        asking.push(async move { (name, Asked::new(csi, name).await) }.boxed());
    }
    let asked: BTreeMap<&str, Asked> =
        stream::iter(asking).buffer_unordered(AT_ONCE).collect().await;
    let mut answers: Vec<BoxFuture<'_, Said>> = Vec::new();
    for volume in volumes {
        if let Some(asked) = asked.get(volume.driver.as_str()) {
            answers.push(asked.about(volume).boxed());
        }
    }
    stream::iter(answers).buffered(AT_ONCE).collect().await
}
