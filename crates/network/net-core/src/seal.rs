//! The digest of a table's content, which is stored in the table.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

/// The digest of a sequence of texts.
#[derive(Default)]
pub(crate) struct Seal(Sha256);

impl Seal {
    pub(crate) fn feed(&mut self, text: &str) {
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text);
    }

    /// Returns the digest, as `sha256-…`.
    pub(crate) fn finish(self) -> String {
        format!("sha256-{}", HEXLOWER.encode(&self.0.finalize()))
    }
}
