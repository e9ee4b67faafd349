//! An authority as a machine's configuration names it: the keypair that signs, and all certificates that are trusted.
//!
//! Invariant: the configuration alone decides. A keypair that has been promoted or distrusted since does not reach the
//! machine, so that `kops` knows from the configuration which keypairs a machine uses and trusts.

use std::path::Path;

use api_meta::Tree as _;
use kops_store::Keyset;
use pki::{Authority, Cert};
use serde_json::Value;

use crate::error::Error;

/// An authority of a control plane.
pub(super) struct NodeAuthority {
    /// The keypair that signs.
    pub(super) authority: Authority,
    /// All trusted certificates, in PEM. That of the signer is the first, as readers of one certificate expect.
    pub(super) trusted: String,
}

impl NodeAuthority {
    /// Takes the signer of a node configuration from its keyset.
    pub(super) fn new(config: &Value, keyset: &Keyset) -> Result<Self, Error> {
        let name = &keyset.name;
        let authority = keyset.authority_of(signer_id(config, name))?;
        let others = Cert::all_from_pem(config.text(&format!("CAs.{name}")))?;
        let others = others.iter().filter(|cert| *cert != authority.cert());
        let trusted = std::iter::once(authority.cert()).chain(others).map(Cert::to_pem).collect();
        Ok(Self { authority, trusted })
    }

    /// Writes the key and the certificates.
    pub(super) fn write(&self, key: &Path, certificates: &Path) -> Result<(), Error> {
        pki::write_key(key, self.authority.key())?;
        Ok(pki::write_file(certificates, self.trusted.as_bytes(), pki::PUBLIC_MODE)?)
    }
}

/// Returns the ID of the keypair that a node configuration names for a keyset.
pub(super) fn signer_id<'a>(config: &'a Value, keyset: &str) -> &'a str {
    config.text(&format!("KeypairIDs.{keyset}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn uses_the_keypairs_of_the_configuration_after_a_promotion() {
        let name = "kubernetes-ca";
        let mut keyset = Keyset::generate(name, rt::now()).unwrap();
        let old = keyset.primary_id().to_owned();
        let new = keyset.add(None, None, false, rt::now()).unwrap();
        let config =
            |id: &str, trusted: &str| json!({"KeypairIDs": {name: id}, "CAs": {name: trusted}});
        let both = keyset.certificates();
        keyset.promote(Some(&new)).unwrap();
        keyset.distrust(std::slice::from_ref(&old), rt::now().into()).unwrap();
        let certs = |authority: &NodeAuthority| Cert::all_from_pem(&authority.trusted).unwrap();
        for (id, trusted, count) in
            [(&old, &both, 2), (&new, &both, 2), (&new, &keyset.certificates(), 1)]
        {
            let used = NodeAuthority::new(&config(id, trusted), &keyset).unwrap();
            assert_eq!(used.authority.cert(), keyset.authority_of(id).unwrap().cert());
            assert_eq!((certs(&used).len(), &certs(&used)[0]), (count, used.authority.cert()));
        }
        assert!(NodeAuthority::new(&config("7", &both), &keyset).is_err());
        assert!(NodeAuthority::new(&config(&new, "-----BEGIN CERTIFICATE-----"), &keyset).is_err());
    }
}
