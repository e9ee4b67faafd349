//! Renders models as documents for other programs.

pub mod terraform;
