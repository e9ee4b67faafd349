//! `cargo xtask down`: removes the local cluster.

use crate::{
    build::{self, Profile},
    error::Result,
    run::{pass, program},
};

pub(crate) fn run(args: &[String]) -> Result<()> {
    pass(program(build::windlass(Profile::Quick)?, ["down"]).args(args))
}
