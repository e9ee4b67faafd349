//! The inputs of a machine's tasks, and questions about them.

use std::{collections::BTreeMap, str::FromStr};

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::task::{Asset, Certificate, CertificateUse, Content, File, Kubeconfig, Task, Tasks};
use crate::{error::Error, version::Version};

/// The distributions whose machines are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    Debian,
    Ubuntu,
    Flatcar,
}

impl Distribution {
    /// Parses the file `os-release` of a machine. Other distributions are rejected by name.
    pub fn parse(os_release: &str) -> Result<Self, Error> {
        let id = os_release.lines().find_map(|line| line.strip_prefix("ID="));
        match id.map(|id| id.trim_matches(['"', '\''])) {
            Some("debian") => Ok(Self::Debian),
            Some("ubuntu") => Ok(Self::Ubuntu),
            Some("flatcar") => Ok(Self::Flatcar),
            other => Err(Error::Unsupported {
                what: format!("the distribution {:?}", other.unwrap_or_default()),
                remedy: "use Debian, Ubuntu or Flatcar",
            }),
        }
    }

    /// Reports whether the distribution has Debian's packages.
    pub(super) fn has_packages(self) -> bool {
        self != Self::Flatcar
    }

    /// Returns the users for whom kubectl may be configured, the first existing one.
    fn users(self) -> &'static [&'static str] {
        match self {
            Self::Debian => &["admin", "root"],
            Self::Ubuntu => &["ubuntu", "root"],
            Self::Flatcar => &["core"],
        }
    }
}

/// The facts about a machine that its configuration depends on.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// The distribution.
    pub distribution: Distribution,
    /// The architecture in Go's words, such as `amd64`.
    pub architecture: String,
    /// The host name.
    pub hostname: String,
    /// The addresses of the host name.
    pub addresses: Vec<String>,
    /// `true` if systemd-resolved has written a file with the name servers.
    pub has_resolved: bool,
    /// Users with their groups and home directories.
    pub users: Vec<LocalUser>,
    /// `true` if the machine only prepares itself for a warm pool.
    pub is_warming: bool,
}

/// A user of a machine.
#[derive(Clone, Debug)]
pub struct LocalUser {
    /// The user name.
    pub name: String,
    /// The name of the user's group.
    pub group: String,
    /// The home directory.
    pub home: String,
}

/// A certificate with its private key, in PEM.
#[derive(Clone, Debug, Default)]
pub struct Keypair {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// The inputs of a machine's tasks.
#[derive(Clone, Debug)]
pub struct MachineInputs {
    /// The boot configuration.
    pub boot: Value,
    /// The node configuration.
    pub config: Value,
    /// The machine.
    pub machine: MachineFacts,
    /// The key pairs of control planes, by keyset and ID.
    pub keypairs: BTreeMap<String, BTreeMap<String, Keypair>>,
    /// The files of the state store that the node configuration names.
    pub files: BTreeMap<String, String>,
    /// The secrets of the state store, by name.
    pub secrets: BTreeMap<String, String>,
    /// The downloaded files and members of archives.
    pub assets: Vec<Asset>,
}

/// The inputs, with what follows from them.
pub(super) struct Context<'a> {
    pub(super) inputs: &'a MachineInputs,
    pub(super) config: &'a Value,
    pub(super) boot: &'a Value,
    pub(super) distribution: Distribution,
    pub(super) control_plane: bool,
    pub(super) has_api_server: bool,
    pub(super) version: Version,
}

/// The directory of the components' keys.
pub(super) const SRV: &str = "/srv/kubernetes";
/// The keyset of the cluster's authority.
pub(super) const CA: &str = "kubernetes-ca";
/// The directory of static Pods.
pub(super) const MANIFESTS: &str = "/etc/kubernetes/manifests";
pub(super) const KUBELET_UNIT: &str = "kubelet.service";

impl<'a> Context<'a> {
    pub(super) fn new(inputs: &'a MachineInputs) -> Result<Self, Error> {
        let role = inputs.boot.text("InstanceGroupRole");
        let control_plane = role == "ControlPlane";
        let version = inputs.config.text("KubernetesVersion");
        // A version may be the address of a release.
        let version = version.rsplit('/').next().unwrap_or(version);
        Ok(Self {
            inputs,
            config: &inputs.config,
            boot: &inputs.boot,
            distribution: inputs.machine.distribution,
            control_plane,
            has_api_server: control_plane || role == "APIServer",
            version: Version::from_str(version)?,
        })
    }

    pub(super) fn cluster(&self) -> &str {
        self.config.text("ClusterName")
    }

    pub(super) fn cloud(&self) -> &str {
        self.boot.text("CloudProvider")
    }

    pub(super) fn api_name(&self) -> String {
        format!("api.internal.{}", self.cluster())
    }

    pub(super) fn is_ipv6_only(&self) -> bool {
        self.config.text("Networking.nonMasqueradeCIDR").contains(':')
    }

    pub(super) fn publishes_dns(&self) -> bool {
        !self.config.flag("usesNoneDNS") && !self.config.flag("usesLegacyGossip")
    }

    /// Returns the trusted certificates of a keyset.
    pub(super) fn authorities(&self, keyset: &str) -> &str {
        self.config.text(["CAs", keyset].as_slice())
    }

    /// Returns the ID of the key pair that the machine uses.
    pub(super) fn keypair_id(&self, keyset: &str) -> &str {
        self.config.text(["KeypairIDs", keyset].as_slice())
    }

    /// Returns the directory of programs.
    pub(super) fn programs(&self) -> &'static str {
        match self.distribution {
            Distribution::Flatcar => "/opt/kubernetes/bin",
            _ => "/usr/local/bin",
        }
    }

    /// Returns the directory of programs for users.
    pub(super) fn user_programs(&self) -> &'static str {
        match self.distribution {
            Distribution::Flatcar => "/opt/kops/bin",
            _ => "/usr/local/bin",
        }
    }

    /// Returns the directory of volume plugins.
    pub(super) fn volume_plugins(&self) -> String {
        match (self.config.text("KubeletConfig.volumePluginDirectory"), self.distribution) {
            ("", Distribution::Flatcar) => "/var/lib/kubelet/volumeplugins/".to_owned(),
            ("", _) => "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".to_owned(),
            (own, _) => own.to_owned(),
        }
    }

    /// Returns an image for the machine's architecture.
    pub(super) fn image(&self, image: &str) -> String {
        let architecture = &self.inputs.machine.architecture;
        image.replacen("-amd64", &format!("-{architecture}"), 1)
    }

    /// Returns the downloaded file with a name.
    pub(super) fn asset(&self, name: &str) -> Result<Asset, Error> {
        let mut found = self.inputs.assets.iter().filter(|asset| asset.key == name);
        match (found.next(), found.next()) {
            (Some(asset), None) => Ok(asset.clone()),
            (None, _) => Err(Error::Unknown {
                what: "downloaded file",
                name: name.to_owned(),
                remedy: "the node configuration's Assets must contain it",
            }),
            (Some(_), Some(_)) => Err(Error::value(
                "Assets",
                name,
                "is the name of several downloads: remove one of them",
            )),
        }
    }

    /// Returns a key pair that the node configuration names.
    pub(super) fn keypair(&self, keyset: &str) -> Result<&'a Keypair, Error> {
        let id = self.keypair_id(keyset);
        let found = self.inputs.keypairs.get(keyset).and_then(|keys| keys.get(id));
        found.ok_or_else(|| Error::Unknown {
            what: "key pair",
            name: format!("{keyset}/{id}"),
            remedy: "run kops update cluster, which stores it",
        })
    }

    /// Returns a file of the state store that the node configuration names.
    pub(super) fn stored(&self, path: &str) -> Result<&'a str, Error> {
        let found = self.inputs.files.get(path).map(String::as_str);
        found.ok_or_else(|| Error::Unknown {
            what: "file of the state store",
            name: path.to_owned(),
            remedy: "run kops update cluster, which stores it",
        })
    }

    /// Returns a certificate of the cluster's authority.
    pub(super) fn certificate(
        &self,
        name: &str,
        usage: CertificateUse,
        common_name: &str,
    ) -> Certificate {
        Certificate {
            name: name.to_owned(),
            signer: CA.to_owned(),
            keypair: self.keypair_id(CA).to_owned(),
            usage,
            common_name: common_name.to_owned(),
            organizations: Vec::new(),
            names: Vec::new(),
            with_root: false,
        }
    }

    /// Adds a certificate and a kubeconfig with it. Returns the content of its file.
    pub(super) fn kubeconfig(
        &self,
        tasks: &mut Tasks,
        name: &str,
        common_name: &str,
        organizations: &[&str],
    ) -> Result<Content, Error> {
        let mut certificate = self.certificate(name, CertificateUse::Client, common_name);
        certificate.organizations = organizations.iter().map(|&name| name.to_owned()).collect();
        tasks.add(Task::Certificate(certificate))?;
        let server = if self.has_api_server { "127.0.0.1".to_owned() } else { self.api_name() };
        let server = format!("https://{server}");
        tasks.add(Task::Kubeconfig(Kubeconfig { name: name.to_owned(), server }))?;
        Ok(Content::Kubeconfig(name.to_owned()))
    }

    /// Adds the file of a kubeconfig.
    pub(super) fn kubeconfig_file(
        &self,
        tasks: &mut Tasks,
        path: &str,
        content: Content,
        before: &[&str],
    ) -> Result<(), Error> {
        tasks.add(Task::File(File {
            path: path.to_owned(),
            content: Some(content),
            mode: Some("0400".to_owned()),
            before_services: before.iter().map(|&unit| unit.to_owned()).collect(),
            ..File::default()
        }))
    }

    /// Adds the files of a key pair: its private key, and its certificate if `with_certificate`.
    pub(super) fn keypair_files(
        &self,
        tasks: &mut Tasks,
        keyset: &str,
        path: &str,
        owner: Option<&str>,
        with_certificate: bool,
    ) -> Result<(), Error> {
        let pair = self.keypair(keyset)?;
        let mut files = vec![("key", &pair.key)];
        if with_certificate {
            files.push(("crt", &pair.certificate));
        }
        for (end, text) in files {
            tasks.add(Task::File(File {
                path: format!("{path}.{end}"),
                content: Some(Content::Text(format!("{}\n", text.trim_end()))),
                mode: Some("0600".to_owned()),
                owner: owner.map(str::to_owned),
                ..File::default()
            }))?;
        }
        Ok(())
    }

    /// Returns the variables by which programs find the proxy.
    pub(super) fn proxy_environment(&self) -> Vec<Value> {
        let Some(proxy) = self.config.opt_at("Networking.egressProxy") else { return Vec::new() };
        let host = proxy.text("httpProxy.host");
        let url = match proxy.opt_int("httpProxy.port") {
            Some(port) if port != 0 => format!("http://{host}:{port}"),
            _ => format!("http://{host}"),
        };
        let excludes = proxy.text("excludes");
        [
            ("http_proxy", url.as_str()),
            ("https_proxy", &url),
            ("NO_PROXY", excludes),
            ("no_proxy", excludes),
        ]
        .map(|(name, value)| json!({"name": name, "value": value}))
        .into()
    }

    /// Returns the user for whom kubectl is configured.
    pub(super) fn admin(&self) -> Option<&'a LocalUser> {
        let users = &self.inputs.machine.users;
        let names = self.distribution.users().iter();
        names.flat_map(|name| users.iter().find(|user| user.name == *name)).next()
    }
}
