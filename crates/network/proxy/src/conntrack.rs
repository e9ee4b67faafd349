//! The kernel's settings of connection tracking. The proxy writes them once, after its first rules have loaded the
//! kernel's module.

use std::{
    io,
    path::{Path, PathBuf},
};

use api_config::{GoDuration, proxy};

/// The limit of entries that the number of cores gives.
const MAX_SCALED: i64 = 1 << 20;
/// Upstream's default settings.
const MAX_PER_CORE: i32 = 32 << 10;
const MIN: i32 = 128 << 10;
const ESTABLISHED_SECONDS: i64 = 24 * 60 * 60;
const CLOSE_WAIT_SECONDS: i64 = 60 * 60;

/// The file of the hash table's size, which must be a quarter of the limit or more.
const HASH_SIZE: &str = "sys/module/nf_conntrack/parameters/hashsize";
/// The directory of the other files.
const SYSCTLS: &str = "proc/sys/net/netfilter";
const LIMIT: &str = "nf_conntrack_max";

/// The values to write, by the names of their files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conntrack(Vec<(&'static str, i64)>);

impl Conntrack {
    /// Returns the settings for a machine with this number of cores. Zero leaves the kernel's value.
    pub(crate) fn new(config: &proxy::Conntrack, cores: usize) -> Self {
        let seconds = |duration: GoDuration| duration.to_std().as_secs().try_into().unwrap_or(0);
        let or = |duration: Option<GoDuration>, default| duration.map_or(default, seconds);
        let values = [
            (LIMIT, limit(config, cores)),
            (
                "nf_conntrack_tcp_timeout_established",
                or(config.tcp_established_timeout, ESTABLISHED_SECONDS),
            ),
            (
                "nf_conntrack_tcp_timeout_close_wait",
                or(config.tcp_close_wait_timeout, CLOSE_WAIT_SECONDS),
            ),
            ("nf_conntrack_tcp_be_liberal", config.tcp_be_liberal.into()),
            ("nf_conntrack_udp_timeout", seconds(config.udp_timeout)),
            ("nf_conntrack_udp_timeout_stream", seconds(config.udp_stream_timeout)),
        ];
        Self(values.into_iter().filter(|(_, value)| *value > 0).collect())
    }

    /// Writes the values that differ below `root`, which is `/`. Logs those that the kernel refuses: only the host's
    /// network namespace may change the limit.
    pub(crate) fn write(&self, root: &Path) {
        for (name, value) in &self.0 {
            let file = root.join(SYSCTLS).join(name);
            set(file, *value, |current| current != *value);
            if *name == LIMIT {
                let size = value / 4;
                set(root.join(HASH_SIZE), size, |current| current < size);
            }
        }
    }
}

/// Returns the limit of entries, or zero to leave the kernel's.
fn limit(config: &proxy::Conntrack, cores: usize) -> i64 {
    let per_core = i64::from(config.max_per_core.unwrap_or(MAX_PER_CORE));
    if per_core <= 0 {
        return 0;
    }
    let scaled = per_core.saturating_mul(cores.try_into().unwrap_or(i64::MAX));
    let min = i64::from(config.min.unwrap_or(MIN));
    if scaled > MAX_SCALED { MAX_SCALED } else { scaled.max(min) }
}

fn set(file: PathBuf, value: i64, is_due: impl FnOnce(i64) -> bool) {
    let write = || {
        let current = std::fs::read_to_string(&file)?;
        let current = current.trim().parse().map_err(io::Error::other)?;
        if is_due(current) { std::fs::write(&file, value.to_string()) } else { Ok(()) }
    };
    if let Err(error) = write() {
        let file = file.display();
        tracing::warn!(%error, "connection tracking keeps its setting: writing {value} to {file}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_differing_values_and_raises_hash_table() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("proc/sys/net/netfilter/nf_conntrack_max", "65536\n", "131072"),
            ("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established", "86400\n", "86400\n"),
            ("proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait", "60\n", "3600"),
            ("proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "0\n", "0\n"),
            (HASH_SIZE, "16384\n", "32768"),
        ];
        for (file, before, _) in files {
            let file = dir.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, before).unwrap();
        }
        Conntrack::new(&proxy::Conntrack::default(), 2).write(dir.path());
        for (file, _, after) in files {
            assert_eq!(std::fs::read_to_string(dir.path().join(file)).unwrap(), after, "{file}");
        }
    }

    #[test]
    fn scales_limit_with_cores_unless_it_is_off() {
        let with = |max_per_core, min, cores| {
            limit(&proxy::Conntrack { max_per_core, min, ..Default::default() }, cores)
        };
        assert_eq!(with(None, None, 2), 131_072);
        assert_eq!(with(None, None, 8), 262_144);
        assert_eq!(with(None, None, 256), 1 << 20);
        assert_eq!(with(Some(1000), Some(0), 2), 2000);
        assert_eq!(with(Some(0), None, 2), 0);
        let off = proxy::Conntrack {
            max_per_core: Some(0),
            tcp_established_timeout: Some(GoDuration::default()),
            tcp_close_wait_timeout: Some(GoDuration::default()),
            ..Default::default()
        };
        assert_eq!(Conntrack::new(&off, 2), Conntrack(vec![]));
    }
}
