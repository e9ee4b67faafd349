//! The fixtures of upstream's tests, and the comparison with their goldens.

use std::path::{Path, PathBuf};

use kops_core::{DnsZone, Network, Subnet, World};

/// Compares the differing cases with the list of known ones and their causes. A listed case that no longer differs must
/// be removed from the list.
pub(crate) fn assert_missed(
    family: &str,
    count: usize,
    missed: &[(String, String)],
    known: &[(&str, &str)],
) {
    eprintln!("{family}: {} of {count}", count - missed.len());
    let is_known = |case: &str| known.iter().any(|(name, _)| *name == case);
    let news = missed.iter().filter(|(case, _)| !is_known(case));
    let news: Vec<_> = news.map(|(case, why)| format!("{case}: {why}")).collect();
    let gone = known.iter().filter(|(name, _)| !missed.iter().any(|(case, _)| case == name));
    let gone: Vec<_> = gone.map(|(name, _)| *name).collect();
    assert!(news.is_empty(), "{family}: {} missed:\n{}", news.len(), news.join("\n\n"));
    assert!(gone.is_empty(), "{family}: no longer missed, take off the list: {gone:?}");
}

/// Cases of clouds that are not completed.
const OTHER_CLOUDS: [&str; 5] =
    ["gossip-hetzner", "minimal_hetzner", "minimal_scaleway", "gossip-azure", "minimal_azure"];

/// Upstream's name for the completed spec among the stored objects.
pub(crate) const COMPLETED: &str = "data/aws_s3_object_cluster-completed.spec_content";

/// Returns upstream's cases of `update cluster` with a completed spec and a supported cloud, by name.
pub(crate) fn cases(source: &Path) -> Vec<(String, PathBuf)> {
    let found = std::fs::read_dir(source.join("tests/integration/update_cluster"));
    let found = found.into_iter().flatten().flatten();
    let named = found.map(|case| (case.file_name().to_string_lossy().into_owned(), case.path()));
    let mut cases: Vec<_> = named
        .filter(|(name, path)| {
            path.join(COMPLETED).exists() && !OTHER_CLOUDS.contains(&name.as_str())
        })
        .collect();
    cases.sort();
    cases
}

/// Returns a case's stored text files, by name.
pub(crate) fn stored(case: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(case.join("data")).into_iter().flatten().flatten();
    let read = files.filter_map(|file| {
        let text = std::fs::read_to_string(file.path()).ok()?;
        Some((file.file_name().to_string_lossy().into_owned(), text))
    });
    read.collect()
}

/// Returns the contents of upstream's mock cloud.
pub(crate) fn world(gce: bool) -> World {
    let zone = |id: &str, name: &str, private| DnsZone {
        id: id.to_owned(),
        name: name.to_owned(),
        private: Some(private),
        ..DnsZone::default()
    };
    let subnet = |id: &str, zone: &str, cidr: &str| Subnet {
        id: id.to_owned(),
        zone: zone.to_owned(),
        cidr: cidr.to_owned(),
    };
    let network = Network {
        internet_gateway: "igw-1".to_owned(),
        egress_only_gateway: "eigw-1".to_owned(),
        cidr: "172.20.0.0/16".to_owned(),
        subnets: vec![
            subnet("subnet-12345678", "us-test-1a", "172.20.32.0/19"),
            subnet("subnet-abcdef", "us-test-1a", "172.20.4.0/22"),
            subnet("subnet-b2345678", "us-test-1b", "172.20.8.0/22"),
        ],
    };
    let aws = vec![
        zone("Z1AFAKE1ZON3YO", "example.com.", false),
        zone("Z2AFAKE1ZON3NO", "internal.example.com.", true),
        zone("Z3AFAKE1ZOMORE", "private.example.com.", true),
    ];
    World {
        networks: [("vpc-12345678".to_owned(), network)].into(),
        zones: if gce { vec![zone("1", "example.com.", false)] } else { aws },
        project: "testproject".to_owned(),
        default_machine_types: [
            ("ControlPlane", "m3.medium"),
            ("APIServer", "m3.medium"),
            ("Node", "t2.medium"),
            ("Bastion", "t2.micro"),
        ]
        .map(|(role, kind)| (role.to_owned(), kind.to_owned()))
        .into(),
        ..World::default()
    }
}
