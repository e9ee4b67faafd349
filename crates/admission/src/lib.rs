//! Admission: the rules that look at a request's object together with the rest of the cluster.
//!
//! Invariants: a plugin is one file of `plugins`, listed in `chain::PLUGINS`, which also gives the order. Plugins are
//! pure: they read the cluster through `Request`, change only the object (`mutate`) or nothing (`validate`, `charge`),
//! and leave what else should happen (warnings, audit annotations) in `Outcome`. All mutation comes before all
//! validation, so that nothing is added to an object after it was judged; quota is charged last, so that what is refused
//! spends nothing.
//!
//! What calls over the network is decided here and done by the API server: which webhooks a request concerns
//! ([`matching`]), what they are asked and what their answers come to ([`webhook`]). So are policies ([`policy`]), which
//! need objects of any kind for their parameters.

mod chain;
mod conditions;
#[cfg(test)]
mod cves_tests;
mod expressions;
pub mod image_policy;
pub mod matching;
mod plugins;
pub mod policy;
mod request;
mod rounds;
#[cfg(test)]
mod testing;
pub mod webhook;

pub use chain::{Chain, PLUGINS, PluginInfo, Presence, UnknownPlugin};

pub use request::{Operation, Outcome, Plugin, Request};
pub use rounds::{Rounds, Side};
