//! Parses requests: path and query ([`RequestInfo`]), accepted content types ([`ResponseFormat`]) and body. Not
//! responsible for decoding objects.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod info;

pub(crate) use self::{
    accept::{Encoding, Encodings, Include, PartialKind, ResponseFormat, Shape},
    info::{Query, RequestInfo, ResourcePath},
};
