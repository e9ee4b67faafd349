//! The fields of API objects that scheduling reads; all others are skipped while decoding.
//!
//! Fields have the API's names and meaning.

mod affinity;
mod group;
mod meta;
mod node;
mod pod;
mod pod_group;
mod storage;

pub use affinity::*;
pub use group::*;
pub use meta::*;
pub use node::*;
pub use pod::*;
pub use pod_group::*;
pub use storage::*;
