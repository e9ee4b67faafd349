//! The encodings of documents, and which of them a client accepts.

use http::{HeaderMap, header};

use crate::request::accept::quality;

/// The encoding of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    Json,
    Protobuf,
}

impl Form {
    /// Returns the client's preferred encoding among those of an OpenAPI version, or `None` if it accepts neither.
    pub(super) fn negotiate(headers: &HeaderMap, version: &str) -> Option<Self> {
        let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
        let protobuf = |separator: char| {
            format!("application/com.github.proto-openapi.spec.{version}{separator}v1.0+protobuf")
        };
        let (now, before) = (protobuf('.'), protobuf('@'));
        let mut best: Option<(f32, Self)> = None;
        for range in accept.split(',') {
            let form = match range.split(';').next().unwrap_or_default().trim() {
                "application/json" | "*/*" | "application/*" | "" => Self::Json,
                other if other == now || other == before => Self::Protobuf,
                _ => continue,
            };
            let quality = quality(range);
            if quality > 0.0 && best.is_none_or(|(known, _)| quality > known) {
                best = Some((quality, form));
            }
        }
        best.map(|(_, form)| form)
    }

    pub(super) fn content_type(self, version: &str) -> &'static str {
        match (self, version) {
            (Self::Json, _) => "application/json",
            (Self::Protobuf, "v2") => "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
            (Self::Protobuf, _) => "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiates_preferred_encoding() {
        let json = "application/json";
        let old = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
        let new = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
        let table = [
            ("", Some(Form::Json)),
            ("*/*", Some(Form::Json)),
            (old, Some(Form::Protobuf)),
            (new, Some(Form::Protobuf)),
            (&*format!("{new};q=0.5, {json}"), Some(Form::Json)),
            (&*format!("{new}, {json}"), Some(Form::Protobuf)),
            ("application/com.github.proto-openapi.spec.v3.v1.0+protobuf", None),
            ("text/html", None),
        ];
        for (accept, form) in table {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            assert_eq!(Form::negotiate(&headers, "v2"), form, "{accept}");
        }
    }
}
