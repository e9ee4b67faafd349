//! Tests of the flags of kube-controller-manager.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn parsed(flags: &[&str]) -> Args {
    Command::try_parse_from([&["kcm", "--kubeconfig=/k"], flags].concat()).unwrap().args
}

#[test]
fn parses_kubeadm_flags() {
    let key = tempfile::NamedTempFile::new().unwrap();
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    std::fs::write(key.path(), &pem).unwrap();
    let args = parsed(&[
        "--allocate-node-cidrs=true",
        "--bind-address=127.0.0.1",
        "--cluster-cidr=10.244.0.0/16,fd00::/48",
        "--controllers=*,bootstrapsigner,tokencleaner",
        "--leader-elect=true",
        &format!("--service-account-private-key-file={}", key.path().display()),
        "--use-service-account-credentials=true",
        "--v=2",
    ]);
    assert_eq!(args.ignored.warnings(), ["--v has no effect: set WINDLASS_LOG for levels"]);
    let config = args.config().unwrap();
    assert!(config.leader_election && config.allocate_node_cidrs);
    assert!(
        config.enables("bootstrap-signer-controller") && config.enables("token-cleaner-controller")
    );
    assert_eq!(config.cluster_cidrs.len(), 2);
    assert_eq!(config.token_key, Some(pem));
    std::fs::write(key.path(), "no key").unwrap();
    let error = args.config().unwrap_err().to_string();
    assert!(error.starts_with("--service-account-private-key-file: "), "{error}");
}

#[test]
fn configures_signers_evictions_and_lease() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "pem").unwrap();
    let path = file.path().display().to_string();
    let config = parsed(&[
        &format!("--cluster-signing-kubelet-serving-cert-file={path}"),
        &format!("--cluster-signing-kubelet-serving-key-file={path}"),
        "--node-eviction-rate=2.5",
        "--unhealthy-zone-threshold=0.7",
        "--large-cluster-size-threshold=9",
        "--max-endpoints-per-slice=1000",
        "--mirroring-max-endpoints-per-subset=7",
        "--node-startup-grace-period=90s",
        "--legacy-service-account-token-clean-up-period=48h",
        "--enable-garbage-collector=false",
        "--enable-dynamic-provisioning=false",
        "--leader-elect-lease-duration=137s",
        "--leader-elect-renew-deadline=107s",
        "--leader-elect-resource-name=mine",
    ])
    .config()
    .unwrap();
    assert_eq!(config.signing, None);
    let signers: Vec<_> = config.signers.keys().copied().collect();
    assert_eq!(signers, ["kubernetes.io/kubelet-serving"]);
    assert_eq!((config.eviction.usual, config.eviction.secondary), (2.5, 0.01));
    assert_eq!((config.eviction.threshold, config.eviction.large), (0.7, 9));
    assert_eq!((config.max_endpoints_per_slice, config.max_mirrored_per_subset), (1000, 7));
    assert_eq!(config.node_startup_grace_period, Duration::from_secs(90));
    assert_eq!(config.token_clean_up_period, Duration::from_secs(48 * 3600));
    assert!(!config.garbage_collection && !config.dynamic_provisioning);
    let timeout = |flags: &[&str]| parsed(flags).shutdown_timeout().as_secs();
    assert_eq!((timeout(&[]), timeout(&["--controller-shutdown-timeout=3s"])), (10, 3));
    assert_eq!((&*config.lease.name, config.lease.lease_duration.as_secs()), ("mine", 137));
}

#[test]
fn rejects_conflicting_flags_in_upstreams_words() {
    for (flags, words) in [
        (
            &["--cluster-signing-kubelet-client-cert-file=/c"][..],
            "--cluster-signing-kubelet-client-{cert,key}-file: cannot specify cert without key",
        ),
        (
            &["--cluster-signing-legacy-unknown-key-file=/k"],
            "--cluster-signing-legacy-unknown-{cert,key}-file: cannot specify key without cert",
        ),
        (
            &["--max-endpoints-per-slice=0"],
            "max-endpoints-per-slice must not be less than 1, but got 0",
        ),
        (
            &["--max-endpoints-per-slice=1001"],
            "max-endpoints-per-slice must not be more than 1000, but got 1001",
        ),
        (
            &["--mirroring-max-endpoints-per-subset=-1"],
            "mirroring-max-endpoints-per-subset must not be less than 1, but got -1",
        ),
        (
            &["--leader-elect-lease-duration=5s"],
            "using the flags --leader-elect-*: leaderElection.leaseDuration: Forbidden: LeaseDuration must be greater than RenewDeadline; correct them",
        ),
    ] {
        assert_eq!(parsed(flags).config().unwrap_err().to_string(), words);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display().to_string();
    let both = parsed(&[
        &format!("--cluster-signing-cert-file={path}"),
        &format!("--cluster-signing-key-file={path}"),
        "--cluster-signing-kubelet-client-cert-file=/c",
    ]);
    assert!(matches!(both.config(), Err(FlagError::SigningTwice)));
}

#[test]
fn rejects_invalid_flags() {
    assert!(matches!(parsed(&["--controllers=depoyment"]).config(), Err(FlagError::Controller(_))));
    assert!(parsed(&["--cloud-provider=external"]).config().is_ok());
    let controllers = "--controllers=*,service-lb-controller";
    let ranges = "--load-balancer-ranges=192.0.2.0/28,2001:db8::/120";
    let config = parsed(&[controllers, ranges]).config().unwrap();
    assert!(
        matches!(config.load_balancer, LoadBalancerSource::Ranges(ranges) if ranges.len() == 2)
    );
    assert!(matches!(
        parsed(&[controllers, "--cloud-provider=external"]).config(),
        Err(FlagError::LoadBalancerOfCloud)
    ));
    assert!(matches!(parsed(&[ranges]).config(), Err(FlagError::LoadBalancerRanges)));
    assert!(matches!(parsed(&["--cloud-provider=aws"]).config(), Err(FlagError::CloudProvider(_))));
    assert!(matches!(
        parsed(&["--cluster-signing-cert-file=/dev/null"]).config(),
        Err(FlagError::Signing)
    ));
    assert!(matches!(parsed(&["--root-ca-file=/nowhere"]).config(), Err(FlagError::Read { .. })));
    assert!(Command::try_parse_from(["kcm", "--kubeconfig=/k", "--nonsense"]).is_err());
}
