//! Facts about this machine. All files are read below a root, so that tests can use a directory.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    net::{IpAddr, UdpSocket},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};
use bootstrap_core::{config::Facts, manifests::CA_DIRECTORIES};
use data_encoding::HEXLOWER;

/// The root below which machines that bootstrap commands set up keep their timeline.
pub(crate) const TIMELINE_ROOT: &str = "/var/lib/windlass";

/// The sockets of containerd, CRI-O and cri-dockerd.
const CRI_SOCKETS: [&str; 3] =
    ["/var/run/containerd/containerd.sock", "/var/run/crio/crio.sock", "/var/run/cri-dockerd.sock"];

/// The machine, or a directory with the files of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self::under("/")
    }
}

impl Host {
    /// Returns a machine whose files are below `root`; `/` for this one.
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the path below the root of an absolute path on the machine.
    pub fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// Reads a text file; `None` if it is missing or not UTF-8.
    pub fn read(&self, absolute: &str) -> Option<String> {
        fs::read_to_string(self.path(absolute)).ok()
    }

    /// Returns the source address of this machine's default route. Connecting a datagram socket only looks up the route
    /// and sends nothing.
    pub fn default_address() -> Option<IpAddr> {
        [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")].into_iter().find_map(
            |(own, far)| {
                let socket = UdpSocket::bind(own).ok()?;
                socket.connect(far).ok()?;
                let ip = socket.local_addr().ok()?.ip();
                (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
            },
        )
    }

    /// Returns the first global address of the loopback interface.
    fn loopback_address() -> Option<IpAddr> {
        let all = nix::ifaddrs::getifaddrs().ok()?;
        let addresses =
            all.filter(|address| address.interface_name == "lo").filter_map(|address| {
                let address = address.address?;
                let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
            });
        addresses.into_iter().find(|ip| bootstrap_core::net::is_global_unicast(*ip))
    }

    /// Returns the sockets of the known container runtimes that exist, as URLs.
    fn cri_sockets(&self) -> Vec<String> {
        let exists = |path: &&&str| {
            fs::metadata(self.path(path)).is_ok_and(|meta| meta.file_type().is_socket())
        };
        CRI_SOCKETS.iter().filter(exists).map(|path| format!("unix://{path}")).collect()
    }

    /// Returns the existing directories of trusted certificates.
    pub fn ca_directories(&self) -> Vec<String> {
        CA_DIRECTORIES.into_iter().filter(|d| self.path(d).is_dir()).map(str::to_owned).collect()
    }

    /// Returns `true` if systemd runs, by the test of sd_booted(3).
    pub(crate) fn has_systemd(&self) -> bool {
        self.path("/run/systemd/system").is_dir()
    }

    /// Returns `true` if systemd-resolved is the resolver and lists the upstream resolvers in its own file.
    pub(crate) fn has_systemd_resolved(&self) -> bool {
        self.path("/run/systemd/resolve/resolv.conf").is_file()
            && self
                .read("/etc/resolv.conf")
                .is_some_and(|text| text.lines().any(|l| l.trim() == "nameserver 127.0.0.53"))
    }

    /// Returns the facts that configuration defaults depend on. `image_repository` is the default repository.
    pub fn facts(&self, image_repository: &str) -> Facts {
        Facts {
            hostname: rt::node_name(),
            address: Self::default_address(),
            loopback_address: Self::loopback_address(),
            cri_sockets: self.cri_sockets(),
            image_repository: image_repository.to_owned(),
            systemd_resolved: self.has_systemd_resolved(),
            cgroup_driver: if self.has_systemd() { "systemd" } else { "cgroupfs" }.to_owned(),
            ..Facts::default()
        }
    }

    /// Finds a program on the search path.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .into_iter()
            .map(|dir| self.path(dir).join(name))
            .find(|path| path.is_file())
    }
}

/// Returns the proxy settings of an environment, sorted by name.
pub fn proxy_env(vars: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
    let mut variables: Vec<_> = vars
        .into_iter()
        .filter(|(name, value)| name.to_ascii_lowercase().ends_with("_proxy") && !value.is_empty())
        .collect();
    variables.sort();
    variables
}

/// Returns the socket path of a runtime endpoint such as `unix:///run/containerd/containerd.sock`.
pub fn socket_path(endpoint: &str) -> &Path {
    Path::new(endpoint.strip_prefix("unix://").unwrap_or(endpoint))
}

/// Returns the SHA-256 sum of a file in hexadecimal. The file may be larger than memory.
pub fn file_digest(path: &Path) -> io::Result<String> {
    let (mut file, mut sum, mut buffer) =
        (File::open(path)?, Context::new(&SHA256), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(HEXLOWER.encode(sum.finish().as_ref())),
            read => sum.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_host_files_below_root() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::under(dir.path());
        for path in ["etc/ca-certificates", "run/systemd/system", "run/systemd/resolve", "usr/bin"]
        {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("etc/resolv.conf"), "nameserver 127.0.0.53\n").unwrap();
        fs::write(dir.path().join("run/systemd/resolve/resolv.conf"), "nameserver 10.0.0.1\n")
            .unwrap();
        fs::write(dir.path().join("usr/bin/mount"), "").unwrap();
        let facts = host.facts("r");
        assert_eq!((facts.cgroup_driver.as_str(), facts.systemd_resolved), ("systemd", true));
        assert_eq!(host.ca_directories(), ["/etc/ca-certificates"]);
        assert!(host.program("mount").is_some() && host.program("losetup").is_none());
    }

    #[test]
    fn finds_proxy_variables_in_either_case() {
        let vars = [("HTTP_PROXY", "a"), ("no_proxy", "b"), ("HTTPS_PROXY", ""), ("PATH", "c")];
        let found = proxy_env(vars.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(
            found,
            [("HTTP_PROXY".to_owned(), "a".to_owned()), ("no_proxy".to_owned(), "b".to_owned())]
        );
    }
}
