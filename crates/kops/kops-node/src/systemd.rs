//! Configures a machine with systemd: carries the tasks of [`kops_core::nodeup`] out on the machine's files, users,
//! packages and units.
//!
//! Everything is compared first, so that a second run changes nothing and restarts nothing. Paths at which something
//! else is, links for example, are rejected before the first change. Read [`configure`] first, then [`Carrier`].

mod accounts;
mod assets;
mod certificates;
mod files;
mod hosts;
mod packages;
mod services;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::ToSocketAddrs as _,
    path::{Path, PathBuf},
};

use api_meta::Tree as _;
use kops_core::{
    content_hash,
    nodeup::{
        Content, Distribution, File, Keypair, MachineFacts, MachineInputs, Task, Tasks,
        machine_tasks,
    },
};
use kops_store::{DOCKER_CONFIG, ENCRYPTION_CONFIG, Keyset, parse_yaml};
use pki::Cert;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use sys::Programs;
use vfs::Store;

use self::{
    accounts::Accounts,
    assets::Downloads,
    certificates::{Issued, Issuer, Signers, kubeconfig},
    files::{Bytes, DesiredFile},
    services::Services,
    worker::Controller,
};
use crate::{
    error::Error,
    store_access::{open, read_secret},
    systemd_error::SystemdError,
};

/// The directory with a file for each change whose commands have not run yet.
const PENDING: &str = "var/lib/nodeup/pending";
/// The file that a run locks.
const LOCK: &str = "run/nodeup/lock";
/// The largest file that is read from the state store.
const MAX_OBJECT: u64 = 16 << 20;

/// Configures a machine by its boot configuration. Returns what was changed.
pub(crate) async fn configure(
    root: &Path,
    boot: Value,
    programs: &dyn Programs,
) -> Result<Vec<String>, Error> {
    let role = boot.text("InstanceGroupRole");
    if !["ControlPlane", "Node"].contains(&role) {
        return Err(SystemdError::Role(role.to_owned()).into());
    }
    let _turn = lock(root)?;
    let accounts = Accounts::read(root)?;
    let target = Target { root, programs, machine: facts(root, &accounts)? };
    if role == "Node" {
        return target.configure_worker(boot).await;
    }
    target.configure_control_plane(boot).await
}

/// A machine that is configured.
struct Target<'a> {
    root: &'a Path,
    programs: &'a dyn Programs,
    machine: MachineFacts,
}

impl Target<'_> {
    /// Configures a control plane, which reads the state store.
    async fn configure_control_plane(self, boot: Value) -> Result<Vec<String>, Error> {
        let base = boot.text("ConfigBase").trim_end_matches('/').to_owned();
        let store = open(&base)?;
        let role = boot.text("InstanceGroupRole");
        let name = kops_core::node_config_path(role, boot.text("InstanceGroupName"));
        let config = parse_config(&boot, &name, &read(&store, &name)?)?;
        let keysets = read_keysets(&store, &config)?;
        let mut inputs = self.inputs(boot, config);
        inputs.keypairs = keypairs(&keysets, &inputs.config)?;
        inputs.files = read_files(&store, &base, &inputs.config)?;
        inputs.secrets = read_secrets(&store, &inputs.config)?;
        let downloads = self.download(&mut inputs).await?;
        let tasks = machine_tasks(&inputs)?;
        let signers = Signers::Keysets(&keysets);
        let issuer = Issuer { root: self.root, signers, now: rt::now() };
        self.carry_out(&inputs, &tasks, &downloads, issuer)
    }

    /// Configures a worker, which asks kops-controller.
    async fn configure_worker(self, boot: Value) -> Result<Vec<String>, Error> {
        let controller = Controller::open(self.root, &boot, &self.machine.hostname)?;
        let Some(settings) = controller.request_settings().await? else {
            tracing::info!("the machine's Node is ready, so its configuration is left as it is");
            return Ok(Vec::new());
        };
        let mut config = parse_config(&boot, "the node configuration", &settings.config)?;
        let authority = boot.text("ConfigServer.CACertificates");
        config.put("CAs.kubernetes-ca", authority);
        let mut inputs = self.inputs(boot.clone(), config);
        inputs.secrets = settings.secrets;
        let downloads = self.download(&mut inputs).await?;
        let tasks = machine_tasks(&inputs)?;
        let signers = Signers::Trusted(Cert::all_from_pem(authority)?);
        let issuer = Issuer { root: self.root, signers, now: rt::now() };
        controller.request_certificates(&issuer, &tasks).await?;
        self.carry_out(&inputs, &tasks, &downloads, issuer)
    }

    /// Returns inputs that have nothing from the state store yet.
    fn inputs(&self, boot: Value, config: Value) -> MachineInputs {
        MachineInputs {
            boot,
            config,
            machine: self.machine.clone(),
            keypairs: BTreeMap::new(),
            files: BTreeMap::new(),
            secrets: BTreeMap::new(),
            assets: Vec::new(),
        }
    }

    /// Downloads the files of the node configuration.
    async fn download(&self, inputs: &mut MachineInputs) -> Result<Downloads, Error> {
        let architecture = &self.machine.architecture;
        let downloads =
            Downloads::read(self.root, &inputs.config, architecture, self.programs).await?;
        inputs.assets = downloads.assets();
        Ok(downloads)
    }

    /// Carries the tasks out, and returns what was changed.
    fn carry_out(
        &self,
        inputs: &MachineInputs,
        tasks: &Tasks,
        downloads: &Downloads,
        issuer: Issuer<'_>,
    ) -> Result<Vec<String>, Error> {
        let (root, programs) = (self.root, self.programs);
        let trusted = inputs.config.text("CAs.kubernetes-ca");
        let distribution = self.machine.distribution;
        Carrier { root, programs, tasks, downloads, issuer, trusted, distribution }.run()
    }
}

/// Parses a node configuration, which must be the one that the machine was created for.
fn parse_config(boot: &Value, name: &str, text: &str) -> Result<Value, Error> {
    if content_hash(text.as_bytes()) != boot.text("NodeupConfigHash") {
        return Err(Error::NodeConfig);
    }
    Ok(parse_yaml(name, text.as_bytes())?)
}

/// Waits until no other run changes the machine. The lock ends with its process.
fn lock(root: &Path) -> Result<fs::File, SystemdError> {
    let path = root.join(LOCK);
    let parent = path.parent().unwrap_or(root);
    fs::create_dir_all(parent).map_err(SystemdError::io("create the directory", parent))?;
    let file = fs::File::create(&path).map_err(SystemdError::io("create", &path))?;
    file.lock().map_err(SystemdError::io("lock", path))?;
    Ok(file)
}

/// Reads an object of the state store as text.
fn read(store: &Store, name: &str) -> Result<String, Error> {
    let (content, _) = store.read(name)?.ok_or_else(|| Error::Missing { name: name.to_owned() })?;
    if content.len() as u64 > MAX_OBJECT {
        return Err(SystemdError::TooLarge { what: name.to_owned(), limit: MAX_OBJECT }.into());
    }
    let name = name.to_owned();
    String::from_utf8(content).map_err(|source| Error::Encoding { name, source })
}

/// Reads the keysets whose key pairs the configuration names.
fn read_keysets(store: &Store, config: &Value) -> Result<BTreeMap<String, Keyset>, Error> {
    let ids = config.at("KeypairIDs").as_object();
    let names = ids.into_iter().flat_map(|ids| ids.keys());
    let keysets = names.map(|name| {
        let path = format!("pki/private/{name}/keyset.yaml");
        let text = read(store, &path)?;
        Ok::<_, Error>((name.clone(), Keyset::parse(&path, name, text.as_bytes())?))
    });
    keysets.collect()
}

/// Returns the key pairs that the configuration names.
fn keypairs(
    keysets: &BTreeMap<String, Keyset>,
    config: &Value,
) -> Result<BTreeMap<String, BTreeMap<String, Keypair>>, Error> {
    let mut pairs = BTreeMap::new();
    for (name, keyset) in keysets {
        let id = config.text(&format!("KeypairIDs.{name}"));
        let authority = keyset.authority_of(id)?;
        let pair =
            Keypair { certificate: authority.cert().to_pem(), key: authority.key().to_pem()? };
        pairs.insert(name.clone(), BTreeMap::from([(id.to_owned(), pair)]));
    }
    Ok(pairs)
}

/// Reads the manifests that the configuration names, which are in the cluster's directory.
fn read_files(
    store: &Store,
    base: &str,
    config: &Value,
) -> Result<BTreeMap<String, String>, Error> {
    let mut files = BTreeMap::new();
    for manifest in config.items("staticManifests") {
        let path = manifest.text("path");
        files.insert(path.to_owned(), read(store, path)?);
    }
    let channels = [config.text("channelsManifest")];
    for url in config.texts("etcdManifests").chain(channels).filter(|url| !url.is_empty()) {
        let path = url.strip_prefix(base).and_then(|path| path.strip_prefix('/'));
        let path = path.ok_or_else(|| SystemdError::ForeignPath {
            path: url.to_owned(),
            base: base.to_owned(),
        })?;
        files.insert(url.to_owned(), read(store, path)?);
    }
    Ok(files)
}

fn read_secrets(store: &Store, config: &Value) -> Result<BTreeMap<String, String>, Error> {
    let mut secrets = BTreeMap::new();
    for name in [DOCKER_CONFIG, ENCRYPTION_CONFIG] {
        let Some(content) = read_secret(store, name)? else { continue };
        let hash = config.text("APIServerConfig.EncryptionConfigSecretHash");
        if name == ENCRYPTION_CONFIG && !hash.is_empty() && content_hash(&content) != hash {
            return Err(Error::EncryptionConfig);
        }
        let text = String::from_utf8(content);
        let text = text.map_err(|source| Error::Encoding { name: name.to_owned(), source })?;
        secrets.insert(name.to_owned(), text);
    }
    Ok(secrets)
}

/// Gathers the facts about a machine.
fn facts(root: &Path, accounts: &Accounts) -> Result<MachineFacts, Error> {
    let text = |name: &str| {
        let path = root.join(name);
        fs::read_to_string(&path).map_err(SystemdError::io("read", path))
    };
    let hostname = text("etc/hostname")?.trim().to_owned();
    // A name that cannot be resolved has no addresses, as for upstream.
    let found = (hostname.as_str(), 0).to_socket_addrs().into_iter().flatten();
    let addresses: BTreeSet<String> = found.map(|address| address.ip().to_string()).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Ok(MachineFacts {
        distribution: Distribution::parse(&text("etc/os-release")?)?,
        architecture: architecture.to_owned(),
        hostname,
        addresses: addresses.into_iter().collect(),
        has_resolved: root.join("run/systemd/resolve/resolv.conf").exists(),
        users: accounts.local_users(),
        is_warming: false,
    })
}

/// Carries a machine's tasks out.
struct Carrier<'a> {
    root: &'a Path,
    programs: &'a dyn Programs,
    tasks: &'a Tasks,
    downloads: &'a Downloads,
    issuer: Issuer<'a>,
    /// The certificates that kubeconfigs trust.
    trusted: &'a str,
    distribution: Distribution,
}

impl Carrier<'_> {
    /// Carries all tasks out, and returns what was changed.
    fn run(&self) -> Result<Vec<String>, Error> {
        let services =
            Services { root: self.root, programs: self.programs, distribution: self.distribution };
        for file in self.files() {
            let path = self.path(file);
            files::check(&path, file.content.is_none())?;
            if file.content.is_none() && file.owner.is_some() {
                files::check_owned(&path)?;
            }
        }
        services.check(self.tasks)?;
        let mut changes = self.apply_hosts()?;
        let packages: Vec<&str> = self.tasks.iter().filter_map(package).collect();
        changes.extend(packages::install(&packages, self.programs)?);
        // Packages may bring users.
        let accounts = Accounts::read(self.root)?;
        for task in self.tasks.iter() {
            if let Task::User(user) = task
                && accounts.apply(user, self.programs)?
            {
                changes.push(format!("set up the user {}", user.name));
            }
        }
        changes.extend(self.apply_files(&Accounts::read(self.root)?)?);
        changes.extend(services.apply(self.tasks)?);
        for task in self.tasks.iter() {
            if let Task::Image(name) = task {
                self.programs.must(&["ctr", "--namespace", "k8s.io", "images", "pull", name])?;
            }
        }
        Ok(changes)
    }

    fn files(&self) -> impl Iterator<Item = &File> {
        self.tasks.iter().filter_map(|task| match task {
            Task::File(file) => Some(file),
            _ => None,
        })
    }

    fn path(&self, file: &File) -> PathBuf {
        self.root.join(file.path.trim_matches('/'))
    }

    fn apply_hosts(&self) -> Result<Vec<String>, Error> {
        for task in self.tasks.iter() {
            if let Task::Hosts(records) = task
                && hosts::write(self.root, records)?
            {
                return Ok(vec!["wrote the hosts file".to_owned()]);
            }
        }
        Ok(Vec::new())
    }

    /// Writes the files that differ, then runs the commands of those that were changed.
    fn apply_files(&self, accounts: &Accounts) -> Result<Vec<String>, Error> {
        let mut changes = Vec::new();
        let (first, last): (Vec<_>, Vec<_>) =
            self.files().partition(|file| file.after_files.is_empty());
        for file in first.into_iter().chain(last) {
            let content = match &file.content {
                None => None,
                Some(content) => Some(self.content(content)?),
            };
            let path = self.path(file);
            let mark = self.mark(file);
            if !file.on_change.is_empty() {
                self.mark_if_different(&path, content.as_ref(), &mark)?;
            }
            let wanted = DesiredFile {
                path: path.clone(),
                content,
                mode: file.mode.as_deref(),
                owner: file.owner.as_deref(),
                group: file.group.as_deref(),
                if_missing: file.if_missing,
            };
            if files::apply(&wanted, accounts)? {
                changes.push(format!("wrote {}", file.path));
            }
        }
        for file in self.files().filter(|file| !file.on_change.is_empty()) {
            changes.extend(self.run_commands(file)?);
        }
        Ok(changes)
    }

    /// Returns the path of the mark that a file's commands have to run, also after a stop.
    fn mark(&self, file: &File) -> PathBuf {
        let name = data_encoding::HEXLOWER.encode(&Sha256::digest(file.path.as_bytes()));
        self.root.join(PENDING).join(name)
    }

    fn mark_if_different(
        &self,
        path: &Path,
        content: Option<&Bytes<'_>>,
        mark: &Path,
    ) -> Result<(), Error> {
        let is_same = match content {
            Some(Bytes::Text(text)) => fs::read(path).is_ok_and(|found| found == *text),
            _ => false,
        };
        if !is_same {
            pki::write_file(mark, b"", pki::KEY_MODE)?;
        }
        Ok(())
    }

    fn run_commands(&self, file: &File) -> Result<Vec<String>, Error> {
        let mark = self.mark(file);
        if !mark.exists() {
            return Ok(Vec::new());
        }
        let mut changes = Vec::new();
        for command in &file.on_change {
            let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
            // A command in the background: systemd does not wait for the unit.
            if words.last() == Some(&"&") {
                words.pop();
                words.push("--no-block");
            }
            self.programs.must(&words)?;
            changes.push(words.join(" "));
        }
        fs::remove_file(&mark).map_err(SystemdError::io("remove", &mark))?;
        Ok(changes)
    }

    /// Returns the content of a file.
    fn content(&self, content: &Content) -> Result<Bytes<'_>, Error> {
        let issued = |name: &str| -> Result<Issued, Error> {
            let missing = || SystemdError::MissingTask { name: name.to_owned() };
            self.issuer.issue(self.tasks.certificate(name).ok_or_else(missing)?)
        };
        let text = match content {
            Content::Text(text) => text.clone(),
            Content::Asset(asset) => return Ok(Bytes::File(self.downloads.path(asset)?)),
            Content::Certificate(name) => issued(name)?.certificate,
            Content::Key(name) => issued(name)?.key,
            Content::Authority(name) => issued(name)?.authority,
            Content::Kubeconfig(name) => {
                let missing = || SystemdError::MissingTask { name: name.clone() };
                let task = self.tasks.kubeconfig(name).ok_or_else(missing)?;
                kubeconfig(task, &issued(name)?, self.trusted)?
            }
        };
        Ok(Bytes::Text(text.into_bytes()))
    }
}

fn package(task: &Task) -> Option<&str> {
    match task {
        Task::Package(name) => Some(name),
        _ => None,
    }
}

/// The unit that runs nodeup when the machine starts.
const UNIT: &str = "kops-configuration.service";

/// The file with the access to the state store for the unit. Other users of the machine cannot read it.
const ENVIRONMENT: &str = "etc/sysconfig/kops-configuration";
/// The variables that the file has, as upstream's. They are kept if an installation has none.
const VARIABLES: [&str; 4] =
    ["S3_ENDPOINT", "S3_REGION", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY"];

/// Writes the file with the access to the state store, if the environment has one.
fn write_environment(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Result<(), Error> {
    let mut text = String::new();
    for name in VARIABLES {
        let Some(value) = variable(name) else { continue };
        let is_plain = |c: char| c.is_ascii_graphic() && !"\"'\\".contains(c);
        if !value.chars().all(is_plain) {
            return Err(SystemdError::Variable { name }.into());
        }
        text.push_str(&format!("{name}={value}\n"));
    }
    let path = root.join(ENVIRONMENT);
    if text.is_empty() && path.exists() {
        return Ok(());
    }
    files::check(&path, false)?;
    Ok(pki::write_file(&path, text.as_bytes(), pki::KEY_MODE)?)
}

/// Installs and starts the unit that runs nodeup at every start of the machine.
pub(crate) fn install_unit(
    root: &Path,
    conf: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
    programs: &dyn Programs,
) -> Result<(), Error> {
    let program = std::env::current_exe().map_err(SystemdError::io("find", "this program"))?;
    let shown = |path: &Path| path.display().to_string();
    let is_plain = |text: &str| {
        text.starts_with('/')
            && !text.contains(|c: char| c.is_whitespace() || "\"'\\%$;".contains(c))
    };
    for path in [&program, conf] {
        if !is_plain(&shown(path)) {
            let found = "a relative path, or one with characters that a unit file cannot hold";
            return Err(SystemdError::Kind {
                path: path.to_owned(),
                found,
                wanted: "a plain absolute path",
            }
            .into());
        }
    }
    let unit = format!(
        "[Unit]\nDescription=Run kOps bootstrap (nodeup)\nDocumentation=https://github.com/kubernetes/kops\n\
         Wants=network-online.target\nAfter=network-online.target\n\n\
         [Service]\nType=oneshot\nEnvironmentFile=/{ENVIRONMENT}\nEnvironmentFile=-/etc/environment\n\
         ExecStart={} nodeup --conf={}\nRestart=on-failure\nRestartSec=10s\n\n\
         [Install]\nWantedBy=multi-user.target\n",
        shown(&program),
        shown(conf)
    );
    write_environment(root, variable)?;
    let path = root.join("etc/systemd/system").join(UNIT);
    files::check(&path, false)?;
    if pki::update_file(&path, unit.as_bytes(), pki::PUBLIC_MODE)? {
        programs.must(&["systemctl", "daemon-reload"])?;
    }
    programs.must(&["systemctl", "enable", UNIT])?;
    programs.must(&["systemctl", "start", "--no-block", UNIT])?;
    Ok(())
}
