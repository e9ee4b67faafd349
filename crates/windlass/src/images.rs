//! `windlass images`: container images made and imported offline.

use std::{collections::BTreeMap, fs::File, io::BufWriter, path::PathBuf};

use local::Cluster;

use crate::{Failure, Place};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Packs a static binary as an image, and imports it into the cluster's container runtime
    Build(Build),
    /// Imports an archive into the cluster's container runtime
    Import(Import),
}

#[derive(clap::Args)]
pub(crate) struct Build {
    /// The image's name, with a tag
    image: String,
    /// The static binary; this one if none is given
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Where the binary lies in the image
    #[arg(long, default_value = "/app")]
    path: String,
    /// More names for the binary, as links beside it (busybox's applets)
    #[arg(long = "link", value_delimiter = ',')]
    links: Vec<String>,
    /// What the image runs [default: the binary]
    #[arg(last = true)]
    entrypoint: Vec<String>,
    /// Write the archive here instead of importing it
    #[arg(long, short)]
    output: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

#[derive(clap::Args)]
pub(crate) struct Import {
    archive: PathBuf,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Build(build) => make(&build),
        Command::Import(import) => Ok(oci::import(&socket(&import.place)?, &import.archive)?),
    }
}

fn socket(place: &Place) -> Result<PathBuf, Failure> {
    let root = Cluster::at(&place.name, place.root.as_deref());
    Ok(Cluster::load(&place.name, &root)?.containerd_socket())
}

fn make(build: &Build) -> Result<(), Failure> {
    let binary = match &build.binary {
        Some(path) => path.clone(),
        None => std::env::current_exe()?,
    };
    let entrypoint: Vec<&str> = match build.entrypoint.as_slice() {
        [] => vec![&build.path],
        given => given.iter().map(String::as_str).collect(),
    };
    let mut image = oci::Image::of_binary(&build.image, &binary, &build.path, &entrypoint);
    let links = build
        .links
        .iter()
        .map(|link| (link.clone(), oci::Entry::Link { target: build.path.clone() }));
    image.entries.extend(links.collect::<BTreeMap<_, _>>());
    let archive = match &build.output {
        Some(path) => path.clone(),
        None => std::env::temp_dir().join(format!("windlass-image-{}.tar", std::process::id())),
    };
    oci::write_archive(&[image], BufWriter::new(File::create(&archive)?))?;
    if build.output.is_none() {
        let imported = socket(&build.place).and_then(|socket| Ok(oci::import(&socket, &archive)?));
        std::fs::remove_file(&archive)?;
        imported?;
    }
    Ok(())
}
