//! The identity that a client certificate asserts.

/// The identity that a client certificate asserts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user name: the common name.
    pub name: String,
    /// The groups: the organizations.
    pub groups: Vec<String>,
    /// The UID from Kubernetes' own attribute 1.3.6.1.4.1.57683.2; empty without the attribute.
    pub uid: String,
    /// The identifier of the certificate in audit logs: `X509SHA256=` and the hash of the certificate.
    pub credential_id: String,
}
