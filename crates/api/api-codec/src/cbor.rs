//! CBOR (RFC 8949) as upstream writes and reads it: the tree of an object, in the self-described tag.
//!
//! Encoding is deterministic (RFC 8949 §4.2.1): definite lengths, shortest numbers and sorted keys. Strings and keys
//! are byte strings, because upstream does not check that they are UTF-8. Upstream reads the base64 text of a field of
//! bytes from such a string, too, so no schema is needed.
//!
//! Decoding accepts every well-formed item that has a JSON form. Duplicate keys, numbers beyond 64 bits, infinities and
//! text that is not UTF-8 are rejected, and so are strings of bytes that are not UTF-8, which upstream accepts.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use self::{
    decode::{CborError, from_cbor},
    encode::{to_cbor, watch_event},
};

/// The encoded tag of self-described CBOR. All CBOR that upstream writes begins with it.
pub const PREFIX: &[u8] = &[0xd9, 0xd9, 0xf7];
