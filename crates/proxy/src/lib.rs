//! kube-proxy: Services and EndpointSlices → nftables rules.
mod sync;
pub use sync::{Report, SyncError, Syncer, clean_up};
