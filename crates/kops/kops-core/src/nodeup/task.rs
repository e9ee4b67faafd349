//! The tasks of a machine's configuration.

use std::collections::BTreeMap;

use api_meta::Tree as _;
use serde_json::{Value, json};

use crate::error::Error;

/// A part of a machine's configuration. It is compared with the machine, and carried out where they differ.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// A file or a directory.
    File(File),
    /// A unit of systemd and its state.
    Service(Service),
    /// A package of the distribution.
    Package(String),
    /// A user without a password.
    User(User),
    /// A certificate with its key.
    Certificate(Certificate),
    /// A kubeconfig with a certificate.
    Kubeconfig(Kubeconfig),
    /// Names in the hosts file.
    Hosts(Vec<HostRecord>),
    /// A container image that is pulled in advance.
    Image(String),
}

/// A file or a directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct File {
    /// The absolute path.
    pub path: String,
    /// The content; `None` for a directory.
    pub content: Option<Content>,
    /// The permissions in octal digits; 0644 or 0755 if they are missing.
    pub mode: Option<String>,
    /// The user who owns the file; root if it is missing.
    pub owner: Option<String>,
    /// The group that owns the file.
    pub group: Option<String>,
    /// `true` if an existing file is left as it is.
    pub if_missing: bool,
    /// The units that start after the file is written; all if the list is empty.
    pub before_services: Vec<String>,
    /// Files that are written before this one.
    pub after_files: Vec<String>,
    /// Commands that run after the file was changed.
    pub on_change: Vec<Vec<String>>,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Text.
    Text(String),
    /// A downloaded file, or a member of a downloaded archive.
    Asset(Asset),
    /// The certificate of a task, by name.
    Certificate(String),
    /// The private key of a certificate's task.
    Key(String),
    /// The certificate of the authority that signs a certificate's task.
    Authority(String),
    /// The kubeconfig of a task, by name.
    Kubeconfig(String),
}

/// A downloaded file, or a member of a downloaded archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// The file's name.
    pub key: String,
    /// The path in the archive, or the address of a file that is no archive.
    pub path: String,
    /// The address of the download.
    pub source: String,
}

/// A unit of systemd and its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// The unit's file name.
    pub name: String,
    /// The unit file; `None` for a unit that exists already.
    pub definition: Option<String>,
    /// `true` if the unit starts with the machine.
    pub enabled: bool,
    /// `true` if the unit runs.
    pub running: bool,
    /// `true` if the unit restarts after a file that it names has changed.
    pub smart_restart: bool,
    /// `true` to enable, start and stop the unit; `false` to write only its file.
    pub manage_state: bool,
}

impl Service {
    /// Returns a unit that runs and starts with the machine.
    pub(super) fn running(name: &str, definition: Option<String>) -> Self {
        Self {
            name: name.to_owned(),
            definition,
            enabled: true,
            running: true,
            smart_restart: true,
            manage_state: true,
        }
    }
}

/// A user without a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The user's ID.
    pub uid: u32,
    /// The login shell.
    pub shell: String,
    /// The home directory; empty for the system's default.
    pub home: String,
}

/// The use of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateUse {
    Client,
    Server,
}

/// A certificate that the machine issues from a key pair of the state store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The task's name.
    pub name: String,
    /// The keyset of the authority.
    pub signer: String,
    /// The key pair's ID in the keyset.
    pub keypair: String,
    /// The use.
    pub usage: CertificateUse,
    /// The subject's common name.
    pub common_name: String,
    /// The subject's organizations.
    pub organizations: Vec<String>,
    /// The DNS names and addresses.
    pub names: Vec<String>,
    /// `true` if the authority's certificate follows in the certificate's file.
    pub with_root: bool,
}

/// A kubeconfig with the certificate of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// The task's name, which is also the certificate's.
    pub name: String,
    /// The API server's URL.
    pub server: String,
}

/// A name in the hosts file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRecord {
    /// The name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<String>,
}

/// The tasks of a machine, by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tasks {
    all: BTreeMap<String, Task>,
}

impl Task {
    /// Returns the kind and name, which are unique among a machine's tasks.
    pub fn key(&self) -> String {
        match self {
            Self::File(file) => format!("File/{}", file.path),
            Self::Service(service) => format!("Service/{}", service.name),
            Self::Package(name) => format!("Package/{name}"),
            Self::User(user) => format!("User/{}", user.name),
            Self::Certificate(certificate) => format!("Certificate/{}", certificate.name),
            Self::Kubeconfig(kubeconfig) => format!("Kubeconfig/{}", kubeconfig.name),
            Self::Hosts(_) => "Hosts".to_owned(),
            Self::Image(name) => format!("Image/{name}"),
        }
    }
}

impl Tasks {
    /// Adds a task. Another task with the same kind and name is an error, as in upstream's nodeup; an equal one is not.
    pub(super) fn add(&mut self, task: Task) -> Result<(), Error> {
        let key = task.key();
        match self.all.get(&key) {
            Some(other) if *other != task => {
                let reason = "is configured in two ways: remove one of them from the spec";
                Err(Error::value("node configuration", key, reason))
            }
            _ => {
                self.all.insert(key, task);
                Ok(())
            }
        }
    }

    /// Adds a file with text.
    pub(super) fn text(&mut self, path: &str, text: &str, mode: Option<&str>) -> Result<(), Error> {
        self.add(Task::File(File {
            path: path.to_owned(),
            content: Some(Content::Text(text.to_owned())),
            mode: mode.map(str::to_owned),
            ..File::default()
        }))
    }

    /// Adds a directory, unless it is there.
    pub(super) fn directory(&mut self, path: &str, mode: Option<&str>) {
        let file = File { path: path.to_owned(), mode: mode.map(str::to_owned), ..File::default() };
        let task = Task::File(file);
        self.all.entry(task.key()).or_insert(task);
    }

    /// Adds a program from a download.
    pub(super) fn program(&mut self, path: &str, asset: Asset) -> Result<(), Error> {
        self.add(Task::File(File {
            path: path.to_owned(),
            content: Some(Content::Asset(asset)),
            mode: Some("0755".to_owned()),
            ..File::default()
        }))
    }

    /// Adds a log file, which is left alone once it exists.
    pub(super) fn log_file(&mut self, program: &str) -> Result<(), Error> {
        self.add(Task::File(File {
            path: format!("/var/log/{program}.log"),
            content: Some(Content::Text(String::new())),
            mode: Some("0400".to_owned()),
            if_missing: true,
            ..File::default()
        }))
    }

    /// Adds a certificate and its files `NAME.crt` and `NAME.key` in a directory.
    pub(super) fn certificate_files(
        &mut self,
        certificate: Certificate,
        directory: &str,
        name: &str,
        owner: Option<&str>,
    ) -> Result<(), Error> {
        self.directory(directory, Some("0755"));
        self.key_files(&certificate.name.clone(), directory, name, owner)?;
        self.add(Task::Certificate(certificate))
    }

    /// Adds the files of a certificate's task.
    pub(super) fn key_files(
        &mut self,
        certificate: &str,
        directory: &str,
        name: &str,
        owner: Option<&str>,
    ) -> Result<(), Error> {
        for (end, mode, content) in [
            ("crt", "0644", Content::Certificate(certificate.to_owned())),
            ("key", "0600", Content::Key(certificate.to_owned())),
        ] {
            self.add(Task::File(File {
                path: format!("{directory}/{name}.{end}"),
                content: Some(content),
                mode: Some(mode.to_owned()),
                owner: owner.map(str::to_owned),
                ..File::default()
            }))?;
        }
        Ok(())
    }

    /// Returns the tasks in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = &Task> {
        self.all.values()
    }

    /// Returns the certificate with a name.
    pub fn certificate(&self, name: &str) -> Option<&Certificate> {
        match self.all.get(&format!("Certificate/{name}")) {
            Some(Task::Certificate(certificate)) => Some(certificate),
            _ => None,
        }
    }

    /// Returns the kubeconfig with a name.
    pub fn kubeconfig(&self, name: &str) -> Option<&Kubeconfig> {
        match self.all.get(&format!("Kubeconfig/{name}")) {
            Some(Task::Kubeconfig(kubeconfig)) => Some(kubeconfig),
            _ => None,
        }
    }

    /// Returns a task in the form of upstream's dry run, with the tasks that it refers to.
    pub fn describe(&self, task: &Task) -> Value {
        match task {
            Task::File(file) => self.describe_file(file),
            Task::Service(service) => describe_service(service),
            Task::Package(name) | Task::Image(name) => json!({"Name": name}),
            Task::User(user) => json!({
                "Name": user.name, "home": user.home, "shell": user.shell, "uid": user.uid,
            }),
            Task::Certificate(certificate) => describe_certificate(certificate),
            Task::Kubeconfig(kubeconfig) => self.describe_kubeconfig(kubeconfig),
            Task::Hosts(records) => {
                let record = |record: &HostRecord| json!({"Hostname": record.name, "Addresses": record.addresses});
                json!({
                    "Name": "control-plane-address",
                    "Records": records.iter().map(record).collect::<Vec<_>>(),
                })
            }
        }
    }

    fn describe_file(&self, file: &File) -> Value {
        let kind = if file.content.is_some() { "file" } else { "directory" };
        let mut tree = json!({"path": file.path, "type": kind});
        let mut put = |name: &str, value: Value| {
            if let Some(members) = tree.as_object_mut() {
                members.insert(name.to_owned(), value);
            }
        };
        if let Some(content) = &file.content {
            put("contents", self.describe_content(content));
        }
        for (name, value) in [("mode", &file.mode), ("owner", &file.owner), ("group", &file.group)]
        {
            value.iter().for_each(|value| put(name, value.clone().into()));
        }
        if file.if_missing {
            put("ifNotExists", true.into());
        }
        for (name, list) in
            [("beforeServices", &file.before_services), ("afterFiles", &file.after_files)]
        {
            if !list.is_empty() {
                put(name, list.clone().into());
            }
        }
        if !file.on_change.is_empty() {
            put("onChangeExecute", json!(file.on_change));
        }
        tree
    }

    fn describe_content(&self, content: &Content) -> Value {
        match content {
            Content::Text(text) => text.clone().into(),
            Content::Asset(asset) => {
                json!({"Asset": {"Key": asset.key, "AssetPath": asset.path}})
            }
            Content::Certificate(name) | Content::Key(name) | Content::Authority(name) => {
                json!({"task": self.certificate(name).map(describe_certificate)})
            }
            Content::Kubeconfig(name) => {
                json!({"task": self.kubeconfig(name).map(|found| self.describe_kubeconfig(found))})
            }
        }
    }

    fn describe_kubeconfig(&self, kubeconfig: &Kubeconfig) -> Value {
        let certificate =
            json!({"task": self.certificate(&kubeconfig.name).map(describe_certificate)});
        json!({
            "Name": kubeconfig.name, "ServerURL": kubeconfig.server,
            "CA": certificate, "Cert": certificate, "Key": certificate,
        })
    }
}

fn describe_service(service: &Service) -> Value {
    let mut tree = json!({
        "Name": service.name, "enabled": service.enabled, "running": service.running,
        "manageState": service.manage_state, "smartRestart": service.smart_restart,
    });
    if let (Some(definition), Some(members)) = (&service.definition, tree.as_object_mut()) {
        members.insert("definition".to_owned(), definition.clone().into());
    }
    tree
}

fn describe_certificate(certificate: &Certificate) -> Value {
    let usage = match certificate.usage {
        CertificateUse::Client => "client",
        CertificateUse::Server => "server",
    };
    let mut tree = json!({
        "Name": certificate.name, "signer": certificate.signer, "keypairID": certificate.keypair,
        "type": usage, "subject": {"CommonName": certificate.common_name},
    });
    if !certificate.organizations.is_empty() {
        tree.set("subject.Organization", certificate.organizations.clone());
    }
    if !certificate.names.is_empty() {
        tree.set("alternateNames", certificate.names.clone());
    }
    if certificate.with_root {
        tree.set("includeRootCertificate", true);
    }
    tree
}
