//! The endpoints of services, their names in signatures, and their protocols.

use crate::{environment::Environment, error::Error};

/// The protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Form parameters, with lists as `Name.1`.
    Ec2(&'static str),
    /// Form parameters, with lists as `Name.member.1`.
    Query(&'static str),
    /// A path of its own per operation, and XML.
    Xml,
    /// A JSON object. The fields are the protocol's version and the service's name in a header.
    Json(&'static str, &'static str),
}

/// The services in the table: their names in hosts and signatures, and their protocols.
const SERVICES: [(&str, &str, Protocol); 8] = [
    ("ec2", "ec2", Protocol::Ec2("2016-11-15")),
    ("autoscaling", "autoscaling", Protocol::Query("2011-01-01")),
    ("elbv2", "elasticloadbalancing", Protocol::Query("2015-12-01")),
    ("iam", "iam", Protocol::Query("2010-05-08")),
    ("sts", "sts", Protocol::Query("2011-06-15")),
    ("route53", "route53", Protocol::Xml),
    ("sqs", "sqs", Protocol::Json("1.0", "AmazonSQS")),
    ("events", "events", Protocol::Json("1.1", "AWSEvents")),
];

/// The endpoint of a service.
#[derive(Debug, PartialEq)]
pub(crate) struct ServiceEndpoint {
    /// `http://host:port` or `https://host`.
    pub(crate) server: String,
    pub(crate) host: String,
    /// The service's name in signatures.
    pub(crate) signed: &'static str,
    /// The region in signatures.
    pub(crate) region: String,
    pub(crate) protocol: Protocol,
}

impl ServiceEndpoint {
    /// Returns a service's endpoint for a region. `own` is a server that replaces AWS.
    pub(crate) fn of(service: &str, region: &str, own: Option<&str>) -> Option<Self> {
        let (_, signed, protocol) = SERVICES.into_iter().find(|(own, ..)| *own == service)?;
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        // Two services have one endpoint per partition.
        let (host, region) = match (signed, region) {
            ("iam", r) if r.starts_with("cn-") => {
                (format!("iam.cn-north-1.{domain}"), "cn-north-1")
            }
            ("iam", r) if r.starts_with("us-gov-") => {
                (format!("iam.us-gov.{domain}"), "us-gov-west-1")
            }
            ("iam", _) => (format!("iam.{domain}"), "us-east-1"),
            ("route53", r) if r.starts_with("cn-") => {
                (format!("route53.{domain}"), "cn-northwest-1")
            }
            ("route53", r) if r.starts_with("us-gov-") => {
                (format!("route53.us-gov.{domain}"), "us-gov-west-1")
            }
            ("route53", _) => (format!("route53.{domain}"), "us-east-1"),
            _ => (format!("{signed}.{region}.{domain}"), region),
        };
        let host = match own.and_then(|own| own.split_once("://")) {
            Some((_, host)) => host.to_owned(),
            None => host,
        };
        let server = own.map_or_else(|| format!("https://{host}"), str::to_owned);
        Some(Self { server, host, signed, region: region.to_owned(), protocol })
    }
}

/// Returns the server that replaces AWS, if one is configured.
pub(crate) fn custom_endpoint(environment: Environment<'_>) -> Result<Option<String>, Error> {
    let variable = "AWS_ENDPOINT_URL";
    let value = environment(variable).filter(|text| !text.is_empty());
    let Some(value) = value else { return Ok(None) };
    let server = value.trim_end_matches('/').to_owned();
    let host = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"));
    match host {
        Some(host) if !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']) => {
            Ok(Some(server))
        }
        _ => Err(Error::InvalidSetting {
            variable,
            value,
            reason: "is not of the form https://host:port",
        }),
    }
}

/// Reports whether a word is valid as a region in a host name.
pub fn is_region(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=32).contains(&name.len()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_endpoints_of_services() {
        for (service, region, host, signed) in [
            ("ec2", "eu-west-1", "ec2.eu-west-1.amazonaws.com", "eu-west-1"),
            (
                "elbv2",
                "cn-north-1",
                "elasticloadbalancing.cn-north-1.amazonaws.com.cn",
                "cn-north-1",
            ),
            ("iam", "eu-west-1", "iam.amazonaws.com", "us-east-1"),
            ("iam", "cn-northwest-1", "iam.cn-north-1.amazonaws.com.cn", "cn-north-1"),
            ("route53", "us-gov-east-1", "route53.us-gov.amazonaws.com", "us-gov-west-1"),
        ] {
            let place = ServiceEndpoint::of(service, region, None).unwrap();
            assert_eq!((place.host.as_str(), place.region.as_str()), (host, signed));
            assert_eq!(place.server, format!("https://{host}"));
        }
        let own = ServiceEndpoint::of("ec2", "eu-west-1", Some("http://127.0.0.1:5000")).unwrap();
        assert_eq!(
            (own.server.as_str(), own.host.as_str()),
            ("http://127.0.0.1:5000", "127.0.0.1:5000")
        );
        assert_eq!(ServiceEndpoint::of("ec3", "eu-west-1", None), None);
    }

    #[test]
    fn rejects_invalid_endpoints() {
        let set = |value: &str| custom_endpoint(&|_| Some(value.to_owned()));
        assert_eq!(set("http://a:5000/").unwrap().as_deref(), Some("http://a:5000"));
        assert_eq!(set("").unwrap(), None);
        for wrong in ["a:5000", "ftp://a", "https://", "https://u@a", "https://a/b", "http://a b"] {
            assert!(set(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "a.evil.com/", "A", &"a".repeat(33)] {
            assert!(!is_region(wrong), "{wrong}");
        }
    }
}
