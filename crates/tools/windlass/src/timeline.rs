//! The command `windlass timeline`: draws the start-up steps of a cluster over time.

use std::path::PathBuf;

use local::ClusterArgs;
use telemetry::timeline;

use crate::failure::Failure;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Write a self-contained page instead of drawing in the terminal
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let steps = timeline::load(&args.cluster.directory())?;
    match &args.html {
        Some(file) => std::fs::write(file, timeline::html(&steps))
            .map_err(|error| format!("writing {}: {error}", file.display()))?,
        None => print!("{}", timeline::chart(&steps, 100)),
    }
    Ok(())
}
