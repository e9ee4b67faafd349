//! OpenID Connect tokens: validation of the configuration, verification of tokens, and mapping of claims to users. This
//! module is pure; the API server fetches the issuers' keys. Read [`JwtAuthenticator`] first.

mod claims;
mod expressions;
mod jwks;
mod token;
mod validation;

pub use claims::{ClaimError, ClaimsError, JwtAuthenticator};
pub use expressions::ExpressionError;
pub use jwks::KeySet;
pub use token::{ALGORITHMS, IdToken, IdTokenError, untrusted_issuer};
pub use validation::{EgressTypes, MAX_ISSUERS, authenticators};

#[cfg(test)]
mod tests;
