//! Shares certificates with joining control planes, encrypted in a Secret that lives for two hours.

use std::{
    fs,
    path::{Path, PathBuf},
};

use api_config::kubeadm::Etcd;
use api_meta::Tree as _;
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use bootstrap_core::objects;
use client::{Client, Resource};
use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde_json::{Map, Value, json};

use super::apply::{apply, apply_all, get};
use crate::{Error, FileChange, error::io};

const SECRET: &str = "kubeadm-certs";
/// The uploaded files: authorities and the service account key. Each machine makes its own leaf certificates.
const FILES: [&str; 15] = [
    "ca.crt",
    "ca.key",
    "sa.pub",
    "sa.key",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "etcd/ca.crt",
    "etcd/ca.key",
    // Authorities and keys of a rotation that is not finished.
    "ca-next.crt",
    "ca-next.key",
    "sa-next.key",
    "front-proxy-ca-next.crt",
    "front-proxy-ca-next.key",
    "etcd/ca-next.crt",
    "etcd/ca-next.key",
];

fn crypto(operation: &'static str) -> impl Fn(aws_lc_rs::error::Unspecified) -> Error {
    move |_| Error::WrongCertificateKey { operation }
}

/// Returns 32 random bytes in hexadecimal.
pub fn new_certificate_key() -> Result<String, Error> {
    let mut key = [0; 32];
    SystemRandom::new().fill(&mut key).map_err(crypto("make a key for"))?;
    Ok(HEXLOWER.encode(&key))
}

fn key_of(hex: &str) -> Result<LessSafeKey, Error> {
    let bytes = HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).map_err(|_| Error::CertificateKey)?;
    UnboundKey::new(&AES_256_GCM, &bytes).map(LessSafeKey::new).map_err(|_| Error::CertificateKey)
}

/// Encrypts and returns the nonce followed by the ciphertext.
fn encrypt(key: &LessSafeKey, plain: &[u8]) -> Result<Vec<u8>, Error> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(crypto("encrypt"))?;
    let mut sealed = plain.to_vec();
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
        .map_err(crypto("encrypt"))?;
    Ok([&nonce[..], &sealed].concat())
}

fn decrypt(key: &LessSafeKey, sealed: &[u8]) -> Result<Vec<u8>, Error> {
    let (nonce, rest) = sealed
        .split_at_checked(NONCE_LEN)
        .ok_or_else(|| crypto("decrypt")(aws_lc_rs::error::Unspecified))?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(crypto("decrypt"))?;
    let mut plain = rest.to_vec();
    let length =
        key.open_in_place(nonce, Aad::empty(), &mut plain).map_err(crypto("decrypt"))?.len();
    plain.truncate(length);
    Ok(plain)
}

/// Returns the shared files: the name in the Secret and the path on every control plane. The files of an external etcd
/// have the paths of the configuration.
fn shared(dir: &Path, etcd: &Etcd) -> Vec<(String, PathBuf)> {
    let mut files: Vec<_> = FILES.map(|file| (file.replace('/', "-"), dir.join(file))).into();
    if let Some(external) = &etcd.external {
        let files_of_etcd = [
            ("external-etcd-ca.crt", &external.ca_file),
            ("external-etcd.crt", &external.cert_file),
            ("external-etcd.key", &external.key_file),
        ];
        files.retain(|(name, _)| !name.starts_with("etcd-"));
        let named = files_of_etcd.into_iter().filter(|(_, path)| !path.is_empty());
        files.extend(named.map(|(name, path)| (name.to_owned(), PathBuf::from(path))));
    }
    files
}

/// Encrypts the shared files in `dir` into the Secret. The Secret is owned by `token`, a bootstrap token Secret that
/// lives for two hours.
pub async fn upload_certs(
    client: &Client,
    dir: &Path,
    etcd: &Etcd,
    key: &str,
    token: &Value,
) -> Result<(), Error> {
    let cipher = key_of(key)?;
    let mut data = Map::new();
    for (name, path) in shared(dir, etcd) {
        // The files of a rotation may not exist.
        if let Ok(plain) = fs::read(&path) {
            data.insert(name, STANDARD.encode(encrypt(&cipher, &plain)?).into());
        }
    }
    apply(client, token).await?;
    let name = token.name();
    let owner = get(client, &Resource::SECRETS, "kube-system", name).await?.unwrap_or_default();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": {
            "name": SECRET, "namespace": "kube-system",
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Secret", "name": name, "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": true, "controller": true,
            }],
        },
    });
    apply(client, &secret).await?;
    apply_all(client, objects::certificates_access()).await
}

/// Downloads and decrypts the shared files into `dir`; existing files are kept.
pub async fn download_certs(
    client: &Client,
    dir: &Path,
    etcd: &Etcd,
    key: &str,
) -> Result<Vec<FileChange>, Error> {
    let cipher = key_of(key)?;
    let secret = get(client, &Resource::SECRETS, "kube-system", SECRET).await?;
    let secret = secret.ok_or(Error::NoCertificatesSecret(SECRET))?;
    let mut touched = Vec::new();
    for (name, path) in shared(dir, etcd) {
        let Some(sealed) = secret["data"][&name].as_str() else { continue };
        if path.exists() {
            touched.push(FileChange::used(path));
            continue;
        }
        let sealed = STANDARD.decode(sealed).map_err(|source| Error::CertificatesSecret {
            secret: SECRET,
            name: name.clone(),
            source,
        })?;
        let plain = decrypt(&cipher, &sealed)?;
        let mode = if name.ends_with(".crt") { pki::PUBLIC_MODE } else { pki::KEY_MODE };
        fs::create_dir_all(path.parent().unwrap_or(dir))
            .map_err(io("create the directory of", &path))?;
        pki::write_file(&path, &plain, mode)?;
        touched.push(FileChange::written(path));
    }
    Ok(touched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_files_of_external_etcd() {
        let dir = Path::new("/pki");
        let names = |etcd: &Etcd| shared(dir, etcd).into_iter().map(|(name, _)| name).collect();
        let local: Vec<String> = names(&Etcd::default());
        assert!(local.contains(&"etcd-ca.key".to_owned()), "{local:?}");
        let external = api_config::kubeadm::ExternalEtcd {
            ca_file: "/srv/ca.crt".to_owned(),
            cert_file: "/srv/client.crt".to_owned(),
            ..Default::default()
        };
        let etcd = Etcd { external: Some(external), ..Etcd::default() };
        let files = shared(dir, &etcd);
        let path = |name: &str| files.iter().find(|(n, _)| n == name).map(|(_, path)| path.clone());
        assert_eq!(path("external-etcd-ca.crt"), Some("/srv/ca.crt".into()));
        assert_eq!(path("ca.key"), Some("/pki/ca.key".into()));
        assert_eq!((path("external-etcd.key"), path("etcd-ca.key")), (None, None));
    }

    #[test]
    fn decrypts_with_right_key_only() {
        let (right, wrong) = (new_certificate_key().unwrap(), new_certificate_key().unwrap());
        assert_ne!(right, wrong);
        let sealed = encrypt(&key_of(&right).unwrap(), b"secret").unwrap();
        assert_eq!(decrypt(&key_of(&right).unwrap(), &sealed).unwrap(), b"secret");
        let error = decrypt(&key_of(&wrong).unwrap(), &sealed).unwrap_err().to_string();
        assert!(error.contains("certificate key is another one"), "{error}");
        assert!(decrypt(&key_of(&right).unwrap(), &sealed[..5]).is_err());
        for bad in ["", "zz", &right[..62], &format!("{right}00")] {
            assert!(key_of(bad).is_err(), "{bad}");
        }
    }
}
