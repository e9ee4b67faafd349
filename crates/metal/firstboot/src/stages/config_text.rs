//! The text of a config before it is parsed.

/// The text of a config and its origin.
#[derive(Debug)]
pub(super) struct ConfigText {
    /// The URL or file that contains the config, for messages.
    pub(super) origin: String,
    pub(super) text: String,
}

impl ConfigText {
    pub(super) fn new(origin: &str, bytes: &[u8]) -> Self {
        Self { origin: origin.to_owned(), text: decode(bytes) }
    }
}

pub(super) fn decode(bytes: &[u8]) -> String {
    // The firmware's file may end with a NUL.
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}
