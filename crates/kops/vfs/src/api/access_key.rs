//! Access keys of a served store.

/// An access key and its rights.
#[derive(Clone)]
pub struct AccessKey {
    /// The access key ID.
    pub id: String,
    /// The secret that signs requests.
    pub secret: String,
    /// The prefix of the names that the key reaches: a directory with its slash, or empty for all.
    pub prefix: String,
    /// The prefix of the names that the key may change; `None` if it may change none.
    pub writes: Option<String>,
}
