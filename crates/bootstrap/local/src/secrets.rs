//! `windlass secrets-encrypt`: rotates the keys with which the API server encrypts Secrets at rest, and rewrites the
//! data that was encrypted with older ones. It changes the EncryptionConfiguration in steps. Each step waits until the
//! API server has loaded the one before, and the file determines the next step.

mod configuration;
mod objects;
mod server;
mod target;
#[cfg(test)]
mod tests;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use client::Client;

use self::{
    configuration::{Configuration, Stage, key_name},
    target::Target,
};
use crate::{
    cluster::{Cluster, DEFAULT_NAME},
    configure,
    error::Error,
    secrets_error::SecretsError,
};

/// Shows and rotates the keys that encrypt Secrets at rest.
///
/// For clusters of `up --secrets-encryption`, and on the control plane of clusters of `init` whose API server has
/// --encryption-provider-config and --encryption-provider-config-automatic-reload.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The cluster, and the time to wait for it
#[derive(Clone, Debug, clap::Args)]
struct ClusterArgs {
    /// The name of a cluster of `up`
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    /// The directory of the files of a cluster of `up` [default: /var/lib/windlass/NAME]
    #[arg(long, global = true)]
    root: Option<PathBuf>,
    /// The directory of the files of a cluster of `init`
    #[arg(long, global = true, default_value = "/etc/kubernetes")]
    kubernetes_dir: PathBuf,
    /// The time to wait until the API server has loaded a change, in seconds
    #[arg(long, global = true, default_value_t = 180)]
    timeout: u64,
}

/// The commands of `windlass secrets-encrypt`.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum Command {
    /// Shows the providers, the names of their keys, and the stage of a rotation
    Status,
    /// Adds a new key, uses it, rewrites all data, and removes the old keys. Continues a rotation that was interrupted
    Rotate,
    /// Rewrites all data with the current key, and removes the other keys of its provider
    Reencrypt,
}

/// Runs a command.
pub async fn run(args: Args) -> Result<(), Error> {
    let rotation = Rotation {
        target: args.cluster.target()?,
        patience: Duration::from_secs(args.cluster.timeout),
    };
    let done = match args.command {
        Command::Status => rotation.status().await,
        Command::Rotate => rotation.rotate().await,
        Command::Reencrypt => rotation.reencrypt().await,
    };
    Ok(done?)
}

/// Creates the encryption configuration of a cluster of `up`, unless there is one.
pub(crate) fn create(file: &Path) -> Result<(), SecretsError> {
    if file.exists() {
        return Ok(());
    }
    let text = Configuration::new(&key_name(rt::now())).to_text()?;
    Ok(pki::write_file(file, text.as_bytes(), pki::KEY_MODE)?)
}

impl ClusterArgs {
    /// Finds the cluster: that of `up` if its root exists, and else that of `init`.
    fn target(&self) -> Result<Target, Error> {
        let root = Cluster::at(&self.name, self.root.as_deref());
        let manifest = self.kubernetes_dir.join("manifests/kube-apiserver.yaml");
        let (file, kubeconfig) = if root.join("cluster.json").exists() {
            let cluster = Cluster::load(&self.name, &root)?;
            // The file is that of `up --secrets-encryption` or of the document.
            let flags = configure::api_server(&cluster)?;
            let file = flags.encryption_provider_config.ok_or(SecretsError::NotConfigured)?;
            if !flags.encryption_provider_config_automatic_reload {
                let place = "apiServer.extraArgs of the document".to_owned();
                return Err(SecretsError::NotReloaded(place).into());
            }
            (file, cluster.layout().kubeconfig("super-admin.conf"))
        } else if manifest.exists() {
            let file = target::file_of_static_pod(&manifest, &read(&manifest)?)?;
            (file, self.kubernetes_dir.join("admin.conf"))
        } else {
            return Err(SecretsError::NoCluster { root, manifest }.into());
        };
        let client = Client::from_kubeconfig_file(&kubeconfig, "windlass-secrets-encrypt")?;
        Ok(Target { file, client })
    }
}

fn read(path: &Path) -> Result<String, SecretsError> {
    fs::read_to_string(path).map_err(|source| SecretsError::File {
        operation: "reading",
        path: path.to_owned(),
        source,
    })
}

/// A rotation of the keys of one file.
struct Rotation {
    target: Target,
    /// The time to wait until the API server has loaded a change.
    patience: Duration,
}

impl Rotation {
    async fn status(&self) -> Result<(), SecretsError> {
        let (file, text) = (&self.target.file, read(&self.target.file)?);
        let configuration = Configuration::parse(file, &text)?;
        println!("file: {}", file.display());
        for entry in configuration.entries() {
            println!("resources: {}", entry.resources.join(", "));
            println!("  provider: {}", entry.provider);
            if let Some((current, others)) = entry.keys.split_first() {
                println!("  current key: {current}");
                others.iter().for_each(|key| println!("  other key: {key}"));
            }
        }
        let stage = match configuration.stage() {
            Stage::Start if configuration.has_old_keys() => {
                "no rotation; reencrypt removes the other keys"
            }
            Stage::Start => "no rotation",
            Stage::Prepared => "the new key is known and not used; rotate continues",
            Stage::Rotated => {
                "the new key is used, and old data is not rewritten; rotate continues"
            }
        };
        println!("stage: {stage}");
        let loaded = server::has_loaded(&self.target.client, &text).await?;
        println!(
            "API server: {}",
            if loaded { "uses this file" } else { "does not use this file yet" }
        );
        Ok(())
    }

    /// Goes through the steps that the file still needs.
    async fn rotate(&self) -> Result<(), SecretsError> {
        let _lock = self.lock()?;
        let mut configuration = self.usable().await?;
        match configuration.stage() {
            Stage::Start => {
                let name = key_name(rt::now());
                configuration.prepare(&name);
                self.write(&configuration)?;
                println!("added the key {name}");
            }
            stage => println!("continuing a rotation ({stage:?})"),
        }
        if configuration.stage() == Stage::Prepared {
            self.wait(&configuration).await?;
            configuration.rotate();
            self.write(&configuration)?;
            println!("new data is encrypted with the new key");
        }
        self.rewrite_and_retire(configuration).await
    }

    async fn reencrypt(&self) -> Result<(), SecretsError> {
        let _lock = self.lock()?;
        let configuration = self.usable().await?;
        if configuration.stage() == Stage::Prepared {
            return Err(SecretsError::Unfinished);
        }
        self.rewrite_and_retire(configuration).await
    }

    /// Rewrites all data with the first key of each provider. Removes the other keys if that succeeds.
    async fn rewrite_and_retire(
        &self,
        mut configuration: Configuration,
    ) -> Result<(), SecretsError> {
        let client = &self.target.client;
        self.wait(&configuration).await?;
        let resources = objects::find(client, &configuration.resources()).await?;
        objects::rewrite(client, &resources).await?;
        // The first pass may have missed a write that began before the API server loaded the file.
        let count = objects::rewrite(client, &resources).await?;
        println!("rewrote {count} objects");
        if configuration.has_old_keys() {
            configuration.retire();
            self.write(&configuration)?;
            self.wait(&configuration).await?;
            println!("removed the old keys");
        }
        Ok(())
    }

    /// Reads the file, and returns an error if its keys cannot be rotated.
    async fn usable(&self) -> Result<Configuration, SecretsError> {
        let configuration = Configuration::parse(&self.target.file, &read(&self.target.file)?)?;
        configuration.check()?;
        server::only_one(&self.target.client).await?;
        Ok(configuration)
    }

    async fn wait(&self, configuration: &Configuration) -> Result<(), SecretsError> {
        let text = configuration.to_text()?;
        // A file that the user wrote has the same content in another form.
        if read(&self.target.file)? != text {
            self.write(configuration)?;
        }
        server::wait_until_loaded(&self.target.client, &self.target.file, &text, self.patience)
            .await
    }

    /// Replaces the file atomically, with the same mode.
    fn write(&self, configuration: &Configuration) -> Result<(), SecretsError> {
        let mode = fs::metadata(&self.target.file).map(|meta| meta.permissions().mode() & 0o777);
        let mode = mode.unwrap_or(pki::KEY_MODE);
        Ok(pki::write_file(&self.target.file, configuration.to_text()?.as_bytes(), mode)?)
    }

    /// Keeps other processes from changing the file. The lock is on the directory, because the file is replaced.
    fn lock(&self) -> Result<fs::File, SecretsError> {
        let file = &self.target.file;
        let directory = file.parent().unwrap_or(Path::new("/"));
        let failed = |source| SecretsError::File {
            operation: "locking",
            path: directory.to_owned(),
            source,
        };
        let lock = fs::File::open(directory).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(fs::TryLockError::WouldBlock) => Err(SecretsError::Locked(file.clone())),
            Err(fs::TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}
