//! Signatures of DNS messages with a shared key (TSIG, RFC 8945), and the key file of BIND.
//!
//! The signer of `hickory_proto` needs that crate's feature for DNSSEC, which Cargo would enable for every program.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use hickory_proto::{
    ProtoError,
    op::{Header, Message, Query},
    rr::{
        DNSClass, Name, RData, Record,
        rdata::{
            TSIG,
            tsig::{TsigAlgorithm, TsigError as Code, make_tsig_record, message_tbs},
        },
    },
    serialize::binary::{BinDecodable as _, BinDecoder, BinEncoder},
};

/// The permitted difference between the clocks of client and server in seconds, as RFC 8945 recommends.
const FUDGE: u16 = 300;
/// The length of the header of a message.
const HEADER: usize = 12;

/// A key that client and server share.
#[derive(Clone)]
pub(super) struct TsigKey {
    name: Name,
    algorithm: TsigAlgorithm,
    key: hmac::Key,
}

/// The error of a key file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyFileError {
    #[error("reading the TSIG key {path}: {source}; write it there, or name another file")]
    Read { path: String, source: std::io::Error },
    #[error(
        "the TSIG key {path} {source}; tsig-keygen prints a valid one: key \"NAME\" {{ algorithm hmac-sha256; secret \
         \"...\"; }};"
    )]
    Content { path: String, source: KeyStatementError },
}

/// The error of the text of a key file. The message continues a sentence about the key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyStatementError {
    #[error("is not one key statement")]
    Statement,
    #[error("must have one algorithm and one secret")]
    Fields,
    #[error("has the algorithm {0:?}, which is not hmac-sha224, -sha256, -sha384 or -sha512")]
    Algorithm(String),
    #[error("has a secret that is not base64")]
    Encoding,
    #[error("has no secret")]
    NoSecret,
    #[error("has an invalid name: {0}")]
    Name(ProtoError),
    #[error("has a {0} without an end")]
    Open(&'static str),
}

/// The error of an answer whose signature is missing or wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    #[error("its signature cannot be read: {0}")]
    Malformed(String),
    #[error("it is not signed")]
    Unsigned,
    #[error("it is signed with another key or algorithm")]
    OtherKey,
    #[error("its signature is wrong")]
    Wrong,
    #[error("it was signed at another time; check the clocks")]
    Time,
    #[error(
        "the server does not accept the key: {0}; check its name, algorithm and secret, and the clocks"
    )]
    Rejected(String),
}

impl TsigKey {
    /// Reads a file with one key in BIND's form.
    pub(super) fn read(path: &std::path::Path) -> Result<Self, KeyFileError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| KeyFileError::Read { path: shown.clone(), source })?;
        Self::parse(&text).map_err(|source| KeyFileError::Content { path: shown, source })
    }

    /// Parses a key statement: `key "NAME" { algorithm ALGORITHM; secret "BASE64"; };`.
    fn parse(text: &str) -> Result<Self, KeyStatementError> {
        let words = words(text)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ["key", name_text, "{", fields @ .., "}", ";"] = words.as_slice() else {
            return Err(KeyStatementError::Statement);
        };
        let (mut algorithm, mut secret) = ("", "");
        for field in fields.chunks(3) {
            match field {
                ["algorithm", value, ";"] if algorithm.is_empty() => algorithm = value,
                ["secret", value, ";"] if secret.is_empty() => secret = value,
                _ => return Err(KeyStatementError::Fields),
            }
        }
        let (algorithm, kind) = match algorithm.to_ascii_lowercase().as_str() {
            "hmac-sha224" => (TsigAlgorithm::HmacSha224, hmac::HMAC_SHA224),
            "hmac-sha256" => (TsigAlgorithm::HmacSha256, hmac::HMAC_SHA256),
            "hmac-sha384" => (TsigAlgorithm::HmacSha384, hmac::HMAC_SHA384),
            "hmac-sha512" => (TsigAlgorithm::HmacSha512, hmac::HMAC_SHA512),
            _ => return Err(KeyStatementError::Algorithm(algorithm.to_owned())),
        };
        let secret = STANDARD.decode(secret).map_err(|_| KeyStatementError::Encoding)?;
        if secret.is_empty() {
            return Err(KeyStatementError::NoSecret);
        }
        let mut name = Name::from_ascii(name_text).map_err(KeyStatementError::Name)?.to_lowercase();
        name.set_fqdn(true);
        Ok(Self { name, algorithm, key: hmac::Key::new(kind, &secret) })
    }

    /// Signs a request. Returns its bytes and its MAC, on which the answer's signature depends.
    pub(super) fn sign(
        &self,
        message: &mut Message,
        now: u64,
    ) -> Result<(Vec<u8>, Vec<u8>), ProtoError> {
        let id = message.metadata.id;
        let unsigned =
            TSIG::new(self.algorithm.clone(), now, FUDGE, Vec::new(), id, None, Vec::new());
        let signed = message_tbs(message, &unsigned, &self.name)?;
        let mac = hmac::sign(&self.key, &signed).as_ref().to_vec();
        let record = make_tsig_record(self.name.clone(), unsigned.set_mac(mac.clone()));
        message.signature = Some(Box::new(record));
        Ok((message.to_vec()?, mac))
    }

    /// Verifies the signature of an answer to the request with the given MAC.
    pub(super) fn verify(
        &self,
        answer: &[u8],
        request_mac: &[u8],
        now: u64,
    ) -> Result<(), SignatureError> {
        let (record, start) = last_record(answer)?;
        let RData::TSIG(tsig) = &record.data else { return Err(SignatureError::Unsigned) };
        if record.name != self.name
            || record.dns_class != DNSClass::ANY
            || record.ttl != 0
            || tsig.algorithm != self.algorithm
        {
            return Err(SignatureError::OtherKey);
        }
        // A server that does not know the key cannot sign its answer.
        if matches!(tsig.error, Some(Code::BadKey | Code::BadSig)) && tsig.mac.is_empty() {
            return Err(SignatureError::Rejected(code_name(tsig.error)));
        }
        let signed = signed_bytes(answer, start, &record.name, tsig, request_mac)?;
        hmac::verify(&self.key, &signed, &tsig.mac).map_err(|_| SignatureError::Wrong)?;
        if tsig.error.is_some() {
            return Err(SignatureError::Rejected(code_name(tsig.error)));
        }
        if now.abs_diff(tsig.time) > u64::from(FUDGE) {
            return Err(SignatureError::Time);
        }
        Ok(())
    }
}

/// Returns the mnemonic of an error in a signature.
fn code_name(code: Option<Code>) -> String {
    match code {
        Some(Code::BadSig) => "BADSIG".to_owned(),
        Some(Code::BadKey) => "BADKEY".to_owned(),
        Some(Code::BadTime) => "BADTIME".to_owned(),
        Some(Code::BadTrunc) => "BADTRUNC".to_owned(),
        other => format!("error {other:?}"),
    }
}

/// Returns the last record of a message and its position. Only the last record may be a signature.
fn last_record(message: &[u8]) -> Result<(Record, usize), SignatureError> {
    let malformed = |error: &dyn std::fmt::Display| SignatureError::Malformed(error.to_string());
    let mut decoder = BinDecoder::new(message);
    let counts = Header::read(&mut decoder).map_err(|error| malformed(&error))?.counts;
    for _ in 0..counts.queries {
        Query::read(&mut decoder).map_err(|error| malformed(&error))?;
    }
    if counts.additionals == 0 {
        return Err(SignatureError::Unsigned);
    }
    let earlier =
        [counts.answers, counts.authorities, counts.additionals - 1].map(usize::from).iter().sum();
    for _ in 0..earlier {
        let record = Record::read(&mut decoder).map_err(|error| malformed(&error))?;
        if matches!(record.data, RData::TSIG(_)) {
            return Err(malformed(&"it is not the last record"));
        }
    }
    let start = decoder.index();
    let record = Record::read(&mut decoder).map_err(|error| malformed(&error))?;
    if !decoder.is_empty() {
        return Err(malformed(&"bytes follow the last record"));
    }
    Ok((record, start))
}

/// Returns the bytes that an answer's signature covers (RFC 8945 section 4.3): the request's MAC, the message without
/// its signature, and the fields of the signature.
fn signed_bytes(
    answer: &[u8],
    start: usize,
    key: &Name,
    tsig: &TSIG,
    request_mac: &[u8],
) -> Result<Vec<u8>, SignatureError> {
    let malformed = |error: ProtoError| SignatureError::Malformed(error.to_string());
    let too_short = || SignatureError::Malformed("it is too short".to_owned());
    let mut header: [u8; HEADER] =
        answer.get(..HEADER).and_then(|bytes| bytes.try_into().ok()).ok_or_else(too_short)?;
    let body = answer.get(HEADER..start).ok_or_else(too_short)?;
    header[..2].copy_from_slice(&tsig.oid.to_be_bytes());
    let additionals = u16::from_be_bytes([header[10], header[11]]).saturating_sub(1);
    header[10..].copy_from_slice(&additionals.to_be_bytes());
    let length = u16::try_from(request_mac.len()).map_err(|_| too_short())?;
    let mut fields = Vec::new();
    tsig.emit_tsig_for_mac(&mut BinEncoder::new(&mut fields), key).map_err(malformed)?;
    Ok([&length.to_be_bytes()[..], request_mac, &header, body, &fields].concat())
}

/// Splits a file of BIND into words, quoted texts and the marks `{`, `}` and `;`, without comments.
fn words(text: &str) -> Result<Vec<String>, KeyStatementError> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return Ok(words) };
        if rest.starts_with("//") || first == '#' {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
        } else if let Some(comment) = rest.strip_prefix("/*") {
            let end = comment.split_once("*/").ok_or(KeyStatementError::Open("comment"))?;
            rest = end.1;
        } else if let Some(quoted) = rest.strip_prefix('"') {
            let (word, after) = quoted.split_once('"').ok_or(KeyStatementError::Open("text"))?;
            words.push(word.to_owned());
            rest = after;
        } else {
            let is_end = |c: char| c.is_whitespace() || ['{', '}', ';', '"'].contains(&c);
            let end = if is_end(first) { 1 } else { rest.find(is_end).unwrap_or(rest.len()) };
            words.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
    }
}

#[cfg(test)]
mod tests;
