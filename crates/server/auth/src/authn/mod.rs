//! Authentication: the user of a request. Read [`Authentication`] first.
//!
//! Each authentication method has a file. The first method that accepts a credential decides. A credential that one
//! method rejects and none accepts is an error. Without a credential the user is anonymous. Tokens that no local method
//! recognizes are returned as [`UnknownToken`]: the API server verifies them with OIDC issuers and webhooks.

pub mod bootstrap_token;
pub mod certificate;
mod error;
pub mod forwarding;
pub mod front_proxy;
pub mod impersonation;
mod jwt;
pub mod keys;
pub mod legacy_token;
pub mod oidc;
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
pub use error::{ServiceAccountTokenError, TokenError, Unauthenticated};
use front_proxy::FrontProxy;
use http::{HeaderMap, header};
pub use jwt::{DigestCache, Hash};
use rustls::pki_types::CertificateDer;

/// An authenticated user, and the requested audiences for which the credential is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// The user.
    pub user: UserInfo,
    /// The audiences of the request for which the credential is valid.
    pub audiences: Vec<String>,
}

/// The result of authentication without calls to other servers.
#[derive(Debug)]
pub enum AuthenticationResult {
    /// The authenticated user.
    Authenticated(Authenticated),
    /// A token that no local method recognizes.
    UnknownToken(UnknownToken),
}

/// A token that no local method recognizes, and the error of other credentials in the request.
#[derive(Debug)]
pub struct UnknownToken {
    /// The bearer token.
    pub token: String,
    refused: Option<Unauthenticated>,
}

impl UnknownToken {
    /// Returns `true` if the token names a key of service account tokens that is not known.
    pub fn names_unknown_key(&self) -> bool {
        matches!(&self.refused, Some(Unauthenticated::Token(error)) if error.is_unknown_key())
    }

    /// Returns the user, given the result of the remote authentication of the token.
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

/// A bearer token, and the context in which it is authenticated.
#[derive(Clone, Copy)]
pub struct BearerToken<'a> {
    /// The token as it was presented.
    pub token: &'a str,
    /// The accepted audiences. The token must have at least one of them.
    pub audiences: &'a [String],
    /// The time of the request.
    pub now: Timestamp,
    /// The Secrets, Pods and service accounts that tokens depend on.
    pub objects: &'a dyn Objects,
}

/// An authentication method for bearer tokens.
pub trait TokenAuthenticator: Send + Sync {
    /// Authenticates a token. Returns `None` if the token is not of this kind.
    fn authenticate(&self, bearer: BearerToken<'_>) -> Result<Option<Authenticated>, TokenError>;
}

/// The client certificate of a connection, verified once per connection.
#[derive(Clone, Debug, Default)]
pub struct PeerCertificate {
    client: Option<Result<VerifiedCertificate, CertificateError>>,
    proxy: Option<VerifiedCertificate>,
}

impl PeerCertificate {
    /// Returns the end of the validity of the client's own certificate; `None` without a verified one.
    pub fn not_after(&self) -> Option<SystemTime> {
        self.client.as_ref()?.as_ref().ok().map(|certificate| certificate.not_after)
    }
}

/// The credentials and context of a request.
pub struct RequestCredentials<'a> {
    /// The connection's client certificate.
    pub peer: &'a PeerCertificate,
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// The request's path, for anonymous access to some paths.
    pub path: &'a str,
    /// The time of the request.
    pub now: SystemTime,
}

/// The treatment of requests without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Rejected with 401.
    Off,
    /// Accepted as `system:anonymous`.
    On,
    /// Accepted as `system:anonymous` for these paths.
    Paths(Vec<String>),
}

/// The authentication methods of a server.
pub struct Authentication {
    /// The CAs of client certificates; `None` disables them.
    pub client_ca: Option<ClientCa>,
    /// The trusted front proxies; `None` disables them.
    pub front_proxy: Option<FrontProxy>,
    /// The methods for bearer tokens, in the order in which they are tried.
    pub tokens: Vec<Box<dyn TokenAuthenticator>>,
    /// The audiences that a token needs for this API.
    pub api_audiences: Vec<String>,
    /// The treatment of requests without credentials.
    pub anonymous: Anonymous,
}

impl Authentication {
    /// Verifies the certificates of a new connection.
    pub fn peer(&self, chain: &[CertificateDer<'_>], now: SystemTime) -> PeerCertificate {
        let proxy =
            self.front_proxy.as_ref().and_then(|proxy| proxy.ca.verify(chain, now).ok().flatten());
        let client = self.client_ca.as_ref().and_then(|ca| ca.verify(chain, now).transpose());
        // The proxy's certificate need not be a valid client certificate.
        PeerCertificate { client: client.filter(|c| c.is_ok() || proxy.is_none()), proxy }
    }

    /// Authenticates a request. `objects` has the Secrets, Pods and service accounts that tokens depend on.
    pub fn authenticate(
        &self,
        presented: &RequestCredentials<'_>,
        objects: &dyn Objects,
    ) -> Result<AuthenticationResult, Unauthenticated> {
        let mut refused: Option<Unauthenticated> = None;
        match self.by_certificate(presented) {
            Ok(Some(user)) => return Ok(AuthenticationResult::Authenticated(self.accepted(user))),
            Ok(None) => {}
            Err(error) => refused = Some(error),
        }
        match bearer_token(presented.headers) {
            Ok(Some(token)) => {
                let (audiences, now) = (self.api_audiences.as_slice(), presented.now.into());
                match self.by_token(BearerToken { token: &token, audiences, now, objects }) {
                    Ok(Some(mut found)) => {
                        add_implied_group(&mut found.user);
                        return Ok(AuthenticationResult::Authenticated(found));
                    }
                    Ok(None) => {}
                    Err(error) => refused = refused.or(Some(error.into())),
                }
                return Ok(AuthenticationResult::UnknownToken(UnknownToken { token, refused }));
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
            Ok(AuthenticationResult::Authenticated(self.accepted(UserInfo::anonymous())))
        } else {
            Err(Unauthenticated::NoCredentials)
        }
    }

    /// Tries each local token authenticator in turn.
    pub fn by_token(&self, bearer: BearerToken<'_>) -> Result<Option<Authenticated>, TokenError> {
        let mut refused = None;
        for kind in &self.tokens {
            match kind.authenticate(bearer) {
                Ok(Some(found)) => return Ok(Some(found)),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(None), Err)
    }

    fn by_certificate(
        &self,
        presented: &RequestCredentials<'_>,
    ) -> Result<Option<UserInfo>, Unauthenticated> {
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
            Some(Err(error)) => Err(error.clone().into()),
            Some(Ok(certificate)) => {
                in_force(certificate)?;
                Ok(Some(certificate.user.clone()))
            }
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

/// Returns the token of `Authorization: Bearer`, or the one in a browser's WebSocket protocols.
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
