//! The Corefile: server blocks by zone and port, each with its plugins.
//!
//! The plugins that a cluster's DNS needs are understood, with all their options that matter here. Another plugin
//! is an error rather than a silent difference. What is accepted and not acted on stands in one table (`ignored.rs`)
//! with the reason, which is logged.

mod ignored;
mod options;
mod tokens;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use hickory_proto::rr::Name;
pub use options::{CacheOptions, ForwardOptions, HostsOptions, KubernetesOptions, PodMode};
use tokens::{Directive, blocks};

/// What is wrong with a Corefile, and in which line, counted from 1.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("Corefile line {line}: {reason}")]
pub struct CorefileError {
    pub line: usize,
    pub reason: String,
}

/// One server block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The zones that the block answers for; the root is all.
    pub zones: Vec<Name>,
    pub port: u16,
    /// The addresses to listen on; all where it is empty.
    pub bind: Vec<std::net::IpAddr>,
    pub kubernetes: Option<KubernetesOptions>,
    pub hosts: Option<HostsOptions>,
    pub forward: Vec<ForwardOptions>,
    pub cache: Option<CacheOptions>,
    pub health: Option<Health>,
    /// Where `/ready` says whether the cluster is known yet.
    pub ready: Option<SocketAddr>,
    /// Where `/metrics` is.
    pub prometheus: Option<SocketAddr>,
    /// How often the Corefile is read again.
    pub reload: Option<Duration>,
    /// Whether errors are logged.
    pub errors: bool,
    /// Whether every question is logged.
    pub log: bool,
    /// Whether a server that forwards to itself is found, and ends.
    pub loops: bool,
    /// Whether addresses in an answer come in changing order.
    pub shuffle: bool,
    /// The warnings about what is accepted and not acted on.
    pub ignored: Vec<String>,
}

/// The plugin `health`: an HTTP server whose `/health` answers as long as the process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub address: SocketAddr,
    /// How long to go on answering after the order to stop.
    pub lameduck: Duration,
}

/// Parses a Corefile; `port` is for labels without one.
pub fn parse(text: &str, port: u16) -> Result<Vec<Block>, CorefileError> {
    let mut parsed = Vec::new();
    for block in blocks(text)? {
        parsed.extend(options::block(&block, port)?);
    }
    if parsed.is_empty() {
        return Err(CorefileError {
            line: 1,
            reason: "there is no server block; write one like \".:53 { … }\"".into(),
        });
    }
    Ok(parsed)
}

/// The files that a Corefile refers to and that have to be read again when they change.
pub fn files(blocks: &[Block]) -> Vec<PathBuf> {
    blocks.iter().filter_map(|block| block.hosts.as_ref()?.file.clone()).collect()
}

fn fail<T>(directive: &Directive, reason: impl Into<String>) -> Result<T, CorefileError> {
    Err(CorefileError {
        line: directive.line,
        reason: format!("{}: {}", directive.name(), reason.into()),
    })
}

#[cfg(test)]
mod tests {
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
    fn kubeadms_corefile_is_understood() {
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
    fn stub_domains_comments_quotes_and_several_labels() {
        let text = "# a stub\nexample.org:1053, example.net { # two\n forward . 192.0.2.1 192.0.2.2:5353 {\n policy sequential\n force_tcp\n }\n}\n\"dns://.\" {\n hosts {\n 192.0.2.7 a.example b.example\n ttl 60\n fallthrough\n }\n}";
        let blocks = parse(text, 53).unwrap();
        assert_eq!(blocks.len(), 3, "labels with different ports are blocks of their own");
        assert_eq!((blocks[0].port, blocks[1].port, blocks[2].port), (53, 1053, 53));
        assert!(blocks[0].forward[0].force_tcp);
        let hosts = blocks[2].hosts.as_ref().unwrap();
        assert_eq!((hosts.entries.len(), hosts.ttl), (2, 60));
    }

    #[test]
    fn warns_of_what_is_accepted_without_effect() {
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
    fn mistakes_are_told_by_line() {
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
