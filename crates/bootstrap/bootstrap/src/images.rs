//! Builds images without a registry: the running binary as each component, and an installed etcd. Read [`Sources`]
//! first.

use std::{
    collections::BTreeMap,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    process::Command,
};

use api_config::kubeadm::{ClusterConfiguration, LocalEtcd};
use bootstrap_core::{
    config::{Facts, default_cluster},
    constants::OWN_REPOSITORY,
    images,
    manifests::EtcdRelease,
    upgrade::parse_version,
};
use oci::{Entry, Image};

use crate::{
    Error,
    error::io,
    host::{self, Host},
};

/// The components of this binary, and the entrypoint of each image.
const COMPONENTS: [(&str, &str); 7] = [
    ("kube-apiserver", "/usr/local/bin/kube-apiserver"),
    ("kube-controller-manager", "/usr/local/bin/kube-controller-manager"),
    ("kube-scheduler", "/usr/local/bin/kube-scheduler"),
    ("kube-proxy", "/usr/local/bin/kube-proxy"),
    ("coredns", "/coredns"),
    ("pause", "/pause"),
    ("windlass", BINARY),
];
const BINARY: &str = "/usr/local/bin/windlass";
/// The program by which kOps' manifests start components.
const RUNNER: &str = "/go-runner";
const ETCD: &str = "etcd";

/// Returns `true` if this name, without repository and tag, is an image that can be built.
pub fn is_component(name: &str) -> bool {
    name == ETCD || COMPONENTS.iter().any(|(component, _)| *component == name)
}

/// Returns the component in an image's name.
fn component(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or(image);
    name.split_once(':').map_or(name, |(name, _)| name)
}

/// The programs that images are built from.
pub struct Sources {
    /// This binary.
    pub binary: PathBuf,
    /// The installed etcd, if any.
    pub etcd: Option<PathBuf>,
    /// The installed `nft`, which the service proxy runs in mode nftables.
    pub nft: Option<PathBuf>,
    /// The installed `iptables`, which the service proxy runs in mode iptables.
    pub iptables: Option<PathBuf>,
}

impl Sources {
    /// Returns this binary and the installed programs that images need.
    pub fn of(host: &Host) -> Result<Self, Error> {
        let own = Path::new("/proc/self/exe");
        Ok(Self {
            binary: std::env::current_exe().map_err(io("find the path of", own))?,
            etcd: host.program(ETCD),
            nft: host.program("nft"),
            iptables: host.program("iptables"),
        })
    }

    /// Builds the image of one component under its full name.
    pub fn image(&self, name: &str) -> Result<Image, Error> {
        let component = component(name);
        if component == ETCD {
            return self.etcd(name);
        }
        let Some((_, entrypoint)) = COMPONENTS.iter().find(|(other, _)| *other == component) else {
            let names: Vec<&str> = COMPONENTS.iter().map(|(name, _)| *name).collect();
            return Err(image_error(
                name,
                format!("images can be built of {} and etcd", names.join(", ")),
            ));
        };
        oci::require_static(&self.binary).map_err(|e| image_error(name, e.to_string()))?;
        // All images have the same files and share one layer, which is imported and unpacked once.
        let mut image = Image::of_binary(name, &self.binary, BINARY, &[entrypoint]);
        let components = COMPONENTS.iter().map(|(_, path)| *path).filter(|path| *path != BINARY);
        for path in components.chain([RUNNER]) {
            image.entries.insert(path.to_owned(), Entry::Link { target: BINARY.to_owned() });
        }
        if let Some(nft) = &self.nft {
            image.entries.extend(program(name, nft, "/usr/sbin/nft")?);
        }
        if let Some(path) = &self.iptables {
            image.entries.extend(iptables(name, path)?);
        }
        Ok(image)
    }

    fn etcd(&self, name: &str) -> Result<Image, Error> {
        let cause = "etcd is not installed here; install it (Debian: apt-get install etcd-server), name it with \
                     `windlass images build etcd --binary PATH`, or bring its image here (windlass images import)";
        let etcd = self.etcd.as_ref().ok_or_else(|| image_error(name, cause.to_owned()))?;
        let version = etcd_version(etcd)?;
        let tag = name.rsplit_once(':').map_or("", |(_, tag)| tag);
        if EtcdRelease::of(tag).is_some() && EtcdRelease::of(tag) != EtcdRelease::of(&version) {
            let cause = format!(
                "the cluster runs etcd {tag} and {} is {version}; install the same minor version, or bring the image \
                 here from another control plane (ctr -n k8s.io images export, windlass images import)",
                etcd.display()
            );
            return Err(image_error(name, cause));
        }
        let mut image = Image {
            name: name.to_owned(),
            entrypoint: vec!["/usr/local/bin/etcd".to_owned()],
            ..Image::default()
        };
        image.env =
            vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        image.entries = program(name, etcd, "/usr/local/bin/etcd")?;
        image.entries.insert("/tmp".to_owned(), Entry::Directory { mode: 0o1777 });
        Ok(image)
    }
}

fn program(image: &str, path: &Path, at: &str) -> Result<BTreeMap<String, Entry>, Error> {
    oci::program(path, at).map_err(|e| image_error(image, e.to_string()))
}

/// Returns the files of iptables: one program with many names, and a plugin for each kind of match and target.
fn iptables(image: &str, path: &Path) -> Result<BTreeMap<String, Entry>, Error> {
    const AT: &str = "/usr/sbin/xtables-multi";
    let mut entries = program(image, path, AT)?;
    for (family, verb) in
        ["iptables", "ip6tables"].iter().flat_map(|f| ["", "-save", "-restore"].map(|v| (f, v)))
    {
        let link = Entry::Link { target: AT.to_owned() };
        entries.insert(format!("/usr/sbin/{family}{verb}"), link);
    }
    // iptables loads plugins from the directory beside its shared library.
    let library = entries.keys().find(|name| name.contains("/libxtables.so"));
    let real = library.and_then(|library| std::fs::canonicalize(library).ok());
    if let Some(directory) = real.as_deref().and_then(Path::parent) {
        let plugins = oci::plugins(path, &directory.join("xtables"));
        entries.extend(plugins.map_err(|e| image_error(image, e.to_string()))?);
    }
    Ok(entries)
}

fn image_error(image: &str, cause: String) -> Error {
    Error::Runtime { operation: "pack image", subject: image.to_owned(), cause }
}

/// Returns the version of an etcd program, such as `3.4.23`.
pub fn etcd_version(program: &Path) -> Result<String, Error> {
    let failed = |cause: String| Error::Runtime {
        operation: "ask the version of",
        subject: program.display().to_string(),
        cause,
    };
    let output =
        Command::new(program).arg("--version").output().map_err(|e| failed(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version:")).map(str::trim);
    let version =
        version.ok_or_else(|| failed("it does not say `etcd Version:`; is it etcd?".to_owned()))?;
    match EtcdRelease::of(version) {
        Some(_) => Ok(version.to_owned()),
        None => Err(failed(format!("etcd {version} is not supported; use 3.4 to 3.6"))),
    }
}

/// Sets the etcd image tag to the version of the installed etcd, if the cluster uses our own images. The tag selects
/// flags and probes of the manifest. A configured image is kept.
pub(crate) fn choose_etcd(cluster: &mut ClusterConfiguration, host: &Host) {
    let Some(local) = undecided_etcd(cluster) else { return };
    // Preflight reports a missing etcd.
    if let Some(version) = host.program(ETCD).and_then(|path| etcd_version(&path).ok()) {
        local.image_tag = format!("{version}-0");
    }
}

/// Sets the etcd image tag to that of the newest etcd among our images in the container runtime, if no etcd is
/// installed: `windlass images import` may have brought it.
pub(crate) async fn choose_imported_etcd(
    cluster: &mut ClusterConfiguration,
    images: impl Future<Output = Result<Vec<String>, Error>>,
) {
    let Some(local) = undecided_etcd(cluster) else { return };
    // Preflight reports a runtime that does not answer.
    let images = images.await.unwrap_or_default();
    if let Some(tag) = newest_etcd(&images) {
        local.image_tag = tag.to_owned();
    }
}

/// Returns the settings of a local etcd whose image is one of ours with a tag that is still to be chosen.
fn undecided_etcd(cluster: &mut ClusterConfiguration) -> Option<&mut LocalEtcd> {
    let local = cluster.etcd.local.as_mut()?;
    let is_undecided = cluster.image_repository == OWN_REPOSITORY
        && local.image_tag.is_empty()
        && local.image_repository.is_empty();
    is_undecided.then_some(local)
}

/// Returns the tag of the newest supported etcd among our images.
fn newest_etcd(images: &[String]) -> Option<&str> {
    let prefix = format!("{OWN_REPOSITORY}/{ETCD}:");
    let tags = images.iter().filter_map(|image| image.strip_prefix(&prefix));
    tags.filter(|tag| EtcdRelease::of(tag).is_some())
        .max_by_key(|tag| parse_version(tag.trim_end_matches("-0")).ok())
}

/// Clears the etcd image tag that [`choose_etcd`] has set, if the installed etcd is newer.
pub(crate) fn forget_older_etcd(cluster: &mut ClusterConfiguration, host: &Host) {
    if cluster.image_repository != OWN_REPOSITORY {
        return;
    }
    let Some(local) = cluster.etcd.local.as_mut().filter(|l| l.image_repository.is_empty()) else {
        return;
    };
    let installed = host.program(ETCD).and_then(|path| etcd_version(&path).ok());
    let version = |text: &str| parse_version(text.trim_end_matches("-0")).ok();
    if let (Some(installed), Some(current)) =
        (installed.as_deref().and_then(version), version(&local.image_tag))
        && installed > current
    {
        local.image_tag.clear();
    }
}

/// Returns the full image names of a default cluster in a repository, or that of one component.
pub fn names(
    repository: &str,
    sources: &Sources,
    only: Option<&str>,
) -> Result<Vec<String>, Error> {
    let mut cluster =
        ClusterConfiguration { image_repository: repository.to_owned(), ..Default::default() };
    default_cluster(&mut cluster, &Facts::default());
    if only.is_none_or(|name| name == ETCD)
        && let (Some(local), Some(etcd)) = (cluster.etcd.local.as_mut(), &sources.etcd)
    {
        local.image_tag = format!("{}-0", etcd_version(etcd)?);
    }
    let mut all = images::all(&cluster);
    let windlass = images::windlass(&cluster);
    if !all.contains(&windlass) {
        all.push(windlass);
    }
    // A machine without etcd can still build all other images.
    all.retain(|name| match only {
        Some(only) => component(name) == only,
        None => component(name) != ETCD || sources.etcd.is_some(),
    });
    Ok(all)
}

/// Builds images and imports them into containerd. Blocks.
pub fn build(sources: &Sources, names: &[String], endpoint: &str) -> Result<(), Error> {
    let parent = std::env::temp_dir();
    let archive = tempfile::Builder::new()
        .prefix("windlass-images-")
        .suffix(".tar")
        .tempfile()
        .map_err(io("make a file in", &parent))?;
    write(sources, names, archive.path())?;
    let socket = host::socket_path(endpoint);
    oci::import(socket, archive.path()).map_err(|e| Error::Runtime {
        operation: "import",
        subject: names.join(", "),
        cause: e.to_string(),
    })
}

/// Builds images into an archive.
pub fn write(sources: &Sources, names: &[String], archive: &Path) -> Result<(), Error> {
    let images: Vec<Image> =
        names.iter().map(|name| sources.image(name)).collect::<Result<_, _>>()?;
    let file = File::create(archive).map_err(io("write", archive))?;
    oci::write_archive(&images, BufWriter::new(file))
        .map_err(|e| image_error(&names.join(", "), e.to_string()))
}

/// Returns the images that every node of a cluster runs, without those of the control plane.
pub fn of_node(cluster: &ClusterConfiguration) -> Vec<String> {
    let control_plane = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", ETCD];
    let mut all = images::all(cluster);
    all.retain(|image| !control_plane.contains(&component(image)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A static program.
    const BUSYBOX: &str = "/bin/busybox";

    fn sources() -> Sources {
        Sources { binary: BUSYBOX.into(), etcd: None, nft: None, iptables: None }
    }

    #[test]
    fn rejects_dynamic_binary_as_program_of_image() {
        let own = std::env::current_exe().unwrap();
        let sources = Sources { binary: own.clone(), ..sources() };
        let error = sources.image("windlass.local/pause:3.10.2").unwrap_err().to_string();
        let cause = format!("{} is linked dynamically", own.display());
        assert!(error.contains("pause") && error.contains(&cause), "{error}");
    }

    #[test]
    fn images_share_files_and_differ_in_entrypoint() {
        let server = sources().image("windlass.local/kube-apiserver:v1.36.2").unwrap();
        let dns = sources().image("registry.k8s.io/coredns/coredns:v1.14.2").unwrap();
        assert_eq!(server.entrypoint, ["/usr/local/bin/kube-apiserver"]);
        assert_eq!(dns.entrypoint, ["/coredns"]);
        assert!(
            server.entries.keys().eq(dns.entries.keys()) && dns.entries.contains_key("/coredns")
        );
        assert!(
            matches!(&server.entries["/go-runner"], Entry::Link { target } if target == BINARY)
        );
        let error = sources().image("windlass.local/nginx:1").unwrap_err().to_string();
        assert!(error.contains("nginx") && error.contains("kube-scheduler"), "{error}");
        let error = sources().image("windlass.local/etcd:3.4.23-0").unwrap_err().to_string();
        assert!(error.contains("not installed") && error.contains("images build etcd"), "{error}");
    }

    #[test]
    fn image_has_iptables_names_and_plugins() {
        let Some(path) = Host::default().program("iptables") else {
            eprintln!("skipped: iptables is not installed");
            return;
        };
        let sources = Sources { iptables: Some(path), ..sources() };
        let image = sources.image("windlass.local/kube-proxy:v1.36.2").unwrap();
        assert!(matches!(image.entries["/usr/sbin/ip6tables-restore"], Entry::Link { .. }));
        for plugin in ["libxt_statistic.so", "libxt_recent.so", "libm.so"] {
            assert!(image.entries.keys().any(|name| name.contains(plugin)), "{plugin}");
        }
    }

    #[test]
    fn finds_newest_imported_etcd() {
        let images = [
            "windlass.local/etcd:3.5.9-0",
            "windlass.local/etcd:3.5.30-0",
            "windlass.local/etcd:2.3.0",
            "windlass.local/etcd:latest",
            "registry.k8s.io/etcd:3.6.8-0",
        ];
        assert_eq!(newest_etcd(&images.map(str::to_owned)), Some("3.5.30-0"));
        assert_eq!(
            newest_etcd(&images[2..].iter().map(ToString::to_string).collect::<Vec<_>>()),
            None
        );
    }

    #[test]
    fn recognises_own_images_by_name() {
        use bootstrap_core::images::is_own;
        assert!(is_own("windlass.local/pause:3.10.2"));
        assert!(!is_own("windlass.localhost/pause:1") && !is_own("registry.k8s.io/pause:3.10.2"));
        assert_eq!(component("host:5000/a/kube-proxy:v1"), "kube-proxy");
        assert_eq!(component("etcd"), "etcd");
    }

    /// Creates a program that reports this version of etcd.
    fn etcd(dir: &Path, version: &str) -> PathBuf {
        let path = dir.join("usr/bin/etcd");
        testkit::write_script(&path, &format!("echo etcd Version: {version}"));
        path
    }

    #[test]
    fn chooses_installed_etcd_by_default() {
        let dir = tempfile::tempdir().unwrap();
        etcd(dir.path(), "3.4.23");
        let host = Host::under(dir.path());
        let mut cluster = ClusterConfiguration::default();
        cluster.etcd.local = Some(Default::default());
        choose_etcd(&mut cluster, &host);
        assert_eq!(
            cluster.etcd.local.as_ref().unwrap().image_tag,
            "",
            "another repository has its own"
        );
        cluster.image_repository = OWN_REPOSITORY.to_owned();
        choose_etcd(&mut cluster, &host);
        assert_eq!(images::etcd(&cluster), "windlass.local/etcd:3.4.23-0");
    }

    #[test]
    fn rejects_etcd_of_other_minor_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = etcd(dir.path(), "3.5.30");
        let sources = Sources { etcd: Some(path.clone()), ..sources() };
        let error = sources.image("windlass.local/etcd:3.4.23-0").unwrap_err().to_string();
        assert!(error.contains("3.4.23") && error.contains("3.5.30"), "{error}");
        etcd(dir.path(), "4.0.0");
        assert!(etcd_version(&path).unwrap_err().to_string().contains("3.4 to 3.6"));
    }
}
