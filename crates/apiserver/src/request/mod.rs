//! What a client says: where its request goes, what it accepts, its body.

pub(crate) mod accept;
pub(crate) mod body;
pub(crate) mod info;

pub(crate) use self::{
    accept::{Accepted, Encoding, Include, Of, Shape},
    info::{Query, RequestInfo, ResourcePath},
};
