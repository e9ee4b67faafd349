//! Request signatures, and the trusted authorities of servers.

use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{
        PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
        UriPathNormalizationMode,
    },
    sign::v4::SigningParams,
};
use client::{ClientTls, TlsError, TlsMaterial};
use data_encoding::HEXLOWER;
use http::{Request, header};
use sha2::{Digest as _, Sha256};

/// The default file of trusted authorities, unless AWS' standard variable names another.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Returns a TLS configuration that trusts the given authorities, or the system's.
pub fn trust(authorities: Option<&str>) -> Result<ClientTls, TlsError> {
    let path = authorities.unwrap_or(AUTHORITIES);
    let ca = match std::fs::read(path) {
        Ok(ca) => ca,
        Err(source) => return Err(TlsError::Read { path: path.into(), source }),
    };
    Ok(TlsMaterial { ca: Some(ca), ..TlsMaterial::default() }.client_config()?.into())
}

/// Returns the SHA-256 sum of a body for signatures, in hexadecimal.
pub fn hash(body: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(body))
}

/// Signs a request with an encoded path. `sum` is the sum of its body.
pub fn sign(
    request: &mut Request<client::Body>,
    sum: &str,
    region: &str,
    service: &str,
    credentials: Credentials,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut settings = SigningSettings::default();
    settings.percent_encoding_mode = PercentEncodingMode::Single;
    settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
    settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    let identity = credentials.into();
    let params = SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(service)
        .time(rt::now())
        .settings(settings)
        .build()?
        .into();
    let headers = request.headers().iter();
    let headers: Vec<_> = headers
        .map(|(name, value)| Ok((name.as_str(), value.to_str()?)))
        .collect::<Result<_, header::ToStrError>>()?;
    let signable = SignableRequest::new(
        request.method().as_str(),
        request.uri().to_string(),
        headers.into_iter(),
        SignableBody::Precomputed(sum.to_owned()),
    )?;
    let (instructions, _) = aws_sigv4::http_request::sign(signable, &params)?.into_parts();
    instructions.apply_to_request_http1x(request);
    Ok(())
}
