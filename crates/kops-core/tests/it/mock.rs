//! What upstream's tests stand on, and how cases are judged that its goldens decide.

use std::path::{Path, PathBuf};

use kops_core::{DnsZone, Network, Subnet, World};

/// Compares what is missed with a list of what is known to be missed, with its cause. A listed case that is no longer
/// missed is taken off the list.
pub(crate) fn judge(
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

/// Clouds that nothing is completed for.
const OTHER_CLOUDS: [&str; 5] =
    ["gossip-hetzner", "minimal_hetzner", "minimal_scaleway", "gossip-azure", "minimal_azure"];

/// What upstream calls the completed spec among what it stores.
pub(crate) const COMPLETED: &str = "data/aws_s3_object_cluster-completed.spec_content";

/// Upstream's cases of `update cluster`, by name, that have a completed spec and a cloud of ours.
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

/// A case's stored files: name and text of those that are text.
pub(crate) fn stored(case: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(case.join("data")).into_iter().flatten().flatten();
    let read = files.filter_map(|file| {
        let text = std::fs::read_to_string(file.path()).ok()?;
        Some((file.file_name().to_string_lossy().into_owned(), text))
    });
    read.collect()
}

/// What upstream's mock of a cloud holds.
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
