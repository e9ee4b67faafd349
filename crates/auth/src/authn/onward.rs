//! What a caller says of itself goes no further than authentication; what we know of it goes on where that is believed.

use std::borrow::Cow;

use api_meta::{UserInfo, percent_encode};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::front_proxy::FrontProxy;

/// How front proxies name users wherever nothing else is configured: a backend believes these, though we do not read
/// them.
const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const STANDARD: [HeaderName; 3] = [USER, UID, GROUP];
const STANDARD_EXTRA: &str = "x-remote-extra-";
const IMPERSONATE: &str = "impersonate-";

/// Takes credentials and claims of identity out of a request, after they were judged: whoever the request goes on to
/// (a Pod, a kubelet) must neither learn the caller's token nor believe what only we may say.
pub fn forget_identity(headers: &mut HeaderMap, front_proxy: Option<&FrontProxy>) {
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| is_identity(name.as_str(), front_proxy)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Says in a request's headers who its caller is, for an API server that believes us. Nothing that stood there stays.
/// An error for what no header can carry: who cannot be named exactly is not named at all.
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

/// The key of an extra as part of a header's name: what may not stand there is written as `%2F`.
fn escape(key: &str) -> String {
    percent_encode(key, b"!#$&'*+-.^_`|~")
}

fn is_identity(name: &str, front_proxy: Option<&FrontProxy>) -> bool {
    // CGI and its heirs read an underscore in a header's name as a hyphen.
    let name = match name.contains('_') {
        true => Cow::Owned(name.replace('_', "-")),
        false => Cow::Borrowed(name),
    };
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
    fn nothing_of_the_callers_identity_is_left() {
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
    fn a_caller_is_named_as_a_front_proxy_names_users() {
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
    fn nobody_writes_a_header_of_his_own_into_his_name() {
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
