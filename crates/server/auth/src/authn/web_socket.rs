//! The bearer token in the WebSocket protocols of a browser, where scripts cannot set headers.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use http::{HeaderMap, HeaderValue, header};

use super::error::TokenError;

/// The prefix of the protocol with the token.
const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    values.filter_map(|v| v.to_str().ok()).flat_map(|v| v.split(',').map(str::trim))
}

/// Returns the token, if there is one. As upstream, another protocol is required: the server must select one, or the
/// browser closes the connection.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<String>, TokenError> {
    let Some(encoded) = protocols(headers).find_map(|name| name.strip_prefix(PREFIX)) else {
        return Ok(None);
    };
    if !protocols(headers).any(|name| !name.starts_with(PREFIX)) {
        return Err(TokenError::OnlyProtocol);
    }
    let decoded = BASE64.decode(encoded).ok().and_then(|token| String::from_utf8(token).ok());
    decoded.map(Some).ok_or(TokenError::ProtocolEncoding)
}

/// Removes the token from the protocols, so that it is neither selected nor forwarded.
pub fn remove_token(headers: &mut HeaderMap) {
    if !protocols(headers).any(|name| name.starts_with(PREFIX)) {
        return;
    }
    let others: Vec<_> = protocols(headers).filter(|name| !name.starts_with(PREFIX)).collect();
    match HeaderValue::try_from(others.join(", ")) {
        Ok(others) if !others.is_empty() => {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, others);
        }
        _ => {
            headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requires_another_protocol_and_removes_token() {
        // "c2VjcmV0" is "secret".
        let secret = "base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let wrong = "base64url.bearer.authorization.k8s.io.*";
        for (given, found, left) in [
            (vec![], Some(None), vec![]),
            (vec!["a, b", "c"], Some(None), vec!["a, b", "c"]),
            (vec![secret], None, vec![]),
            (vec![wrong, "a"], None, vec!["a"]),
            (vec![secret, "a, b"], Some(Some("secret")), vec!["a, b"]),
        ] {
            let mut headers = HeaderMap::new();
            for value in &given {
                let value = HeaderValue::from_static(value);
                headers.append(header::SEC_WEBSOCKET_PROTOCOL, value);
            }
            let token = token(&headers);
            assert_eq!(token.as_ref().ok().map(Option::as_deref), found, "{given:?}");
            remove_token(&mut headers);
            let rest: Vec<_> = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().collect();
            assert_eq!(rest, left, "{given:?}");
        }
    }
}
