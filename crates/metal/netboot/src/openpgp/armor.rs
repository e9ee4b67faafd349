//! ASCII armor of OpenPGP packets.

use base64::{Engine, engine::general_purpose::STANDARD};

/// Decodes an armored block. Returns other bytes unchanged.
pub(super) fn decode(input: &[u8]) -> Option<Vec<u8>> {
    if !input.trim_ascii_start().starts_with(b"-----BEGIN PGP") {
        return Some(input.to_vec());
    }
    let text = std::str::from_utf8(input).ok()?;
    let mut lines = text.lines().map(str::trim).skip_while(|line| line.is_empty());
    lines.next()?;
    // An empty line ends the headers.
    let body = lines.skip_while(|line| !line.is_empty()).skip(1);
    let letters: String =
        body.take_while(|line| !line.starts_with('=') && !line.starts_with("-----")).collect();
    STANDARD.decode(letters).ok()
}

pub(super) fn encode(kind: &str, bytes: &[u8]) -> String {
    let mut out = format!("-----BEGIN {kind}-----\n\n");
    for line in bytes.chunks(48) {
        out.push_str(&STANDARD.encode(line));
        out.push('\n');
    }
    let [_, sum @ ..] = checksum(bytes).to_be_bytes();
    out + "=" + &STANDARD.encode(sum) + &format!("\n-----END {kind}-----\n")
}

/// Returns the CRC-24 of RFC 4880.
fn checksum(bytes: &[u8]) -> u32 {
    let mut sum = 0x00b7_04ce;
    for byte in bytes {
        sum ^= u32::from(*byte) << 16;
        for _ in 0..8 {
            sum <<= 1;
            if sum & 0x0100_0000 != 0 {
                sum ^= 0x0186_4cfb;
            }
        }
    }
    sum & 0x00ff_ffff
}
