//! `cargo xtask down`: removes the local cluster.

use crate::{
    build::{self, Profile},
    run::{pass, program},
};

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    pass(program(build::windlass(Profile::Quick)?, ["down"]).args(args))
}
