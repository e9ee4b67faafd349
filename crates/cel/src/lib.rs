//! The Common Expression Language as Kubernetes has it: rules of custom kinds, admission policies, match conditions,
//! claims of tokens.
//!
//! An [`Env`] says which variables an expression has and which version's functions; it compiles a text to a [`Program`],
//! checked in its types, with an estimate of what it costs; a program is evaluated over borrowed JSON trees, without
//! copies, until it has a value or has cost what it may. Names, costs and messages are upstream's: what is refused or
//! accepted there is so here.
//!
//! Invariants: no input makes a panic, whatever its length, depth or types; an evaluation ends within its limit, and
//! what it does in functions is bounded by the limit too; constant patterns are compiled with their expression. Nothing
//! here knows a clock or a socket; authorisation is asked of what the caller gives.

mod ast;
mod charges;
mod checker;
mod composed;
mod cost;
mod decls;
mod env;
mod error;
mod eval;
mod format;
mod formats;
#[cfg(test)]
mod fuzzed;
mod lexer;
mod macros;
mod natives;
mod opaque;
mod parser;
mod program;
mod semver;
mod time;
mod types;
mod unify;
mod url;
mod value;

pub use composed::{Activation, Composition};
pub use cost::Cost;
pub use env::{Env, LATEST};
pub use error::{EvalError, Issue, Issues};
pub use eval::{Limits, Outcome, PER_CALL_LIMIT};
pub use opaque::{Answer, Asks, Opaque, ResourceCheck};
pub use program::Program;
pub use types::{Decl, Field, ListKind, Object, Shape, Type, escape, is_reserved};
pub use value::{List, Map, Record, Text, Value};
