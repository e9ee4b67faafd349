//! Decodes `data:` URLs (RFC 2397) and gzip.

use std::io::Read;

use api_meta::{percent_decode, percent_encode};
use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use flate2::read::MultiGzDecoder;

/// Base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Decoded bytes.
pub type Decoded = Vec<u8>;

/// The errors of decoding.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DataError {
    #[error("not a data URL")]
    Scheme,
    #[error("a data URL needs a comma before its data")]
    NoComma,
    #[error("the percent sign at {0} starts no valid escape")]
    Escape(usize),
    #[error("not base64: {0}")]
    Base64(String),
    #[error("not gzip: {0}")]
    Gzip(String),
    #[error("more than {0} bytes when unpacked")]
    TooLarge(u64),
}

/// Decodes the data of a `data:` URL.
pub fn decode_url(url: &str) -> Result<Decoded, DataError> {
    let rest = match url.get(..5) {
        Some(scheme) if scheme.eq_ignore_ascii_case("data:") => &url[5..],
        _ => return Err(DataError::Scheme),
    };
    let (kind, data) = rest.split_once(',').ok_or(DataError::NoComma)?;
    let bytes = percent_decode(data).map_err(DataError::Escape)?;
    if kind.rsplit(';').next() != Some("base64") || !kind.contains(';') {
        return Ok(bytes);
    }
    let bytes: Vec<u8> = bytes.into_iter().filter(|b| !b.is_ascii_whitespace()).collect();
    BASE64.decode(bytes).map_err(|error| DataError::Base64(error.to_string()))
}

/// Percent-encodes data.
pub fn escape(contents: &[u8]) -> String {
    percent_encode(contents, b"-_.!~*'()")
}

/// Decompresses gzip; an error if the result exceeds `limit` bytes.
pub fn decompress(packed: &[u8], limit: u64) -> Result<Decoded, DataError> {
    let mut out = Vec::new();
    let mut reader = MultiGzDecoder::new(packed).take(limit + 1);
    reader.read_to_end(&mut out).map_err(|error| DataError::Gzip(error.to_string()))?;
    if out.len() as u64 > limit {
        return Err(DataError::TooLarge(limit));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn data_urls() {
        for (url, want) in [
            ("data:,a%20b", Ok(b"a b".to_vec())),
            ("DATA:text/plain;charset=utf-8,x,y", Ok(b"x,y".to_vec())),
            ("data:;base64,YQ==", Ok(b"a".to_vec())),
            ("data:;base64,YQ", Ok(b"a".to_vec())),
            ("data:;base64,YQ%3D%3D", Ok(b"a".to_vec())),
            ("data:base64", Err(DataError::NoComma)),
            ("data:,%4", Err(DataError::Escape(0))),
            ("data:,%+4", Err(DataError::Escape(0))),
            ("http://x", Err(DataError::Scheme)),
        ] {
            assert_eq!(decode_url(url), want, "{url}");
        }
        assert!(decode_url("data:;base64,!").is_err());
    }

    proptest! {
        #[test]
        fn escaped_data_decodes_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode_url(&format!("data:,{}", escape(&bytes))), Ok(bytes));
        }

        #[test]
        fn parses_arbitrary_text_without_panic(text in "\\PC*", url in "data:[;,%a-z0-9=]*") {
            let _ = (crate::parse(&text), decode_url(&url), crate::butane::translate(&text, None));
        }
    }
}
