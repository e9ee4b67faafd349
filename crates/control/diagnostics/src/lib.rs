//! The pages of a component for operators: health, metrics, configuration, flags and status, with upstream's paths.
//!
//! [`serve`] is the HTTPS server of the controller manager and the scheduler: health is public, and the API server
//! authenticates and authorizes the clients of all other pages. Components with a server of their own use [`Slis`] and
//! [`ComponentInfo`] only. This crate decides nothing about the components and holds no metric of theirs. Read
//! [`serve`] first.
//!
//! Invariant: a client that is not authorized learns from no page but health, which names loops and no causes.

mod access;
mod cache;
mod component;
mod health;
mod server;
mod slis;
mod zpages;

pub use cache::TtlCache;
pub use component::component_metrics;
pub use serve::TlsPolicy;
pub use server::{DiagnosticsError, Page, Settings, serve};
pub use slis::Slis;
pub use zpages::{ComponentInfo, GO_VERSION, NotAcceptable, flags, set_flags};
