//! Hashes of files and secrets.

use std::{io::Read as _, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// Returns the SHA-256 sum of a secret, in base64, by which a node configuration names it.
pub fn secret_hash(data: &[u8]) -> String {
    STANDARD.encode(Sha256::digest(data))
}

/// Returns the SHA-256 sum of a file, in hexadecimal.
pub fn file_hash(path: &Path) -> Result<String, kops_store::Error> {
    let failed = || kops_store::Error::file("reading", &path.display().to_string());
    let mut file = std::fs::File::open(path).map_err(failed())?;
    let (mut sum, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(failed())? {
            0 => return Ok(HEXLOWER.encode(&sum.finalize())),
            read => sum.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}
