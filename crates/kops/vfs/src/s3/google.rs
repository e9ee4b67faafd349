//! Signs requests to Google's Cloud Storage with an HMAC key.

use http::{HeaderName, HeaderValue, Request, header};

use super::location::{CustomEndpoint, GOOGLE_REGION};
use crate::signature::{GOOGLE, Signed};

const DATE: HeaderName = HeaderName::from_static("x-goog-date");
const SUM: HeaderName = HeaderName::from_static("x-goog-content-sha256");
/// The prefix of the headers that must be signed, besides the host.
const PREFIX: &str = "x-goog-";

/// Signs a request. `path` and `query` are without escapes, and `sum` is the sum of the body.
pub(super) fn sign(
    request: &mut Request<client::Body>,
    path: &str,
    query: &[(&str, String)],
    sum: &str,
    own: &CustomEndpoint,
) -> Result<(), header::InvalidHeaderValue> {
    let at = compact_time(&api_meta::Timestamp::from(rt::now()).to_string());
    request.headers_mut().insert(DATE, HeaderValue::from_str(&at)?);
    request.headers_mut().insert(SUM, HeaderValue::from_str(sum)?);
    let headers = request.headers();
    let mut names: Vec<&str> = headers
        .keys()
        .map(HeaderName::as_str)
        .filter(|name| *name == "host" || name.starts_with(PREFIX))
        .collect();
    names.sort_unstable();
    let query: Vec<_> =
        query.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let signed = Signed {
        method: request.method(),
        path: path.as_bytes(),
        query: &query,
        headers,
        names: &names,
        sum,
        at: &at,
        region: GOOGLE_REGION,
    };
    let authorization = format!(
        "{} Credential={}/{}, SignedHeaders={}, Signature={}",
        GOOGLE.algorithm,
        own.key,
        signed.scope(GOOGLE),
        names.join(";"),
        signed.sign(GOOGLE, &own.secret)
    );
    let authorization = HeaderValue::from_str(&authorization)?;
    request.headers_mut().insert(header::AUTHORIZATION, authorization);
    Ok(())
}

/// Returns a time such as `2026-11-23T14:00:00Z` as `20261123T140000Z`.
fn compact_time(text: &str) -> String {
    text.chars().filter(|c| !['-', ':'].contains(c)).collect()
}
