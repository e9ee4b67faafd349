//! Keysets: the cluster's authorities and signing keys, as they lie in the store.
//!
//! `pki/private/NAME/keyset.yaml` has the private halves and is for its owner alone, `pki/issued/NAME/keyset.yaml` has the
//! rest.

use std::time::{Duration, SystemTime};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kops_api::{Object, Spec as _, yaml};
use kops_core::NodeKeyset;
use pki::{Authority, Cert, Key, KeyAlgorithm, Validity};
use serde_json::{Value, json};

use crate::{Error, registry::Registry};

const TEN_YEARS: Duration = Duration::from_secs(3650 * 86_400);
/// Machines whose clocks are behind trust a new authority all the same.
const BEFORE: Duration = Duration::from_secs(48 * 3600);

/// One keyset.
#[derive(Debug)]
pub(crate) struct Keyset {
    pub(crate) name: String,
    primary: String,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Item {
    id: String,
    distrusted: bool,
    cert: Cert,
    key: Option<Key>,
}

/// The names of the keysets that a cluster has.
pub(crate) fn names(cluster: &Object) -> Vec<String> {
    let mut names: Vec<String> =
        ["kubernetes-ca", "apiserver-aggregator-ca", "etcd-clients-ca", "service-account"]
            .map(str::to_owned)
            .into();
    for etcd in cluster.spec.list("etcdClusters") {
        let name = etcd.text("name");
        names.extend([format!("etcd-manager-ca-{name}"), format!("etcd-peers-ca-{name}")]);
        if !["main", "events", "leases"].contains(&name) {
            names.push(format!("etcd-clients-ca-{name}"));
        }
    }
    names
}

pub(crate) fn private_path(cluster: &str, name: &str) -> String {
    format!("{cluster}/pki/private/{name}/keyset.yaml")
}

pub(crate) fn issued_path(cluster: &str, name: &str) -> String {
    format!("{cluster}/pki/issued/{name}/keyset.yaml")
}

/// Reads a keyset with its private halves.
pub(crate) fn read(
    registry: &Registry,
    cluster: &str,
    name: &str,
) -> Result<Option<Keyset>, Error> {
    let path = private_path(cluster, name);
    match registry.content(&path)? {
        None => Ok(None),
        Some((content, _)) => Keyset::parse(&path, name, &content).map(Some),
    }
}

impl Keyset {
    /// A new keyset of one authority.
    pub(crate) fn make(name: &str, now: SystemTime) -> Result<Self, Error> {
        let validity = Validity { not_before: now - BEFORE, not_after: now + TEN_YEARS };
        let made = Authority::create_with(name, Key::generate(KeyAlgorithm::EcdsaP256)?, validity)?;
        let nanos = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        // Upstream's form: the moment, and chance for those of the same moment.
        let id = (nanos << 32 | u128::from(rt::random::<u32>())).to_string();
        let key = Key::from_pem(&made.key().to_pem()?)?;
        let item =
            Item { id: id.clone(), distrusted: false, cert: made.cert().clone(), key: Some(key) };
        Ok(Self { name: name.to_owned(), primary: id, items: vec![item] })
    }

    pub(crate) fn parse(path: &str, name: &str, content: &[u8]) -> Result<Self, Error> {
        let wrong = |cause: String| kops_api::Error::Yaml { what: path.to_owned(), cause };
        let tree = api_codec::from_yaml(content).map_err(|e| wrong(e.to_string()))?;
        let decode = |text: &str| {
            let bytes = STANDARD.decode(text).map_err(|e| wrong(e.to_string()))?;
            String::from_utf8(bytes).map_err(|e| wrong(e.to_string()))
        };
        let mut items = Vec::new();
        for key in tree.list("spec.keys") {
            let private = match key.text("privateMaterial") {
                "" => None,
                text => Some(Key::from_pem(&decode(text)?)?),
            };
            items.push(Item {
                id: key.text("id").to_owned(),
                distrusted: key.has("distrustTimestamp"),
                cert: Cert::from_pem(&decode(key.text("publicMaterial"))?)?,
                key: private,
            });
        }
        let primary = tree.text("spec.primaryID").to_owned();
        if !items.iter().any(|item| item.id == primary) {
            return Err(wrong(format!("its primary key {primary:?} is not in it")).into());
        }
        Ok(Self { name: name.to_owned(), primary, items })
    }

    /// As a document, with or without the private halves.
    pub(crate) fn document(&self, private: bool) -> Result<String, Error> {
        let mut keys = Vec::new();
        for item in &self.items {
            let mut key =
                json!({"id": item.id, "publicMaterial": STANDARD.encode(item.cert.to_pem())});
            if let Some(own) = item.key.as_ref().filter(|_| private) {
                key.set("privateMaterial", STANDARD.encode(own.to_pem()?));
            }
            keys.push(key);
        }
        Ok(yaml::to_string(&json!({
            "apiVersion": "kops.k8s.io/v1alpha2", "kind": "Keyset",
            "metadata": {"creationTimestamp": Value::Null, "name": self.name},
            "spec": {"keys": keys, "primaryID": self.primary, "type": "Keypair"},
        })))
    }

    fn trusted(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| !item.distrusted)
    }

    /// All certificates that are not distrusted, in PEM.
    pub(crate) fn certificates(&self) -> String {
        self.trusted().map(|item| item.cert.to_pem()).collect()
    }

    /// The key that signs, with its certificate.
    pub(crate) fn primary(&self) -> Result<(&Cert, &Key), Error> {
        let item = self.items.iter().find(|item| item.id == self.primary);
        match item.and_then(|item| Some((&item.cert, item.key.as_ref()?))) {
            Some(found) => Ok(found),
            None => Err(Error::Usage(format!("keyset {} has no private key here", self.name))),
        }
    }

    pub(crate) fn authority(&self) -> Result<Authority, Error> {
        let (cert, key) = self.primary()?;
        Ok(Authority::from_parts(cert.clone(), Key::from_pem(&key.to_pem()?)?)?)
    }

    /// What machines may know of it.
    pub(crate) fn public(&self) -> Result<NodeKeyset, Error> {
        let keys =
            self.trusted().map(|item| Ok(pki::encode("PUBLIC KEY", &item.cert.public_der()?)));
        Ok(NodeKeyset {
            primary_id: self.primary.clone(),
            certificates: self.certificates(),
            public_keys: keys.collect::<Result<Vec<_>, Error>>()?.concat(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyset_survives_the_store_and_its_public_half_tells_nothing() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let made = Keyset::make("kubernetes-ca", now).unwrap();
        let private = made.document(true).unwrap();
        let read = Keyset::parse("x", "kubernetes-ca", private.as_bytes()).unwrap();
        assert_eq!(read.document(true).unwrap(), private);
        assert_eq!(read.authority().unwrap().cert(), made.authority().unwrap().cert());
        let issued = made.document(false).unwrap();
        assert!(!issued.contains("privateMaterial"), "{issued}");
        let read = Keyset::parse("x", "kubernetes-ca", issued.as_bytes()).unwrap();
        assert!(read.primary().is_err() && read.certificates() == made.certificates());
        let cut = private.replace(&format!("primaryID: \"{}\"", made.primary), "primaryID: \"7\"");
        assert!(Keyset::parse("x", "kubernetes-ca", cut.as_bytes()).is_err());
    }
}
