//! The W3C trace context: the headers `traceparent` and `tracestate`.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");
/// The longest `tracestate` that is passed on: the length that the specification requires.
const STATE_LIMIT: usize = 512;
/// The flag of sampled traces.
const SAMPLED: u8 = 1;

/// The identity of a span, which the headers of a request carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace that the span belongs to.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
    /// `true` if the spans of the trace are recorded.
    pub sampled: bool,
    /// The `tracestate` of other tracing systems, which is passed on unchanged.
    pub state: Option<Arc<str>>,
}

impl SpanContext {
    /// Reads the context of a request. Returns `None` without a valid `traceparent`.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(PARENT).iter();
        let parent = parents.next()?.to_str().ok()?;
        if parents.next().is_some() {
            return None;
        }
        let mut context = Self::parse(parent)?;
        let states: Vec<&str> =
            headers.get_all(STATE).iter().filter_map(|state| state.to_str().ok()).collect();
        let state = states.join(",");
        context.state = (1..=STATE_LIMIT).contains(&state.len()).then(|| state.into());
        Some(context)
    }

    /// Parses a `traceparent`. Later versions of the format may have further fields.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let version = bytes::<1>(fields.next()?)?[0];
        let (trace_id, span_id) = (bytes(fields.next()?)?, bytes(fields.next()?)?);
        let flags = bytes::<1>(fields.next()?)?[0];
        let is_well_formed = version != 0xff && (version != 0 || fields.next().is_none());
        let is_valid = is_well_formed && trace_id != [0; 16] && span_id != [0; 8];
        let sampled = flags & SAMPLED != 0;
        is_valid.then_some(Self { trace_id, span_id, sampled, state: None })
    }

    /// Returns the `traceparent`.
    fn parent(&self) -> String {
        let trace_id = u128::from_be_bytes(self.trace_id);
        let span_id = u64::from_be_bytes(self.span_id);
        format!("00-{trace_id:032x}-{span_id:016x}-{:02x}", u8::from(self.sampled))
    }

    /// Replaces the context in the headers of a request.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        // Both values have characters of headers only.
        if let Ok(parent) = HeaderValue::try_from(self.parent()) {
            headers.insert(PARENT, parent);
        }
        headers.remove(STATE);
        if let Some(state) =
            self.state.as_deref().and_then(|state| HeaderValue::try_from(state).ok())
        {
            headers.insert(STATE, state);
        }
    }
}

/// Parses lower-case hexadecimal digits of `N` bytes.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(is_hex) {
        return None;
    }
    let mut out = [0; N];
    for (at, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(parents: &[&str], state: Option<&str>) -> Option<SpanContext> {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(PARENT, HeaderValue::from_str(parent).unwrap());
        }
        if let Some(state) = state {
            headers.insert(STATE, HeaderValue::from_str(state).unwrap());
        }
        SpanContext::from_headers(&headers)
    }

    #[test]
    fn passes_on_context_unchanged() {
        let context = read(&[VALID], Some("a=1,b=2")).unwrap();
        assert!(context.sampled);
        let mut headers = HeaderMap::new();
        headers.append(STATE, HeaderValue::from_static("other=1"));
        context.write(&mut headers);
        assert_eq!(headers[PARENT], VALID);
        assert_eq!(headers[STATE], "a=1,b=2");
        let unsampled = read(&[&VALID.replace("-01", "-00")], None).unwrap();
        unsampled.write(&mut headers);
        assert_eq!(headers[PARENT], VALID.replace("-01", "-00"));
        assert!(!headers.contains_key(STATE));
    }

    #[test]
    fn rejects_invalid_contexts() {
        let later = VALID.replacen("00", "cc", 1) + "-more";
        assert!(read(&[&later], None).is_some());
        for bad in [
            "",
            "00",
            &VALID.replacen("00", "ff", 1),
            &VALID.to_uppercase(),
            &VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &format!("{VALID}-more"),
            &VALID[..VALID.len() - 1],
            &VALID.replace("4bf", "+bf"),
        ] {
            assert_eq!(read(&[bad], None), None, "{bad}");
        }
        assert_eq!(read(&[VALID, VALID], None), None, "two parents");
        let long = read(&[VALID], Some(&"a".repeat(STATE_LIMIT + 1))).unwrap();
        assert_eq!(long.state, None);
    }

    proptest! {
        #[test]
        fn never_panics(text in "[ -~]{0,80}") {
            let _ = SpanContext::parse(&text);
        }
    }
}
