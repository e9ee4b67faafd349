//! The location of a bucket, by upstream's rules.

use aws::is_region;

use crate::environment::Environment;

const DEFAULT_REGION: &str = "us-east-1";
/// The server of Google's Cloud Storage.
const GOOGLE: &str = "https://storage.googleapis.com";
/// The region in signatures for Google, which finds a bucket's location by itself.
pub(super) const GOOGLE_REGION: &str = "auto";

/// The location of a bucket, and the access to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BucketLocation {
    pub(super) bucket: String,
    pub(super) region: String,
    /// The server, if it is not AWS.
    pub(super) own: Option<CustomEndpoint>,
    /// The file of certificate authorities for servers; `None` for the system's.
    pub(super) authorities: Option<String>,
}

/// A server that is not AWS, with its access key.
#[derive(Clone, PartialEq)]
pub(super) struct CustomEndpoint {
    /// `true` for Google's Cloud Storage, `false` for a server with S3's API.
    pub(super) is_google: bool,
    /// `http://host:port` or `https://host:port`.
    pub(super) endpoint: String,
    pub(super) key: String,
    pub(super) secret: String,
}

impl std::fmt::Debug for CustomEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CustomEndpoint").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// The URL parts of a bucket.
#[derive(Debug, PartialEq)]
pub(super) struct Address {
    /// `http://host:port` or `https://host`.
    pub(super) server: String,
    /// The value of the `Host` header.
    pub(super) host: String,
    /// The path before a key: `/bucket` if the host does not name the bucket, otherwise empty.
    pub(super) path: String,
}

impl BucketLocation {
    /// Finds a bucket of S3.
    pub(super) fn find(bucket: &str, environment: Environment<'_>) -> Result<Self, &'static str> {
        if !is_bucket(bucket) {
            return Err("it does not name an S3 bucket");
        }
        let variable = |name| environment(name).filter(|text: &String| !text.is_empty());
        let (bucket, authorities) = (bucket.to_owned(), variable("AWS_CA_BUNDLE"));
        let region = |name| match variable(name) {
            None => Ok(DEFAULT_REGION.to_owned()),
            Some(region) if is_region(&region) => Ok(region),
            Some(_) => Err("S3_REGION or AWS_REGION is not the name of a region"),
        };
        let Some(endpoint) = variable("S3_ENDPOINT") else {
            return Ok(Self { bucket, region: region("AWS_REGION")?, own: None, authorities });
        };
        let endpoint =
            check_endpoint(&endpoint, "S3_ENDPOINT is not of the form https://host:port")?;
        let key = variable("S3_ACCESS_KEY_ID");
        let key = key.ok_or("S3_ACCESS_KEY_ID cannot be empty when S3_ENDPOINT is not empty")?;
        let secret = variable("S3_SECRET_ACCESS_KEY");
        let secret =
            secret.ok_or("S3_SECRET_ACCESS_KEY cannot be empty when S3_ENDPOINT is not empty")?;
        let own = CustomEndpoint { is_google: false, endpoint, key, secret };
        Ok(Self { bucket, region: region("S3_REGION")?, own: Some(own), authorities })
    }

    /// Finds a bucket of Google's Cloud Storage.
    pub(super) fn find_google(
        bucket: &str,
        environment: Environment<'_>,
    ) -> Result<Self, &'static str> {
        if !is_bucket(bucket) {
            return Err("it does not name a bucket");
        }
        let variable = |name| environment(name).filter(|text: &String| !text.is_empty());
        let endpoint = variable("GS_ENDPOINT").unwrap_or_else(|| GOOGLE.to_owned());
        let endpoint =
            check_endpoint(&endpoint, "GS_ENDPOINT is not of the form https://host:port")?;
        let missing = "GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY are not set to an HMAC key";
        let key = variable("GS_ACCESS_KEY_ID").ok_or(missing)?;
        let secret = variable("GS_SECRET_ACCESS_KEY").ok_or(missing)?;
        Ok(Self {
            bucket: bucket.to_owned(),
            region: GOOGLE_REGION.to_owned(),
            own: Some(CustomEndpoint { is_google: true, endpoint, key, secret }),
            authorities: variable("AWS_CA_BUNDLE"),
        })
    }

    /// Returns the address of the bucket, assuming that it is in `region`.
    pub(super) fn address(&self, region: &str) -> Address {
        if let Some(own) = &self.own {
            let host = own.endpoint.split_once("://").map_or("", |(_, host)| host).to_owned();
            let path = format!("/{}", self.bucket);
            return Address { server: own.endpoint.clone(), host, path };
        }
        let end = if region.starts_with("cn-") { ".cn" } else { "" };
        let host = format!("s3.dualstack.{region}.amazonaws.com{end}");
        // A wildcard certificate covers only one level of names below the server's.
        let (host, path) = if self.bucket.contains('.') {
            (host, format!("/{}", self.bucket))
        } else {
            (format!("{}.{host}", self.bucket), String::new())
        };
        Address { server: format!("https://{host}"), host, path }
    }
}

/// Returns an endpoint without a slash at its end.
fn check_endpoint(text: &str, problem: &'static str) -> Result<String, &'static str> {
    let endpoint = text.trim_end_matches('/');
    let (scheme, host) = endpoint.split_once("://").ok_or(problem)?;
    if !["http", "https"].contains(&scheme)
        || host.is_empty()
        || host.contains(['/', '@', '?', '#', ' '])
    {
        return Err(problem);
    }
    Ok(endpoint.to_owned())
}

fn is_bucket(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    (3..=63).contains(&name.len()) && name.bytes().all(plain) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(bucket: &str, set: &[(&str, &str)]) -> Result<BucketLocation, &'static str> {
        BucketLocation::find(bucket, &|name| {
            set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn finds_buckets_as_upstream_does() {
        let aws = place("state", &[("AWS_REGION", "eu-west-1"), ("S3_REGION", "x")]).unwrap();
        let address = aws.address(&aws.region);
        assert_eq!(address.server, "https://state.s3.dualstack.eu-west-1.amazonaws.com");
        assert_eq!((address.host.as_str(), address.path.as_str()), (&address.server[8..], ""));
        let dotted = place("state.example.com", &[]).unwrap();
        let address = dotted.address("cn-north-1");
        assert_eq!(address.host, "s3.dualstack.cn-north-1.amazonaws.com.cn");
        assert_eq!(
            (dotted.region.as_str(), address.path.as_str()),
            ("us-east-1", "/state.example.com")
        );
        let key = [("S3_ACCESS_KEY_ID", "k"), ("S3_SECRET_ACCESS_KEY", "hidden")];
        let own = place("state", &[&[("S3_ENDPOINT", "http://10.0.0.1:9000/")], &key[..]].concat());
        let own = own.unwrap();
        let address = own.address(&own.region);
        assert_eq!(address.server, "http://10.0.0.1:9000");
        assert_eq!((address.host.as_str(), address.path.as_str()), ("10.0.0.1:9000", "/state"));
        assert!(!format!("{own:?}").contains("hidden"));
    }

    #[test]
    fn rejects_invalid_bucket_names_and_endpoints() {
        for bucket in ["", "a", "A-bucket", "evil.com#", "a/b", "..", "bucket:80", &"a".repeat(64)]
        {
            assert!(place(bucket, &[]).is_err(), "{bucket}");
        }
        for set in [
            ("AWS_REGION", "us-east-1.evil.com/"),
            ("S3_ENDPOINT", "s3.example.com"),
            ("S3_ENDPOINT", "https://host/path"),
            ("S3_ENDPOINT", "https://user@host"),
            ("S3_ENDPOINT", "https://host"),
        ] {
            assert!(place("state", &[set]).is_err(), "{set:?}");
        }
    }

    #[test]
    fn finds_buckets_of_google() {
        let find = |bucket: &str, set: &[(&str, &str)]| {
            BucketLocation::find_google(bucket, &|name| {
                set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let key = [("GS_ACCESS_KEY_ID", "k"), ("GS_SECRET_ACCESS_KEY", "hidden")];
        let found = find("state", &key).unwrap();
        let address = found.address(&found.region);
        assert_eq!(address.server, "https://storage.googleapis.com");
        assert_eq!((address.path.as_str(), found.region.as_str()), ("/state", "auto"));
        assert!(!format!("{found:?}").contains("hidden"));
        // S3's variables are another server's.
        let s3 =
            [("S3_ENDPOINT", "http://h"), ("S3_ACCESS_KEY_ID", "k"), ("S3_SECRET_ACCESS_KEY", "s")];
        assert!(find("state", &s3).unwrap_err().contains("HMAC key"));
        assert!(find("A", &key).is_err());
        let odd = [key[0], key[1], ("GS_ENDPOINT", "https://user@host")];
        assert!(find("state", &odd).unwrap_err().contains("GS_ENDPOINT"));
    }
}
