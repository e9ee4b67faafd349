//! What upstream's tests stand on, and how cases are judged that its goldens decide.

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

/// What upstream's mock of a cloud holds.
pub(crate) fn world(gce: bool) -> World {
    let zone = |id: &str, name: &str, private| DnsZone {
        id: id.to_owned(),
        name: name.to_owned(),
        private: Some(private),
    };
    let subnet = |id: &str, zone: &str, cidr: &str| Subnet {
        id: id.to_owned(),
        zone: zone.to_owned(),
        cidr: cidr.to_owned(),
    };
    let network = Network {
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
        ..World::default()
    }
}
