//! The server side of the WebSocket handshake.

use http::{HeaderMap, HeaderValue, header};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// The error that rejects a WebSocket handshake.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("none of the WebSocket protocols {offered:?} is supported; supported are {known:?}")]
    Protocol { offered: Vec<String>, known: Vec<&'static str> },
    #[error("the WebSocket protocols {offered:?} were offered; offer exactly one")]
    Several { offered: Vec<String> },
    #[error("Sec-WebSocket-Key is missing")]
    NoKey,
}

/// Returns `true` if the request is a WebSocket handshake.
pub fn is_asked_for(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    upgrade.eq_ignore_ascii_case("websocket")
}

/// Selects the first of the `known` protocols that the client offers, and builds the response headers. A client that
/// offers none gets the empty name.
pub fn accept(
    headers: &HeaderMap,
    known: &[&'static str],
) -> Result<(&'static str, HeaderMap), HandshakeError> {
    let offered = offered(headers);
    let chosen = known.iter().copied().find(|known| offered.contains(known));
    let chosen = chosen.ok_or_else(|| HandshakeError::Protocol {
        offered: owned(&offered),
        known: known.to_vec(),
    })?;
    Ok((chosen, response_headers(headers, chosen)?))
}

/// Accepts the only protocol that the client offers, whatever its name, and builds the response headers.
pub fn accept_any(headers: &HeaderMap) -> Result<HeaderMap, HandshakeError> {
    match *offered(headers) {
        [chosen] => response_headers(headers, chosen),
        ref several => Err(HandshakeError::Several { offered: owned(several) }),
    }
}

/// Returns the offered protocols. Without any, the list has one empty name.
fn offered(headers: &HeaderMap) -> Vec<&str> {
    let mut offered: Vec<&str> = headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(',').map(str::trim))
        .collect();
    if offered.is_empty() {
        offered.push("");
    }
    offered
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn response_headers(headers: &HeaderMap, chosen: &str) -> Result<HeaderMap, HandshakeError> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or(HandshakeError::NoKey)?;
    let accepted = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_| HandshakeError::NoKey)?;
    let mut response = HeaderMap::new();
    response.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    response.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    response.insert(header::SEC_WEBSOCKET_ACCEPT, accepted);
    if let Ok(name) = HeaderValue::from_str(chosen)
        && !chosen.is_empty()
    {
        response.insert(header::SEC_WEBSOCKET_PROTOCOL, name);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(protocols: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::UPGRADE, HeaderValue::from_static("WebSocket"));
        // The example of RFC 6455.
        let key = HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ==");
        headers.insert(header::SEC_WEBSOCKET_KEY, key);
        for protocol in protocols {
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        headers
    }

    #[test]
    fn selects_first_common_protocol() {
        for (offered, known, chosen) in [
            (&["a, b", "c"][..], &["c", "b"][..], Some("c")),
            (&["a"], &["c", ""], None),
            (&[], &["c", ""], Some("")),
            (&[], &["c"], None),
        ] {
            let answer = accept(&headers(offered), known);
            assert_eq!(answer.as_ref().ok().map(|(name, _)| *name), chosen, "{offered:?}");
            let Ok((name, answer)) = answer else { continue };
            assert_eq!(answer[header::SEC_WEBSOCKET_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
            let told = answer.get(header::SEC_WEBSOCKET_PROTOCOL).map(HeaderValue::as_bytes);
            assert_eq!(told.unwrap_or_default(), name.as_bytes());
        }
        for (offered, told) in [(&[][..], Some("")), (&["foo"], Some("foo")), (&["a", "b"], None)] {
            let answer = accept_any(&headers(offered)).ok();
            let name = |answer: HeaderMap| answer.get(header::SEC_WEBSOCKET_PROTOCOL).cloned();
            let spoken = answer.map(|a| name(a).unwrap_or(HeaderValue::from_static("")));
            assert_eq!(spoken, told.map(HeaderValue::from_static), "{offered:?}");
        }
        assert!(is_asked_for(&headers(&[])) && !is_asked_for(&HeaderMap::new()));
        assert!(accept(&HeaderMap::new(), &[""]).is_err(), "there is no key");
    }
}
