//! The functions of the standard library and of Kubernetes. A row of a library's table defines a function.

mod authorizer;
mod convert;
mod kubernetes;
pub(crate) mod lists;
mod network;
mod operators;
mod optionals;
pub(crate) mod regexes;
mod strings;

use crate::function::Library;

/// All libraries. If a call matches several overloads of a name, the implementation of the first one is called.
pub(crate) static LIBRARIES: [&Library; 16] = [
    &operators::LIBRARY,
    &convert::LIBRARY,
    &regexes::LIBRARY,
    &lists::KUBERNETES,
    &kubernetes::URLS,
    &authorizer::CHECKS,
    &kubernetes::QUANTITIES,
    &optionals::LIBRARY,
    &lists::SETS,
    &strings::LIBRARY,
    &network::LIBRARY,
    &kubernetes::FORMATS,
    &authorizer::SELECTORS,
    &kubernetes::VERSIONS,
    &lists::EXTENSION,
    &kubernetes::JSON_PATCH,
];
