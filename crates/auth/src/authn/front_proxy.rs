//! A proxy in front of the server that has authenticated the user and says so in headers.

use api_meta::{UserInfo, percent_decode};
use http::HeaderMap;

use super::certificate::{CertificateError, ClientCa};

/// Who may speak for others, and in which headers (`--requestheader-*`). Names of headers are compared without case.
pub struct FrontProxy {
    pub ca: ClientCa,
    /// Common names that the proxy's certificate may have; empty allows any that the CA signed.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_prefixes: Vec<String>,
}

impl FrontProxy {
    /// The user that the headers name; `proxy` is the common name of the peer's certificate, verified by `ca`.
    pub(super) fn user(
        &self,
        proxy: &str,
        headers: &HeaderMap,
    ) -> Result<Option<UserInfo>, CertificateError> {
        let Some(name) = first(headers, &self.username_headers) else { return Ok(None) };
        if !self.allowed_names.is_empty()
            && !self.allowed_names.iter().any(|allowed| allowed == proxy)
        {
            return Err(CertificateError::Refused {
                subject: proxy.to_owned(),
                cause: "it may not speak for users: its common name is not in --requestheader-allowed-names".into(),
            });
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

    /// The headers that must go before the request goes on, whoever sent them.
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

/// Percent-decodes the part of a header's name that is an extra's key; what cannot be decoded stays as it is.
pub(super) fn unescape(key: &str) -> String {
    let text = percent_decode(key).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    text.unwrap_or_else(|| key.to_owned())
}
