//! The data of a span until it is exported.

use std::{borrow::Cow, time::SystemTime};

use crate::context::SpanContext;

/// The longest attribute value in bytes. Clients choose some of the values, and a batch of them must fit a message.
const VALUE_LIMIT: usize = 512;

/// The side of a call that a span is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A part of a span in the same process.
    Internal,
    /// The handling of a request.
    Server,
    /// A request to another process.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    Text(String),
    Number(i64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text[..text.floor_char_boundary(VALUE_LIMIT)].to_owned())
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

/// A recorded span.
#[derive(Clone, Debug)]
pub(crate) struct SpanRecord {
    /// The span's own context.
    pub(crate) context: SpanContext,
    /// The span that this one is a part of.
    pub(crate) parent: Option<[u8; 8]>,
    /// A context that the request carried and that was not trusted.
    pub(crate) link: Option<SpanContext>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: SpanKind,
    pub(crate) start: SystemTime,
    pub(crate) end: SystemTime,
    pub(crate) attributes: Vec<(&'static str, AttributeValue)>,
    /// The cause of a failure.
    pub(crate) error: Option<String>,
}
