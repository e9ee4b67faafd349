//! Tokens of OpenID Connect issuers: what is wrong with a configuration, whether a token is genuine, and whom its claims
//! name. Pure: who fetches an issuer's keys gives them.

mod claims;
mod expressions;
mod jwks;
mod token;
mod validation;

pub use claims::JwtAuthenticator;
pub use jwks::KeySet;
pub use token::{ALGORITHMS, IdToken, untrusted_issuer};
pub use validation::{MAX_ISSUERS, authenticators};

#[cfg(test)]
mod tests;
