//! Tests of node and boot configurations against upstream's goldens.

use std::{collections::BTreeMap, path::Path};

use api_meta::Tree as _;
use base64::Engine as _;
use kops_api::{Kind, Object, yaml};
use kops_core::{
    Hashes, MachineType, Machines, NodeInputs, NodeKeyset, World, boot_config, channel::Channel,
    complete, complete_group, node_config,
};
use serde_json::{Value, json};

use crate::{
    completed::objects,
    golden::{difference, read, source},
    mock::{assert_missed, cases, stored, world},
};

/// Configurations that differ from upstream's, with the reason.
const MISSED: &[(&str, &str)] = &[(
    "minimal-warmpool/nodes",
    "images that machines of a warm pool fetch are those of add-ons, which are not made yet",
)];

/// The release that upstream's tests name; its hashes are nowhere in the tree.
const KOPS: &str = "1.34.0-beta.1";
const PROTOKUBE: [(&str, &str); 2] = [
    ("amd64", "86189e1e8de9692eb02daf2f06db8495f687ce2c4ba09a6b64f135990dfb315d"),
    ("arm64", "25b57b0555fad42e5762246334681bf1c943794fcecdb680a79e482be5c08815"),
];

/// Returns the hashes of released files, from the tables that kOps is built with.
fn hashes(source: &Path) -> Hashes {
    let mut hashes = Hashes::new();
    for file in
        std::fs::read_dir(source.join("pkg/assets/assetdata")).into_iter().flatten().flatten()
    {
        let path = file.path();
        if path.extension().is_none_or(|kind| kind != "yaml") {
            continue;
        }
        let table = api_codec::from_yaml(read(&path).as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        for base in table.items("filestores") {
            for file in table.items("files") {
                let url = format!("{}{}", base.text("base"), file.text("name"));
                hashes.insert(url, file.text("sha256").to_owned());
            }
        }
    }
    for (arch, hash) in PROTOKUBE {
        let url = format!("https://artifacts.k8s.io/binaries/kops/{KOPS}/linux/{arch}/protokube");
        hashes.insert(url, hash.to_owned());
    }
    hashes
}

pub(crate) struct Certificate {
    pem: String,
    serial: u128,
    pub(crate) key: String,
}

/// Parses a certificate of upstream's tests. It has 512 bits of RSA, which our parser rejects, so the fields are read
/// at known offsets.
pub(crate) fn certificate(literal: &str) -> Certificate {
    let pem = literal.replace("\\n", "\n").trim_end().to_owned() + "\n";
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = base64::engine::general_purpose::STANDARD.decode(body).unwrap_or_default();
    let find =
        |wanted: &[u8]| der.windows(wanted.len()).position(|w| w == wanted).unwrap_or_default();
    let at = find(&[0xa0, 3, 2, 1, 2, 2]) + 6;
    let length = usize::from(der[at]);
    let serial =
        der[at + 1..=at + length].iter().fold(0u128, |n, byte| (n << 8) | u128::from(*byte));
    let at = find(&[0x30, 0x5c, 0x30, 0x0d, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1]);
    let key = base64::engine::general_purpose::STANDARD.encode(&der[at..at + 0x5e]);
    let lines: Vec<_> = key.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    let key = format!(
        "-----BEGIN RSA PUBLIC KEY-----\n{}\n-----END RSA PUBLIC KEY-----\n",
        lines.join("\n")
    );
    Certificate { pem, serial, key }
}

/// Returns the keysets that upstream's tests store.
fn keysets(source: &Path) -> BTreeMap<String, NodeKeyset> {
    let text = read(&source.join("cmd/kops/integration_test.go"));
    let mut keysets = BTreeMap::new();
    for part in text.split("storeKeyset(t, ctx, keyStore, ").skip(1) {
        let name = part.split(',').next().unwrap_or_default().trim_matches('"');
        let name = if name == "fi.CertificateIDCA" { "kubernetes-ca" } else { name };
        let field = |field: &str| {
            let (_, rest) = part.split_once(&format!("{field}:"))?;
            Some(certificate(rest.split('"').nth(1)?))
        };
        let Some(primary) = field("primaryCertificate") else { continue };
        let primary_id = primary.serial.to_string();
        let mut all: Vec<_> =
            [Some(primary), field("secondaryCertificate")].into_iter().flatten().collect();
        all.sort_by_key(|certificate| certificate.serial);
        let join = |part: fn(&Certificate) -> &str| all.iter().map(part).collect::<String>();
        let keyset = NodeKeyset {
            primary_id,
            certificates: join(|c| &c.pem),
            public_keys: join(|c| &c.key),
        };
        keysets.insert(name.to_owned(), keyset);
    }
    keysets
}

fn mock(gce: bool) -> World {
    let mut world = world(gce);
    let gpu = MachineType { architecture: "amd64".to_owned(), gpu: true, disks: 0 };
    world.machine_types = [("g4dn.xlarge".to_owned(), gpu)].into();
    world
}

/// Returns the scheduler's configuration: the user's object or an empty one, with the credentials' path.
fn scheduler(objects: &[Value]) -> String {
    let own = objects.iter().find(|o| o.text("kind") == "KubeSchedulerConfiguration").cloned();
    let mut config = own.unwrap_or_else(
        || json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}),
    );
    config.put("clientConnection.kubeconfig", "/var/lib/kube-scheduler/kubeconfig");
    yaml::to_string(&config)
}

/// A group's configuration, and its machines' boot configuration.
type Written = Result<(String, String), String>;

#[derive(Clone)]
pub(crate) struct Golden {
    hashes: Hashes,
    keysets: BTreeMap<String, NodeKeyset>,
    pub(crate) channel: Channel,
}

impl Golden {
    pub(crate) fn read(source: &Path) -> Self {
        let channel = Channel::read("stable", read(&source.join("channels/stable")).as_bytes());
        let channel = channel.unwrap_or_else(|e| panic!("{e}"));
        Self { hashes: hashes(source), keysets: keysets(source), channel }
    }

    /// Adds hashes of pre-releases, which are in no table. Upstream's tests downloaded them, and its goldens contain
    /// them.
    pub(crate) fn with_fetched(&self, case: &Path) -> Self {
        let mut golden = self.clone();
        let files = stored(case);
        let configs = files.iter().filter(|(name, _)| name.contains("nodeupconfig"));
        for line in configs.flat_map(|(_, text)| text.lines()) {
            if let Some((hash, url)) =
                line.trim_start_matches("  - ").split_once("@https://dl.k8s.io/")
            {
                let url = format!("https://dl.k8s.io/{url}");
                golden.hashes.entry(url).or_insert_with(|| hash.to_owned());
            }
        }
        golden
    }

    pub(crate) fn inputs(&self, cluster: &Object, text: &str) -> NodeInputs {
        let cilium =
            cluster.spec.items("etcdClusters").iter().any(|etcd| etcd.text("name") == "cilium");
        let mut keysets = self.keysets.clone();
        keysets.retain(|name, _| cilium || !name.ends_with("-cilium"));
        let others = kops_api::yaml::parse_all("golden", text).unwrap_or_else(|e| panic!("{e}"));
        NodeInputs {
            kops: KOPS.to_owned(),
            hashes: self.hashes.clone(),
            keysets,
            scheduler_config: scheduler(&others),
            ..NodeInputs::default()
        }
    }

    /// Returns the configuration of every group, by name.
    fn configs(&self, case: &str, text: &str) -> Result<BTreeMap<String, Written>, String> {
        let mut objects = objects(case, text).map_err(|e| e.to_string())?;
        let at = objects.iter().position(|o| o.kind == Kind::Cluster).ok_or("no cluster")?;
        let cluster = objects.remove(at);
        let mut world = mock(cluster.spec.has("cloudProvider.gce"));
        world.api_server_nodes = objects.iter().any(|o| o.spec.text("role") == "APIServer");
        let cluster = complete(&cluster, &objects, &world, &Machines::default())
            .map_err(|e| e.to_string())?;
        let inputs = self.inputs(&cluster, text);
        let one = |group: &Object| {
            let complete = complete_group(&cluster, group, &self.channel, &world);
            let both = complete.and_then(|group| {
                let config = node_config(&cluster, &group, &inputs)?;
                let boot = boot_config(&cluster, &group, &inputs, &config);
                Ok((config, boot))
            });
            (group.name().to_owned(), both.map_err(|e| e.to_string()))
        };
        Ok(objects.iter().filter(|o| o.kind == Kind::InstanceGroup).map(one).collect())
    }
}

/// Compares one of the two documents of each group with upstream's. `theirs` returns the group and document of a stored
/// file.
fn compare(
    family: &str,
    theirs: fn(&str, &str) -> Option<(String, String)>,
    ours: fn((String, String)) -> String,
) {
    let Some(source) = source() else { return };
    let golden = Golden::read(&source);
    let (mut missed, mut count) = (Vec::new(), 0);
    for (name, case) in cases(&source) {
        let text = read(&case.join("in-v1alpha2.yaml"));
        let configs = golden.with_fetched(&case).configs(&name, &text);
        let configs = configs.unwrap_or_else(|e| panic!("{name}: {e}"));
        for (group, theirs) in stored(&case).iter().filter_map(|(file, text)| theirs(file, text)) {
            count += 1;
            let written = configs.get(&group).cloned();
            let why = match written.unwrap_or(Err("no such group".to_owned())).map(ours) {
                Ok(ours) => difference(&ours, &theirs),
                Err(error) => Some(error),
            };
            missed.extend(why.map(|why| (format!("{name}/{group}"), why)));
        }
    }
    assert_missed(family, count, &missed, MISSED);
}

#[test]
fn node_configurations_match_upstream() {
    let theirs = |file: &str, text: &str| {
        let group = file.strip_prefix("aws_s3_object_nodeupconfig-")?.strip_suffix("_content")?;
        Some((group.to_owned(), text.to_owned()))
    };
    compare("node configurations", theirs, |(config, _)| config);
}

#[test]
fn boot_configurations_match_upstream() {
    // User data contains the document between two lines. Some is compressed; its documents equal another case's.
    let theirs = |_: &str, text: &str| {
        let (_, rest) = text.split_once("cat > conf/kube_env.yaml << '__EOF_KUBE_ENV'\n")?;
        let (document, _) = rest.split_once("\n__EOF_KUBE_ENV")?;
        let group = document.lines().find_map(|line| line.strip_prefix("InstanceGroupName: "))?;
        Some((group.to_owned(), document.to_owned()))
    };
    compare("boot documents of user data", theirs, |(_, boot)| boot);
}
