//! The error type of signing.

/// The reasons why a keyring cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the keyring is not OpenPGP data: {0}; export it with gpg --export-secret-keys")]
    Malformed(&'static str),
    #[error("the keyring holds no secret key; export it with gpg --export-secret-keys")]
    NoKey,
    #[error("the key {id} is locked; set MATCHBOX_PASSPHRASE")]
    Locked { id: String },
    #[error("the passphrase does not open the key {id}; is MATCHBOX_PASSPHRASE right?")]
    Passphrase { id: String },
    #[error(
        "the key {id} cannot sign here: {reason}; make one of Ed25519, or of RSA with 2048 bits or more"
    )]
    Unusable { id: String, reason: String },
    #[error("signing failed")]
    Sign,
}
