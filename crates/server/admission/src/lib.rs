//! Admission: the rules that check a request's object against the rest of the cluster. Read [`Request`] and [`Plugin`]
//! first.
//!
//! Invariants: each plugin is one file of `plugins` and is listed in `chain::PLUGINS`, which defines the order. Plugins
//! are pure. They read the cluster through [`Request`], change only the object (`mutate`) or nothing (`validate`,
//! `charge`), and put warnings and audit annotations into [`Outcome`]. All mutation precedes all validation, so no
//! field is added after an object was validated. Quota is charged last, so a rejected request uses none.
//!
//! This crate makes no network calls. It decides which webhooks apply to a request ([`matching`]), builds their reviews
//! and evaluates their answers ([`webhook`]); the API server calls them. The API server also looks up the parameters of
//! policies ([`policy`]).

mod chain;
mod conditions;
mod configuration;
#[cfg(test)]
mod cves_tests;
mod expressions;
pub mod image_policy;
pub mod matching;
mod plugins;
pub mod policy;
mod request;
mod request_attributes;
mod rounds;
#[cfg(test)]
mod testing;
pub mod webhook;

pub use chain::{Chain, PLUGINS, PluginDone, PluginInfo, Presence, UnknownPlugin};
pub use configuration::ConfigurationError;
pub use expressions::ExpressionError;
pub use plugins::default_toleration_seconds::DefaultTolerationSeconds;
pub use request::{AdmissionResult, Operation, Outcome, Plugin, Request};
pub use rounds::{MutatorKind, Rounds};
