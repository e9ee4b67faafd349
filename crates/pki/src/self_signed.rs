//! Certificates of servers that nobody gave one.

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use crate::{
    AltName, Authority, Cert, Error, KEY_MODE, KeyAlgorithm, LeafSpec, PUBLIC_MODE, Subject, Usage,
    Validity, write_file,
};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A server's certificate, followed by that of the authority made for it, which nobody else knows; and its key. Both are
/// PEM. It holds for a year.
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

/// As [`self_signed`], kept in two files, so that a server that starts again is the same. One that has run out, or does
/// not fit its key, is made anew.
pub fn keep_self_signed(
    (certificate, key): (&Path, &Path),
    name: &str,
    alt_names: Vec<AltName>,
    now: SystemTime,
) -> Result<(Vec<u8>, Vec<u8>), Error> {
    if let (Ok(chain), Ok(pem)) = (fs::read_to_string(certificate), fs::read_to_string(key))
        && Cert::from_pem(&chain).is_ok_and(|cert| holds(&cert, &pem, now))
    {
        return Ok((chain.into_bytes(), pem.into_bytes()));
    }
    let (chain, pem) = self_signed(name, alt_names, now)?;
    write_file(key, &pem, KEY_MODE)?;
    write_file(certificate, &chain, PUBLIC_MODE)?;
    Ok((chain, pem))
}

fn holds(cert: &Cert, key: &str, now: SystemTime) -> bool {
    let fits = crate::Key::from_pem(key).and_then(|key| cert.check_key(&key));
    fits.is_ok() && cert.check_valid_at(now).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_kept_certificate_stays_until_it_is_of_no_use() {
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
