//! Self-signed certificates for servers without a configured certificate.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use crate::{
    authority::{Authority, LeafSpec},
    cert::Cert,
    error::Error,
    files::{KEY_MODE, PUBLIC_MODE, write_file},
    key::KeyAlgorithm,
    names::{AltName, Subject, Usage},
    validity::Validity,
};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Creates a server certificate, valid for a year, with an authority of its own that no client knows. Returns the chain
/// and the key in PEM.
pub fn self_signed(
    name: &str,
    alt_names: Vec<AltName>,
    now: SystemTime,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let validity = Validity::starting(now, YEAR);
    let authority = Authority::create(&format!("{name}-ca"), KeyAlgorithm::EcdsaP256, validity)?;
    let spec = LeafSpec { subject: Subject::new(name), alt_names, usage: Usage::Server };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity)?;
    let chain = format!("{}{}", cert.to_pem(), authority.cert().to_pem());
    Ok((chain.into_bytes(), key.to_pem()?.into_bytes()))
}

/// Creates a certificate like [`self_signed`] and stores it in two files, so that a restarted server uses the same one.
/// An expired certificate, or one that does not match its key, is replaced.
pub fn keep_self_signed(
    (certificate, key): (&Path, &Path),
    name: &str,
    alt_names: Vec<AltName>,
    now: SystemTime,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    if let (Ok(chain), Ok(pem)) = (fs::read_to_string(certificate), fs::read_to_string(key))
        && Cert::from_pem(&chain).is_ok_and(|cert| is_usable(&cert, &pem, now))
    {
        return Ok((chain.into_bytes(), pem.into_bytes()));
    }
    let (chain, pem) = self_signed(name, alt_names, now)?;
    write_file(key, &pem, KEY_MODE)?;
    write_file(certificate, &chain, PUBLIC_MODE)?;
    Ok((chain, pem))
}

fn is_usable(cert: &Cert, key: &str, now: SystemTime) -> bool {
    let fits = crate::key::Key::from_pem(key).and_then(|key| cert.check_key(&key));
    fits.is_ok() && cert.check_valid_at(now).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn replaces_stored_certificate_only_when_unusable() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("made/a.crt"), dir.path().join("made/a.key"));
        let start = SystemTime::UNIX_EPOCH + 30 * YEAR;
        let keep = |now| {
            let names = vec![AltName::dns("a.example")];
            keep_self_signed((&certificate, &key), "a", names, now).unwrap()
        };
        let first = keep(start);
        assert_eq!(keep(start + YEAR / 2), first);
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let second = keep(start + 2 * YEAR);
        assert_ne!(second, first);
        fs::write(&key, &first.1).unwrap();
        let third = keep(start + 2 * YEAR);
        assert!(third != first && third != second);
        let chain = Cert::all_from_pem(std::str::from_utf8(&third.0).unwrap()).unwrap();
        chain[0].check_names([&AltName::dns("a.example")]).unwrap();
        chain[0].check_signed_by(&chain[1]).unwrap();
    }
}
