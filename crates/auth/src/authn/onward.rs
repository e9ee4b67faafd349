//! What a caller says of itself goes no further than authentication.

use http::{HeaderMap, HeaderName, header};

use super::front_proxy::FrontProxy;

/// How front proxies name users wherever nothing else is configured: a backend believes these, though we do not read
/// them.
const STANDARD: [&str; 3] = ["x-remote-user", "x-remote-uid", "x-remote-group"];
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

fn is_identity(name: &str, front_proxy: Option<&FrontProxy>) -> bool {
    // CGI and its heirs read an underscore in a header's name as a hyphen.
    let name = name.replace('_', "-");
    name == header::AUTHORIZATION.as_str()
        || STANDARD.contains(&name.as_str())
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
}
