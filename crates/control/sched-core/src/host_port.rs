//! Ports of nodes that Pods use.

use crate::sym::Sym;

/// A port of a node, on one address or on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostPort {
    pub(crate) port: u16,
    pub(crate) protocol: Sym,
    /// The host IP; [`Sym::NONE`] stands for all addresses.
    pub(crate) address: Sym,
}

impl HostPort {
    pub(crate) fn conflicts(&self, other: &HostPort) -> bool {
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address
                || self.address == Sym::NONE
                || other.address == Sym::NONE)
    }
}
