//! Models as documents that other programs carry out.

pub mod terraform;
