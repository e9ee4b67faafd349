//! Parses S3 requests.

use http::{Method, StatusCode, header, request::Parts};

use super::refusal::{Refusal, refuse};
use crate::object::{Precondition, Version};

/// The most query parameters of a request.
const MOST_PARAMETERS: usize = 32;

/// The parameters of a request, from its path and its headers.
#[derive(Debug)]
pub(super) struct S3Request {
    pub(super) method: Method,
    pub(super) bucket: String,
    /// Empty for the bucket.
    pub(super) key: String,
    pub(super) query: Vec<(String, String)>,
    /// The precondition; `None` for an unconditional request.
    pub(super) since: Option<Precondition>,
    pub(super) length: u64,
}

/// The parameters of a listing.
pub(super) struct Listing {
    pub(super) prefix: String,
    pub(super) delimiter: String,
    /// The listing starts after this name.
    pub(super) after: String,
    pub(super) most: usize,
    pub(super) is_encoded: bool,
}

fn invalid<T>(why: &str) -> Result<T, Refusal> {
    refuse(StatusCode::BAD_REQUEST, "InvalidArgument", why)
}

impl S3Request {
    pub(super) fn read(head: &Parts) -> Result<Self, Refusal> {
        let path = api_meta::percent_decode(head.uri.path()).ok();
        let Some(path) = path.and_then(|path| String::from_utf8(path).ok()) else {
            return invalid("the path has a broken escape");
        };
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let mut query = Vec::new();
        for pair in head.uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (api_meta::query_decode(name), api_meta::query_decode(value)) {
                (Some(name), Some(value)) if query.len() < MOST_PARAMETERS => {
                    query.push((name, value));
                }
                _ => return invalid("the query has a broken escape, or too many parameters"),
            }
        }
        let text = |name| head.headers.get(name).map(|value| value.to_str().unwrap_or_default());
        if text(header::RANGE).is_some() {
            return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", "Range is not supported");
        }
        let sum = text(header::HeaderName::from_static("x-amz-content-sha256"));
        if sum.is_some_and(|sum| sum.starts_with("STREAMING-")) {
            let message = "a body must be signed as a whole; set AWS_REQUEST_CHECKSUM_CALCULATION=when_required";
            return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message);
        }
        let since = match (text(header::IF_NONE_MATCH), text(header::IF_MATCH)) {
            (None, None) => None,
            (Some("*"), None) => Some(Precondition::Absent),
            (None, Some(tag)) if !tag.contains([',', '*']) => {
                Some(Precondition::Read(Version(format!("\"{}\"", tag.trim_matches('"')))))
            }
            _ => {
                return invalid(
                    "only the conditions If-None-Match: * and If-Match with one tag are supported",
                );
            }
        };
        let length = text(header::CONTENT_LENGTH).map(str::parse);
        let length = match (&head.method, length) {
            (_, Some(Ok(length))) => length,
            (&Method::PUT, _) => {
                let message = "You must provide the Content-Length HTTP header.";
                return refuse(StatusCode::LENGTH_REQUIRED, "MissingContentLength", message);
            }
            _ => 0,
        };
        if text(header::HeaderName::from_static("x-amz-copy-source")).is_some() {
            return refuse(
                StatusCode::NOT_IMPLEMENTED,
                "NotImplemented",
                "copying objects is not supported",
            );
        }
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Ok(Self { method: head.method.clone(), bucket, key, query, since, length })
    }

    /// Returns a query parameter's value.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

impl Listing {
    pub(super) fn read(request: &S3Request) -> Result<Self, Refusal> {
        if request.value("list-type") != Some("2") {
            let text = "only listings of type 2 and the location of a bucket are supported";
            return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", text);
        }
        let text = |name| request.value(name).unwrap_or_default().to_owned();
        let after = match request.value("continuation-token") {
            None => text("start-after"),
            Some(token) => {
                let bytes = data_encoding::HEXLOWER.decode(token.as_bytes()).ok();
                match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
                    Some(after) => after,
                    None => return invalid("The continuation token provided is incorrect"),
                }
            }
        };
        let most = match request.value("max-keys").map(str::parse) {
            None => 1000,
            Some(Ok(most)) => most,
            Some(Err(_)) => return invalid("max-keys is not a number"),
        };
        if !["", "/"].contains(&text("delimiter").as_str()) {
            return refuse(
                StatusCode::NOT_IMPLEMENTED,
                "NotImplemented",
                "the only supported delimiter is a slash",
            );
        }
        let is_encoded = request.value("encoding-type") == Some("url");
        Ok(Self { prefix: text("prefix"), delimiter: text("delimiter"), after, most, is_encoded })
    }
}
