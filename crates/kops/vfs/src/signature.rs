//! Signatures of requests by version 4 of AWS' scheme, of which Google's is a dialect with other words.

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use http::{HeaderMap, Method};

use crate::body::sum_of;

/// The words of a dialect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    /// The algorithm in the `Authorization` header.
    pub(crate) algorithm: &'static str,
    /// The prefix of the secret.
    prefix: &'static str,
    /// The service.
    service: &'static str,
    /// The end of the scope.
    terminator: &'static str,
}

/// S3's dialect.
pub(crate) const AWS: Dialect = Dialect {
    algorithm: "AWS4-HMAC-SHA256",
    prefix: "AWS4",
    service: "s3",
    terminator: "aws4_request",
};
/// The dialect of Google's Cloud Storage.
/// <https://cloud.google.com/storage/docs/authentication/signatures>
pub(crate) const GOOGLE: Dialect = Dialect {
    algorithm: "GOOG4-HMAC-SHA256",
    prefix: "GOOG4",
    service: "storage",
    terminator: "goog4_request",
};

/// The parts of a request that both sides sign.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a Method,
    /// The path without escapes.
    pub(crate) path: &'a [u8],
    /// The query without escapes.
    pub(crate) query: &'a [(String, String)],
    pub(crate) headers: &'a HeaderMap,
    /// The names of the signed headers, sorted.
    pub(crate) names: &'a [&'a str],
    /// The SHA-256 sum of the body.
    pub(crate) sum: &'a str,
    /// The time, such as `20261123T140000Z`.
    pub(crate) at: &'a str,
    /// The region.
    pub(crate) region: &'a str,
}

impl Signed<'_> {
    /// Returns the scope: day, region and service.
    pub(crate) fn scope(&self, dialect: Dialect) -> String {
        let day = self.at.get(..8).unwrap_or_default();
        format!("{day}/{}/{}/{}", self.region, dialect.service, dialect.terminator)
    }

    /// Returns the signature in hexadecimal.
    pub(crate) fn sign(&self, dialect: Dialect, secret: &str) -> String {
        let tag = hmac::sign(&self.key(dialect, secret), self.text(dialect).as_bytes());
        HEXLOWER.encode(tag.as_ref())
    }

    /// Reports whether a signature is right.
    pub(crate) fn is_signature(&self, dialect: Dialect, secret: &str, signature: &[u8]) -> bool {
        let key = self.key(dialect, secret);
        hmac::verify(&key, self.text(dialect).as_bytes(), signature).is_ok()
    }

    /// Returns the key, which is good for the scope.
    fn key(&self, dialect: Dialect, secret: &str) -> hmac::Key {
        let mut key = format!("{}{secret}", dialect.prefix).into_bytes();
        for part in self.scope(dialect).split('/') {
            let own = hmac::Key::new(hmac::HMAC_SHA256, &key);
            key = hmac::sign(&own, part.as_bytes()).as_ref().to_vec();
        }
        hmac::Key::new(hmac::HMAC_SHA256, &key)
    }

    /// Returns the signed text.
    fn text(&self, dialect: Dialect) -> String {
        let sum = sum_of(self.canonical().as_bytes());
        format!("{}\n{}\n{}\n{sum}", dialect.algorithm, self.at, self.scope(dialect))
    }

    /// Returns the canonical request.
    fn canonical(&self) -> String {
        let path = api_meta::percent_encode(self.path, b"-._~/");
        let escape = |text: &str| api_meta::percent_encode(text, b"-._~");
        let pairs = self.query.iter();
        let mut pairs: Vec<_> =
            pairs.map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
        pairs.sort();
        let mut text = format!("{}\n{path}\n{}\n", self.method, pairs.join("&"));
        for name in self.names {
            let values = self.headers.get_all(*name).iter();
            let values: Vec<_> = values.map(|value| value.to_str().unwrap_or_default()).collect();
            let value = values.join(",");
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            text.push_str(&format!("{name}:{value}\n"));
        }
        format!("{text}\n{}\n{}", self.names.join(";"), self.sum)
    }
}
