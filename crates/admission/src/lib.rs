//! Admission: the rules that look at a request's object together with the rest of the cluster.
//!
//! Invariants: a plugin is one file of `plugins`, listed in `chain::PLUGINS`, which also gives the order. Plugins are
//! pure: they read the cluster through `Request`, change only the object (`mutate`) or nothing (`validate`, `charge`),
//! and leave what else should happen (warnings, audit annotations) in `Outcome`. All mutation comes before all
//! validation, so that nothing is added to an object after it was judged; quota is charged last, so that what is refused
//! spends nothing.

mod chain;
mod plugins;
mod request;
#[cfg(test)]
mod testing;
mod tree;

pub use chain::{Chain, PLUGINS, PluginInfo, Presence, UnknownPlugin};

pub use request::{Operation, Outcome, Plugin, Request};
