//! Commands that open a store directly to copy, save and restore a cluster's objects. The API servers must be stopped
//! meanwhile, except when saving from etcd.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use apiserver::KEYSPACE;
use clap::Subcommand;
use store::embedded::{Embedded, Options};

use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum Store {
    /// Copies every object of an embedded store into an empty etcd; revisions continue to grow
    ///
    /// Stop the API server of the store first (move its manifest away), and start one on etcd after it.
    Copy {
        /// The embedded store's directory
        #[arg(long)]
        from: PathBuf,
        #[command(flatten)]
        etcd: Etcd,
    },
}

#[derive(Subcommand)]
pub(crate) enum Snapshot {
    /// Saves every object to a file; from etcd while the cluster runs
    Save {
        file: PathBuf,
        #[command(flatten)]
        place: StoreLocation,
    },
    /// Creates a new cluster's store from a file: an empty etcd, or a directory
    Restore {
        file: PathBuf,
        #[command(flatten)]
        place: StoreLocation,
        /// The number of revisions to skip. It must exceed the number of revisions after the snapshot, so that no
        /// client mistakes a new revision for one that it has seen
        #[arg(long, default_value_t = 10_000)]
        bump_revision: u64,
    },
    /// Checks a file and prints its contents
    Status { file: PathBuf },
}

#[derive(clap::Args)]
pub(crate) struct StoreLocation {
    /// An embedded store's directory, instead of etcd
    #[arg(long)]
    store_dir: Option<PathBuf>,
    #[command(flatten)]
    etcd: Etcd,
}

/// The etcd of `init`, unless the flags name another.
#[derive(clap::Args)]
pub(crate) struct Etcd {
    #[arg(long, value_delimiter = ',', default_value = "https://127.0.0.1:2379")]
    etcd_servers: Vec<String>,
    #[arg(long, default_value = "/etc/kubernetes/pki/etcd/ca.crt")]
    etcd_cafile: PathBuf,
    #[arg(long, default_value = "/etc/kubernetes/pki/apiserver-etcd-client.crt")]
    etcd_certfile: PathBuf,
    #[arg(long, default_value = "/etc/kubernetes/pki/apiserver-etcd-client.key")]
    etcd_keyfile: PathBuf,
}

impl Etcd {
    async fn open(&self) -> Result<Arc<dyn store::Store>, Failure> {
        let secure = self.etcd_servers.iter().any(|server| server.starts_with("https://"));
        let tls = secure.then(|| store_etcd::TlsFiles {
            ca: self.etcd_cafile.clone(),
            identity: Some((self.etcd_certfile.clone(), self.etcd_keyfile.clone())),
        });
        let options = store_etcd::Options::new(self.etcd_servers.clone(), tls);
        let etcd = store_etcd::Etcd::connect(options).await?;
        Ok(Arc::new(apiserver::UpstreamForm::new(Arc::new(etcd))))
    }
}

async fn open_directory(directory: &Path) -> Result<Arc<dyn store::Store>, Failure> {
    if !directory.is_dir() {
        return Err(format!("the directory {} does not exist", directory.display()).into());
    }
    let directory = directory.to_owned();
    let open = move || Embedded::open(&directory, Options::default());
    Ok(Arc::new(tokio::task::spawn_blocking(open).await??))
}

pub(crate) async fn store(command: Store) -> Result<(), Failure> {
    let Store::Copy { from, etcd } = command;
    let (from, to) = (open_directory(&from).await?, etcd.open().await?);
    let copied = store::copy(&*from, &*to, 0, KEYSPACE).await?;
    println!("{} keys copied; revision {} continues at {}", copied.keys, copied.from, copied.to);
    Ok(())
}

pub(crate) async fn snapshot(command: Snapshot) -> Result<(), Failure> {
    match command {
        Snapshot::Save { file, place } => {
            let store = match &place.store_dir {
                Some(directory) => open_directory(directory).await?,
                None => place.etcd.open().await?,
            };
            let now = rt::now();
            print_summary(&file, store::Snapshot::save_from(&*store, KEYSPACE, &file, now).await?);
        }
        Snapshot::Restore { file, place, bump_revision } => match &place.store_dir {
            Some(directory) => {
                print_summary(
                    directory,
                    store::Snapshot::restore(&file, directory, bump_revision)?,
                );
            }
            None => restore_into_etcd(&file, &place.etcd, bump_revision).await?,
        },
        Snapshot::Status { file } => print_summary(&file, store::Snapshot::inspect(&file)?),
    }
    Ok(())
}

/// Restores through a temporary store on this machine.
async fn restore_into_etcd(file: &Path, etcd: &Etcd, bump: u64) -> Result<(), Failure> {
    let to = etcd.open().await?;
    // It contains all Secrets of the cluster.
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    let directory =
        tempfile::Builder::new().prefix("windlass-restore-").permissions(private).tempdir()?;
    let unpacked = directory.path().join("store");
    store::Snapshot::restore(file, &unpacked, 0)?;
    let from = open_directory(&unpacked).await?;
    let copied = store::copy(&*from, &*to, bump, KEYSPACE).await?;
    println!("{} keys restored; revision {} continues at {}", copied.keys, copied.from, copied.to);
    Ok(())
}

fn print_summary(place: &Path, snapshot: store::Snapshot) {
    println!("{}: {} keys at revision {}", place.display(), snapshot.keys, snapshot.revision);
}
