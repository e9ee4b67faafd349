//! `windlass logs`: prints the log of a cluster's process.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
    time::Duration,
};

use crate::{cluster_args::ClusterArgs, error::Error, process::Role};

/// Prints the log of a process of the cluster
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The process, or a component that runs in it
    #[arg(value_enum)]
    pub component: LoggingProcess,
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The node [default: this host]
    #[arg(long)]
    pub node: Option<String>,
    /// The number of lines from the end [default: all]
    #[arg(long)]
    pub tail: Option<usize>,
    /// Print new lines as they are written
    #[arg(short, long)]
    pub follow: bool,
}

/// The processes with a log, with the names of the components in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoggingProcess {
    Supervisor,
    Containerd,
    #[value(aliases = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"])]
    ControlPlane,
    #[value(aliases = ["kubelet", "kube-proxy", "network"])]
    Agent,
    Balancer,
    Holder,
    SimulatedNodes,
}

impl LoggingProcess {
    fn role(self) -> Role {
        match self {
            Self::Supervisor => Role::Supervisor,
            Self::Containerd => Role::Containerd,
            Self::ControlPlane => Role::ControlPlane,
            Self::Agent => Role::Agent,
            Self::Balancer => Role::Balancer,
            Self::Holder => Role::Holder,
            Self::SimulatedNodes => Role::SimulatedNodes,
        }
    }
}

/// The interval at which a followed log is read.
const LOOK: Duration = Duration::from_millis(200);
/// The size of a piece that is read at once.
const PIECE: usize = 64 * 1024;

/// Prints the log, and with `--follow` until the reader ends.
pub async fn run(args: Args) -> Result<(), Error> {
    let cluster = args.cluster.load()?;
    let node = match args.node.as_deref().filter(|name| *name != cluster.settings.node_name) {
        Some(name) => cluster.member(name)?,
        None => cluster,
    };
    let path = args.component.role().log(&node);
    let mut file = File::open(&path).map_err(Error::file("opening the log", &path))?;
    if let Some(lines) = args.tail {
        let start = last_lines(&mut file, lines).map_err(Error::file("reading", &path))?;
        file.seek(SeekFrom::Start(start)).map_err(Error::file("reading", &path))?;
    }
    loop {
        print(&mut file, &path)?;
        if !args.follow {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn print(file: &mut File, path: &Path) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let copied = io::copy(file, &mut out).and_then(|_| out.flush());
    match copied {
        // The reader of the output is gone, as in `windlass logs agent | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(128 + 13),
        other => other.map_err(Error::file("printing", path)),
    }
}

/// Returns the position at which the last lines of a file begin. It reads backwards, because logs may be large.
fn last_lines(file: &mut File, lines: usize) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0))?;
    let (mut end, mut seen) = (length, 0);
    let mut piece = vec![0; PIECE];
    while end > 0 {
        let start = end.saturating_sub(PIECE as u64);
        let size = usize::try_from(end - start).unwrap_or(PIECE);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut piece[..size])?;
        for (index, _) in piece[..size].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n')
        {
            let position = start + index as u64 + 1;
            // The newline at the end of the file ends the last line.
            if position < length {
                seen += 1;
            }
            if seen == lines {
                return Ok(if lines == 0 { length } else { position });
            }
        }
        end = start;
    }
    Ok(if lines == 0 { length } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_last_lines_of_any_file() {
        let long = format!("{}\nlast\n", "x".repeat(PIECE * 2 + 7));
        for (text, lines, expected) in [
            ("", 3, ""),
            ("a\nb\nc\n", 2, "b\nc\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\nc\n", 9, "a\nb\nc\n"),
            ("a\nb\n", 0, ""),
            ("\n\n\n", 1, "\n"),
            (&long, 1, "last\n"),
            (&long, 2, &long),
        ] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let start = last_lines(&mut file, lines).unwrap();
            assert_eq!(
                &text[usize::try_from(start).unwrap()..],
                expected,
                "{lines} of {} bytes",
                text.len()
            );
        }
    }
}
