//! Installs the plugin and its configuration for the container runtime.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use net_core::Cidr;
use serde_json::json;

/// The plugin's name in the configuration, and the name of the link to the binary.
pub const PLUGIN: &str = "windlass-cni";
const FILE: &str = "10-windlass.conflist";

/// The Pod network of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The network's name, also the name of the directory of its leases.
    pub name: String,
    /// The name of the bridge.
    pub bridge: String,
    /// The node's Pod CIDRs, at most one of each family.
    pub subnets: Vec<Cidr>,
    /// The Pod CIDRs of the whole cluster. Traffic between them is not masqueraded.
    pub cluster_cidrs: Vec<Cidr>,
    /// The MTU; 0 for the kernel's default. An overlay needs a smaller one.
    pub mtu: u32,
    /// The directory of the leases.
    pub data_dir: PathBuf,
}

/// An error during the installation, with the file concerned.
#[derive(Debug, thiserror::Error)]
#[error("putting the Pod network in place: {action} {}", path.display())]
pub struct InstallError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The file of the plugin in the directory of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginFile {
    /// A link to the binary.
    Link,
    /// A copy of the binary, for an agent in a Pod, whose files the runtime cannot see.
    Copy,
}

/// Updates the configuration and the plugins. Returns `true` if the configuration changed.
///
/// The configuration is written last, because a runtime that sees it may call the plugin at once. An existing
/// `loopback` plugin of another installation is kept.
pub fn install(
    conf_dir: &Path,
    bin_dir: &Path,
    binary: &Path,
    file: PluginFile,
    network: &Network,
) -> Result<bool, InstallError> {
    create(bin_dir)?;
    match file {
        PluginFile::Link => {
            link(bin_dir, PLUGIN, binary)?;
            link(bin_dir, "loopback", binary)?;
        }
        PluginFile::Copy => {
            copy(bin_dir, binary)?;
            link(bin_dir, "loopback", Path::new(PLUGIN))?;
        }
    }
    configure(conf_dir, network)
}

fn copy(bin_dir: &Path, binary: &Path) -> Result<(), InstallError> {
    let plugin = bin_dir.join(PLUGIN);
    let read = |path: &Path| fs::read(path).map_err(install_error("reading", path));
    if !plugin.exists() || read(&plugin)? != read(binary)? {
        let beside = bin_dir.join(format!(".{PLUGIN}.new"));
        // A running plugin keeps the file that it started from.
        fs::copy(binary, &beside).map_err(install_error("copying the plugin to", &beside))?;
        fs::rename(&beside, &plugin).map_err(install_error("copying the plugin to", &plugin))?;
    }
    Ok(())
}

/// Returns the first configuration of another network, which a runtime might prefer to this one.
pub fn foreign_configuration(conf_dir: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(conf_dir).ok()?.flatten().map(|entry| entry.path());
    let is_read = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default();
        ["conf", "conflist", "json"].iter().any(|ending| extension == *ending)
            && path.file_name().is_some_and(|name| name != FILE)
    };
    entries.filter(is_read).min()
}

fn install_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> InstallError + use<> {
    let path = path.to_owned();
    move |source| InstallError { action, path, source }
}

fn create(directory: &Path) -> Result<(), InstallError> {
    fs::create_dir_all(directory).map_err(install_error("creating", directory))
}

fn link(bin_dir: &Path, name: &str, binary: &Path) -> Result<(), InstallError> {
    let link = bin_dir.join(name);
    let ours = fs::read_link(&link).is_ok_and(|target| target == binary);
    // A dangling link belongs to an installation that has moved.
    if ours || (name == "loopback" && link.exists()) {
        return Ok(());
    }
    let beside = bin_dir.join(format!(".{name}.new"));
    let _ = fs::remove_file(&beside);
    std::os::unix::fs::symlink(binary, &beside).map_err(install_error("linking", &beside))?;
    fs::rename(&beside, &link).map_err(install_error("linking", &link))
}

fn configure(conf_dir: &Path, network: &Network) -> Result<bool, InstallError> {
    create(conf_dir)?;
    let path = conf_dir.join(FILE);
    let text = conflist(network);
    if fs::read_to_string(&path).is_ok_and(|current| current == text) {
        return Ok(false);
    }
    // Runtimes ignore this name, and the rename replaces the file atomically.
    let beside = conf_dir.join(format!(".{FILE}.new"));
    fs::write(&beside, text).map_err(install_error("writing", &beside))?;
    fs::rename(&beside, &path).map_err(install_error("writing", &path))?;
    Ok(true)
}

/// Removes the configuration and the links to `binary`.
pub fn uninstall(conf_dir: &Path, bin_dir: &Path, binary: &Path) -> Result<(), InstallError> {
    let links = [PLUGIN, "loopback"].map(|name| bin_dir.join(name));
    let ours =
        links.into_iter().filter(|link| fs::read_link(link).is_ok_and(|target| target == binary));
    for path in ours.chain([conf_dir.join(FILE)]) {
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(InstallError { action: "removing", path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

fn conflist(network: &Network) -> String {
    let config = json!({
        "cniVersion": "1.0.0",
        "name": network.name,
        "plugins": [{
            "type": PLUGIN,
            "bridge": network.bridge,
            "mtu": network.mtu,
            "subnets": network.subnets,
            "clusterCIDRs": network.cluster_cidrs,
            "dataDir": network.data_dir,
            "capabilities": {"portMappings": true, "bandwidth": true},
        }],
    });
    format!("{config:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn install_copy_copies_plugin_and_finds_foreign_configuration() {
        let root = tempfile::tempdir().unwrap();
        let (conf, bin) = (root.path().join("conf"), root.path().join("bin"));
        let binary = root.path().join("windlass");
        let network = Network {
            name: "windlass".into(),
            bridge: "wl0".into(),
            subnets: vec!["10.244.0.0/24".parse().unwrap()],
            cluster_cidrs: Vec::new(),
            mtu: 1450,
            data_dir: "/var/lib/cni".into(),
        };
        for content in ["one", "two"] {
            fs::write(&binary, content).unwrap();
            install(&conf, &bin, &binary, PluginFile::Copy, &network).unwrap();
            assert_eq!(fs::read_to_string(bin.join(PLUGIN)).unwrap(), content);
            assert_eq!(fs::read_to_string(bin.join("loopback")).unwrap(), content);
        }
        assert_eq!(foreign_configuration(&conf), None);
        fs::write(conf.join("README"), "").unwrap();
        fs::write(conf.join("10-flannel.conflist"), "").unwrap();
        assert_eq!(foreign_configuration(&conf), Some(conf.join("10-flannel.conflist")));
    }

    #[test]
    fn install_is_idempotent_and_uninstall_removes_all() {
        let root = tempfile::tempdir().unwrap();
        let (conf, bin) = (root.path().join("conf"), root.path().join("bin"));
        let binary = root.path().join("windlass");
        fs::write(&binary, "").unwrap();
        let network = Network {
            name: "windlass".into(),
            bridge: "wl0".into(),
            subnets: vec!["10.244.0.0/24".parse().unwrap()],
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            mtu: 0,
            data_dir: "/var/lib/windlass/cni".into(),
        };
        assert!(install(&conf, &bin, &binary, PluginFile::Link, &network).unwrap());
        assert!(!install(&conf, &bin, &binary, PluginFile::Link, &network).unwrap());
        let moved = root.path().join("moved");
        fs::rename(&binary, &moved).unwrap();
        assert!(!install(&conf, &bin, &moved, PluginFile::Link, &network).unwrap());
        for name in [PLUGIN, "loopback"] {
            assert_eq!(fs::read_link(bin.join(name)).unwrap(), moved);
        }
        fs::remove_file(bin.join("loopback")).unwrap();
        fs::write(bin.join("loopback"), "another's").unwrap();
        install(&conf, &bin, &moved, PluginFile::Link, &network).unwrap();
        uninstall(&conf, &bin, &moved).unwrap();
        uninstall(&conf, &bin, &moved).unwrap();
        assert_eq!(fs::read_dir(&conf).unwrap().count(), 0);
        let left: Vec<_> =
            fs::read_dir(&bin).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["loopback"]);
    }
}
