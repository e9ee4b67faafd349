//! Placeholders for stored values that cannot be decrypted.

use bytes::Bytes;

/// The prefix that marks an unreadable value. No encoded object begins with it.
const UNREADABLE: &[u8] = b"\0unreadable:";

/// Returns the placeholder for a value that cannot be decrypted, with the reason.
pub fn unreadable(why: &str) -> Bytes {
    [UNREADABLE, why.as_bytes()].concat().into()
}

/// Returns the reason why a value cannot be read, if it is [`unreadable`].
pub fn why_unreadable(value: &[u8]) -> Option<String> {
    value.strip_prefix(UNREADABLE).map(|why| String::from_utf8_lossy(why).into_owned())
}
