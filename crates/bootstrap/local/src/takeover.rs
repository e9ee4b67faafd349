//! A running cluster gets another binary: `windlass up` of a newer release.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use sys::supervision;
use telemetry::Progress;

use crate::{cluster::Cluster, error::Error, process::Role};

/// The time in which a supervisor stops all of its processes. Each has ten seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const OWN: &str = "/proc/self/exe";

/// Stops the processes of a running cluster if their program is not this one, so that they start again from this one.
/// Containers and the namespaces of further nodes stay. Several control planes run in containers, so clusters of these
/// keep their binary.
pub(crate) async fn stop_other_binary(cluster: &Cluster, progress: &Progress) -> Result<(), Error> {
    let Some(pid) = Role::Supervisor.running(cluster) else { return Ok(()) };
    // The path of the running program may have another file by now.
    let program = PathBuf::from(format!("/proc/{pid}/exe"));
    let open = |path: &Path| File::open(path).map_err(Error::file("opening", path));
    let (own, other) = (open(Path::new(OWN))?, open(&program)?);
    if are_equal(own, other).map_err(Error::file("comparing this program with", &program))? {
        return Ok(());
    }
    if cluster.is_replicated() {
        progress.note("the control planes keep their binary, because they run in containers");
        return Ok(());
    }
    let stop = async {
        supervision::stop(pid, PATIENCE).await;
        Ok::<_, Error>(())
    };
    progress.step("stop the processes of the other binary", stop).await
}

fn are_equal(first: impl Read, second: impl Read) -> io::Result<bool> {
    let (mut first, mut second) = (BufReader::new(first), BufReader::new(second));
    loop {
        let (left, right) = (first.fill_buf()?, second.fill_buf()?);
        let count = left.len().min(right.len());
        if count == 0 || left[..count] != right[..count] {
            return Ok(left.len() == right.len() && count == 0);
        }
        first.consume(count);
        second.consume(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_contents_of_any_length() {
        let long = vec![7; 20_000];
        let mut changed = long.clone();
        changed[19_999] = 8;
        for (left, right, equal) in [
            (&b""[..], &b""[..], true),
            (b"", b"a", false),
            (b"ab", b"a", false),
            (&long, &long, true),
            (&long, &long[..19_999], false),
            (&long, &changed, false),
        ] {
            assert_eq!(are_equal(left, right).unwrap(), equal, "{} {}", left.len(), right.len());
            // Readers may return less than a buffer at once.
            let slow =
                right.chunks(7).fold(Box::new(io::empty()) as Box<dyn Read>, |all, chunk| {
                    Box::new(all.chain(chunk))
                });
            assert_eq!(are_equal(left, slow).unwrap(), equal);
        }
    }
}
