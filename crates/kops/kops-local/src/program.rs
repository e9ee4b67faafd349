//! The program of the machines, which is the running binary.

use std::path::PathBuf;

use instances::{Fleet, FleetSpec};
use kops_node::file_hash;

use crate::error::Error;

/// Returns the path of the running binary.
fn own_path() -> Result<PathBuf, Error> {
    std::env::current_exe().map_err(Error::Program)
}

/// Returns the URL and the hash of the only program that machines run.
pub fn machine_program() -> Result<(String, String), Error> {
    Ok((format!("file://{}/windlass", instances::PROGRAMS), file_hash(&own_path()?)?))
}

/// Applies the desired state of a fleet: its programs, its settings and its keeper.
pub fn apply_fleet(fleet: &Fleet, spec: &FleetSpec) -> Result<(), Error> {
    fleet.write(spec)?;
    let (target, own) = (fleet.binary(), own_path()?);
    let failed = |what| kops_store::Error::file(what, &target.display().to_string());
    std::fs::create_dir_all(fleet.programs()).map_err(failed("making a directory for"))?;
    let renewed = !target.exists() || file_hash(&target)? != file_hash(&own)?;
    if renewed {
        // Machines still run the old binary, so it is replaced instead of overwritten.
        let beside = target.with_extension("new");
        std::fs::copy(&own, &beside).map_err(failed("copying the binary to"))?;
        std::fs::rename(&beside, &target).map_err(failed("putting in place"))?;
    }
    Ok(instances::start(fleet, renewed)?)
}
