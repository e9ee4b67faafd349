//! Who asks: AWS' signature of version 4, in a request's headers.

use std::time::{Duration, SystemTime};

use api_meta::Timestamp;
use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use http::{StatusCode, request::Parts};

use super::{Refusal, Right, denied, refuse, request::Asked};
use crate::body::sum_of;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// How far a request's time may be from ours.
const SKEW: Duration = Duration::from_secs(15 * 60);

/// What the header `Authorization` says.
struct Authorization<'a> {
    id: &'a str,
    /// The day, the region, the service and the end.
    scope: &'a str,
    signed: Vec<&'a str>,
    signature: Vec<u8>,
}

impl<'a> Authorization<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(ALGORITHM)?.strip_prefix(' ')?;
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

fn mac(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

/// Whose request this is, and which sum its body must have.
pub(super) fn verify<'a>(
    head: &Parts,
    asked: &Asked,
    rights: &'a [Right],
    now: SystemTime,
) -> Result<(&'a Right, String), Refusal> {
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
    let Some(said) = text("authorization") else { return denied() };
    let malformed = |why: &str| {
        let code = "AuthorizationHeaderMalformed";
        Refusal(
            StatusCode::BAD_REQUEST,
            code,
            format!("The authorization header is malformed: {why}"),
        )
    };
    let said =
        Authorization::read(said).ok_or_else(|| malformed("it is none of AWS4-HMAC-SHA256"))?;
    let at = text("x-amz-date").unwrap_or_default();
    let moment = moment(at).ok_or_else(|| malformed("x-amz-date is missing, or no time"))?;
    let scope: Vec<&str> = said.scope.split('/').collect();
    let [day, region, "s3", "aws4_request"] = scope[..] else {
        return Err(malformed("its scope is not DAY/REGION/s3/aws4_request"));
    };
    if !at.starts_with(day) || day.len() != 8 {
        return Err(malformed("it was signed for another day"));
    }
    if !said.signed.contains(&"host")
        || head.headers.keys().any(|name| {
            name.as_str().starts_with("x-amz-") && !said.signed.contains(&name.as_str())
        })
    {
        return Err(malformed("host and all that begins with x-amz- must be signed"));
    }
    let Some(right) = rights.iter().find(|right| right.id == said.id) else {
        let told = "The AWS Access Key Id you provided does not exist in our records.";
        return refuse(StatusCode::FORBIDDEN, "InvalidAccessKeyId", told);
    };
    let body = text("x-amz-content-sha256").unwrap_or_default();
    let canonical = canonical(head, asked, &said.signed, body);
    let to_sign = format!("{ALGORITHM}\n{at}\n{}\n{}", said.scope, sum_of(canonical.as_bytes()));
    let mut key = mac(format!("AWS4{}", right.secret).as_bytes(), day);
    for part in [region, "s3", "aws4_request"] {
        key = mac(key.as_ref(), part);
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_ref());
    if hmac::verify(&key, to_sign.as_bytes(), &said.signature).is_err() {
        let told = "The request signature we calculated does not match the signature you provided.";
        return refuse(StatusCode::FORBIDDEN, "SignatureDoesNotMatch", told);
    }
    let now = Timestamp::from(now);
    if now.since(moment).max(moment.since(now)) > SKEW {
        let told = "The difference between the request time and the current time is too large.";
        return refuse(StatusCode::FORBIDDEN, "RequestTimeTooSkewed", told);
    }
    // Otherwise whoever is on the way may change it.
    if body.len() != 64 {
        let told = format!("a body must be signed as a whole; x-amz-content-sha256 is {body:?}");
        return refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", told);
    }
    Ok((right, body.to_owned()))
}

/// The request in the one form in which both sides know it.
fn canonical(head: &Parts, asked: &Asked, signed: &[&str], body: &str) -> String {
    let path = api_meta::percent_decode(head.uri.path()).unwrap_or_default();
    let path = api_meta::percent_encode(path, b"-._~/");
    let escape = |text: &str| api_meta::percent_encode(text, b"-._~");
    let pairs = asked.query.iter();
    let mut pairs: Vec<_> =
        pairs.map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
    pairs.sort();
    let mut text = format!("{}\n{path}\n{}\n", asked.method, pairs.join("&"));
    for name in signed {
        let values = head.headers.get_all(*name).iter();
        let values: Vec<_> = values.map(|value| value.to_str().unwrap_or_default()).collect();
        let value = values.join(",");
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        text.push_str(&format!("{name}:{value}\n"));
    }
    format!("{text}\n{}\n{body}", signed.join(";"))
}

/// `20261123T140000Z`.
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
