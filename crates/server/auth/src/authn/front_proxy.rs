//! Authentication by a front proxy, which passes the user in headers.

use api_meta::{UserInfo, percent_decode};
use http::HeaderMap;

use super::certificate::ClientCa;

/// The trusted proxies and their headers (`--requestheader-*`). Header names are case-insensitive.
pub struct FrontProxy {
    /// The CAs of the proxies' client certificates.
    pub ca: ClientCa,
    /// The allowed common names of the proxy's certificate; empty allows every certificate that the CA signed.
    pub allowed_names: Vec<String>,
    /// The headers with the user name. The first header that is present wins.
    pub username_headers: Vec<String>,
    /// The headers with the user's UID.
    pub uid_headers: Vec<String>,
    /// The headers with groups.
    pub group_headers: Vec<String>,
    /// The prefixes of headers with extra fields.
    pub extra_prefixes: Vec<String>,
}

/// The error for a proxy that may not set the user, with the common name of its certificate.
#[derive(Debug, thiserror::Error)]
#[error(
    "the front proxy's certificate for {0} is not acceptable: its common name is not in \
     --requestheader-allowed-names, so it may not set the user"
)]
pub struct NotAllowed(String);

impl FrontProxy {
    /// Returns the user in the headers. `proxy` is the common name of the peer's certificate, which `ca` verified.
    pub(super) fn user(
        &self,
        proxy: &str,
        headers: &HeaderMap,
    ) -> Result<Option<UserInfo>, NotAllowed> {
        let Some(name) = first(headers, &self.username_headers) else { return Ok(None) };
        if !self.allowed_names.is_empty()
            && !self.allowed_names.iter().any(|allowed| allowed == proxy)
        {
            return Err(NotAllowed(proxy.to_owned()));
        }
        let mut user = UserInfo {
            name: name.to_owned(),
            uid: first(headers, &self.uid_headers).unwrap_or("").to_owned(),
            groups: self
                .group_headers
                .iter()
                .flat_map(|h| all(headers, h))
                .map(str::to_owned)
                .collect(),
            ..UserInfo::default()
        };
        for (header, value) in headers {
            let header = header.as_str();
            let prefixes = self.extra_prefixes.iter().map(|p| p.to_ascii_lowercase());
            let key = prefixes.filter_map(|p| header.strip_prefix(&p).map(str::to_owned)).next();
            if let (Some(key), Ok(value)) = (key, value.to_str()) {
                user.extra.entry(unescape(&key)).or_default().push(value.to_owned());
            }
        }
        Ok(Some(user))
    }

    /// Reports whether a header must be removed before the request is forwarded.
    pub(crate) fn is_identity_header(&self, name: &str) -> bool {
        let listed = |list: &[String]| list.iter().any(|h| h.eq_ignore_ascii_case(name));
        listed(&self.username_headers)
            || listed(&self.uid_headers)
            || listed(&self.group_headers)
            || self
                .extra_prefixes
                .iter()
                .any(|p| name.get(..p.len()).is_some_and(|n| n.eq_ignore_ascii_case(p)))
    }
}

fn all<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).into_iter().filter_map(|v| v.to_str().ok())
}

fn first<'h>(headers: &'h HeaderMap, names: &[String]) -> Option<&'h str> {
    names.iter().find_map(|name| all(headers, name).find(|v| !v.is_empty()))
}

/// Percent-decodes the key of an extra field in a header name. An invalid key is returned unchanged.
pub(super) fn unescape(key: &str) -> String {
    let text = percent_decode(key).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.unwrap_or_else(|| key.to_owned())
}
