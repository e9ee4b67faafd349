//! Negotiates content types: the encoding, and whole objects, tables or metadata only.

use api_config::FeatureGates;
use api_meta::Status;
use http::{HeaderMap, header};

use super::info::Query;

/// The encoding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
    Protobuf,
    Cbor,
}

/// The encodings of bodies that the server reads and writes besides those that are always on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Encodings {
    /// CBOR, with the feature gate `CBORServingAndStorage`.
    pub(crate) cbor: bool,
}

impl Encodings {
    pub(crate) fn of(features: &FeatureGates) -> Self {
        Self { cbor: features.is_enabled("CBORServingAndStorage") }
    }

    /// Returns the media types of objects, for messages.
    pub(crate) fn media_types(self) -> Vec<&'static str> {
        let mut types =
            vec!["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
        if self.cbor {
            types.push("application/cbor");
        }
        types
    }
}

/// The form in which objects are returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Whole,
    Table(Include),
    /// `PartialObjectMetadata`, for one object or for a list.
    Partial(PartialKind),
}

/// The kind of partial metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartialKind {
    One,
    List,
}

const META: &str = "meta.k8s.io/v1";

/// The part of the object that each row of a table includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Object,
}

/// The negotiated format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseFormat {
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
    /// The `meta.k8s.io` version of tables and partial objects.
    pub(crate) meta: &'static str,
    pub(crate) pretty: bool,
}

impl ResponseFormat {
    /// Returns `true` if the stored bytes can be sent unchanged.
    pub(crate) fn is_stored_form(self) -> bool {
        self.shape == Shape::Whole && self.encoding == Encoding::Json && !self.pretty
    }

    pub(crate) const JSON: Self =
        Self { encoding: Encoding::Json, shape: Shape::Whole, meta: META, pretty: false };

    /// Parses `Accept`.
    pub(crate) fn negotiate(
        headers: &HeaderMap,
        query: &Query,
        served: Encodings,
    ) -> Result<Self, Box<Status>> {
        // Tables have no protobuf encoding.
        Self::choose(headers, query, served, |encoding, shape| {
            encoding != Encoding::Protobuf || !matches!(shape, Shape::Table(_))
        })
    }

    /// Parses `Accept` for a resource without tables: one that is created and returned but never stored.
    pub(crate) fn negotiate_without_tables(
        headers: &HeaderMap,
        query: &Query,
        served: Encodings,
    ) -> Result<Self, Box<Status>> {
        Self::choose(headers, query, served, |_, shape| !matches!(shape, Shape::Table(_)))
    }

    /// Parses `Accept` for a custom kind, which only has a protobuf encoding for its metadata.
    pub(crate) fn negotiate_custom(
        headers: &HeaderMap,
        query: &Query,
        served: Encodings,
    ) -> Result<Self, Box<Status>> {
        Self::choose(headers, query, served, |encoding, shape| {
            encoding != Encoding::Protobuf || matches!(shape, Shape::Partial(_))
        })
    }

    fn choose(
        headers: &HeaderMap,
        query: &Query,
        served: Encodings,
        fits: impl Fn(Encoding, Shape) -> bool,
    ) -> Result<Self, Box<Status>> {
        let text = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
        let pretty =
            query.flag("pretty") || query.get("pretty").is_none() && browser_or_curl(headers);
        let mut ranges: Vec<(&str, f32)> =
            text.split(',').map(|range| (range.trim(), quality(range))).collect();
        ranges.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (range, q) in ranges {
            if q > 0.0
                && let Some((encoding, shape, meta)) = media_range(range, query)
                && (encoding != Encoding::Cbor || served.cbor)
                && fits(encoding, shape)
            {
                return Ok(Self { encoding, shape, meta, pretty });
            }
        }
        Err(Box::new(Status::not_acceptable(&served.media_types())))
    }
}

fn browser_or_curl(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|known| agent.starts_with(known))
}

pub(crate) fn quality(range: &str) -> f32 {
    let q = range.split(';').find_map(|p| p.trim().strip_prefix("q="));
    q.and_then(|q| q.parse().ok()).unwrap_or(1.0)
}

fn media_range(range: &str, query: &Query) -> Option<(Encoding, Shape, &'static str)> {
    let mut parts = range.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "*/*" | "application/*" | "" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
        "application/cbor" => Encoding::Cbor,
        // A watch is a sequence of items (RFC 8742).
        "application/cbor-seq" if query.flag("watch") => Encoding::Cbor,
        _ => return None,
    };
    let (mut kind, mut group, mut version) = ("", "", "");
    for part in parts {
        match part.split_once('=') {
            Some(("as", value)) => kind = value,
            Some(("g", value)) => group = value,
            Some(("v", value)) => version = value,
            _ => {}
        }
    }
    if kind.is_empty() {
        return Some((encoding, Shape::Whole, META));
    }
    let meta = match (group, version) {
        ("meta.k8s.io", "v1") => META,
        ("meta.k8s.io", "v1beta1") => "meta.k8s.io/v1beta1",
        _ => return None,
    };
    let shape = match kind {
        "Table" => Shape::Table(match query.get("includeObject") {
            Some("None") => Include::Nothing,
            Some("Object") => Include::Object,
            _ => Include::Metadata,
        }),
        "PartialObjectMetadata" => Shape::Partial(PartialKind::One),
        "PartialObjectMetadataList" => Shape::Partial(PartialKind::List),
        _ => return None,
    };
    Some((encoding, shape, meta))
}
