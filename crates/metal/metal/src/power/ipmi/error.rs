//! The errors of an IPMI session.

/// The errors of an IPMI session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "cannot reach the controller: {0}; check its address and that IPMI over LAN is enabled"
    )]
    Socket(std::io::Error),
    #[error("no answer to {0}; check that IPMI over LAN is enabled and UDP port 623 is open")]
    Silent(&'static str),
    #[error("{what} was refused: {why}")]
    Refused { what: &'static str, why: String },
    #[error("the answer to {0} is malformed")]
    Malformed(&'static str),
    #[error("the controller's proof does not match the password; check the password")]
    Password,
    #[error("the user name is longer than 16 bytes, or the password than 20")]
    TooLong,
    #[error("encryption failed")]
    Crypto,
}
