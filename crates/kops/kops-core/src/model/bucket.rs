//! Places in buckets, from URLs of the spec.

use crate::error::Error;

/// The service that has a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// S3, or a server with its API.
    S3,
    /// Google's Cloud Storage.
    Gs,
    /// A directory of the machine; its bucket has no name.
    File,
}

impl Scheme {
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::S3 => "s3://",
            Self::Gs => "gs://",
            Self::File => "file://",
        }
    }
}

/// A bucket and a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BucketPath {
    /// The service.
    pub(super) scheme: Scheme,
    /// The bucket.
    pub(super) bucket: String,
    /// The prefix of the keys, without leading and trailing slashes.
    pub(super) prefix: String,
}

impl BucketPath {
    /// Parses a URL of the spec. `schemes` are those that the cloud's machines can read.
    pub(super) fn parse(url: &str, schemes: &[Scheme]) -> Result<Self, Error> {
        for scheme in schemes {
            let path = url.strip_prefix(scheme.prefix()).filter(|path| !path.is_empty());
            if let Some(path) = path {
                let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
                let prefix = prefix.trim_matches('/').to_owned();
                return Ok(Self { scheme: *scheme, bucket: bucket.to_owned(), prefix });
            }
        }
        let forms: Vec<String> =
            schemes.iter().map(|one| format!("{}BUCKET/PATH", one.prefix())).collect();
        let forms = forms.join(" or ");
        let reason = format!("is not a bucket of the form {forms}, which the machines need");
        Err(Error::value("spec.configStore", url, reason))
    }
}
