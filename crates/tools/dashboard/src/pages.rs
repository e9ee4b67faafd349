//! The pages. Each reads what it needs and renders its content.

pub(crate) mod kinds;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod measurements;
pub(crate) mod object;
pub(crate) mod overview;
