//! Who makes a request.
//!
//! Each way to prove an identity is one file. The first that recognises a credential decides who it is; a credential
//! that somebody recognises as wrong, and nobody as right, is an error; no credential at all leaves the user anonymous.
//! Tokens that nobody at hand knows may be known elsewhere (an issuer, a webhook), which whoever can wait asks.

pub mod bootstrap_token;
pub mod certificate;
pub mod front_proxy;
pub mod impersonation;
mod jwt;
pub mod keys;
pub mod legacy_token;
pub mod oidc;
pub mod onward;
pub mod review;
pub mod service_account;
pub mod token_file;
pub mod web_socket;

use std::time::SystemTime;

use api_meta::{
    Objects, Timestamp, UserInfo,
    user::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED},
};
use certificate::{CertificateError, ClientCa, VerifiedCertificate};
use front_proxy::FrontProxy;
use http::{HeaderMap, header};
pub use jwt::{Checked, Hash};
use rustls::pki_types::CertificateDer;

/// A user, and those of the asked audiences that the credential is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    pub user: UserInfo,
    pub audiences: Vec<String>,
}

/// Why a token was refused; for the log, the answer says no more than 401.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(pub String);

/// What is known of a request's user without asking anybody elsewhere.
#[derive(Debug)]
pub enum Found {
    Known(Authenticated),
    /// A token that nobody at hand knows.
    Elsewhere(UnknownToken),
}

/// A token that nobody at hand knows, and what was found wrong with the request so far.
#[derive(Debug)]
pub struct UnknownToken {
    pub token: String,
    refused: Option<Unauthenticated>,
}

impl UnknownToken {
    /// Who makes the request, given what those elsewhere say of the token.
    pub fn settle(
        self,
        found: Result<Option<Authenticated>, TokenError>,
    ) -> Result<Authenticated, Unauthenticated> {
        let error = match found {
            Ok(Some(mut found)) => {
                add_implied_group(&mut found.user);
                return Ok(found);
            }
            Ok(None) => Unauthenticated::UnknownToken,
            Err(error) => error.into(),
        };
        Err(self.refused.unwrap_or(error))
    }
}

/// Why nobody stands behind a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("invalid bearer token: {0}")]
    Token(#[from] TokenError),
    #[error("invalid bearer token: no authenticator knows it")]
    UnknownToken,
    #[error("the request carries no credentials, and anonymous requests are off")]
    NoCredentials,
}

/// One kind of bearer token.
pub trait TokenAuthenticator: Send + Sync {
    /// `None` when the token is not of this kind.
    fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        objects: &dyn Objects,
    ) -> Result<Option<Authenticated>, TokenError>;
}

/// What the client certificate of a connection was found to be; made once, when the connection is.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificate {
    client: Option<Result<VerifiedCertificate, CertificateError>>,
    proxy: Option<VerifiedCertificate>,
}

/// What came with a request.
pub struct Presented<'a> {
    pub peer: &'a PeerCertificate,
    pub headers: &'a HeaderMap,
    pub path: &'a str,
    pub now: SystemTime,
}

/// Whether requests without credentials go on as `system:anonymous`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// They are refused with 401.
    Off,
    On,
    /// Only for these paths.
    Paths(Vec<String>),
}

/// All ways to prove who one is that a server accepts.
pub struct Authentication {
    pub client_ca: Option<ClientCa>,
    pub front_proxy: Option<FrontProxy>,
    pub tokens: Vec<Box<dyn TokenAuthenticator>>,
    /// What a token must be for to be used at this API.
    pub api_audiences: Vec<String>,
    pub anonymous: Anonymous,
}

impl Authentication {
    /// Judges the certificates of a new connection.
    pub fn peer(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> PeerCertificate {
        let proxy =
            self.front_proxy.as_ref().and_then(|proxy| proxy.ca.verify(chain, now).ok().flatten());
        let client = self.client_ca.as_ref().and_then(|ca| ca.verify(chain, now).transpose());
        // The proxy's own certificate need not be a client's as well.
        PeerCertificate { client: client.filter(|c| c.is_ok() || proxy.is_none()), proxy }
    }

    /// Says who makes a request. `objects` has the Secrets, Pods and accounts that tokens depend on.
    pub fn authenticate(
        &self,
        presented: &Presented<'_>,
        objects: &dyn Objects,
    ) -> Result<Found, Unauthenticated> {
        let mut refused: Option<Unauthenticated> = None;
        match self.by_certificate(presented) {
            Ok(Some(user)) => return Ok(Found::Known(self.accepted(user))),
            Ok(None) => {}
            Err(error) => refused = Some(error.into()),
        }
        let now = presented.now.into();
        match bearer_token(presented.headers) {
            Ok(Some(token)) => {
                match self.by_token(&token, &self.api_audiences, now, objects) {
                    Ok(Some(mut found)) => {
                        add_implied_group(&mut found.user);
                        return Ok(Found::Known(found));
                    }
                    Ok(None) => {}
                    Err(error) => refused = refused.or(Some(error.into())),
                }
                return Ok(Found::Elsewhere(UnknownToken { token, refused }));
            }
            Ok(None) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
        if let Some(error) = refused {
            return Err(error);
        }
        let anonymous = match &self.anonymous {
            Anonymous::Off => false,
            Anonymous::On => true,
            Anonymous::Paths(paths) => paths.iter().any(|path| path == presented.path),
        };
        if anonymous {
            Ok(Found::Known(self.accepted(UserInfo::anonymous())))
        } else {
            Err(Unauthenticated::NoCredentials)
        }
    }

    /// Asks each kind of token at hand in turn.
    pub fn by_token(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        objects: &dyn Objects,
    ) -> Result<Option<Authenticated>, TokenError> {
        let mut refused = None;
        for kind in &self.tokens {
            match kind.authenticate(token, audiences, now, objects) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    fn by_certificate(
        &self,
        presented: &Presented<'_>,
    ) -> Result<Option<UserInfo>, CertificateError> {
        let in_force = |certificate: &VerifiedCertificate| {
            if certificate.not_after < presented.now {
                return Err(CertificateError::Expired(certificate.user.name.clone()));
            }
            Ok(())
        };
        if let (Some(proxy), Some(certificate)) = (&self.front_proxy, &presented.peer.proxy) {
            in_force(certificate)?;
            if let Some(user) = proxy.user(&certificate.user.name, presented.headers)? {
                return Ok(Some(user));
            }
        }
        match &presented.peer.client {
            None => Ok(None),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(certificate)) => in_force(certificate).map(|()| Some(certificate.user.clone())),
        }
    }

    fn accepted(&self, mut user: UserInfo) -> Authenticated {
        add_implied_group(&mut user);
        Authenticated { user, audiences: self.api_audiences.clone() }
    }
}

fn add_implied_group(user: &mut UserInfo) {
    let settled = user.name == ANONYMOUS
        || user.in_group(GROUP_AUTHENTICATED)
        || user.in_group(GROUP_UNAUTHENTICATED);
    if !settled {
        user.groups.push(GROUP_AUTHENTICATED.to_owned());
    }
}

/// The token of `Authorization: Bearer`, or the one that a browser's WebSocket brings.
fn bearer_token(headers: &HeaderMap) -> Result<Option<String>, Unauthenticated> {
    let Some(value) = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()) else {
        return Ok(web_socket::token(headers)?);
    };
    let (scheme, token) = value.trim().split_once(' ').unwrap_or_default();
    let token = token.trim();
    let bearer = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
    Ok(bearer.then(|| token.to_owned()))
}

#[cfg(test)]
mod tests;
