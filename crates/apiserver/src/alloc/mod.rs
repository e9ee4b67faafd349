//! Cluster IPs and node ports. Who gets one is decided in the store, where several API servers meet: an address by
//! creating its IPAddress, a port by a compared write of upstream's bitmap. It is taken before its Service is written, and
//! what is left over by a crash in between is found by the repair. Memory only says where to look first.

pub(crate) mod address;
mod allocators;
pub(crate) mod bitmap;
mod held;
mod hints;
mod pool;
pub(crate) mod ports;
mod range;
pub(crate) mod service;

pub(crate) use self::{allocators::Allocators, held::Held, hints::Hints, pool::Pool};
