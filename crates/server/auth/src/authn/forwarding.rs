//! Removes the caller's credentials from forwarded requests, and sets the authenticated identity for backends that
//! trust it.

use std::borrow::Cow;

use api_meta::{UserInfo, percent_encode};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::front_proxy::FrontProxy;

/// The conventional headers of front proxies. Backends may trust them, even if this server does not read them.
const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const STANDARD: [HeaderName; 3] = [USER, UID, GROUP];
const STANDARD_EXTRA: &str = "x-remote-extra-";
const IMPERSONATE: &str = "impersonate-";

/// Removes credentials and identity headers from an authenticated request. The backend (a Pod or kubelet) must not see
/// the caller's token, and must not trust identity headers that the caller sent.
pub fn forget_identity(headers: &mut HeaderMap, front_proxy: Option<&FrontProxy>) {
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| is_identity(name.as_str(), front_proxy)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Replaces the identity headers of a request with the authenticated user, for an API server that trusts this one.
///
/// # Errors
///
/// Returns an error if a part of the identity is no valid header value.
pub fn assert_identity(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), http::Error> {
    forget_identity(headers, None);
    let value = |text: &str| HeaderValue::from_bytes(text.as_bytes());
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = HeaderName::from_bytes(format!("{STANDARD_EXTRA}{}", escape(key)).as_bytes())?;
        for text in values {
            headers.append(&name, value(text)?);
        }
    }
    Ok(())
}

/// Percent-encodes the key of an extra field for a header name.
fn escape(key: &str) -> String {
    percent_encode(key, b"!#$&'*+-.^_`|~")
}

fn is_identity(name: &str, front_proxy: Option<&FrontProxy>) -> bool {
    // CGI-like backends read an underscore in a header name as a hyphen.
    let name =
        if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) };
    name == header::AUTHORIZATION.as_str()
        || STANDARD.iter().any(|standard| *standard == *name)
        || name.starts_with(STANDARD_EXTRA)
        || name.starts_with(IMPERSONATE)
        || front_proxy.is_some_and(|proxy| proxy.is_identity_header(&name))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn removes_all_identity_headers() {
        let mut headers = HeaderMap::new();
        for name in [
            "authorization",
            "x-remote-user",
            "x-remote-uid",
            "x-remote-group",
            "x-remote-extra-scopes",
            "x_remote_user",
            "x-remote_extra-scopes",
            "impersonate-user",
            "impersonate-group",
            "impersonate-uid",
            "impersonate-extra-scopes",
        ] {
            let name = HeaderName::from_static(name);
            headers.append(&name, HeaderValue::from_static("a"));
            headers.append(&name, HeaderValue::from_static("b"));
        }
        for name in ["accept", "cookie", "x-remote-users", "x-request-id"] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("stays"));
        }
        forget_identity(&mut headers, None);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "cookie", "x-remote-users", "x-request-id"]);
    }

    #[test]
    fn sets_identity_in_front_proxy_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(USER, HeaderValue::from_static("root"));
        headers.append(GROUP, HeaderValue::from_static("system:masters"));
        headers.insert("x-remote-extra-old", HeaderValue::from_static("x"));
        let mut user = UserInfo::new("j\u{fc}rgen", &["a", "b"]);
        user.uid = "u1".to_owned();
        let scopes = vec!["one".to_owned(), "two".to_owned()];
        user.extra.insert("example.com/s%".to_owned(), scopes);
        assert_identity(&mut headers, &user).unwrap();
        let found = |name: &str| -> Vec<&[u8]> {
            headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
        };
        assert_eq!(found("x-remote-user"), ["j\u{fc}rgen".as_bytes()]);
        assert_eq!(found("x-remote-uid"), [b"u1"]);
        assert_eq!(found("x-remote-group"), [b"a", b"b"]);
        assert_eq!(found("x-remote-extra-example.com%2fs%25"), [b"one", b"two"]);
        assert_eq!(headers.keys_len(), 4);
    }

    #[test]
    fn rejects_identity_with_control_characters() {
        for name in ["a\r\nx-remote-group: system:masters", "a\0", "a\u{7f}"] {
            for place in 0..4 {
                let mut user = UserInfo::new("fine", &[]);
                match place {
                    0 => user.name = name.to_owned(),
                    1 => user.uid = name.to_owned(),
                    2 => user.groups = vec![name.to_owned()],
                    _ => drop(user.extra.insert("k".to_owned(), vec![name.to_owned()])),
                }
                assert!(assert_identity(&mut HeaderMap::new(), &user).is_err(), "{name:?}");
            }
        }
    }
}
