use std::time::{Duration, Instant};

use hickory_proto::rr::Name;

use super::*;
use crate::options::{ApiServer, PodMode};

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
    forward . 192.0.2.1 {
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

fn parse(text: &str) -> Result<Vec<Block>, CorefileError> {
    build(&read(text, Path::new("/nonexistent"))?, 53)
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// Returns the names of the plugins in the order of their work.
fn order(block: &Block) -> Vec<String> {
    let name = |debug: String| debug.split([' ', '{', '(']).next().unwrap_or_default().to_owned();
    block.chain.iter().map(|plugin| name(format!("{plugin:?}"))).collect()
}

#[test]
fn parses_kubeadm_corefile() {
    let blocks = parse(KUBEADM).unwrap();
    let [block] = blocks.as_slice() else { panic!("{blocks:?}") };
    assert_eq!((block.zones.as_slice(), block.port), (&[name(".")][..], 53));
    assert!(block.loops && block.ignored.is_empty() && !block.needs_pods);
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
    let fallthrough = ["2.0.1.10.in-addr.arpa.", "web.cluster.local."]
        .map(|text| kubernetes.fallthrough.covers(&name(text)));
    assert_eq!(fallthrough, [true, false]);
    assert_eq!(block.reload, Some(Duration::from_secs(30)));
    assert_eq!(order(block), ["Errors", "LoadBalance", "Cache", "Kubernetes", "Forward"]);
}

#[test]
fn orders_plugins_as_coredns_compiles_them() {
    let text = ". {\n whoami\n forward . 192.0.2.1\n template IN A a.example {\n }\n forward . 192.0.2.2\n any\n acl {\n  block\n }\n \
                minimal\n rewrite type A AAAA\n dns64\n local\n bufsize\n log\n header {\n  response set ra\n }\n chaos\n cache\n}";
    let block = parse(text).unwrap().remove(0);
    assert_eq!(
        order(&block),
        [
            "BufSize",
            "Log",
            "Local",
            "Dns64",
            "Any",
            "Chaos",
            "Rewrite",
            "Acl",
            "Cache",
            "Header",
            "Minimal",
            "TemplatePlugin",
            "Forward",
            "Forward",
            "Whoami"
        ]
    );
    assert_eq!(
        block.forwards.iter().map(|forward| forward.has_next).collect::<Vec<_>>(),
        [true, false]
    );
}

#[test]
fn parses_stub_domains_comments_quotes_and_labels() {
    let text = "# a stub\nexample.org:1053, example.net { # two\n forward . 192.0.2.1 192.0.2.2:5353 {\n policy sequential\n \
                force_tcp\n }\n}\n\"dns://.\" {\n hosts {\n 192.0.2.7 a.example b.example\n ttl 60\n fallthrough\n }\n}\n\
                10.0.0.0/15 {\n whoami\n}";
    let blocks = parse(text).unwrap();
    assert_eq!(blocks.len(), 4, "labels with different ports are blocks of their own");
    assert_eq!((blocks[0].port, blocks[1].port, blocks[2].port), (53, 1053, 53));
    assert_eq!(blocks[3].zones.len(), 2);
}

#[test]
fn parses_options_of_kubernetes() {
    let text = ". {\n kubernetes {\n  namespaces a b\n  labels app in (x, y),tier=z\n  noendpoints\n  ignore empty_service\n  \
                endpoint https://192.0.2.1:6443\n  tls cert key ca\n }\n autopath @kubernetes\n}";
    let block = parse(text).unwrap().remove(0);
    let kubernetes = block.kubernetes.as_ref().unwrap();
    assert_eq!(kubernetes.namespaces.len(), 2);
    assert!(kubernetes.no_endpoints && kubernetes.ignores_empty_services && block.needs_pods);
    let labels = [("app".to_owned(), "y".to_owned()), ("tier".to_owned(), "z".to_owned())].into();
    assert!(kubernetes.labels.as_ref().unwrap().matches(&labels));
    let tls = Some(["cert", "key", "ca"].map(Into::into));
    assert_eq!(
        kubernetes.api,
        ApiServer::Endpoint { url: "https://192.0.2.1:6443".to_owned(), tls }
    );
}

#[test]
fn warns_about_settings_without_effect() {
    let text = ". {\n debug\n errors {\n  stacktrace\n }\n ready {\n  monitor continuously\n }\n reload 10s 5s\n}";
    let ignored = parse(text).unwrap().remove(0).ignored;
    let begins: Vec<_> = ignored.iter().map(|text| text.split(" is ").next().unwrap()).collect();
    assert_eq!(
        begins,
        [
            "Corefile line 2: debug",
            "Corefile line 4: errors: stacktrace",
            "Corefile line 7: ready: monitor",
            "Corefile line 9: reload: the argument \"5s\"",
        ]
    );
    assert!(ignored.iter().all(|text| text.contains(" is accepted and has no effect: ")));
}

#[test]
fn reports_errors_by_line() {
    for (text, line, reason) in [
        (".:53 {\n errors\n", 1, "closed"),
        (".:53 {\n frobnicate\n}", 2, "unknown plugin"),
        (".:53 {\n view a {\n  expr true\n }\n}", 2, "unknown plugin"),
        (".:53 {\n kubernetes cluster.local {\n  pods maybe\n }\n}", 3, "pods"),
        (
            ".:53 {\n kubernetes cluster.local {\n  multicluster clusterset.local\n }\n}",
            3,
            "multicluster: unknown option",
        ),
        (".:53 {\n kubernetes cluster.local {\n  labels a=b,\n }\n}", 3, "labels"),
        (".:53 {\n kubernetes\n kubernetes\n}", 3, "once"),
        (".:53 {\n forward .\n}", 2, "server"),
        (".:x {\n}", 1, "port"),
        ("tls://. {\n}", 1, "protocol"),
        (".:53 {\n cache soon {\n  serve_stale maybe\n }\n}", 3, "duration"),
        (".:53 {\n cache {\n  prefetch 1 1m 95%\n }\n}", 3, "10% and 90%"),
        (".:53 {\n cache {\n  servfail 10m\n }\n}", 3, "5 minutes"),
        (".:53 {\n cache {\n  serve_stale_policy prefer_positive\n }\n}", 3, "unknown option"),
        (".:53 {\n loadbalance weighted f\n}", 2, "argument \"weighted\""),
        (".:53 {\n hosts f {\n  fallthrough_unsupported\n }\n}", 2, "requires fallthrough"),
        (".:53 {\n bind 192.0.2.1 {\n  except 192.0.2.2\n }\n}", 3, "except"),
        (".:53 {\n loop now\n}", 2, "argument \"now\""),
        (".:53 {\n errors {\n  frobnicate\n }\n}", 3, "frobnicate"),
        (".:53 {\n rewrite name regex ( b\n}", 2, "regular expression"),
        (".:53 {\n rewrite frob a b\n}", 2, "unknown rule"),
        (".:53 {\n rewrite name exact a b value c d\n}", 2, "not an option of a rule"),
        (".:53 {\n rewrite ttl a.example 5-3\n}", 2, "range of TTLs"),
        (".:53 {\n rewrite edns0 local set 0xffee {server_ip}\n}", 2, "not supported"),
        (".:53 {\n template IN A {\n  expr true\n }\n}", 3, "expressions"),
        (".:53 {\n template IN A {\n  answer \"{{ .Meta \"a/b\" }}\"\n }\n}", 3, ".Meta"),
        (".:53 {\n template IN A {\n  answer \"{{ frob }}\"\n }\n}", 3, "frob"),
        (".:53 {\n acl {\n  deny\n }\n}", 3, "unknown option"),
        (".:53 {\n acl {\n  block net 192.0.2.0/33\n }\n}", 3, "network"),
        (".:53 {\n transfer\n}", 2, "it needs the servers"),
        (".:53 {\n file /no/such/file {\n  reload 0\n }\n}", 2, "No such file"),
        (".:53 {\n header {\n  response set zz\n }\n}", 3, "not a flag"),
        (".:53 {\n timeouts {\n  read 1ms\n }\n}", 3, "within 1s and 24h"),
        (".:53 {\n log {\n  class odd\n }\n}", 3, "class"),
        (".:53 {\n log . {frob}\n}", 2, "placeholder"),
        (".:53 {\n bufsize 100\n}", 2, "512"),
        (".:53 {\n autopath @file\n}", 2, "no search path"),
        ("}", 1, "opens"),
        ("", 1, "no server block"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.line == line && error.to_string().contains(reason), "{text:?}: {error}");
    }
}

#[test]
fn reads_large_corefile_in_linear_time() {
    let time = |lines: usize| {
        let rewrites: String = (0..lines)
            .map(|n| format!(" rewrite name exact a{n}.example b{n}.example\n"))
            .collect();
        let start = Instant::now();
        parse(&format!(". {{\n{rewrites}}}")).unwrap();
        start.elapsed()
    };
    let small = time(2000).max(Duration::from_millis(5));
    assert!(time(20_000) < small * 60);
}
