//! Parses the Corefile: server blocks by zone and port, each with its plugins.
//!
//! It supports the plugins that a cluster's DNS needs, with all relevant options. Another plugin is an error. Settings
//! that are accepted without effect are listed in `ignored.rs` with the reason, which is logged.

mod block;
mod error;
mod ignored;
mod plugins;
mod tokens;

use std::path::PathBuf;

pub use block::{
    Block, CacheOptions, ForwardOptions, Health, HostsOptions, KubernetesOptions, PodMode,
};
pub use error::CorefileError;
use tokens::blocks;

/// Parses a Corefile. `port` is the default for labels without a port.
pub fn parse(text: &str, port: u16) -> Result<Vec<Block>, CorefileError> {
    let mut parsed = Vec::new();
    for block in blocks(text)? {
        parsed.extend(plugins::block(&block, port)?);
    }
    if parsed.is_empty() {
        return Err(CorefileError {
            line: 1,
            reason: "there is no server block; write one like \".:53 { … }\"".into(),
        });
    }
    Ok(parsed)
}

/// Returns the files that a Corefile refers to and that must be reread when they change.
pub fn files(blocks: &[Block]) -> Vec<PathBuf> {
    blocks.iter().filter_map(|block| block.hosts.as_ref()?.file.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hickory_proto::rr::Name;

    use super::*;

    const KUBEADM: &str = "
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
";

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    #[test]
    fn parses_kubeadm_corefile() {
        let blocks = parse(KUBEADM, 53).unwrap();
        let [block] = blocks.as_slice() else { panic!("{blocks:?}") };
        assert_eq!((block.zones.as_slice(), block.port), (&[name(".")][..], 53));
        assert!(block.errors && block.loops && block.shuffle && !block.log);
        let health = block.health.as_ref().unwrap();
        assert_eq!((health.address.port(), health.lameduck), (8080, Duration::from_secs(5)));
        assert_eq!(block.ready.unwrap().port(), 8181);
        assert_eq!(block.prometheus.unwrap().port(), 9153);
        let kubernetes = block.kubernetes.as_ref().unwrap();
        assert_eq!(
            kubernetes.zones,
            [name("cluster.local."), name("in-addr.arpa."), name("ip6.arpa.")]
        );
        assert_eq!((kubernetes.pods, kubernetes.ttl), (PodMode::Insecure, 30));
        assert_eq!(
            kubernetes.fallthrough.as_deref(),
            Some(&[name("in-addr.arpa."), name("ip6.arpa.")][..])
        );
        let forward = &block.forward[0];
        assert_eq!(
            (forward.to.as_slice(), forward.max_concurrent),
            (&["/etc/resolv.conf".to_owned()][..], 1000)
        );
        assert_eq!(block.cache.as_ref().unwrap().success, 30);
        assert_eq!(block.reload, Some(Duration::from_secs(30)));
    }

    #[test]
    fn parses_stub_domains_comments_quotes_and_labels() {
        let text = "# a stub\nexample.org:1053, example.net { # two\n forward . 192.0.2.1 192.0.2.2:5353 {\n policy sequential\n force_tcp\n }\n}\n\"dns://.\" {\n hosts {\n 192.0.2.7 a.example b.example\n ttl 60\n fallthrough\n }\n}";
        let blocks = parse(text, 53).unwrap();
        assert_eq!(blocks.len(), 3, "labels with different ports are blocks of their own");
        assert_eq!((blocks[0].port, blocks[1].port, blocks[2].port), (53, 1053, 53));
        assert!(blocks[0].forward[0].force_tcp);
        let hosts = blocks[2].hosts.as_ref().unwrap();
        assert_eq!((hosts.entries.len(), hosts.ttl), (2, 60));
    }

    #[test]
    fn warns_about_settings_without_effect() {
        assert_eq!(parse(KUBEADM, 53).unwrap()[0].ignored, Vec::<String>::new());
        let text = ".:53 {\n bufsize 512\n errors {\n  stacktrace\n }\n log . {\n  class error\n }\n ready {\n  monitor continuously\n }\n\
             kubernetes cluster.local\n forward . 192.0.2.1 {\n  expire 10s\n }\n cache 30 example.org {\n  prefetch 1\n  \
             disable success example.org\n  disable denial cluster.local\n }\n reload 10s 5s\n}";
        let ignored = parse(text, 53).unwrap().remove(0).ignored;
        let begins: Vec<_> =
            ignored.iter().map(|text| text.split(" is ").next().unwrap()).collect();
        assert_eq!(
            begins,
            [
                "Corefile line 2: bufsize",
                "Corefile line 4: errors: stacktrace",
                "Corefile line 6: log: the argument \".\"",
                "Corefile line 7: log: class",
                "Corefile line 10: ready: monitor",
                "Corefile line 14: forward: expire",
                "Corefile line 16: cache: the argument \"example.org\"",
                "Corefile line 17: cache: prefetch",
                "Corefile line 18: cache: disable",
                "Corefile line 21: reload: the argument \"5s\"",
            ]
        );
        assert!(ignored.iter().all(|text| text.contains(" is accepted and has no effect: ")));
    }

    #[test]
    fn reports_errors_by_line() {
        for (text, line, reason) in [
            (".:53 {\n errors\n", 1, "closed"),
            (".:53 {\n frobnicate\n}", 2, "unknown plugin"),
            (".:53 {\n kubernetes cluster.local {\n  pods maybe\n }\n}", 3, "pods"),
            (".:53 {\n forward .\n}", 2, "server"),
            (".:x {\n}", 1, "port"),
            (".:53 {\n forward . tls://192.0.2.1\n}", 2, "TLS"),
            (".:53 {\n cache soon\n}", 2, "number"),
            (".:53 {\n loadbalance weighted f\n}", 2, "argument \"weighted\""),
            (".:53 {\n hosts f example.org\n}", 2, "argument \"example.org\""),
            (".:53 {\n bind 192.0.2.1 {\n  except 192.0.2.2\n }\n}", 3, "except"),
            (".:53 {\n loop now\n}", 2, "argument \"now\""),
            (".:53 {\n kubernetes a {\n  kubeconfig f context\n }\n}", 3, "context"),
            (".:53 {\n errors {\n  frobnicate\n }\n}", 3, "frobnicate"),
            ("}", 1, "opens"),
            ("", 1, "no server block"),
        ] {
            let error = parse(text, 53).unwrap_err();
            assert!(error.line == line && error.reason.contains(reason), "{text:?}: {error}");
        }
    }
}
