//! The table of functions: libraries, and functions with their signatures, implementation and costs.

use crate::{
    cost::{
        charges::{self, Charge},
        estimates::{self, Estimate},
    },
    error::EvalError,
    value::{Value, Work},
};

/// The implementation for values of all types of the overloads. It charges its work beyond a constant.
pub(crate) type Native = for<'a> fn(&mut Work, &[Value<'a>]) -> Result<Value<'a>, EvalError>;

/// A library of functions, which are available together.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) availability: Availability,
    /// The opaque types that expressions can name.
    pub(crate) types: &'static [&'static str],
    pub(crate) functions: &'static [Function],
}

/// The environments that have a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Environments of this minor version of Kubernetes or a later one.
    Since(u32),
    /// Environments of mutating policies.
    Mutation,
}

/// A function, or those overloads of a function that have their own implementation or costs.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// The overloads, separated by semicolons. An overload is `(arguments) result`; the overload of a method has the
    /// receiver's type and `#` in front. `A` and `B` are type parameters. `scalar` and `text` stand for one overload
    /// for each of these types.
    pub(crate) signatures: &'static str,
    pub(crate) native: Native,
    pub(crate) estimate: Estimate,
    charge: Charge,
    /// `true` if a call costs one if its types match several overloads. As in upstream, the costs of the language
    /// belong to overloads, and the costs of Kubernetes' libraries to functions.
    charges_overload: bool,
}

impl Library {
    pub(crate) const fn since(minor: u32, functions: &'static [Function]) -> Self {
        Self { availability: Availability::Since(minor), types: &[], functions }
    }

    pub(crate) const fn with_types(self, types: &'static [&'static str]) -> Self {
        Self { types, ..self }
    }
}

impl Function {
    /// Creates a function that costs one.
    pub(crate) const fn new(name: &'static str, signatures: &'static str, native: Native) -> Self {
        Self {
            name,
            signatures,
            native,
            charge: charges::one,
            charges_overload: false,
            estimate: estimates::one,
        }
    }

    /// Sets the costs of all calls.
    pub(crate) const fn costs(self, charge: Charge, estimate: Estimate) -> Self {
        Self { charge, estimate, ..self }
    }

    /// Sets the costs of calls whose types match a single overload.
    pub(crate) const fn overload_costs(self, charge: Charge, estimate: Estimate) -> Self {
        Self { charge, estimate, charges_overload: true, ..self }
    }

    /// Returns the actual cost of a call. `unique` is set if its types match a single overload.
    pub(crate) fn charge(&self, unique: bool) -> Charge {
        if self.charges_overload && !unique { charges::one } else { self.charge }
    }
}

/// Returns the error for arguments that no overload accepts.
pub(crate) fn mistyped<T>() -> Result<T, EvalError> {
    Err(EvalError::no_such_overload())
}
