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
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use gotmpl::Functions;
use serde_json::Value;

use super::{
    Group, Labels,
    tpm::{Challenges, Refusal},
};
use crate::machines::Book;

/// The maximum size in bytes of a secret: a token, a key or a certificate.
const MAX_SECRET: u64 = 1 << 20;

/// The name of the token with which a machine requests its certificate from a cluster.
pub const BOOTSTRAP_TOKEN: &str = "bootstrap-token";

/// Makes a bootstrap token for one boot of the machine with this MAC address. The function may block.
pub type TokenMaker = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// The permission of a request to read secrets.
enum Grant {
    /// This machine may read each secret once.
    Machine(String),
    /// Every client may read, because of `--insecure-secrets`.
    Anybody,
    /// The store is being checked; templates get placeholders.
    Check,
    /// The machine's TPM must first sign this challenge.
    Challenged(String),
    /// The request may not read, for this reason.
    Nobody(String),
}

/// The secrets for one request.
pub(crate) struct Secrets {
    root: PathBuf,
    folders: Vec<String>,
    book: Arc<Book>,
    grant: Grant,
    claimed: Mutex<Vec<String>>,
    /// `true` if the template read a secret that requires a signature.
    challenged: AtomicBool,
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
        book: &Arc<Book>,
        presented: &SecretRequest<'_>,
        maker: Option<&TokenMaker>,
    ) -> Arc<Self> {
        let machine = presented.machine.and_then(file_name);
        let key = tpm_key(&root, group, presented.labels, machine.as_deref());
        let grant = match key.and_then(|key| grant(key.as_deref(), book, presented)) {
            Ok(grant) => grant,
            Err(why) => Grant::Nobody(why),
        };
        let folders = machine.into_iter().chain([group.id.clone(), String::new()]).collect();
        let machine = presented.machine.map(str::to_owned);
        Arc::new(Self {
            maker: maker.cloned().zip(machine),
            ..Self::with(root, folders, book, grant)
        })
    }

    /// Creates secrets for a check of the store: every existing secret is a placeholder.
    pub(crate) fn check(root: PathBuf, group: &Group, book: &Arc<Book>) -> Arc<Self> {
        Self::with(root, vec![group.id.clone(), String::new()], book, Grant::Check).into()
    }

    /// Creates secrets for settings that may not read any.
    pub(crate) fn none(book: &Arc<Book>) -> Arc<Self> {
        let why = "only ignition, cloud and generic templates may read secrets".to_owned();
        Self::with(PathBuf::new(), Vec::new(), book, Grant::Nobody(why)).into()
    }

    fn with(root: PathBuf, folders: Vec<String>, book: &Arc<Book>, grant: Grant) -> Self {
        let (claimed, book) = (Mutex::default(), book.clone());
        Self {
            root,
            folders,
            book,
            grant,
            claimed,
            challenged: AtomicBool::new(false),
            maker: None,
        }
    }

    pub(crate) fn functions(self: &Arc<Self>) -> Functions {
        let secrets = self.clone();
        let secret = move |args: &[Value]| match args {
            [Value::String(name)] => secrets.read(name).map(Value::String),
            _ => Err("secret takes one name".to_owned()),
        };
        Functions::from([("secret".to_owned(), Arc::new(secret) as gotmpl::Function)])
    }

    fn read(&self, name: &str) -> Result<String, String> {
        let result = self.read_claimed(name);
        let metrics = &self.book.metrics;
        match &result {
            Ok(_) => metrics.secrets_served.inc(),
            Err(_) if self.challenge().is_some() => {}
            Err(_) => metrics.secrets_refused.inc(),
        }
        result
    }

    fn read_claimed(&self, name: &str) -> Result<String, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
            return Err(format!("{name:?} is not a secret name; use letters, digits, - _ ."));
        }
        let refused = |why: &str| Err(format!("secret {name:?} is not served: {why}"));
        match &self.grant {
            Grant::Nobody(why) => return refused(why),
            Grant::Challenged(_) => {
                self.challenged.store(true, Ordering::Relaxed);
                return refused("it requires a signature by the machine's TPM");
            }
            _ => {}
        }
        if let Grant::Check = &self.grant {
            // The bootstrap token is not in a file.
            if name != BOOTSTRAP_TOKEN {
                self.file(name)?;
            }
            return Ok("secret".to_owned());
        }
        let maker = self.maker.as_ref().filter(|_| name == BOOTSTRAP_TOKEN);
        // Read the file first, so that a missing secret is not claimed.
        let text = maker.is_none().then(|| self.file(name)).transpose()?;
        if let Grant::Machine(id) = &self.grant {
            self.claim(id, name)?;
        }
        match maker {
            Some((make, machine)) => make(machine),
            None => Ok(text.unwrap_or_default()),
        }
    }

    fn claim(&self, machine: &str, name: &str) -> Result<(), String> {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if !claimed.iter().any(|other| other == name) {
            self.book.claim(machine, name).map_err(|refusal| refusal.to_string())?;
            claimed.push(name.to_owned());
        }
        Ok(())
    }

    fn file(&self, name: &str) -> Result<String, String> {
        for folder in &self.folders {
            let path = self.root.join("secrets").join(folder).join(name);
            let failed = |error: io::Error| format!("secret {name:?}: {}: {error}", path.display());
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
        Err(format!("secret {name:?} does not exist; write it to secrets/{name} in the data path"))
    }

    /// Returns the challenge that the machine's TPM must sign, if the template read a secret that requires it.
    pub(crate) fn challenge(&self) -> Option<&str> {
        match &self.grant {
            Grant::Challenged(challenge) if self.challenged.load(Ordering::Relaxed) => {
                Some(challenge)
            }
            _ => None,
        }
    }

    /// Releases the secrets that were claimed for a failed answer.
    pub(crate) fn give_back(&self) {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Grant::Machine(id) = &self.grant
            && !claimed.is_empty()
        {
            self.book.unclaim(id, &std::mem::take(&mut *claimed));
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
) -> Result<Option<String>, String> {
    if group.tpm_key.is_some() {
        return Ok(group.tpm_key.clone());
    }
    let uuid = labels.get("uuid").filter(|uuid| !uuid.is_empty());
    let uuid = uuid.and_then(|uuid| file_name(&format!("uuid:{uuid}")));
    let by_uuid = uuid.map(|uuid| key_file(root, &uuid)).transpose()?.flatten();
    let by_machine = machine.map(|machine| key_file(root, machine)).transpose()?.flatten();
    if let (Some(one), Some(other)) = (&by_uuid, &by_machine)
        && one != other
    {
        return Err("the request's mac and uuid belong to different machines".to_owned());
    }
    if let Some(label) = unkeyed(group, by_uuid.is_some())
        && has_keys(root)
    {
        return Err(format!(
            "group {:?} is selected by {label}, which any machine may claim, and the store has TPM keys of machines; \
             give the group its machine's tpm_key, or select it by mac",
            group.id
        ));
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
fn key_file(root: &Path, machine: &str) -> Result<Option<String>, String> {
    let path = root.join("tpm").join(format!("{machine}.pem"));
    match fs::read_to_string(&path) {
        Ok(pem) => Ok(Some(pem)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("the key of the machine's TPM: {}: {error}", path.display())),
    }
}

fn grant(
    tpm_key: Option<&str>,
    book: &Book,
    presented: &SecretRequest<'_>,
) -> Result<Grant, String> {
    if presented.insecure {
        return Ok(Grant::Anybody);
    }
    if !presented.tls {
        return Err("the request came without TLS; ask by https, or start the server with \
                    --insecure-secrets"
            .into());
    }
    let id = presented.machine.ok_or("the request names neither mac nor uuid")?;
    let Some(pem) = tpm_key else {
        book.prove(id, presented.labels).map_err(|refusal| refusal.to_string())?;
        return Ok(Grant::Machine(id.to_owned()));
    };
    match presented.challenges.prove(pem, id, presented.authorization, book.now()) {
        Ok(()) => Ok(Grant::Machine(id.to_owned())),
        Err(Refusal::Challenge(challenge)) => Ok(Grant::Challenged(challenge)),
        Err(Refusal::Wrong(why)) => Err(why),
    }
}
