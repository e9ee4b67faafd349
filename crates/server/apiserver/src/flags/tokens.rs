//! The flags of service account tokens.

use std::time::Duration;

use api_config::{GoDuration, GoFlag as _};

/// Flags of service account tokens
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct TokenFlags {
    /// Issue tokens to Pods that are valid for a year, and warn when one is used beyond the requested lifetime
    #[arg(long, go_bool(), default_value = "true")]
    pub service_account_extend_token_expiration: bool,
    /// The https URL of the keys in the issuer's discovery document [default: the issuer's /openid/v1/jwks]
    #[arg(long)]
    pub service_account_jwks_uri: Option<String>,
    /// The longest validity of a service account token, at least an hour; 0 for no limit
    #[arg(long, default_value = "0s", allow_hyphen_values = true)]
    pub service_account_max_token_expiration: GoDuration,
}

/// The error for invalid flags of tokens, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFlagError {
    #[error("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds")]
    MaxExpiration,
    #[error(
        "can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with \
         `--service-account-signing-endpoint` (They are mutually exclusive)"
    )]
    KeysAndEndpoint,
    #[error("service-account-jwks-uri must be a valid URL: {0:?}")]
    KeysUri(String),
    #[error("service-account-jwks-uri requires https scheme, parsed as: {0}")]
    KeysScheme(String),
}

impl TokenFlags {
    pub(super) fn max_expiration(&self) -> Result<Option<Duration>, TokenFlagError> {
        let given = self.service_account_max_token_expiration;
        let longest = given.to_std();
        if given.nanos() == 0 {
            Ok(None)
        } else if (3600..=1 << 32).contains(&longest.as_secs()) {
            Ok(Some(longest))
        } else {
            Err(TokenFlagError::MaxExpiration)
        }
    }

    pub(super) fn jwks_uri(&self) -> Result<Option<String>, TokenFlagError> {
        let Some(uri) = self.service_account_jwks_uri.as_ref().filter(|uri| !uri.is_empty()) else {
            return Ok(None);
        };
        match uri.parse::<http::Uri>() {
            Err(_) => Err(TokenFlagError::KeysUri(uri.clone())),
            Ok(parsed) if parsed.scheme_str() != Some("https") => {
                Err(TokenFlagError::KeysScheme(uri.clone()))
            }
            Ok(_) => Ok(Some(uri.clone())),
        }
    }
}
