//! Signs a server's challenge with the machine's TPM, which proves the machine's identity for secrets.
//!
//! The server answers 401 with `WWW-Authenticate: TPM CHALLENGE`; the client repeats the request with `Authorization:
//! TPM CHALLENGE.SIGNATURE`. The key is a primary key of the endorsement hierarchy. The TPM derives it from its seed
//! and a template each time, so it is not stored.

use std::{fs, path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, Uri, header};
use sys::{ProgramError, Programs};

use crate::{cmdline, error::Error};

const ALGORITHM: &str = "ecc256:ecdsa-sha256";
const ATTRIBUTES: &str = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|sign";
const SCHEME: &str = "TPM ";

/// Signs for one server only. Another server could otherwise relay its challenges.
#[derive(Clone)]
pub(crate) struct Signer {
    origin: String,
    programs: Arc<dyn Programs>,
}

fn origin(url: &Uri) -> Option<String> {
    Some(format!("{}://{}", url.scheme_str()?, url.authority()?))
}

impl Signer {
    /// Returns a signer for the server on the kernel command line, if it uses HTTPS.
    pub(crate) fn of_command_line() -> Option<Self> {
        let line = cmdline::read().ok()?;
        let url: Uri = cmdline::config_url(&line)?.parse().ok()?;
        let encrypted = url.scheme_str() == Some("https");
        encrypted.then(|| Self::of(&url, Arc::new(sys::HostPrograms))).flatten()
    }

    pub(super) fn of(url: &Uri, programs: Arc<dyn Programs>) -> Option<Self> {
        Some(Self { origin: origin(url)?, programs })
    }

    /// Returns the challenge of the server at this URL.
    pub(super) fn challenge(&self, url: &Uri, headers: &HeaderMap) -> Option<String> {
        let text = headers.get(header::WWW_AUTHENTICATE)?.to_str().ok()?;
        let challenge = text.strip_prefix(SCHEME)?;
        (origin(url)? == self.origin).then(|| challenge.to_owned())
    }

    /// Returns the `Authorization` value for a challenge.
    pub(super) fn authorize(&self, challenge: &str) -> Result<String, Error> {
        let signature = sign(self.programs.as_ref(), challenge.as_bytes())?;
        Ok(format!("{SCHEME}{challenge}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Returns the public part of the machine's key in PEM, for the server's store.
pub fn public_key() -> Result<String, Error> {
    with_key(&sys::HostPrograms, |folder, key| {
        let out = folder.join("public");
        tpm2(&sys::HostPrograms, &["readpublic", "-c", key, "-f", "pem", "-o", &text(&out)])?;
        fs::read_to_string(&out).map_err(Error::file("reading", &out))
    })
}

fn sign(programs: &dyn Programs, message: &[u8]) -> Result<Vec<u8>, Error> {
    with_key(programs, |folder, key| {
        let (input, out) = (folder.join("message"), folder.join("signature"));
        fs::write(&input, message).map_err(Error::file("writing", &input))?;
        let options = ["sign", "-c", key, "-g", "sha256", "-s", "ecdsa", "-f", "plain", "-o"];
        tpm2(programs, &[&options[..], &[&text(&out), &text(&input)]].concat())?;
        fs::read(&out).map_err(Error::file("reading", &out))
    })
}

/// Creates the key and passes its context file in a temporary directory.
fn with_key<T>(
    programs: &dyn Programs,
    work: impl FnOnce(&Path, &str) -> Result<T, Error>,
) -> Result<T, Error> {
    let parent = std::env::temp_dir();
    // An initrd has no temporary directory.
    fs::create_dir_all(&parent).map_err(Error::file("making", &parent))?;
    let folder =
        tempfile::tempdir_in(&parent).map_err(Error::file("making a folder in", &parent))?;
    let key = text(&folder.path().join("key"));
    tpm2(programs, &["createprimary", "-C", "e", "-G", ALGORITHM, "-a", ATTRIBUTES, "-c", &key])?;
    work(folder.path(), &key)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn tpm2(programs: &dyn Programs, arguments: &[&str]) -> Result<(), ProgramError> {
    programs.must(&[&["tpm2"], arguments, &["-Q"]].concat()).map(drop)
}
