//! `cargo xtask down`: takes the cluster away again.

use crate::{
    build,
    run::{pass, program},
};

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    pass(program(build::release()?, ["down"]).args(args))
}
