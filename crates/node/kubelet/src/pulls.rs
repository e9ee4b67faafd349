//! Decides whether a Pod may use an image that is already on the node.
//!
//! An image that was pulled with one Pod's credentials is available to every Pod that names it. So the kubelet records
//! each pull, in upstream's files and format. The records and `imagePullCredentialsVerificationPolicy` decide whether a
//! Pod may use the image or must pull it with its own credentials.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use data_encoding::HEXLOWER;
use kubelet_config::{Verification, without_tag};
use parking_lot::{Mutex, MutexGuard};
use pod_core::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The versions of records that are read.
const API_VERSIONS: [&str; 2] = [API_VERSION, "kubelet.config.k8s.io/v1alpha1"];
const DIRECTORY_MODE: u32 = 0o700;

/// A Secret with pull credentials, and the hash of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PullSecret {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) credential_hash: String,
}

impl PullSecret {
    fn is_same_secret_as(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// A service account whose token was exchanged for pull credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PullAccount {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The owner of pull credentials.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PullSource {
    /// A Secret of the Pod.
    Secret(PullSecret),
    /// The Pod's service account.
    Account(PullAccount),
    /// The node: every Pod may use an image that was pulled with its credentials.
    Node,
}

/// The credentials with which an image was pulled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Credentials {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<PullSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<PullAccount>,
    /// `true` if all Pods of the node may use the image, because it was pulled without credentials.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PulledRecord {
    kind: String,
    api_version: String,
    last_updated_time: String,
    image_ref: String,
    #[serde(default)]
    credential_mapping: BTreeMap<String, Credentials>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Intent<'a> {
    kind: &'static str,
    api_version: &'static str,
    image: &'a str,
}

/// The pull records of one kubelet.
pub(crate) struct PullRecords {
    pulling: PathBuf,
    pulled: PathBuf,
    policy: Verification,
    /// The number of running pulls by image.
    under_way: Mutex<BTreeMap<String, usize>>,
}

impl PullRecords {
    pub(crate) fn new(root: &Path, policy: Verification) -> Self {
        let dir = root.join("image_manager");
        let (pulling, pulled) = (dir.join("pulling"), dir.join("pulled"));
        Self { pulling, pulled, policy, under_way: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.under_way.lock()
    }

    /// Reports whether a Pod with these credentials must pull an image that is on the node. An unreadable record means
    /// yes.
    pub(crate) fn must_pull(
        &self,
        image: &str,
        reference: &str,
        sources: &[PullSource],
        now: Timestamp,
    ) -> bool {
        let _one_at_a_time = self.lock();
        let Ok(record) = self.read(reference) else { return true };
        let pulled = record.is_some() || file(&self.pulling, image).exists();
        if !self.policy.applies_to(image, pulled) {
            return false;
        }
        let entry = record.as_ref().and_then(|r| r.credential_mapping.get(without_tag(image)));
        let Some(credentials) = entry else { return true };
        if credentials.node_pods_accessible {
            return false;
        }
        let fits = |own: &&PullSource| match own {
            PullSource::Secret(own) => credentials.kubernetes_secrets.iter().any(|secret| {
                secret.is_same_secret_as(own)
                    || !secret.credential_hash.is_empty()
                        && secret.credential_hash == own.credential_hash
            }),
            PullSource::Account(own) => credentials.kubernetes_service_accounts.contains(own),
            PullSource::Node => false,
        };
        let Some(own) = sources.iter().find(fits) else { return true };
        // Record the match: it may be the same credentials in another Secret, or new credentials in the same Secret.
        self.note(image, reference, own, now);
        false
    }

    /// Records the start of a pull. Until it ends, the image counts as pulled with unknown credentials.
    pub(crate) fn begin(&self, image: &str) -> io::Result<()> {
        let mut under_way = self.lock();
        let intent = Intent { kind: "ImagePullIntent", api_version: API_VERSION, image };
        write(&self.pulling, image, &intent)?;
        *under_way.entry(image.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Records the end of a pull. `pulled` is the image's reference and the owner of the credentials that were used, or
    /// `None` after a failure.
    pub(crate) fn end(&self, image: &str, pulled: Option<(&str, &PullSource)>, now: Timestamp) {
        let mut under_way = self.lock();
        if let Some((reference, source)) = pulled
            && !self.note(image, reference, source, now)
        {
            // Keep the intent, so that the image still counts as pulled.
            return;
        }
        let left = under_way.get(image).map_or(0, |count| count - 1);
        if left > 0 {
            under_way.insert(image.to_owned(), left);
            return;
        }
        under_way.remove(image);
        if let Err(error) = fs::remove_file(file(&self.pulling, image)) {
            tracing::warn!(image, %error, "remove the intent of a finished image pull");
        }
    }

    /// Removes the records of images that no longer exist, except those pulled after `listed`.
    pub(crate) fn prune(&self, references: &[String], listed: Timestamp) {
        let _one_at_a_time = self.lock();
        for entry in fs::read_dir(&self.pulled).into_iter().flatten().flatten() {
            let Ok(record) = decode(&fs::read(entry.path()).unwrap_or_default()) else { continue };
            let updated = record.last_updated_time.parse::<Timestamp>();
            let is_gone = !references.contains(&record.image_ref);
            if is_gone && updated.is_ok_and(|updated| updated < listed) {
                drop(fs::remove_file(entry.path()));
            }
        }
    }

    fn read(&self, reference: &str) -> io::Result<Option<PulledRecord>> {
        match fs::read(file(&self.pulled, reference)) {
            Ok(text) => decode(&text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds credentials to the record of an image. Returns `true` if the record is up to date.
    fn note(&self, image: &str, reference: &str, source: &PullSource, now: Timestamp) -> bool {
        let before = self.read(reference).ok().flatten();
        let mut record = before.clone().unwrap_or_else(|| PulledRecord {
            kind: "ImagePulledRecord".to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: String::new(),
            image_ref: reference.to_owned(),
            credential_mapping: BTreeMap::new(),
        });
        let entry = record.credential_mapping.entry(without_tag(image).to_owned()).or_default();
        match source {
            _ if entry.node_pods_accessible => {}
            PullSource::Node => {
                *entry = Credentials { node_pods_accessible: true, ..Credentials::default() };
            }
            PullSource::Account(account) => {
                entry.kubernetes_service_accounts.retain(|own| own != account);
                entry.kubernetes_service_accounts.push(account.clone());
                entry.kubernetes_service_accounts.sort();
            }
            PullSource::Secret(secret) => {
                entry.kubernetes_secrets.retain(|own| !own.is_same_secret_as(secret));
                entry.kubernetes_secrets.push(secret.clone());
                entry.kubernetes_secrets.sort();
            }
        }
        if before.as_ref() == Some(&record) {
            return true;
        }
        record.last_updated_time =
            api_meta::Timestamp::from(std::time::SystemTime::from(now)).to_string();
        match write(&self.pulled, reference, &record) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(image, %error, "record the credentials of an image pull");
                false
            }
        }
    }
}

fn decode(text: &[u8]) -> io::Result<PulledRecord> {
    let record: PulledRecord = serde_json::from_slice(text)?;
    // A later version may permit an image to fewer Pods by fields that are unknown here.
    if !API_VERSIONS.contains(&&*record.api_version) {
        let reason = format!("a record of {} is unknown to this kubelet", record.api_version);
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    Ok(record)
}

/// Returns the path of a record. The file name is a hash, because image names contain slashes.
fn file(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("sha256-{}", hex(name.as_bytes())))
}

pub(crate) fn hex(content: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(content))
}

fn write(dir: &Path, name: &str, record: &impl Serialize) -> io::Result<()> {
    sys::make_directories(dir, DIRECTORY_MODE)?;
    let text = serde_json::to_vec(record)?;
    pki::write_file(&file(dir, name), &text, pki::KEY_MODE).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "registry.example:5000/team/app:1";
    const REFERENCE: &str = "sha256:aa";

    fn secret(name: &str, hash: &str) -> PullSource {
        PullSource::Secret(PullSecret {
            uid: format!("uid-{name}"),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            credential_hash: hash.to_owned(),
        })
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_790_000_000).unwrap()
    }

    fn records(dir: &tempfile::TempDir, policy: Verification) -> PullRecords {
        PullRecords::new(dir.path(), policy)
    }

    #[test]
    fn reuses_private_image_only_with_matching_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(&dir, Verification::Pulled);
        let must = |sources: &[PullSource]| records.must_pull(IMAGE, REFERENCE, sources, now());
        assert!(!must(&[]), "nobody of ours pulled it: it was there");
        records.begin(IMAGE).unwrap();
        assert!(must(&[]), "it may be a private one that is there in a moment");
        let owner = secret("owner", "h1");
        records.end(IMAGE, Some((REFERENCE, &owner)), now());
        assert!(must(&[]) && must(&[secret("stranger", "h2")]));
        assert!(!must(std::slice::from_ref(&owner)));
        assert!(!must(&[secret("owner", "rotated")]), "the same Secret");
        assert!(!must(&[secret("copy", "rotated")]), "the same credentials");
        let text = fs::read_to_string(file(&records.pulled, REFERENCE)).unwrap();
        assert!(text.contains("\"registry.example:5000/team/app\""), "{text}");
        assert!(!file(&records.pulling, IMAGE).exists());
        // The same content under the name of another registry needs a pull of its own.
        assert!(records.must_pull("other.example/app:1", REFERENCE, &[owner], now()));
    }

    #[test]
    fn reuses_image_pulled_with_token_of_the_same_service_account() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(&dir, Verification::Pulled);
        let account = |uid: &str| {
            let (namespace, name) = ("ns".to_owned(), "builder".to_owned());
            PullSource::Account(PullAccount { uid: uid.to_owned(), namespace, name })
        };
        records.begin(IMAGE).unwrap();
        records.end(IMAGE, Some((REFERENCE, &account("1"))), now());
        let must = |sources: &[PullSource]| records.must_pull(IMAGE, REFERENCE, sources, now());
        assert!(!must(&[account("1")]));
        assert!(must(&[account("2")]), "an account that was created again");
        assert!(must(&[PullSource::Node]) && must(&[secret("owner", "h")]) && must(&[]));
    }

    #[test]
    fn reuses_image_pulled_without_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(&dir, Verification::Always);
        assert!(records.must_pull(IMAGE, REFERENCE, &[], now()), "even one that was there");
        records.begin(IMAGE).unwrap();
        records.end(IMAGE, Some((REFERENCE, &PullSource::Node)), now());
        assert!(!records.must_pull(IMAGE, REFERENCE, &[], now()));
        fs::write(file(&records.pulled, REFERENCE), "{").unwrap();
        assert!(records.must_pull(IMAGE, REFERENCE, &[], now()), "an unreadable record");
    }

    #[test]
    fn removes_intents_of_failed_pulls_and_records_of_gone_images() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(&dir, Verification::Pulled);
        records.begin(IMAGE).unwrap();
        records.begin(IMAGE).unwrap();
        records.end(IMAGE, None, now());
        assert!(file(&records.pulling, IMAGE).exists(), "another pull goes on");
        records.end(IMAGE, Some((REFERENCE, &PullSource::Node)), now());
        assert!(!file(&records.pulling, IMAGE).exists());
        records.prune(&[REFERENCE.to_owned()], Timestamp::MAX);
        records.prune(&[], now());
        assert!(file(&records.pulled, REFERENCE).exists(), "it is there, or it is newer");
        records.prune(&[], Timestamp::MAX);
        assert!(!file(&records.pulled, REFERENCE).exists());
    }

    /// File name and format are upstream's, so that both kubelets can read each other's records.
    #[test]
    fn reads_records_of_upstream() {
        let text = r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"test-brokenhash","credentialMapping":{"docker.io/testing/test":{"kubernetesSecrets":[{"uid":"testsecretuid","namespace":"default","name":"pull-secret","credentialHash":""}]}}}"#;
        let record = decode(text.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert!(decode(text.replace("v1beta1", "v1alpha1").as_bytes()).is_ok());
        let newer = decode(text.replace("v1beta1", "v2").as_bytes()).unwrap_err();
        assert!(newer.to_string().contains("kubelet.config.k8s.io/v2 is unknown"), "{newer}");
        let path = file(Path::new(""), "test-brokenhash");
        assert!(path.display().to_string().starts_with("sha256-38a8906435c4dd5f"));
    }
}
