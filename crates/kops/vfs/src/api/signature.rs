//! Authenticates requests by AWS Signature Version 4 in the headers.

use std::time::{Duration, SystemTime};

use api_meta::Timestamp;
use data_encoding::HEXLOWER;
use http::{StatusCode, request::Parts};

use super::{
    access_key::AccessKey,
    refusal::{Refusal, denied, refuse},
    request::S3Request,
};
use crate::signature::{AWS, Signed};

/// The largest difference between a request's time and the current time.
const SKEW: Duration = Duration::from_secs(15 * 60);

/// The parsed `Authorization` header.
struct Authorization<'a> {
    id: &'a str,
    /// `DAY/REGION/SERVICE/aws4_request`.
    scope: &'a str,
    signed: Vec<&'a str>,
    signature: Vec<u8>,
}

impl<'a> Authorization<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(AWS.algorithm)?.strip_prefix(' ')?;
        let (mut id, mut signed, mut signature) = (None, None, None);
        for part in rest.split(',') {
            match part.trim().split_once('=')? {
                ("Credential", value) => id = Some(value.split_once('/')?),
                ("SignedHeaders", value) => signed = Some(value.split(';').collect()),
                ("Signature", value) => signature = HEXLOWER.decode(value.as_bytes()).ok(),
                _ => return None,
            }
        }
        let (id, scope) = id?;
        Some(Self { id, scope, signed: signed?, signature: signature? })
    }
}

/// Verifies a request's signature and returns its access key and the SHA-256 sum that its body must have.
pub(super) fn verify<'a>(
    head: &Parts,
    request: &S3Request,
    access_keys: &'a [AccessKey],
    now: SystemTime,
) -> Result<(&'a AccessKey, String), Refusal> {
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let Some(authorization) = text("authorization") else { return denied() };
    let malformed = |why: &str| {
        let code = "AuthorizationHeaderMalformed";
        Refusal(
            StatusCode::BAD_REQUEST,
            code,
            format!("The authorization header is malformed: {why}"),
        )
    };
    let authorization = Authorization::read(authorization)
        .ok_or_else(|| malformed("it is not an AWS4-HMAC-SHA256 signature"))?;
    let at = text("x-amz-date").unwrap_or_default();
    let moment = moment(at).ok_or_else(|| malformed("x-amz-date is missing or not a time"))?;
    let scope: Vec<&str> = authorization.scope.split('/').collect();
    let [day, region, "s3", "aws4_request"] = scope[..] else {
        return Err(malformed("its scope is not DAY/REGION/s3/aws4_request"));
    };
    if !at.starts_with(day) || day.len() != 8 {
        return Err(malformed("it was signed for another day"));
    }
    if !authorization.signed.contains(&"host")
        || head.headers.keys().any(|name| {
            name.as_str().starts_with("x-amz-") && !authorization.signed.contains(&name.as_str())
        })
    {
        return Err(malformed("host and every x-amz- header must be signed"));
    }
    let Some(access_key) = access_keys.iter().find(|key| key.id == authorization.id) else {
        let message = "The AWS Access Key Id you provided does not exist in our records.";
        return refuse(StatusCode::FORBIDDEN, "InvalidAccessKeyId", message);
    };
    let body = text("x-amz-content-sha256").unwrap_or_default();
    let path = api_meta::percent_decode(head.uri.path()).unwrap_or_default();
    let signed = Signed {
        method: &request.method,
        path: &path,
        query: &request.query,
        headers: &head.headers,
        names: &authorization.signed,
        sum: body,
        at,
        region,
    };
    if !signed.is_signature(AWS, &access_key.secret, &authorization.signature) {
        let message =
            "The request signature we calculated does not match the signature you provided.";
        return refuse(StatusCode::FORBIDDEN, "SignatureDoesNotMatch", message);
    }
    let now = Timestamp::from(now);
    if now.since(moment).max(moment.since(now)) > SKEW {
        let message = "The difference between the request time and the current time is too large.";
        return refuse(StatusCode::FORBIDDEN, "RequestTimeTooSkewed", message);
    }
    // An unsigned body could be changed on the way.
    if body.len() != 64 {
        let message = format!("a body must be signed as a whole; x-amz-content-sha256 is {body:?}");
        return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message);
    }
    Ok((access_key, body.to_owned()))
}

/// Parses a time such as `20261123T140000Z`.
fn moment(text: &str) -> Option<Timestamp> {
    let digits = |range: std::ops::Range<usize>| {
        text.get(range).filter(|part| part.bytes().all(|b| b.is_ascii_digit()))
    };
    let (day, time) = (digits(0..8)?, digits(9..15)?);
    if text.len() != 16 || text.get(8..9) != Some("T") || !text.ends_with('Z') {
        return None;
    }
    let part =
        |text: &'_ str, at: usize, length: usize| text.get(at..at + length).map(str::to_owned);
    let [y, m, d] = [part(day, 0, 4)?, part(day, 4, 2)?, part(day, 6, 2)?];
    let [h, min, s] = [part(time, 0, 2)?, part(time, 2, 2)?, part(time, 4, 2)?];
    format!("{y}-{m}-{d}T{h}:{min}:{s}Z").parse().ok()
}
