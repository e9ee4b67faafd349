//! `windlass metal enroll`: joins the machines of a group to a cluster.

use std::path::PathBuf;

use api_config::{
    Kubeconfig, KubeletConfiguration,
    kubeadm::{ClusterConfiguration, Networking},
    yaml,
};
use api_meta::Tree as _;
use bootstrap_core::{
    config::{Facts, default_kubelet},
    constants,
};
use client::{Client, Resource};
use netboot::matchbox::{Boot, CLUSTER, Group, Kind, NAMES, Profile, Store, StoreError, parse_mac};
use serde_json::{Map, Value};

use crate::plan::{self, Target};

/// The flags of `metal enroll`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The group whose machines join; created if the store has no group of this name
    pub group: String,
    /// The kubeconfig of a user that may create ClusterRoleBindings
    #[arg(long, default_value = "/etc/kubernetes/admin.conf")]
    pub kubeconfig: PathBuf,
    /// Path to the data directory
    #[arg(long, env = "MATCHBOX_DATA_PATH", default_value = "/var/lib/matchbox")]
    pub data_path: PathBuf,
    /// The URL of the API server for the machines [default: the kubeconfig's]
    #[arg(long)]
    pub server: Option<String>,
    /// A machine of the group: MAC or MAC=NODE; may be given several times
    #[arg(long)]
    pub mac: Vec<String>,
    /// The group's profile; created from --image, or from --kernel and --initrd, if the store does not have it
    #[arg(long)]
    pub profile: Option<String>,
    /// The path of the node image for a new profile, such as /assets/node; its kernel arguments let machines fetch
    /// their config from --boot-server and report to it
    #[arg(long, requires = "boot_server", conflicts_with_all = ["kernel", "initrd"])]
    pub image: Option<String>,
    /// The URL of `metal serve` for the machines: http://ADDRESS:PORT, or https:// to protect secrets
    #[arg(long, value_name = "URL", requires = "image")]
    pub boot_server: Option<String>,
    /// The disk to which machines of --image install themselves; without it they run from memory
    #[arg(long, value_name = "DISK", requires = "image")]
    pub install: Option<String>,
    /// The kernel of a new profile
    #[arg(long)]
    pub kernel: Option<String>,
    /// An initrd of a new profile; may be given several times
    #[arg(long)]
    pub initrd: Vec<String>,
    /// A kernel argument of a new profile; may be given several times
    #[arg(long, allow_hyphen_values = true)]
    pub arg: Vec<String>,
    /// Machines of a new profile boot from their disk once they are installed
    #[arg(long)]
    pub install_once: bool,
}

/// The errors of enrolment. Changes made before the error remain; the command can be repeated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a valid group name; use at most 50 lower-case letters, digits and -")]
    GroupName(String),
    #[error("--mac {0:?}: write MAC or MAC=NODE")]
    Mac(String),
    #[error("group {0:?} does not exist; to create it, give --mac and --profile")]
    NoGroup(String),
    #[error("profile {0:?} does not exist; to create it, give --image or --kernel")]
    NoProfile(String),
    #[error(
        "profile {profile:?} has the Ignition template {template:?} already; name another profile, or have that \
         template merge {ours:?} and set ignition_id to it by hand"
    )]
    Template { profile: String, template: String, ours: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Config(#[from] api_config::Error),
    #[error("the kubeconfig {} contains no certificate authority, which machines need", .0.display())]
    NoAuthority(PathBuf),
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    #[error("reading the certificate authority: {0}")]
    Authority(#[from] pki::Error),
    #[error("writing {subject} to the cluster: {source}")]
    Api { subject: String, source: client::Error },
    #[error("reading kubelet-config of the cluster: {0}")]
    KubeletConfig(String),
}

/// Writes the store's group, profile and template, and the cluster's role bindings for the machines.
pub async fn run(args: Args) -> Result<(), Error> {
    let store = Store::new(&args.data_path);
    let (group, profile) = entries(&args, &store)?;
    let client = Client::from_kubeconfig_file(&args.kubeconfig, "windlass-metal")?;
    let target = target(&args, &client).await?;
    for object in plan::objects() {
        apply(&client, &object).await?;
    }
    write(&store, group, profile, &target)?;
    println!(
        "group {} joins {}; to boot its machines and approve their certificates, run\n\
         windlass metal serve --kubeconfig {}",
        args.group,
        target.server,
        args.kubeconfig.display()
    );
    Ok(())
}

/// Returns the group and profile without the cluster's metadata. Invalid flags fail before anything is written.
fn entries(args: &Args, store: &Store) -> Result<(Group, Profile), Error> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let name = args.group.as_str();
    if name.is_empty() || name.len() > 50 || !name.bytes().all(plain) || name.starts_with('-') {
        return Err(Error::GroupName(args.group.clone()));
    }
    let mut group = match (store.group_by_id(name), &args.profile) {
        (Ok(mut group), profile) => {
            group.profile = profile.clone().unwrap_or(group.profile);
            group
        }
        (Err(StoreError::Read { .. }), Some(profile)) if !args.mac.is_empty() => {
            Group { id: name.to_owned(), profile: profile.clone(), ..Group::default() }
        }
        (Err(StoreError::Read { .. }), _) => return Err(Error::NoGroup(args.group.clone())),
        (Err(error), _) => return Err(error.into()),
    };
    for text in &args.mac {
        let (mac, node) = text.split_once('=').map_or((text.as_str(), None), |(m, n)| (m, Some(n)));
        let mac = parse_mac(mac).ok_or_else(|| Error::Mac(text.clone()))?;
        group.add_mac(&mac);
        if let Some(node) = node {
            let metadata = group.metadata.get_or_insert_default();
            let names = metadata.entry(NAMES).or_insert_with(|| Value::Object(Map::new()));
            names[mac.as_str()] = node.into();
        }
    }
    let ours = template_name(name);
    let mut profile = match store.profile(&group.profile) {
        Ok(profile) => profile,
        Err(StoreError::Read { .. }) => {
            let none = || Error::NoProfile(group.profile.clone());
            Profile {
                id: group.profile.clone(),
                boot: boot(args).ok_or_else(none)?,
                install_once: args.install_once,
                ..Profile::default()
            }
        }
        Err(error) => return Err(error.into()),
    };
    if !profile.ignition_id.is_empty() && profile.ignition_id != ours {
        let (profile, template) = (profile.id, profile.ignition_id);
        return Err(Error::Template { profile, template, ours });
    }
    profile.ignition_id = ours;
    Ok((group, profile))
}

/// Returns the boot settings of a new profile.
fn boot(args: &Args) -> Option<Boot> {
    if let (Some(image), Some(server)) = (&args.image, &args.boot_server) {
        return Some(plan::boot(image, server, args.install.as_deref(), &args.arg));
    }
    let kernel = args.kernel.clone()?;
    Some(Boot { kernel, initrd: args.initrd.clone(), args: args.arg.clone() })
}

fn template_name(group: &str) -> String {
    format!("windlass-{group}.yaml")
}

/// Returns the cluster's data for the machines.
async fn target(args: &Args, client: &Client) -> Result<Target, Error> {
    let config = Kubeconfig::load(&args.kubeconfig)?;
    let cluster = config.current()?.cluster;
    let ca_pem = cluster.ca_pem()?.ok_or_else(|| Error::NoAuthority(args.kubeconfig.clone()))?;
    let certs = pki::Cert::all_from_pem(&ca_pem)?;
    let pins = certs.iter().map(pki::Cert::pin).collect::<Result<_, _>>()?;
    let server = args.server.clone().unwrap_or_else(|| cluster.server.clone());
    Ok(Target { server, ca_pem, pins, kubelet: kubelet(client).await? })
}

/// Returns the cluster's kubelet configuration, or kubeadm's defaults with this cluster's DNS.
async fn kubelet(client: &Client) -> Result<KubeletConfiguration, Error> {
    let get = async |resource: Resource, name: &str| match client
        .get::<Value>(&resource, "kube-system", name)
        .await
    {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(source) => Err(Error::Api { subject: format!("{} {name}", resource.kind), source }),
    };
    let mut kubelet = match get(Resource::CONFIG_MAPS, "kubelet-config").await? {
        Some(map) => {
            let text = map.text("data.kubelet");
            let decoded = yaml::parse(text).and_then(KubeletConfiguration::from_value);
            decoded.map_err(|error| Error::KubeletConfig(error.to_string()))?.value
        }
        None => {
            let dns = get(Resource::SERVICES, "kube-dns").await?;
            let address = dns.and_then(|s| s.at("spec.clusterIP").as_str().map(str::to_owned));
            KubeletConfiguration {
                cluster_dns: address.into_iter().collect(),
                ..KubeletConfiguration::default()
            }
        }
    };
    let cluster = ClusterConfiguration {
        certificates_dir: constants::DEFAULT_CERTIFICATES_DIR.into(),
        networking: Networking {
            dns_domain: constants::DEFAULT_DNS_DOMAIN.into(),
            service_subnet: constants::DEFAULT_SERVICE_SUBNET.into(),
            ..Networking::default()
        },
        ..ClusterConfiguration::default()
    };
    default_kubelet(&mut kubelet, &cluster, &Facts::default());
    Ok(on_systemd(kubelet))
}

/// Adapts the configuration to machines installed with Ignition, which run systemd and systemd-resolved.
fn on_systemd(mut kubelet: KubeletConfiguration) -> KubeletConfiguration {
    kubelet.cgroup_driver = "systemd".into();
    kubelet.resolv_conf = Some("/run/systemd/resolve/resolv.conf".into());
    if kubelet.container_runtime_endpoint.is_empty() {
        kubelet.container_runtime_endpoint = constants::DEFAULT_CRI_SOCKET.into();
    }
    kubelet
}

/// Creates an object unless it exists. Role bindings never change.
async fn apply(client: &Client, object: &Value) -> Result<(), Error> {
    let resource = &Resource::CLUSTER_ROLE_BINDINGS;
    let created: Result<Value, _> = client.create(resource, "", object).await;
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Ok(()),
        Err(source) => {
            let subject = format!("{} {}", object.text("kind"), object.name());
            Err(Error::Api { subject, source })
        }
    }
}

fn write(store: &Store, mut group: Group, profile: Profile, target: &Target) -> Result<(), Error> {
    let template = target.template()?;
    store.put_template(Kind::Ignition, &profile.ignition_id, template.as_bytes())?;
    store.put_profile(&profile)?;
    group.metadata.get_or_insert_default().insert(CLUSTER.to_owned(), target.metadata());
    store.put_group(&group)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    type Cli = api_config::CommandLine<Args>;

    fn args(text: &str) -> Args {
        Cli::parse_from(text.split(' ')).args
    }

    #[test]
    fn creates_or_extends_entries() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let e = |text: &str| entries(&args(&format!("enroll {text}")), &store);
        assert!(matches!(e("rack"), Err(Error::NoGroup(_))));
        assert!(matches!(e("Rack --mac 52:54:00:00:00:01 --profile n"), Err(Error::GroupName(_))));
        assert!(matches!(e("rack --mac 52 --profile n --kernel k"), Err(Error::Mac(_))));
        assert!(matches!(e("rack --mac 52:54:00:00:00:01 --profile n"), Err(Error::NoProfile(_))));
        let made =
            "rack --mac 52:54:00:00:00:01=one --profile n --kernel k --arg -x --install-once";
        let (group, profile) = e(made).unwrap();
        assert_eq!(group.metadata.as_ref().unwrap()[NAMES]["52:54:00:00:00:01"], "one");
        assert!(profile.install_once && profile.boot.args == ["-x"]);
        assert_eq!(profile.ignition_id, "windlass-rack.yaml");
        store.put_group(&group).unwrap();
        store.put_profile(&profile).unwrap();
        let (again, _) = e("rack --mac 52-54-00-00-00-02").unwrap();
        assert_eq!(again.selector["mac"].to_string(), "52:54:00:00:00:01,52:54:00:00:00:02");
        store.put_profile(&Profile { ignition_id: "own.yaml".into(), ..profile }).unwrap();
        assert!(matches!(e("rack"), Err(Error::Template { .. })));
    }

    #[test]
    fn sets_systemd_cgroup_driver_for_machines() {
        let theirs =
            KubeletConfiguration { cgroup_driver: "cgroupfs".into(), ..Default::default() };
        let ours = on_systemd(theirs);
        assert_eq!(ours.cgroup_driver, "systemd");
        assert_eq!(ours.container_runtime_endpoint, constants::DEFAULT_CRI_SOCKET);
    }

    #[test]
    fn node_image_requires_boot_server() {
        let dir = tempfile::tempdir().unwrap();
        let line = "enroll rack --mac 52:54:00:00:00:01 --profile n --image /assets/node";
        assert!(Cli::try_parse_from(line.split(' ')).is_err());
        let args =
            args(&format!("{line} --boot-server https://b --install /dev/sda --arg console=ttyS0"));
        let (_, profile) = entries(&args, &Store::new(dir.path())).unwrap();
        assert_eq!(profile.boot.kernel, "/assets/node/vmlinuz");
        let wanted = ["windlass.install=/dev/sda", "console=ttyS0"];
        assert!(profile.boot.args.ends_with(&wanted.map(str::to_owned)), "{profile:?}");
    }
}
