//! Encodes inline contents.

use std::io::Write;

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};

use crate::data::escape;

/// The size that the key `"compression": "gzip"` adds to a config.
const COMPRESSION_KEY: usize = 25;

/// Returns the shortest of three `data:` URLs (escaped, base64, compressed) and its compression.
pub(super) fn data_url(contents: &[u8], may_compress: bool) -> (String, Option<&'static str>) {
    let mut opaque = format!(",{}", escape(contents));
    let plain = format!(";base64,{}", STANDARD.encode(contents));
    if plain.len() < opaque.len() {
        opaque = plain;
    }
    if !may_compress {
        return (format!("data:{opaque}"), None);
    }
    let mut compression = "";
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory cannot fail. If it did, the contents would stay uncompressed.
    if let Ok(packed) = encoder.write_all(contents).and_then(|()| encoder.finish()) {
        let packed = format!(";base64,{}", STANDARD.encode(packed));
        if packed.len() + COMPRESSION_KEY < opaque.len() {
            opaque = packed;
            compression = "gzip";
        }
    }
    (format!("data:{opaque}"), Some(compression))
}
