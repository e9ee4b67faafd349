//! Fuzzes configurations and calls.

use crate::{
    Environment, Failure,
    spec::{self, Config},
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn configurations() {
    let seeds: [&[u8]; 3] = [
        br#"{"cniVersion":"1.0.0","name":"n","type":"windlass","bridge":"br0","mtu":1500,"subnets":["10.1.0.0/24","fd00::/64"],
            "clusterCIDRs":["10.1.0.0/16"],"dataDir":"/var/lib/x","runtimeConfig":{"portMappings":[{"HostPort":80,"ContainerPort":80,"Protocol":"TCP","HostIP":"::"}]},
            "prevResult":{"ips":[{"address":"10.1.0.2/24"}]},"cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]}"#,
        br#"{"cniVersion":"0.3.1","type":"loopback"}"#,
        b"[]",
    ];
    fuzz::fuzz(HERE, "configuration", &seeds, |input| {
        let version = spec::version_of(input);
        let _ = spec::versions(input);
        match Config::parse(input) {
            Ok(config) => {
                assert_eq!(config.cni_version, version);
                for cidr in &config.subnets {
                    let _ = config.address_json(*cidr, Some(cidr.address), Some(0));
                }
            }
            // The runtime reads the failure as JSON.
            Err(failure) => assert!(failure.to_json(&version).is_object()),
        }
    });
}

#[test]
fn calls() {
    fuzz::fuzz(HERE, "call", &[b"ADD|abc-1|/run/netns/a|eth0", b"DEL|a||eth0"], |input| {
        let text = String::from_utf8_lossy(input);
        let mut parts = text.split('|').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        let environment =
            Environment { command: next(), container: next(), netns: next(), interface: next() };
        let refused: Option<Failure> = environment.call().err();
        // An accepted attachment names one file in a directory.
        if refused.is_none() && environment.command == "ADD" {
            assert!(!environment.container.contains('/') && !environment.interface.contains('/'));
        }
    });
}
