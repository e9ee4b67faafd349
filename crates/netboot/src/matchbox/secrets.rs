//! The template function `secret`: `{{secret "NAME"}}` is what the file `secrets/NAME` of the store says.
//!
//! Each secret is served once to each boot of a machine, over TLS, and only to the machine itself: it presents
//! the nonce of its boot URL and, if its group names a TPM's key, that key's signature of the nonce. A file in
//! `secrets/MAC/` (with hyphens) or `secrets/GROUP/` goes before one for all. The token of a machine that is to join a
//! cluster is in no file: it is made when it is asked for.

use std::{
    fs, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use aws_lc_rs::signature::{self, UnparsedPublicKey};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use gotmpl::Functions;
use serde_json::Value;

use super::{Group, Labels};
use crate::machines::Book;

/// A secret is a token, a key or a certificate.
const MAX_SECRET: u64 = 1 << 20;

/// The secret by which a machine asks a cluster for its certificate.
pub const BOOTSTRAP_TOKEN: &str = "bootstrap-token";

/// Makes that secret for one boot of a machine, which its MAC address names. It may block.
pub type TokenMaker = Arc<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// Who may read.
enum Grant {
    /// This machine, each secret once.
    Machine(String),
    /// Anybody, for `--insecure-secrets`.
    Anybody,
    /// The store is looked over, and nothing leaves it.
    Check,
    Nobody(String),
}

/// The secrets that one answer reads.
pub(crate) struct Secrets {
    root: PathBuf,
    folders: Vec<String>,
    book: Arc<Book>,
    grant: Grant,
    claimed: Mutex<Vec<String>>,
    /// With the machine that asks.
    maker: Option<(TokenMaker, String)>,
}

/// How a request came, as far as secrets are concerned.
pub(crate) struct Presented<'a> {
    pub(crate) labels: &'a Labels,
    pub(crate) machine: Option<&'a str>,
    pub(crate) tls: bool,
    pub(crate) insecure: bool,
}

impl Secrets {
    pub(crate) fn new(
        root: PathBuf,
        group: &Group,
        book: &Arc<Book>,
        presented: &Presented<'_>,
        maker: Option<&TokenMaker>,
    ) -> Arc<Self> {
        let grant = match grant(group, book, presented) {
            Ok(grant) => grant,
            Err(why) => Grant::Nobody(why),
        };
        // A UUID is what the machine says, and no way out of the folder of secrets.
        let machine = presented.machine.filter(|id| !id.contains('/'));
        let machine = machine.map(|id| id.replace(':', "-"));
        let folders = machine.into_iter().chain([group.id.clone(), String::new()]).collect();
        let machine = presented.machine.map(str::to_owned);
        Arc::new(Self {
            maker: maker.cloned().zip(machine),
            ..Self::with(root, folders, book, grant)
        })
    }

    /// For a look over the store: every secret that exists has a stand-in.
    pub(crate) fn check(root: PathBuf, group: &Group, book: &Arc<Book>) -> Arc<Self> {
        Self::with(root, vec![group.id.clone(), String::new()], book, Grant::Check).into()
    }

    /// For what is no template of a config.
    pub(crate) fn none(book: &Arc<Book>) -> Arc<Self> {
        let why = "only ignition, cloud and generic templates may read secrets".to_owned();
        Self::with(PathBuf::new(), Vec::new(), book, Grant::Nobody(why)).into()
    }

    fn with(root: PathBuf, folders: Vec<String>, book: &Arc<Book>, grant: Grant) -> Self {
        let claimed = Mutex::default();
        Self { root, folders, book: book.clone(), grant, claimed, maker: None }
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
            Ok(_) => metrics.secrets_served.add(),
            Err(_) => metrics.secrets_refused.add(),
        }
        result
    }

    fn read_claimed(&self, name: &str) -> Result<String, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.starts_with('.') || !name.bytes().all(plain) {
            return Err(format!("{name:?} is no name of a secret; use letters, digits, - _ ."));
        }
        if let Grant::Nobody(why) = &self.grant {
            return Err(format!("secret {name:?} is not served: {why}"));
        }
        if let Grant::Check = &self.grant {
            // The token of a machine is in no file.
            if name != BOOTSTRAP_TOKEN {
                self.file(name)?;
            }
            return Ok("secret".to_owned());
        }
        let maker = self.maker.as_ref().filter(|_| name == BOOTSTRAP_TOKEN);
        // Read first, for what is not there must not be claimed.
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
                    // Editors end a file with a line feed, and no token has one.
                    return Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned());
                }
                Ok(_) => return Err(failed(io::ErrorKind::InvalidData.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(format!("there is no secret {name:?}; write it to secrets/{name} in the data path"))
    }

    /// Gives back what was taken for an answer that failed.
    pub(crate) fn give_back(&self) {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Grant::Machine(id) = &self.grant
            && !claimed.is_empty()
        {
            self.book.unclaim(id, &std::mem::take(&mut *claimed));
        }
    }
}

fn grant(group: &Group, book: &Book, presented: &Presented<'_>) -> Result<Grant, String> {
    if presented.insecure {
        return Ok(Grant::Anybody);
    }
    if !presented.tls {
        return Err("the request came without TLS; ask by https, or start the server with \
                    --insecure-secrets"
            .into());
    }
    let id = presented.machine.ok_or("the request names neither mac nor uuid")?;
    book.prove(id, presented.labels).map_err(|refusal| refusal.to_string())?;
    if let Some(key) = &group.tpm_key {
        signed_by_tpm(key, presented.labels)?;
    }
    Ok(Grant::Machine(id.to_owned()))
}

/// Whether the nonce comes with the signature of the TPM's key: ECDSA on P-256, or RSA, with SHA-256.
fn signed_by_tpm(pem: &str, labels: &Labels) -> Result<(), String> {
    use rustls_pki_types::{SubjectPublicKeyInfoDer, pem::PemObject};
    let key = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| format!("the group's tpm_key is no public key in PEM: {error}"))?;
    let nonce = labels.get("nonce").map(String::as_str).unwrap_or_default();
    let signature = labels.get("signature").ok_or("the request lacks the TPM's signature")?;
    let signature = URL_SAFE_NO_PAD
        .decode(signature.trim_end_matches('='))
        .map_err(|_| "the signature is not Base64 for URLs")?;
    let fits = |algorithm: &'static dyn signature::VerificationAlgorithm| {
        UnparsedPublicKey::new(algorithm, key.as_ref()).verify(nonce.as_bytes(), &signature).is_ok()
    };
    let algorithms: [&'static dyn signature::VerificationAlgorithm; 2] =
        [&signature::ECDSA_P256_SHA256_ASN1, &signature::RSA_PKCS1_2048_8192_SHA256];
    match algorithms.into_iter().any(fits) {
        true => Ok(()),
        false => Err("the signature is not the nonce's by the group's tpm_key".into()),
    }
}
