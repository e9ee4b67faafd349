//! Keysets: a cluster's authorities and signing keys, in the store.
//!
//! `pki/private/NAME/keyset.yaml` contains the private keys and is readable by its owner only.
//! `pki/issued/NAME/keyset.yaml` contains the rest.

use std::time::{Duration, SystemTime};

use api_meta::{Timestamp, Tree as _};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kops_api::{Object, yaml};
use kops_core::NodeKeyset;
use pki::{Authority, Cert, Key, KeyAlgorithm, Validity};
use serde_json::{Value, json};

use crate::{error::Error, layout::private_keyset, registry::Registry};

/// The keyset that signs tokens of service accounts.
pub const SERVICE_ACCOUNT: &str = "service-account";
const TEN_YEARS: Duration = Duration::from_secs(3650 * 86_400);
/// The age of a new authority's start of validity, for machines whose clocks are behind.
const BACKDATED: Duration = Duration::from_secs(48 * 3600);

/// A keyset.
#[derive(Debug)]
pub struct Keyset {
    /// The name.
    pub name: String,
    primary: String,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Item {
    id: String,
    /// The time since which the keypair is distrusted.
    distrusted: Option<String>,
    cert: Cert,
    key: Option<Key>,
}

/// The result of a change of a keyset.
#[derive(Debug)]
pub struct KeysetChange {
    /// `true` if the keyset changed.
    pub has_changed: bool,
    /// The lines to print.
    pub lines: Vec<String>,
}

/// Creates a self-signed authority for a key.
fn self_sign(name: &str, key: Key, now: SystemTime) -> Result<(Cert, Key), Error> {
    let validity = Validity { not_before: now - BACKDATED, not_after: now + TEN_YEARS };
    let authority = Authority::create_with(name, key, validity)?;
    Ok((authority.cert().clone(), Key::from_pem(&authority.key().to_pem()?)?))
}

/// Returns a new keypair's ID in upstream's form: the time, and a random part for keypairs of the same time.
fn new_id(now: SystemTime) -> String {
    let nanos = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    (nanos << 32 | u128::from(rt::random::<u32>())).to_string()
}

/// Returns a keypair's ID as a number, by which keypairs are sorted; an invalid ID sorts first.
fn number(id: &str) -> u128 {
    id.parse().unwrap_or(0)
}

impl Keyset {
    /// Returns the names of a cluster's keysets.
    pub fn names(cluster: &Object) -> Vec<String> {
        let mut names: Vec<String> =
            ["kubernetes-ca", "apiserver-aggregator-ca", "etcd-clients-ca", SERVICE_ACCOUNT]
                .map(str::to_owned)
                .into();
        for etcd in cluster.spec.items("etcdClusters") {
            let name = etcd.text("name");
            names.extend([format!("etcd-manager-ca-{name}"), format!("etcd-peers-ca-{name}")]);
            if !["main", "events", "leases"].contains(&name) {
                names.push(format!("etcd-clients-ca-{name}"));
            }
        }
        names
    }

    /// Reads a keyset with its private keys; `None` if it does not exist.
    pub fn read(registry: &Registry, cluster: &str, name: &str) -> Result<Option<Self>, Error> {
        let path = private_keyset(cluster, name);
        match registry.read_object(&path)? {
            None => Ok(None),
            Some((content, _)) => Self::parse(&path, name, &content).map(Some),
        }
    }

    /// Creates a keyset with one authority.
    pub fn generate(name: &str, now: SystemTime) -> Result<Self, Error> {
        Self::generate_with(name, KeyAlgorithm::EcdsaP256, now)
    }

    /// Creates a keyset with a key of the given algorithm.
    pub fn generate_with(
        name: &str,
        algorithm: KeyAlgorithm,
        now: SystemTime,
    ) -> Result<Self, Error> {
        let (cert, key) = self_sign(name, Key::generate(algorithm)?, now)?;
        let id = new_id(now);
        let item = Item { id: id.clone(), distrusted: None, cert, key: Some(key) };
        Ok(Self { name: name.to_owned(), primary: id, items: vec![item] })
    }

    /// Creates an empty keyset.
    pub fn empty(name: &str) -> Self {
        Self { name: name.to_owned(), primary: String::new(), items: Vec::new() }
    }

    /// Adds a keypair and returns its ID. Missing parts are created; a certificate without a key cannot sign.
    pub fn add(
        &mut self,
        cert: Option<Cert>,
        key: Option<Key>,
        primary: bool,
        now: SystemTime,
    ) -> Result<String, Error> {
        if self.items.is_empty() && !primary {
            return Err(Error::FirstKeypair);
        }
        let (cert, key) = match (cert, key) {
            (Some(cert), Some(key)) => {
                let whole = Authority::from_parts(cert, key)?;
                (whole.cert().clone(), Some(Key::from_pem(&whole.key().to_pem()?)?))
            }
            (Some(_), None) if primary => return Err(Error::PrimaryWithoutKey),
            (Some(cert), None) => (cert, None),
            (None, key) => {
                let like = self.primary().ok().and_then(|(_, key)| key.algorithm());
                let key = match key {
                    Some(key) => key,
                    None => Key::generate(like.unwrap_or(KeyAlgorithm::EcdsaP256))?,
                };
                let (cert, key) = self_sign(&self.name, key, now)?;
                (cert, Some(key))
            }
        };
        // Keypairs without a key sort before the primary, as upstream numbers them.
        let free = || (0_u128..).map(|n| n.to_string()).find(|id| self.item(id).is_none());
        let id = match &key {
            Some(_) => new_id(now),
            None => free().unwrap_or_default(),
        };
        self.items.push(Item { id: id.clone(), distrusted: None, cert, key });
        self.items.sort_by_key(|item| number(&item.id));
        if primary {
            self.primary.clone_from(&id);
        }
        Ok(id)
    }

    fn item(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    /// Makes a keypair the primary, or the newest one that can sign. Returns the lines to print.
    pub fn promote(&mut self, id: Option<&str>) -> Result<KeysetChange, Error> {
        let newest = || {
            let able = self.trusted().filter(|item| item.key.is_some());
            able.max_by_key(|item| number(&item.id))
        };
        let name = &self.name;
        let item = match id {
            None => newest(),
            Some(id) => self.item(id),
        };
        let wrong =
            |problem| Err(Error::Keypair { id: id.unwrap_or_default().to_owned(), problem });
        let id = match item {
            None => return wrong("keypair not found"),
            Some(item) if item.distrusted.is_some() => return wrong("keypair is distrusted"),
            Some(item) if item.key.is_none() => return wrong("keypair has no private key"),
            Some(item) => item.id.clone(),
        };
        if id == self.primary {
            let text = format!("No {name} keypair newer than current primary {id}");
            return Ok(KeysetChange { has_changed: false, lines: vec![text] });
        }
        let lines = vec![format!("Promoted {name} {id}")];
        self.primary = id;
        Ok(KeysetChange { has_changed: true, lines })
    }

    /// Distrusts the given keypairs, or all that are older than the primary.
    pub fn distrust(&mut self, ids: &[String], now: Timestamp) -> Result<KeysetChange, Error> {
        let primary = number(&self.primary);
        let older = || {
            let older = self.trusted().filter(|item| number(&item.id) < primary);
            older.map(|item| item.id.clone()).collect()
        };
        let ids = if ids.is_empty() { older() } else { ids.to_vec() };
        if ids.contains(&self.primary) {
            return Err(Error::PrimaryDistrusted);
        }
        let now = now.to_seconds().to_string();
        self.mark(&ids, "Distrusted", &Some(now))
    }

    /// Trusts keypairs again.
    pub fn trust(&mut self, ids: &[String]) -> Result<KeysetChange, Error> {
        self.mark(ids, "Trusted", &None)
    }

    fn mark(
        &mut self,
        ids: &[String],
        verb: &str,
        mark: &Option<String>,
    ) -> Result<KeysetChange, Error> {
        let mut lines = Vec::new();
        for id in ids {
            let item = self.items.iter_mut().find(|item| item.id == *id);
            let item = item.ok_or_else(|| Error::object("keypair", id, "not found"))?;
            if item.distrusted.is_some() != mark.is_some() {
                item.distrusted.clone_from(mark);
                lines.push(format!("{verb} {} {id}", self.name));
            }
        }
        Ok(KeysetChange { has_changed: !lines.is_empty(), lines })
    }

    /// Returns the keypairs as documents with upstream's fields.
    pub fn describe(&self, distrusted: bool) -> Result<Vec<Value>, Error> {
        let shown = self.items.iter().filter(|item| distrusted || item.distrusted.is_none());
        let describe = |item: &Item| {
            let info = item.cert.info()?;
            let time = |time: SystemTime| Timestamp::from(time).to_seconds().to_string();
            let mut one = json!({
                "name": self.name, "id": item.id, "subject": info.subject.to_string(),
                "issuer": info.issuer.to_string(), "isCA": info.is_ca,
                "notBefore": time(info.not_before), "notAfter": time(info.not_after),
            });
            if let Some(since) = &item.distrusted {
                one.set("distrustTimestamp", since.clone());
            }
            for (field, holds) in
                [("isPrimary", item.id == self.primary), ("hasPrivateKey", item.key.is_some())]
            {
                if holds {
                    one.set(field, true);
                }
            }
            Ok(one)
        };
        shown.map(describe).collect()
    }

    /// Parses a keyset. `path` names it in errors.
    pub fn parse(path: &str, name: &str, content: &[u8]) -> Result<Self, Error> {
        let wrong = |cause: String| kops_api::Error::Yaml { what: path.to_owned(), cause };
        let tree = yaml::parse(path, content)?;
        let decode = |text: &str| {
            let bytes = STANDARD.decode(text).map_err(|e| wrong(e.to_string()))?;
            String::from_utf8(bytes).map_err(|e| wrong(e.to_string()))
        };
        let mut items = Vec::new();
        for key in tree.items("spec.keys") {
            let private = match key.text("privateMaterial") {
                "" => None,
                text => Some(Key::from_pem(&decode(text)?)?),
            };
            items.push(Item {
                id: key.text("id").to_owned(),
                distrusted: match key.text("distrustTimestamp") {
                    "" => None,
                    since => Some(since.to_owned()),
                },
                cert: Cert::from_pem(&decode(key.text("publicMaterial"))?)?,
                key: private,
            });
        }
        let primary = tree.text("spec.primaryID").to_owned();
        if !items.iter().any(|item| item.id == primary) {
            return Err(wrong(format!("its primary key {primary:?} is missing")).into());
        }
        Ok(Self { name: name.to_owned(), primary, items })
    }

    /// Returns the keyset as YAML, with or without the private keys.
    pub fn document(&self, private: bool) -> Result<String, Error> {
        let mut keys = Vec::new();
        for item in &self.items {
            let mut key =
                json!({"id": item.id, "publicMaterial": STANDARD.encode(item.cert.to_pem())});
            if let Some(since) = &item.distrusted {
                key.set("distrustTimestamp", since.clone());
            }
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
        self.items.iter().filter(|item| item.distrusted.is_none())
    }

    /// Returns all trusted certificates, in PEM.
    pub fn certificates(&self) -> String {
        self.trusted().map(|item| item.cert.to_pem()).collect()
    }

    /// Returns the ID of the primary keypair.
    pub fn primary_id(&self) -> &str {
        &self.primary
    }

    /// Reports whether a keypair exists and is trusted.
    pub fn is_trusted(&self, id: &str) -> bool {
        self.item(id).is_some_and(|item| item.distrusted.is_none())
    }

    /// Returns the IDs of the distrusted keypairs.
    pub fn distrusted(&self) -> impl Iterator<Item = &str> {
        let items = self.items.iter().filter(|item| item.distrusted.is_some());
        items.map(|item| item.id.as_str())
    }

    /// Returns the signing key with its certificate.
    pub fn primary(&self) -> Result<(&Cert, &Key), Error> {
        self.keypair(&self.primary)
    }

    /// Returns the certificate and the key of a keypair, which may be distrusted by now.
    fn keypair(&self, id: &str) -> Result<(&Cert, &Key), Error> {
        match self.item(id).and_then(|item| Some((&item.cert, item.key.as_ref()?))) {
            Some(found) => Ok(found),
            None => Err(Error::MissingKey { keyset: self.name.clone(), id: id.to_owned() }),
        }
    }

    /// Returns the authority of the primary keypair.
    pub fn authority(&self) -> Result<Authority, Error> {
        self.authority_of(&self.primary)
    }

    /// Returns the authority of a keypair. Machines use the keypair that their configuration names, also if another
    /// one has become the primary since.
    pub fn authority_of(&self, id: &str) -> Result<Authority, Error> {
        let (cert, key) = self.keypair(id)?;
        Ok(Authority::from_parts(cert.clone(), Key::from_pem(&key.to_pem()?)?)?)
    }

    /// Returns the public half for machines.
    pub fn public(&self) -> Result<NodeKeyset, Error> {
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
    fn keyset_round_trips_and_public_half_has_no_keys() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let made = Keyset::generate("kubernetes-ca", now).unwrap();
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
