//! Authenticates the user of this machine: a request must have the key and use a name of this machine.

use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use data_encoding::HEXLOWER;
use http::{HeaderMap, Uri, header};

/// The key of one run, and the name of the cookie that carries it.
pub(crate) struct Access {
    key: String,
    cookie: String,
}

impl Access {
    /// Creates the key for a listener.
    pub(crate) fn new(address: SocketAddr) -> Self {
        let key = HEXLOWER.encode(&rt::random::<[u8; 16]>());
        // Cookies are shared by all ports of a host.
        Self { key, cookie: format!("windlass-dashboard-{}", address.port()) }
    }

    /// Returns the path with the key, which sets the cookie.
    pub(crate) fn entrance(&self) -> String {
        format!("/?key={}", self.key)
    }

    /// Returns the header that gives a browser the key as a cookie.
    pub(crate) fn set_cookie(&self) -> String {
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie, self.key)
    }

    /// Reports whether the query of the first page has the key.
    pub(crate) fn has_key(&self, uri: &Uri) -> bool {
        let query = uri.query().unwrap_or_default();
        query.split('&').any(|pair| pair.strip_prefix("key=").is_some_and(|key| self.is_key(key)))
    }

    /// Reports whether a request has the cookie.
    pub(crate) fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        cookies.flat_map(|value| value.split(';')).any(|cookie| {
            let value = cookie.trim().strip_prefix(self.cookie.as_str());
            value.and_then(|value| value.strip_prefix('=')).is_some_and(|key| self.is_key(key))
        })
    }

    fn is_key(&self, key: &str) -> bool {
        verify_slices_are_equal(key.as_bytes(), self.key.as_bytes()).is_ok()
    }
}

/// Reports whether a request names this machine. The name of a foreign web site may resolve to this machine's address
/// (DNS rebinding).
pub(crate) fn names_this_machine(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let authority = host.or(uri.authority().map(http::uri::Authority::as_str)).unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_key_and_cookie_of_this_run_only() {
        let access = Access::new("127.0.0.1:8001".parse().unwrap());
        let other = Access::new("127.0.0.1:8001".parse().unwrap());
        let uri = |access: &Access| access.entrance().parse::<Uri>().unwrap();
        assert!(access.has_key(&uri(&access)));
        assert!(!access.has_key(&uri(&other)));
        assert!(!access.has_key(&Uri::from_static("/?key=")));
        assert!(!access.has_key(&Uri::from_static("/")));
        let headers =
            |cookie: &str| HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
        let cookie = access.set_cookie();
        let cookie = cookie.split(';').next().unwrap();
        assert!(access.has_cookie(&headers(cookie)));
        assert!(access.has_cookie(&headers(&format!("theme=dark; {cookie}"))));
        assert!(!access.has_cookie(&headers(&cookie.replace("8001", "8002"))));
        assert!(!access.has_cookie(&headers(other.set_cookie().split(';').next().unwrap())));
        assert!(!access.has_cookie(&HeaderMap::new()));
    }

    #[test]
    fn rejects_names_that_only_resolve_to_this_machine() {
        let names = |host: &str| {
            let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
            names_this_machine(&Uri::from_static("/"), &headers)
        };
        for host in ["localhost", "localhost:8001", "127.0.0.1:8001", "[::1]:8001", "127.1.2.3"] {
            assert!(names(host), "{host}");
        }
        for host in
            ["evil.example:8001", "127.0.0.1.evil.example", "10.0.0.1:8001", "localhost.evil", ""]
        {
            assert!(!names(host), "{host}");
        }
    }
}
