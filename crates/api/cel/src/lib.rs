//! The Common Expression Language with Kubernetes' libraries, for validation rules of custom resources, admission
//! policies, match conditions and claim mappings.
//!
//! An [`Env`] declares the variables and the functions of a version. A text is compiled in it to a type-checked
//! [`Program`] with a cost estimate. A program is evaluated over borrowed JSON trees, without copies, within a cost
//! limit. Names, costs and messages are upstream's, so that the same expressions are accepted and rejected. Read
//! [`Env`] first, then the tables of functions in `natives`.
//!
//! Invariants: no input causes a panic, whatever its length, depth or types. An evaluation ends within its limit, which
//! also bounds the work in functions. Constant patterns are compiled with their expression. This crate uses no clock
//! and no network; the caller passes an authorizer for authorization checks.

mod ast;
mod checker;
mod composition;
mod cost;
#[cfg(test)]
mod dispatch_tests;
mod env;
mod error;
mod estimator;
mod eval;
mod format;
mod formats;
mod function;
#[cfg(test)]
mod fuzzed;
mod lexer;
mod limits;
mod macros;
mod natives;
mod opaque;
mod overloads;
mod parser;
mod program;
mod semver;
mod time;
mod types;
mod unify;
mod url;
mod value;

pub use composition::{Activation, Composition};
pub use cost::Cost;
pub use env::{Env, LATEST};
pub use error::{EvalError, Issue, Issues};
pub use eval::Outcome;
pub use limits::{Limits, PER_CALL_LIMIT};
pub use opaque::{AuthorizationDecision, AuthorizerContext, Opaque, ResourceCheck};
pub use program::Program;
pub use semver::Version;
pub use types::{Decl, Field, ListKind, Object, Shape, Type, escape, is_reserved};
pub use value::{List, Map, Record, Text, Value};
