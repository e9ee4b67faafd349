//! The template function `secret`: `{{secret "NAME"}}` returns the content of the file `secrets/NAME` in the store.
//!
//! Each boot of a machine gets each secret once, over TLS, after proving its identity. The proof is the nonce of the
//! boot URL. If the group (`tpm_key`) or a file `tpm/MAC.pem` (with hyphens) has a TPM key, a signature with that key
//! is required instead. A file `tpm/uuid-UUID.pem` applies to requests that claim the UUID. Once the store has keys, a
//! group that is selected by another label of a single machine gets no secrets without a key of its own.
//!
//! Files in `secrets/MAC/` and `secrets/GROUP/` take precedence over those in `secrets/`. The bootstrap token of a
//! machine that joins a cluster is made on request and is in no file.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use gotmpl::Functions;
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    store::Group,
    tpm::{Challenges, ProofError},
};
use crate::{
    labels::Labels,
    machines::{AccessError, Inventory},
};

/// The maximum size in bytes of a secret: a token, a key or a certificate.
const MAX_SECRET: u64 = 1 << 20;

/// The name of the token with which a machine requests its certificate from a cluster.
pub const BOOTSTRAP_TOKEN: &str = "bootstrap-token";

/// Makes a bootstrap token for one boot of the machine with this MAC address. The function may block.
pub type TokenMaker = Arc<dyn Fn(&str) -> Result<String, TokenError> + Send + Sync>;

/// The error of making a bootstrap token.
pub type TokenError = Box<dyn std::error::Error + Send + Sync>;

/// The reasons why a request may not read secrets.
#[derive(Debug, thiserror::Error)]
enum Denial {
    #[error("only ignition, cloud and generic templates may read secrets")]
    Setting,
    #[error(
        "the request came without TLS; ask by https, or start the server with --insecure-secrets"
    )]
    Unencrypted,
    #[error("it requires a signature by the machine's TPM")]
    Unsigned,
    #[error("the request's mac and uuid belong to different machines")]
    TwoMachines,
    #[error(
        "group {group:?} is selected by {label}, which any machine may claim, and the store has TPM keys of machines; \
         give the group its machine's tpm_key, or select it by mac"
    )]
    Label { group: String, label: &'static str },
    #[error("the key of the machine's TPM: {}: {source}", path.display())]
    KeyFile { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Proof(#[from] ProofError),
}

/// The errors of the template function `secret`.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("secret takes one name")]
    Arguments,
    #[error("{0:?} is not a secret name; use letters, digits, - _ .")]
    Name(String),
    #[error("secret {name:?} is not served: {source}")]
    Denied { name: String, source: Arc<Denial> },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("secret {name:?}: {}: {source}", path.display())]
    File { name: String, path: PathBuf, source: io::Error },
    #[error("secret {0:?} does not exist; write it to secrets/{0} in the data path")]
    Missing(String),
    #[error(transparent)]
    Token(TokenError),
}

/// The permission of a request to read secrets.
enum Grant {
    /// This machine may read each secret once.
    Machine(String),
    /// Every client may read, because of `--insecure-secrets`.
    Unrestricted,
    /// The store is being checked; templates get placeholders.
    Check,
    /// The machine's TPM must first sign this challenge.
    Challenge(String),
    /// The request may not read, for this reason.
    Denied(Arc<Denial>),
}

/// The secrets for one request.
pub(crate) struct Secrets {
    root: PathBuf,
    folders: Vec<String>,
    inventory: Arc<Inventory>,
    grant: Grant,
    claimed: Mutex<Vec<String>>,
    /// `true` if the template read a secret that requires a signature.
    needs_signature: AtomicBool,
    /// The maker of bootstrap tokens and the requesting machine.
    maker: Option<(TokenMaker, String)>,
}

/// The parts of a request that affect access to secrets.
pub(crate) struct SecretRequest<'a> {
    pub(crate) labels: &'a Labels,
    pub(crate) machine: Option<&'a str>,
    pub(crate) tls: bool,
    pub(crate) insecure: bool,
    /// The value of the `Authorization` header.
    pub(crate) authorization: Option<&'a str>,
    pub(crate) challenges: &'a Challenges,
}

impl Secrets {
    pub(crate) fn new(
        root: PathBuf,
        group: &Group,
        inventory: &Arc<Inventory>,
        request: &SecretRequest<'_>,
        maker: Option<&TokenMaker>,
    ) -> Arc<Self> {
        let machine = request.machine.and_then(file_name);
        let key = tpm_key(&root, group, request.labels, machine.as_deref());
        let grant = match key.and_then(|key| grant(key.as_deref(), inventory, request)) {
            Ok(grant) => grant,
            Err(denial) => Grant::Denied(denial.into()),
        };
        let folders = machine.into_iter().chain([group.id.clone(), String::new()]).collect();
        let machine = request.machine.map(str::to_owned);
        Arc::new(Self {
            maker: maker.cloned().zip(machine),
            ..Self::with(root, folders, inventory, grant)
        })
    }

    /// Creates secrets for a check of the store: every existing secret is a placeholder.
    pub(crate) fn check(root: PathBuf, group: &Group, inventory: &Arc<Inventory>) -> Arc<Self> {
        Self::with(root, vec![group.id.clone(), String::new()], inventory, Grant::Check).into()
    }

    /// Creates secrets for settings that may not read any.
    pub(crate) fn none(inventory: &Arc<Inventory>) -> Arc<Self> {
        let grant = Grant::Denied(Denial::Setting.into());
        Self::with(PathBuf::new(), Vec::new(), inventory, grant).into()
    }

    fn with(root: PathBuf, folders: Vec<String>, inventory: &Arc<Inventory>, grant: Grant) -> Self {
        let (claimed, inventory) = (Mutex::default(), inventory.clone());
        Self {
            root,
            folders,
            inventory,
            grant,
            claimed,
            needs_signature: AtomicBool::new(false),
            maker: None,
        }
    }

    pub(crate) fn functions(self: &Arc<Self>) -> Functions {
        let secrets = self.clone();
        let secret =
            move |args: &[Value]| -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
                let text = match args {
                    [Value::String(name)] => secrets.read(name),
                    _ => Err(SecretError::Arguments),
                };
                Ok(Value::String(text?))
            };
        Functions::from([("secret".to_owned(), Arc::new(secret) as gotmpl::Function)])
    }

    fn read(&self, name: &str) -> Result<String, SecretError> {
        let result = self.read_claimed(name);
        let metrics = &self.inventory.metrics;
        match &result {
            Ok(_) => metrics.secrets_served.inc(),
            Err(_) if self.challenge().is_some() => {}
            Err(_) => metrics.secrets_refused.inc(),
        }
        result
    }

    fn read_claimed(&self, name: &str) -> Result<String, SecretError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
            return Err(SecretError::Name(name.to_owned()));
        }
        let denied = |source| Err(SecretError::Denied { name: name.to_owned(), source });
        match &self.grant {
            Grant::Denied(denial) => return denied(denial.clone()),
            Grant::Challenge(_) => {
                self.needs_signature.store(true, Ordering::Relaxed);
                return denied(Denial::Unsigned.into());
            }
            _ => {}
        }
        if let Grant::Check = &self.grant {
            // The bootstrap token is not in a file.
            if name != BOOTSTRAP_TOKEN {
                self.read_file(name)?;
            }
            return Ok("secret".to_owned());
        }
        let maker = self.maker.as_ref().filter(|_| name == BOOTSTRAP_TOKEN);
        // Read the file first, so that a missing secret is not claimed.
        let text = maker.is_none().then(|| self.read_file(name)).transpose()?;
        if let Grant::Machine(id) = &self.grant {
            self.claim(id, name)?;
        }
        match maker {
            Some((make, machine)) => make(machine).map_err(SecretError::Token),
            None => Ok(text.unwrap_or_default()),
        }
    }

    fn claim(&self, machine: &str, name: &str) -> Result<(), AccessError> {
        let mut claimed = self.claimed.lock();
        if !claimed.iter().any(|other| other == name) {
            self.inventory.claim(machine, name)?;
            claimed.push(name.to_owned());
        }
        Ok(())
    }

    fn read_file(&self, name: &str) -> Result<String, SecretError> {
        for folder in &self.folders {
            let path = self.root.join("secrets").join(folder).join(name);
            let failed = |source| {
                let (name, path) = (name.to_owned(), path.clone());
                SecretError::File { name, path, source }
            };
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() && metadata.len() <= MAX_SECRET => {
                    let text = fs::read_to_string(&path).map_err(failed)?;
                    // Editors end a file with a line feed, which is not part of the secret.
                    return Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned());
                }
                Ok(_) => return Err(failed(io::ErrorKind::InvalidData.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(SecretError::Missing(name.to_owned()))
    }

    /// Returns the challenge that the machine's TPM must sign, if the template read a secret that requires it.
    pub(crate) fn challenge(&self) -> Option<&str> {
        match &self.grant {
            Grant::Challenge(challenge) if self.needs_signature.load(Ordering::Relaxed) => {
                Some(challenge)
            }
            _ => None,
        }
    }

    /// Releases the secrets that were claimed for a failed answer.
    pub(crate) fn release_claims(&self) {
        let mut claimed = self.claimed.lock();
        if let Grant::Machine(id) = &self.grant
            && !claimed.is_empty()
        {
            self.inventory.release(id, &std::mem::take(&mut *claimed));
        }
    }
}

/// Returns a machine's file name. A UUID is chosen by the client, so a slash is rejected.
fn file_name(machine: &str) -> Option<String> {
    (!machine.contains('/')).then(|| machine.replace(':', "-"))
}

/// Returns the key that must sign a request: that of the group or of a machine that the request names. Clients choose
/// their labels, so a name without a key must not bypass the key of another name.
fn tpm_key(
    root: &Path,
    group: &Group,
    labels: &Labels,
    machine: Option<&str>,
) -> Result<Option<String>, Denial> {
    if group.tpm_key.is_some() {
        return Ok(group.tpm_key.clone());
    }
    let uuid = labels.get("uuid").filter(|uuid| !uuid.is_empty());
    let uuid = uuid.and_then(|uuid| file_name(&format!("uuid:{uuid}")));
    let by_uuid = uuid.map(|uuid| read_key(root, &uuid)).transpose()?.flatten();
    let by_machine = machine.map(|machine| read_key(root, machine)).transpose()?.flatten();
    if let (Some(one), Some(other)) = (&by_uuid, &by_machine)
        && one != other
    {
        return Err(Denial::TwoMachines);
    }
    if let Some(label) = unkeyed(group, by_uuid.is_some())
        && has_keys(root)
    {
        return Err(Denial::Label { group: group.id.clone(), label });
    }
    Ok(by_machine.or(by_uuid))
}

/// Labels besides the MAC address that identify a single machine.
const NAMES: [&str; 3] = ["uuid", "serial", "hostname"];

/// Returns the label that selects a group for one machine without a key for that label.
pub(super) fn unkeyed(group: &Group, has_uuid_key: bool) -> Option<&'static str> {
    let selects = |label: &str| group.selector.contains_key(label);
    if group.tpm_key.is_some() || selects("mac") || selects("uuid") && has_uuid_key {
        return None;
    }
    NAMES.into_iter().find(|label| selects(label))
}

/// Returns `true` if the store has TPM keys, or if their directory cannot be read.
pub(super) fn has_keys(root: &Path) -> bool {
    match fs::read_dir(root.join("tpm")) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Reads a machine's key file, if it exists.
fn read_key(root: &Path, machine: &str) -> Result<Option<String>, Denial> {
    let path = root.join("tpm").join(format!("{machine}.pem"));
    match fs::read_to_string(&path) {
        Ok(pem) => Ok(Some(pem)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Denial::KeyFile { path, source }),
    }
}

fn grant(
    tpm_key: Option<&str>,
    inventory: &Inventory,
    request: &SecretRequest<'_>,
) -> Result<Grant, Denial> {
    if request.insecure {
        return Ok(Grant::Unrestricted);
    }
    if !request.tls {
        return Err(Denial::Unencrypted);
    }
    let id = request.machine.ok_or(AccessError::Anonymous)?;
    let Some(pem) = tpm_key else {
        inventory.verify_nonce(id, request.labels)?;
        return Ok(Grant::Machine(id.to_owned()));
    };
    match request.challenges.verify(pem, id, request.authorization, inventory.now()) {
        Ok(()) => Ok(Grant::Machine(id.to_owned())),
        Err(ProofError::Challenge(challenge)) => Ok(Grant::Challenge(challenge)),
        Err(error) => Err(error.into()),
    }
}
