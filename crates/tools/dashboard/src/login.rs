//! The login of users of other machines. Each request carries a bearer token of its user in a cookie, and is answered
//! with the rights of this user alone. The dashboard keeps no sessions and no tokens.

use std::sync::Arc;

use api_meta::Tree as _;
use aws_lc_rs::digest::{SHA256, digest};
use client::{Body, Client, Resource, Transport};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use maud::{Markup, html};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{api, error::PageError, layout, shared::Viewer};

/// The cookie with the token. Browsers accept this prefix only over TLS and for this host alone.
const COOKIE: &str = "__Host-windlass-dashboard";
pub(crate) const USER_AGENT: &str = "windlass-dashboard";
/// The longest token in bytes. Browsers drop cookies of more than 4,096.
const MAX_TOKEN: usize = 3_800;
/// The number of logins that are checked at the same time; each is a request to the API server.
const LOGINS: usize = 4;
/// The number of pages that are read at the same time. All of them share one connection to the API server.
pub(crate) const PAGES: usize = 16;

const REVIEWS: Resource = Resource::constant(
    "authentication.k8s.io",
    "v1",
    "selfsubjectreviews",
    "SelfSubjectReview",
    false,
);

/// The login of users by their tokens.
pub(crate) struct Login {
    /// The connection to the API server that all users share. It has no credentials.
    server: Client,
    turns: Semaphore,
    pages: Arc<Semaphore>,
}

/// The requests of one user.
struct OfUser {
    server: Client,
    /// The header `Authorization`.
    bearer: HeaderValue,
}

impl Transport for OfUser {
    fn send(
        &self,
        mut request: Request<Body>,
    ) -> BoxFuture<'_, Result<Response<Body>, client::Error>> {
        request.headers_mut().insert(header::AUTHORIZATION, self.bearer.clone());
        Box::pin(self.server.request(request))
    }
}

/// A login that was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoginError {
    #[error("this is not a bearer token: it needs 1 to 3800 letters, digits and -._~+/=")]
    Form,
    #[error("the form comes from another web site")]
    Origin,
    #[error("the API server does not accept this token; it may have expired")]
    Token,
    #[error("too many logins at once; try again")]
    Busy,
    #[error("the API server has not checked the token: {0}")]
    Api(client::Error),
}

impl LoginError {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Form => StatusCode::BAD_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Api(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

impl Login {
    pub(crate) fn new(server: Client) -> Self {
        Self { server, turns: Semaphore::new(LOGINS), pages: Arc::new(Semaphore::new(PAGES)) }
    }

    /// Returns a client with the token of a request's cookie, and the token's viewer; `None` without a token.
    pub(crate) fn client(
        &self,
        headers: &HeaderMap,
    ) -> Result<Option<(Client, Viewer)>, LoginError> {
        let of = |token: &str| Ok((self.client_of(token)?, viewer(token)));
        token(headers).map(of).transpose()
    }

    /// Returns the permit of one page, or `None` if too many are being read.
    pub(crate) fn try_page(&self) -> Option<OwnedSemaphorePermit> {
        self.pages.clone().try_acquire_owned().ok()
    }

    fn client_of(&self, token: &str) -> Result<Client, LoginError> {
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let mut bearer = bearer.map_err(|_| LoginError::Form)?;
        bearer.set_sensitive(true);
        let transport = OfUser { server: self.server.clone(), bearer };
        Ok(Client::new(Arc::new(transport), USER_AGENT))
    }

    /// Checks a token by a request to the API server, and returns the header that sets the browser's cookie.
    pub(crate) async fn enter(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        given: &str,
    ) -> Result<String, LoginError> {
        if !is_same_origin(uri, headers) {
            return Err(LoginError::Origin);
        }
        if !is_token(given) {
            return Err(LoginError::Form);
        }
        let _turn = self.turns.try_acquire().map_err(|_| LoginError::Busy)?;
        let client = self.client_of(given)?;
        let review = json!({});
        match client.create::<_, Value>(&REVIEWS, "", &review).await {
            Ok(review) if is_known(&review) => Ok(cookie(given)),
            Ok(_) => Err(LoginError::Token),
            Err(error) if matches!(error.code(), Some(401 | 403)) => Err(LoginError::Token),
            Err(error) => Err(LoginError::Api(error)),
        }
    }
}

/// Checks that a user may see this machine's measurements and timelines. The dashboard does not read them with the
/// user's rights.
pub(crate) async fn check_machine(client: &Client) -> Result<(), PageError> {
    let spec = json!({"nonResourceAttributes": {"path": "/metrics", "verb": "get"}});
    if api::is_allowed(client, &spec).await? { Ok(()) } else { Err(PageError::Machine) }
}

/// Returns the header that removes the cookie. Rejects a request that another web site has caused.
pub(crate) fn leave(uri: &Uri, headers: &HeaderMap) -> Result<String, LoginError> {
    if !is_same_origin(uri, headers) {
        return Err(LoginError::Origin);
    }
    Ok(format!("{}; Max-Age=0", cookie("")))
}

/// Returns the page with the form.
pub(crate) fn page(message: Option<&str>) -> Markup {
    html! {
        @if let Some(message) = message { (layout::failure(message)) }
        form method="post" action="/login" {
            p {
                label for="token" { "Bearer token, such as that of " }
                code { "kubectl create token ACCOUNT" }
            }
            p { input id="token" name="token" type="password" autocomplete="off" required; }
            p { button { "Log in" } }
        }
    }
}

fn is_known(review: &Value) -> bool {
    let name = review.text("status.userInfo.username");
    !name.is_empty() && name != "system:anonymous"
}

fn cookie(token: &str) -> String {
    format!("{COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict")
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut cookies = cookies.flat_map(|value| value.split(';'));
    let token = cookies.find_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    token.filter(|token| is_token(token))
}

/// Returns the hash of a token, because the token itself is not kept.
fn viewer(token: &str) -> Viewer {
    let mut hash = Viewer::default();
    hash.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    hash
}

/// Reports whether a text has the form of a bearer token (RFC 6750 §2.1).
fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Reports whether a form comes from this site, by the header `sec-fetch-site`. Browsers from before 2023 send only
/// `origin`.
fn is_same_origin(uri: &Uri, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin";
    }
    let host = text("host").or(uri.authority().map(http::uri::Authority::as_str));
    let own = |origin: &str| origin.strip_prefix("https://").is_some_and(|from| Some(from) == host);
    text("origin").is_none_or(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(http::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn reads_only_well_formed_tokens() {
        let found = |text: &str| token(&headers(&[(header::COOKIE, text)])).map(str::to_owned);
        let sent = cookie("ab.c-_=");
        assert_eq!(found(sent.split(';').next().unwrap()).as_deref(), Some("ab.c-_="));
        assert_eq!(found(&format!("a=b; {COOKIE}=x")).as_deref(), Some("x"));
        for hostile in ["", "=", "=a b", "=a\tb", "x=y", &format!("={}", "x".repeat(MAX_TOKEN + 1))]
        {
            assert_eq!(found(&format!("{COOKIE}{hostile}")), None, "{hostile:?}");
        }
        assert!(
            ["Secure", "HttpOnly", "SameSite=Strict", "Path=/"].iter().all(|a| sent.contains(a))
        );
        assert!(!sent.contains("Domain") && !sent.contains("Max-Age"));
    }

    #[test]
    fn accepts_forms_of_this_site_only() {
        let is_own = |origin: &str| {
            let pairs = [(header::HOST, "node:8443"), (header::ORIGIN, origin)];
            is_same_origin(&Uri::from_static("/login"), &headers(&pairs))
        };
        assert!(is_own("https://node:8443"));
        for hostile in
            ["https://evil.example", "http://node:8443", "null", "https://node:8443.evil"]
        {
            assert!(!is_own(hostile), "{hostile}");
        }
        let none = headers(&[(header::HOST, "node:8443")]);
        assert!(is_same_origin(&Uri::from_static("/login"), &none), "not a browser");
        for (site, is_own) in
            [("same-origin", true), ("same-site", false), ("cross-site", false), ("none", false)]
        {
            // Without referrers, browsers send no origin.
            let pairs =
                [(http::HeaderName::from_static("sec-fetch-site"), site), (header::ORIGIN, "null")];
            assert_eq!(
                is_same_origin(&Uri::from_static("/login"), &headers(&pairs)),
                is_own,
                "{site}"
            );
        }
    }
}
