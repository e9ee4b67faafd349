//! The key pair for service account tokens.

use std::{fs, path::Path};

use bootstrap_core::certs::Plan;
use pki::Key;

use crate::{Error, FileChange, error::io};

/// Creates or checks the key pair that signs and verifies service account tokens.
pub fn ensure_service_account(dir: &Path, plan: &Plan) -> Result<Vec<FileChange>, Error> {
    let (key_file, public_file) = (dir.join("sa.key"), dir.join("sa.pub"));
    match (key_file.exists(), public_file.exists()) {
        (false, true) => Err(Error::HalfPair { have: public_file, missing: key_file }),
        (false, false) => {
            let key = Key::generate(plan.algorithm)?;
            pki::write_key(&key_file, &key)?;
            pki::write_public_key(&public_file, &key)?;
            Ok(vec![FileChange::written(key_file), FileChange::written(public_file)])
        }
        (true, false) => {
            pki::write_public_key(&public_file, &pki::read_key(&key_file)?)?;
            Ok(vec![FileChange::used(key_file), FileChange::written(public_file)])
        }
        (true, true) => {
            // The public file may hold several keys while the key is being rotated.
            let key = pki::read_key(&key_file)?.public_der()?;
            let text = fs::read_to_string(&public_file).map_err(io("read", &public_file))?;
            if pki::decode_all(&text)?
                .iter()
                .any(|(label, der)| label == "PUBLIC KEY" && *der == key)
            {
                return Ok(vec![FileChange::used(key_file), FileChange::used(public_file)]);
            }
            Err(Error::Unusable {
                path: public_file,
                source: pki::Error::KeyMismatch { subject: "sa.pub".to_owned() },
                cure: "remove it to have it derived from sa.key",
            })
        }
    }
}
