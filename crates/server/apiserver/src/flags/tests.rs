use clap::{CommandFactory, Parser};

use super::*;
use crate::config::WebhookMode;

type Cli = api_config::CommandLine<Args>;

/// The flags that kubeadm writes.
const KUBEADM: &[&str] = &[
    "kube-apiserver",
    "--advertise-address=10.77.0.1",
    "--allow-privileged=true",
    "--authorization-mode=Node,RBAC",
    "--client-ca-file=/pki/ca.crt",
    "--enable-admission-plugins=NodeRestriction",
    "--enable-bootstrap-token-auth=true",
    "--etcd-cafile=/pki/etcd/ca.crt",
    "--etcd-certfile=/pki/apiserver-etcd-client.crt",
    "--etcd-keyfile=/pki/apiserver-etcd-client.key",
    "--etcd-servers=https://127.0.0.1:2379",
    "--kubelet-client-certificate=/pki/apiserver-kubelet-client.crt",
    "--kubelet-client-key=/pki/apiserver-kubelet-client.key",
    "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
    "--proxy-client-cert-file=/pki/front-proxy-client.crt",
    "--proxy-client-key-file=/pki/front-proxy-client.key",
    "--requestheader-allowed-names=front-proxy-client",
    "--requestheader-client-ca-file=/pki/front-proxy-ca.crt",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    "--requestheader-group-headers=X-Remote-Group",
    "--requestheader-username-headers=X-Remote-User",
    "--secure-port=6443",
    "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
    "--service-account-key-file=/pki/sa.pub",
    "--service-account-signing-key-file=/pki/sa.key",
    "--service-cluster-ip-range=10.96.0.0/16",
    "--tls-cert-file=/pki/apiserver.crt",
    "--tls-private-key-file=/pki/apiserver.key",
];

fn parse(more: &[&str]) -> Result<Args, clap::Error> {
    Cli::try_parse_from(KUBEADM.iter().chain(more)).map(|cli| cli.args)
}

#[test]
fn declares_each_flag_once() {
    Cli::command().debug_assert();
}

#[test]
fn accepts_flags_of_kubeadm() {
    let args = parse(&[]).unwrap();
    let config = args.config().unwrap();
    assert_eq!(config.bind.to_string(), "0.0.0.0:6443");
    assert_eq!(config.advertise.to_string(), "10.77.0.1");
    assert_eq!(config.service_cidrs[0].to_string(), "10.96.0.0/16");
    assert_eq!(config.node_ports, (30000, 32767));
    assert_eq!(config.event_ttl, Duration::from_secs(3600));
    assert_eq!(config.request_timeout, Config::REQUEST_TIMEOUT);
    assert!(config.anonymous && config.bootstrap_tokens);
    assert_eq!(config.front_proxy.unwrap().allowed_names, ["front-proxy-client"]);
    assert_eq!(args.storage.etcd_servers, ["https://127.0.0.1:2379"]);
}

#[test]
fn accepts_upstreams_required_flags_alone() {
    let fewest = [
        "kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        "--service-account-issuer=https://a",
        "--service-account-issuer=https://b",
        "--service-account-signing-key-file=/sa.key",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--advertise-address=192.0.2.1",
    ];
    let with = |more: &[&str]| Cli::try_parse_from(fewest.iter().chain(more)).map(|cli| cli.args);
    let config = with(&[]).unwrap().config().unwrap();
    assert!(config.self_signed && !config.allow_privileged);
    assert_eq!(config.tls_key.to_str(), Some("/var/run/kubernetes/apiserver.key"));
    assert_eq!((config.client_ca, config.kubelet_client), (None, None));
    assert_eq!(config.service_account_issuers, ["https://a", "https://b"]);
    let config = with(&["--cert-dir=/tmp/made"]).unwrap().config().unwrap();
    assert_eq!(config.tls_certificate.to_str(), Some("/tmp/made/apiserver.crt"));
    // A certificate without its key is an error, and vice versa.
    for half in ["--tls-cert-file=/a", "--kubelet-client-key=/a"] {
        assert!(with(&[half]).is_err(), "{half}");
    }
}

#[test]
fn does_not_advertise_loopback() {
    let flags = KUBEADM.iter().filter(|flag| !flag.starts_with("--advertise-address"));
    let cli = Cli::try_parse_from(flags.chain(&["--bind-address=127.0.0.1"])).unwrap();
    // A machine without a default route has no other address, and the server reports that.
    match cli.args.config() {
        Ok(config) => assert!(!config.advertise.is_loopback(), "{}", config.advertise),
        Err(error) => assert!(error.to_string().contains("give --advertise-address"), "{error}"),
    }
}

#[test]
fn refuses_unsupported_security_flags() {
    let refusal = |flag: &str| {
        // The last value of a flag counts, as upstream.
        let mut flags: Vec<_> = KUBEADM.to_vec();
        let name = flag.split_inclusive('=').next().unwrap_or(flag);
        flags.retain(|f| !f.starts_with(name));
        flags.push(flag);
        Cli::try_parse_from(flags).unwrap().args.config().unwrap_err().to_string()
    };
    assert_eq!(
        refusal("--tls-curve-preferences=X25519"),
        "--tls-curve-preferences is not supported: curves are X25519, P-256 and P-384; start without it"
    );
    let unreadable = refusal("--egress-selector-config-file=/none");
    assert!(
        unreadable.starts_with("failed to read egress selector config: /none: "),
        "{unreadable}"
    );
    for flag in ["--etcd-prefix=/other", "--kubelet-preferred-address-types=Alias"] {
        let name = flag.split('=').next().unwrap();
        assert!(refusal(flag).starts_with(name), "{flag}");
    }
}

#[test]
fn takes_keys_of_tokens_from_files_or_signer() {
    let parsed = |flags: &[&'static str]| {
        let kept = KUBEADM.iter().copied().filter(|flag| {
            !flag.starts_with("--service-account-key-file")
                && !flag.starts_with("--service-account-signing-key-file")
        });
        Cli::try_parse_from(kept.chain(flags.iter().copied()))
    };
    let socket = "--service-account-signing-endpoint=@signer";
    let config = parsed(&[socket]).unwrap().args.config().unwrap();
    assert!(matches!(config.token_keys, TokenKeys::External(path) if path == *"@signer"));
    for other in ["--service-account-signing-key-file=/k", "--service-account-key-file=/k"] {
        assert_eq!(
            parsed(&[socket, other]).unwrap().args.config().unwrap_err().to_string(),
            "can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with \
             `--service-account-signing-endpoint` (They are mutually exclusive)"
        );
    }
    let error = parsed(&[]).err().unwrap().to_string();
    assert!(error.contains("--service-account-signing-key-file"), "{error}");
}

#[test]
fn configures_authentication_and_authorization() {
    let config = |flags: &[&str]| parse(flags).unwrap().config();
    let oidc = ["--oidc-issuer-url=https://a", "--oidc-client-id=k8s"];
    let with = |more: &[&'static str]| {
        let flags: Vec<&str> = oidc.iter().chain(more).copied().collect();
        let oidc = config(&flags).unwrap().authentication.oidc.unwrap();
        let mappings = oidc.jwt.claim_mappings;
        let prefix = |mapping: &api_config::authentication::PrefixedClaimOrExpression| {
            mapping.prefix.clone().map(|prefix| prefix + ":" + &mapping.claim)
        };
        (
            prefix(&mappings.username),
            prefix(&mappings.groups),
            oidc.jwt.claim_validation_rules.len(),
        )
    };
    let name = |text: &str| Some(text.to_owned());
    assert_eq!(with(&[]), (name("https://a#:sub"), None, 0));
    assert_eq!(with(&["--oidc-username-prefix=-"]).0, name(":sub"));
    assert_eq!(with(&["--oidc-username-claim=email"]).0, name(":email"));
    let more =
        ["--oidc-username-prefix=o:", "--oidc-groups-claim=g", "--oidc-required-claim=a=b=c"];
    assert_eq!(with(&more), (name("o::sub"), name(":g"), 1));
    assert_eq!(config(&oidc).unwrap().authentication.oidc.unwrap().signing_algorithms, ["RS256"]);
    let chain = |flags: &[&str]| {
        let chain = without_mode(flags).unwrap().authorization.chain.authorizers;
        chain.into_iter().map(|link| link.name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(chain(&[]), "node rbac");
    let hook = "--authorization-webhook-config-file=/w";
    assert_eq!(chain(&["--authorization-mode=Webhook,RBAC", hook]), "default rbac");
}

/// Parses the flags without kubeadm's authorization mode.
fn without_mode(more: &[&str]) -> Result<Config, FlagError> {
    let own = KUBEADM.iter().filter(|flag| !flag.contains("authorization-mode"));
    Cli::try_parse_from(own.chain(more)).unwrap().args.config()
}

#[test]
fn rejects_conflicting_flags_in_upstreams_words() {
    let both = "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set";
    let older = "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined";
    let webhook = "--authorization-webhook-config-file=/w";
    for (flags, words) in [
        (&["--oidc-groups-claim=g"][..], both),
        (&["--oidc-issuer-url=https://a"], both),
        (
            &["--authentication-config=/a", "--oidc-issuer-url=https://a", "--oidc-client-id=b"],
            "authentication-config file and oidc-* flags are mutually exclusive",
        ),
        (
            &[
                "--authentication-token-webhook-config-file=/w",
                "--authentication-token-webhook-version=v2",
            ],
            "unsupported authentication webhook version \"v2\", supported versions are \"v1\", \"v1beta1\"",
        ),
        (&["--authorization-config=/a", "--authorization-mode=RBAC"], older),
        (&["--authorization-config=/a", webhook], older),
        (&["--authorization-mode=Foo"], "authorization-mode \"Foo\" is not a valid mode"),
        (
            &["--authorization-mode=ABAC"],
            "authorization-mode ABAC's authorization policy file not passed",
        ),
        (
            &["--authorization-mode=Webhook"],
            "authorization-mode Webhook's authorization config file not passed",
        ),
        (
            &["--authorization-policy-file=/p"],
            "cannot specify --authorization-policy-file without mode ABAC",
        ),
        (&[webhook], "cannot specify --authorization-webhook-config-file without mode Webhook"),
        (
            &["--authorization-mode=RBAC,RBAC"],
            "authorization-mode [\"RBAC\" \"RBAC\"] has mode specified more than once",
        ),
    ] {
        assert_eq!(without_mode(flags).unwrap_err().to_string(), words, "{flags:?}");
    }
}

#[test]
fn configures_token_expiration_and_apis() {
    let config = |flags: &[&str]| parse(flags).unwrap().config();
    assert!(config(&[]).unwrap().extend_token_expiration);
    let off = config(&["--service-account-extend-token-expiration=false"]).unwrap();
    assert!(!off.extend_token_expiration);
    let off =
        config(&["--runtime-config=batch/v1=false", "--runtime-config=api/beta=false"]).unwrap();
    assert!(!off.runtime_config.serves("batch", "v1", "jobs", false));
    assert!(off.runtime_config.serves("apps", "v1", "deployments", false));
    let refused = config(&["--runtime-config=nobody.example.com/v1=true"]).unwrap_err();
    assert_eq!(refused.to_string(), "unknown api groups nobody.example.com/v1");
}

#[test]
fn configures_proxy_to_peers() {
    let ca = "--peer-ca-file=/pki/ca.crt";
    let config = |flags: &[&str]| parse(flags).unwrap().config();
    let usual = config(&[]).unwrap();
    assert_eq!(usual.peer_authorities(), None);
    assert_eq!(usual.peer_address().unwrap().to_string(), "10.77.0.1:6443");
    let own = ["--peer-advertise-ip=fd00::1", "--peer-advertise-port=8443", ca];
    let forwarding = config(&own).unwrap();
    assert_eq!(forwarding.peer_authorities().unwrap().to_str(), Some("/pki/ca.crt"));
    assert_eq!(forwarding.peer_address().unwrap().to_string(), "[fd00::1]:8443");
    let off = "--feature-gates=UnknownVersionInteroperabilityProxy=false";
    assert_eq!(config(&[off]).unwrap().peer_address(), None);
    for flag in own {
        let (name, _) = flag.trim_start_matches("--").split_once('=').unwrap();
        let words = format!(
            "--{name} requires UnknownVersionInteroperabilityProxy feature to be turned on"
        );
        assert_eq!(config(&[off, flag]).unwrap_err().to_string(), words);
    }
    assert!(parse(&["--peer-advertise-port=65536"]).is_err());
    let alone = ["kube-apiserver", "--store-dir=/s", "--service-account-issuer=x", ca];
    let error = Cli::try_parse_from(alone).err().unwrap().to_string();
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn ignores_known_flags_and_rejects_others() {
    let args = parse(&["--v=2", "--watch-cache=true", "--profiling=false"]).unwrap();
    let names: Vec<_> = args.ignored.given().map(|(name, _)| name).collect();
    assert!(["v", "watch-cache", "profiling"].iter().all(|name| names.contains(name)));
    assert!(parse(&["--no-such-flag=1"]).is_err());
    assert!(parse(&["--store-dir=/s"]).is_err(), "one store or the other");
}

#[test]
fn configures_listener() {
    let serving = |flags: &[&str]| parse(flags).unwrap().config().unwrap().serving;
    let usual = serving(&[]);
    assert_eq!(usual.min_request_timeout, Duration::from_secs(1800));
    assert_eq!((usual.streams_per_connection, usual.goaway_chance), (250, 0.0));
    assert!(usual.named_certificates.is_empty() && usual.strict_transport_security.is_empty());
    let own = serving(&[
        "--cors-allowed-origins=//a\\.example\\.com(:|$),^http://b$",
        "--strict-transport-security-directives=max-age=31536000,includeSubDomains,preload",
        "--goaway-chance=0.02",
        "--http2-max-streams-per-connection=50",
        "--min-request-timeout=60",
        "--tls-min-version=VersionTLS13",
        "--tls-sni-cert-key=/a.crt,/a.key",
        "--tls-sni-cert-key=/b.crt,/b.key:*.b.example,b.example",
        "--livez-grace-period=1m",
        "--shutdown-delay-duration=15s",
        "--shutdown-send-retry-after",
    ]);
    assert!(own.allowed_origins[0].is_match("https://a.example.com:8443"));
    assert!(!own.allowed_origins[0].is_match("https://a.example.com.evil.org"));
    assert_eq!(own.strict_transport_security, "max-age=31536000; includeSubDomains; preload");
    assert_eq!((own.streams_per_connection, own.goaway_chance), (50, 0.02));
    assert_eq!(own.min_request_timeout, Duration::from_secs(60));
    assert_eq!(own.named_certificates[0].patterns, Vec::<String>::new());
    assert_eq!(own.named_certificates[1].patterns, ["*.b.example", "b.example"]);
    assert_eq!(own.named_certificates[1].files.key.to_str(), Some("/b.key"));
    assert_eq!((usual.livez_grace, own.livez_grace), (Duration::ZERO, Duration::from_secs(60)));
    assert_eq!(own.shutdown_delay, Duration::from_secs(15));
    assert!(own.shutdown_retry_after);
}

#[test]
fn rejects_invalid_listener_flags_in_upstreams_words() {
    for (flag, words) in [
        (
            "--cors-allowed-origins=(",
            "--cors-allowed-origins has an invalid regular expression: error parsing regexp",
        ),
        (
            "--cors-allowed-origins=example.com",
            "--cors-allowed-origins has an invalid regular expression: regular expression does not pin to start/end",
        ),
        (
            "--strict-transport-security-directives=max-age=soon",
            "--strict-transport-security-directives invalid, allowed values: max-age=expireTime",
        ),
        (
            "--strict-transport-security-directives=max-age=1;x",
            "--strict-transport-security-directives invalid",
        ),
        ("--goaway-chance=0.021", "--goaway-chance can not be less than 0 or greater than 0.02"),
        ("--goaway-chance=-1", "--goaway-chance can not be less than 0 or greater than 0.02"),
        ("--goaway-chance=NaN", "--goaway-chance can not be less than 0 or greater than 0.02"),
        ("--min-request-timeout=-1", "--min-request-timeout can not be negative value"),
        ("--request-timeout=-1s", "--request-timeout can not be negative value"),
        ("--livez-grace-period=-1s", "--livez-grace-period can not be a negative value"),
        ("--shutdown-delay-duration=-1s", "--shutdown-delay-duration can not be negative value"),
        (
            "--http2-max-streams-per-connection=-1",
            "--http2-max-streams-per-connection can not be negative value",
        ),
        ("--tls-min-version=VersionSSL3", "unknown tls version \"VersionSSL3\""),
        ("--tls-cipher-suites=TLS_X", "Cipher suite TLS_X not supported or doesn't exist"),
        ("--tls-sni-cert-key=/a.crt", "--tls-sni-cert-key=/a.crt: expected comma separated"),
        ("--tls-sni-cert-key=/a,/b:", "--tls-sni-cert-key=/a,/b:: empty names list is not allowed"),
        ("--tls-sni-cert-key=/a,/b,/c", "--tls-sni-cert-key=/a,/b,/c: expected comma separated"),
        (
            "--tls-sni-cert-key=/a,/b:*.10.0.0.1",
            "--tls-sni-cert-key=/a,/b:*.10.0.0.1: \"*.10.0.0.1\" is not an IP address or a DNS name",
        ),
        (
            "--tls-sni-cert-key=/a,/b:a.*.c",
            "--tls-sni-cert-key=/a,/b:a.*.c: \"a.*.c\" is not an IP address or a DNS name",
        ),
        ("--tracing-config-file=/t", "failed to read tracing configuration from \"/t\""),
        (
            "--service-account-max-token-expiration=59m",
            "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds",
        ),
        (
            "--service-account-max-token-expiration=-1h",
            "the service-account-max-token-expiration must be",
        ),
        ("--service-account-jwks-uri=http://a", "service-account-jwks-uri requires https scheme"),
        ("--service-account-jwks-uri=https://a b", "service-account-jwks-uri must be a valid URL"),
    ] {
        let error = parse(&[flag]).unwrap().config().unwrap_err().to_string();
        assert!(error.starts_with(words), "{flag}: {error}");
    }
    let none = ["--max-requests-inflight=0", "--max-mutating-requests-inflight=0"];
    let error = parse(&none).unwrap().config().unwrap_err().to_string();
    assert_eq!(
        error,
        "invalid configuration: MaxRequestsInFlight=0 and MaxMutatingRequestsInFlight=0; they must add up to something positive"
    );
    assert_eq!(parse(&none[..1]).unwrap().config().unwrap().seats, 200);
    let without = [none[0], none[1], "--enable-priority-and-fairness=false"];
    let unlimited = InFlightLimits { reading: 0, mutating: 0 };
    assert_eq!(parse(&without).unwrap().config().unwrap().in_flight, Some(unlimited));
}

#[test]
fn configures_audit_webhook() {
    let config = |flags: &[&str]| parse(flags).unwrap().config();
    assert!(config(&["--audit-webhook-mode=nonsense"]).unwrap().audit.webhook.is_none());
    let usual = config(&["--audit-webhook-config-file=/w"]).unwrap().audit.webhook.unwrap();
    let WebhookMode::Batch(batch) = usual.mode else { panic!("{:?}", usual.mode) };
    assert_eq!((batch.buffer, batch.max_size), (10_000, 400));
    assert_eq!(
        (batch.max_wait, usual.initial_backoff),
        (Duration::from_secs(30), Duration::from_secs(10))
    );
    assert!(batch.throttle.is_some_and(|throttle| throttle.qps == 10.0 && throttle.burst == 15));
    assert_eq!((usual.max_event_bytes, usual.max_batch_bytes), (None, None));
    let own = [
        "--audit-webhook-config-file=/w",
        "--audit-webhook-batch-throttle-enable=false",
        "--audit-webhook-truncate-enabled",
        "--audit-webhook-initial-backoff=1s",
    ];
    let own = config(&own).unwrap().audit.webhook.unwrap();
    assert!(matches!(&own.mode, WebhookMode::Batch(batch) if batch.throttle.is_none()));
    assert_eq!((own.max_event_bytes, own.max_batch_bytes), (Some(100 << 10), Some(10 << 20)));
    for (flag, words) in [
        ("--audit-webhook-mode=often", "allowed modes are batch,blocking,blocking-strict"),
        ("--audit-webhook-version=audit.k8s.io/v2", "the allowed version is audit.k8s.io/v1"),
        ("--audit-webhook-batch-buffer-size=0", "must be a positive number"),
        ("--audit-webhook-batch-throttle-qps=NaN", "must be a positive number"),
        ("--audit-webhook-truncate-max-batch-size=5", "must be greater than the max event size"),
    ] {
        let error = config(&["--audit-webhook-config-file=/w", flag]).unwrap_err().to_string();
        assert!(error.contains(flag.split('=').next().unwrap()), "{error}");
        assert!(error.ends_with(words), "{error}");
    }
}

#[test]
fn parses_port_ranges() {
    assert_eq!("30000-32767".parse(), Ok(PortRange(30000, 32767)));
    assert_eq!("30000+10".parse(), Ok(PortRange(30000, 30010)));
    assert!("2-1".parse::<PortRange>().is_err() && "x".parse::<PortRange>().is_err());
}

#[test]
fn validates_lease_of_elections_in_upstreams_words() {
    let config = |flags: &[&str]| parse(flags).unwrap().config();
    let lease = config(&[]).unwrap().election_lease;
    assert_eq!((&*lease.namespace, &*lease.name), ("kube-system", "leader-election-controller"));
    assert_eq!((lease.lease_duration.as_secs(), lease.renew_deadline.as_secs()), (15, 10));
    for (flag, words) in [
        (
            "--coordinated-leadership-lease-duration=10s",
            "--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline",
        ),
        (
            "--coordinated-leadership-renew-deadline=2s",
            "--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period",
        ),
        (
            "--coordinated-leadership-retry-period=0s",
            "--coordinated-leadership-retry-period=0s must be greater than zero",
        ),
    ] {
        assert_eq!(config(&[flag]).unwrap_err().to_string(), words);
    }
}
