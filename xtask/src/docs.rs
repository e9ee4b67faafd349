//! `cargo xtask docs`: writes the generated pages of the book. `cargo xtask tidy` and a test of the crate `windlass`
//! report pages that are not up to date.
//!
//! The pages of commands come from the command line parser (`crates/tools/windlass/src/reference.rs`), the page of
//! configuration kinds from the types that read them ([`configuration`]), and the comparisons with upstream from
//! recorded measurements ([`comparison`]).

use crate::{
    error::Result,
    file::write,
    run::{cargo, pass, workspace_root},
};

pub(crate) mod comparison;
pub(crate) mod configuration;

pub(crate) fn run() -> Result<()> {
    let root = workspace_root();
    write(&root.join(configuration::PAGE), configuration::render(&root)?)?;
    for (path, text) in comparison::render(&root)? {
        write(&root.join(path), text)?;
    }
    // The packages of `cargo xtask test`, so that cargo does not rebuild crates with other features.
    let mut test = cargo(["test", "--locked", "--workspace", "--exclude", "e2e"]);
    test.args(["--bin", "windlass", "reference"]);
    pass(test.env("WINDLASS_WRITE_DOCS", "1"))
}
