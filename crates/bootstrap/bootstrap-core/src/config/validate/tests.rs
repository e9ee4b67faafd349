use std::collections::BTreeSet;

use api_config::kubeadm::{
    Arg, BootstrapTokenDiscovery, FileDiscovery, JoinControlPlane, LocalEtcd,
};

use super::*;
use crate::config::{
    Documents, Facts, default_join, default_reset, default_upgrade, validate_cluster,
};

/// The functions of kubeadm's package `validation` that validate fields.
const UPSTREAM: &[&str] = &[
    "ValidateAPIEndpoint",
    "ValidateAPIServer",
    "ValidateAbsolutePath",
    "ValidateBootstrapTokens",
    "ValidateCertSANs",
    "ValidateCertificateKey",
    "ValidateControllerManager",
    "ValidateDNS",
    "ValidateDiscovery",
    "ValidateDiscoveryBootstrapToken",
    "ValidateDiscoveryKubeConfigPath",
    "ValidateDiscoveryTokenAPIServer",
    "ValidateEncryptionAlgorithm",
    "ValidateEtcd",
    "ValidateExtraArgs",
    "ValidateFeatureGates",
    "ValidateHostPort",
    "ValidateIPFromString",
    "ValidateIPNetFromString",
    "ValidateImagePullPolicy",
    "ValidateImageRepository",
    "ValidateJoinConfiguration",
    "ValidateJoinControlPlane",
    "ValidateNetworking",
    "ValidateNodeRegistrationOptions",
    "ValidatePodSubnetNodeMask",
    "ValidatePort",
    "ValidateResetConfiguration",
    "ValidateScheduler",
    "ValidateServiceSubnetSize",
    "ValidateSocketPath",
    "ValidateToken",
    "ValidateTokenGroups",
    "ValidateTokenUsages",
    "ValidateURLs",
    "ValidateUnmountFlags",
    "ValidateUpgradeConfiguration",
];

const TOKEN: &str = "abcdef.0123456789abcdef";

struct All {
    init: Init,
    join: JoinConfiguration,
    reset: ResetConfiguration,
    upgrade: UpgradeConfiguration,
}

fn valid() -> All {
    let facts = Facts {
        hostname: "vm".into(),
        address: Some([10, 0, 0, 1].into()),
        token: Some(TOKEN.into()),
        ..Facts::default()
    };
    let mut join = JoinConfiguration::default();
    join.discovery.bootstrap_token = Some(BootstrapTokenDiscovery {
        token: TOKEN.into(),
        api_server_endpoint: "10.0.0.1:6443".into(),
        ca_cert_hashes: Vec::new(),
        unsafe_skip_ca_verification: true,
    });
    join.control_plane = Some(JoinControlPlane::default());
    default_join(&mut join, &facts);
    let (mut reset, mut upgrade) = Default::default();
    default_reset(&mut reset);
    default_upgrade(&mut upgrade);
    All { init: Init::complete(Documents::default(), &facts), join, reset, upgrade }
}

impl All {
    fn validate(&self) -> String {
        let results = [
            validate_init(&self.init),
            validate_join(&self.join),
            validate_reset(&self.reset),
            validate_upgrade(&self.upgrade),
        ];
        let refused = results.into_iter().filter_map(Result::err);
        refused.map(|error| error.to_string()).collect::<Vec<_>>().join("\n")
    }

    fn discover_by_file(&mut self, path: &str) {
        self.join.discovery.bootstrap_token = None;
        self.join.discovery.file = Some(FileDiscovery { kube_config_path: path.into() });
    }

    fn external(&mut self) -> &mut api_config::kubeadm::ExternalEtcd {
        self.init.cluster.etcd.local = None;
        let external = self.init.cluster.etcd.external.get_or_insert_default();
        external.endpoints = vec!["https://10.0.0.1:2379".into()];
        external
    }

    fn local(&mut self) -> &mut LocalEtcd {
        self.init.cluster.etcd.local.get_or_insert_default()
    }

    fn token(&mut self) -> &mut BootstrapToken {
        &mut self.init.init.bootstrap_tokens[0]
    }

    fn pods(&mut self, subnet: &str) {
        self.init.cluster.networking.pod_subnet = subnet.into();
    }

    fn manager_arg(&mut self, name: &str, value: &str) {
        let args = &mut self.init.cluster.controller_manager.extra_args;
        args.push(Arg { name: name.into(), value: value.into() });
    }
}

type Damage = fn(&mut All);

fn nameless() -> Vec<Arg> {
    let named = |name: &str| Arg { name: name.into(), value: "1".into() };
    vec![named("v"), named("")]
}

const TOO_MANY: &str = "for dual-stack networking";

const CASES: &[(&str, Damage, &str)] = &[
    (
        "ValidateAPIEndpoint",
        |a| a.init.init.local_api_endpoint.advertise_address = "10.0.0".into(),
        "localAPIEndpoint.advertiseAddress: Invalid value: \"10.0.0\": ip address is not valid",
    ),
    (
        "ValidateIPFromString",
        |a| {
            a.join.control_plane.as_mut().unwrap().local_api_endpoint.advertise_address = "x".into()
        },
        "controlPlane.localAPIEndpoint.advertiseAddress: Invalid value: \"x\": ip address is not valid",
    ),
    (
        "ValidatePort",
        |a| a.init.init.local_api_endpoint.bind_port = 70000,
        "localAPIEndpoint.bindPort: Invalid value: 70000: port number is not valid",
    ),
    (
        "ValidateAPIServer",
        |a| a.init.cluster.api_server.extra_args = nameless(),
        "apiServer.extraArgs: Invalid value: \"index 1\": argument has no name",
    ),
    (
        "ValidateControllerManager",
        |a| a.init.cluster.controller_manager.extra_args = nameless(),
        "controllerManager.extraArgs: Invalid value: \"index 1\": argument has no name",
    ),
    (
        "ValidateScheduler",
        |a| a.init.cluster.scheduler.extra_args = nameless(),
        "scheduler.extraArgs: Invalid value: \"index 1\": argument has no name",
    ),
    (
        "ValidateExtraArgs",
        |a| a.init.init.node_registration.kubelet_extra_args = nameless(),
        "nodeRegistration.kubeletExtraArgs: Invalid value: \"index 1\": argument has no name",
    ),
    (
        "ValidateExtraArgs",
        |a| a.local().extra_args = nameless(),
        "etcd.local.extraArgs: Invalid value: \"index 1\": argument has no name",
    ),
    (
        "ValidateAbsolutePath",
        |a| a.init.cluster.certificates_dir = "pki".into(),
        "certificatesDir: Invalid value: \"pki\": path is not absolute",
    ),
    (
        "ValidateCertSANs",
        |a| a.init.cluster.api_server.cert_sans = vec!["*bad".into()],
        "apiServer.certSANs: Invalid value: \"*bad\": altname is not a valid IP address, DNS label or a DNS",
    ),
    (
        "ValidateCertSANs",
        |a| a.local().peer_cert_sans = vec!["A".into()],
        "etcd.local.peerCertSANs: Invalid value: \"A\": altname is not",
    ),
    (
        "ValidateCertificateKey",
        |a| a.init.init.certificate_key = "00".into(),
        "certificateKey: Invalid value: \"<secret>\": invalid certificate key size 1, the key must be an AES",
    ),
    (
        "ValidateCertificateKey",
        |a| a.init.init.certificate_key = "0g".into(),
        "certificate key decoding error",
    ),
    (
        "ValidateJoinControlPlane",
        |a| a.join.control_plane.as_mut().unwrap().certificate_key = "000".into(),
        "controlPlane.certificateKey: Invalid value: \"<secret>\": certificate key decoding error",
    ),
    (
        "ValidateDNS",
        |a| a.init.cluster.dns.image_repository = "a/B".into(),
        "dns.imageRepository: Invalid value: \"a/B\": invalid image repository format",
    ),
    (
        "ValidateImageRepository",
        |a| a.init.cluster.image_repository = "registry/a//b".into(),
        "imageRepository: Invalid value: \"registry/a//b\": invalid image repository format",
    ),
    (
        "ValidateImageRepository",
        |a| a.local().image_repository = "https://r".into(),
        "etcd.local.imageRepository: Invalid value: \"https://r\": invalid image repository format",
    ),
    (
        "ValidateDiscovery",
        |a| a.join.discovery.bootstrap_token = None,
        "discovery: Invalid value: \"\": bootstrapToken or file must be set",
    ),
    (
        "ValidateDiscovery",
        |a| a.join.discovery.file = Some(FileDiscovery { kube_config_path: "/f".into() }),
        "discovery: Invalid value: \"\": bootstrapToken and file cannot both be set",
    ),
    (
        "ValidateDiscovery",
        |a| a.join.discovery.tls_bootstrap_token = "abc.secretsecret".into(),
        "discovery.tlsBootstrapToken: Invalid value: \"abc.<secret>\": the bootstrap token is invalid",
    ),
    (
        "ValidateDiscoveryBootstrapToken",
        |a| a.join.discovery.bootstrap_token.as_mut().unwrap().unsafe_skip_ca_verification = false,
        "discovery.bootstrapToken.caCertHashes: Invalid value: \"\": using token-based discovery without",
    ),
    (
        "ValidateDiscoveryBootstrapToken",
        |a| a.join.discovery.bootstrap_token.as_mut().unwrap().api_server_endpoint.clear(),
        "discovery.bootstrapToken: Required value: APIServerEndpoint is not set",
    ),
    (
        "ValidateDiscoveryTokenAPIServer",
        |a| {
            a.join.discovery.bootstrap_token.as_mut().unwrap().api_server_endpoint =
                "10.0.0.1".into()
        },
        "discovery.bootstrapToken.apiServerEndpoint: Invalid value: \"10.0.0.1\": address 10.0.0.1: missing",
    ),
    (
        "ValidateDiscoveryKubeConfigPath",
        |a| a.discover_by_file("http://a/b"),
        "discovery.file.kubeConfigPath: Invalid value: \"http://a/b\": if a URL is used, the scheme must be",
    ),
    (
        "ValidateEncryptionAlgorithm",
        |a| a.init.cluster.encryption_algorithm = "DSA".into(),
        "encryptionAlgorithm: Invalid value: \"DSA\": Invalid encryption algorithm \"DSA\". Must be one of",
    ),
    (
        "ValidateEtcd",
        |a| a.init.cluster.etcd.local = None,
        "etcd: Invalid value: \"\": either .Etcd.Local or .Etcd.External is required",
    ),
    (
        "ValidateEtcd",
        |a| {
            a.external();
            a.local().data_dir = "/d".into();
        },
        "etcd: Invalid value: \"\": .Etcd.Local and .Etcd.External are mutually exclusive",
    ),
    (
        "ValidateEtcd",
        |a| a.local().data_dir = "d".into(),
        "etcd.local.dataDir: Invalid value: \"d\": path is not absolute",
    ),
    (
        "ValidateEtcd",
        |a| a.external().cert_file = "/c".into(),
        "either both or none of .Etcd.External.CertFile and .Etcd.External.KeyFile must be set",
    ),
    (
        "ValidateEtcd",
        |a| {
            let e = a.external();
            e.cert_file = "/c".into();
            e.key_file = "/k".into();
        },
        "etcd.external: Invalid value: \"\": setting .Etcd.External.CertFile and .Etcd.External.KeyFile",
    ),
    (
        "ValidateEtcd",
        |a| a.external().ca_file = "c".into(),
        "etcd.external.caFile: Invalid value: \"c\": path is not absolute",
    ),
    (
        "ValidateURLs",
        |a| {
            let e = a.external();
            e.ca_file = "/c".into();
            e.endpoints = vec!["http://10.0.0.1:2379".into()];
        },
        "etcd.external.endpoints: Invalid value: \"http://10.0.0.1:2379\": the URL must be using the HTTPS",
    ),
    (
        "ValidateURLs",
        |a| a.external().endpoints = vec!["10.0.0.1:2379".into()],
        "the URL without scheme is not allowed",
    ),
    (
        "ValidateFeatureGates",
        |a| a.init.cluster.feature_gates = [("X".to_owned(), true)].into(),
        "featureGates: Invalid value: \"X\": X is not a valid feature name.",
    ),
    (
        "ValidateHostPort",
        |a| a.init.cluster.control_plane_endpoint = "a:b:c".into(),
        "controlPlaneEndpoint: Invalid value: \"a:b:c\": endpoint is not valid",
    ),
    (
        "ValidateHostPort",
        |a| a.init.cluster.control_plane_endpoint = "a_b:1".into(),
        "endpoint is not valid",
    ),
    (
        "ValidateIPNetFromString",
        |a| a.init.cluster.networking.service_subnet = "10.96.0.0".into(),
        "networking.serviceSubnet: Invalid value: \"10.96.0.0\": couldn't parse subnet",
    ),
    (
        "ValidateIPNetFromString",
        |a| a.init.cluster.networking.service_subnet = "10.0.0.0/29".into(),
        "networking.serviceSubnet: Invalid value: \"10.0.0.0/29\": subnet with 8 address(es) is too small,",
    ),
    (
        "ValidateIPNetFromString",
        |a| a.pods("10.0.0.0/27"),
        "subnet with 32 address(es) is too small, the minimum is 50",
    ),
    ("ValidateIPNetFromString", |a| a.pods("10.0.0.0/16,10.1.0.0/16"), TOO_MANY),
    ("ValidateIPNetFromString", |a| a.pods("10.0.0.0/16,fd00::/48,fd01::/48"), TOO_MANY),
    (
        "ValidateNetworking",
        |a| a.init.cluster.networking.dns_domain = "a_b".into(),
        "networking.dnsDomain: Invalid value: \"a_b\": a lowercase RFC 1123 subdomain",
    ),
    ("ValidateNetworking", |a| a.pods("10.96.0.0/16"), "overlaps with the service subnet"),
    (
        "ValidateServiceSubnetSize",
        |a| a.init.cluster.networking.service_subnet = "10.0.0.0/8".into(),
        "specified service subnet is too large; for 32-bit addresses, the mask must be >= 12",
    ),
    (
        "ValidatePodSubnetNodeMask",
        |a| a.pods("10.0.0.0/25"),
        "the size of pod subnet with mask 25 is smaller than the size of node subnet with mask 24",
    ),
    (
        "ValidatePodSubnetNodeMask",
        |a| a.pods("fd00::/40"),
        "pod subnet mask (40) and node-mask (64) difference is greater than 16",
    ),
    (
        "ValidatePodSubnetNodeMask",
        |a| {
            a.pods("10.0.0.0/16");
            a.manager_arg("node-cidr-mask-size-ipv4", "x");
        },
        "could not parse the value of the kube-controller-manager flag node-cidr-mask-size-ipv4 as an integer",
    ),
    (
        "ValidateImagePullPolicy",
        |a| a.init.init.node_registration.image_pull_policy = "Sometimes".into(),
        "nodeRegistration.imagePullPolicy: Invalid value: \"Sometimes\": invalid pull policy",
    ),
    (
        "ValidateJoinConfiguration",
        |a| a.join.ca_cert_path = "/etc/ca.pem".into(),
        "caCertPath: Invalid value: \"/etc/ca.pem\": the ca certificate path must be an absolute path",
    ),
    (
        "ValidateNodeRegistrationOptions",
        |a| a.init.init.node_registration.name = "Node_1".into(),
        "nodeRegistration.name: Invalid value: \"Node_1\": a lowercase RFC 1123 subdomain",
    ),
    (
        "ValidateNodeRegistrationOptions",
        |a| a.join.node_registration.name.clear(),
        "nodeRegistration: Required value: --node-name or .nodeRegistration.name in the config file is a",
    ),
    (
        "ValidateResetConfiguration",
        |a| a.reset.certificates_dir = "pki".into(),
        "certificatesDir: Invalid value: \"pki\": path is not absolute",
    ),
    (
        "ValidateSocketPath",
        |a| a.init.init.node_registration.cri_socket = "tcp://x".into(),
        "nodeRegistration.criSocket: Invalid value: \"tcp://x\": only URL scheme \"unix\" is supported, got",
    ),
    (
        "ValidateSocketPath",
        |a| a.reset.cri_socket.clear(),
        "criSocket: Invalid value: \"\": empty CRI socket",
    ),
    (
        "ValidateToken",
        |a| a.token().token = "abc.secretsecret".into(),
        "bootstrapTokens.0.token: Invalid value: \"abc.<secret>\": the bootstrap token is invalid",
    ),
    (
        "ValidateTokenGroups",
        |a| a.token().groups = vec!["system:masters".into()],
        "bootstrapTokens.0.groups: Invalid value: \"system:masters\": bootstrap group \"system:masters\" is",
    ),
    (
        "ValidateTokenGroups",
        |a| a.token().usages = vec!["signing".into()],
        "token groups cannot be specified unless --usages includes \"authentication\"",
    ),
    (
        "ValidateTokenUsages",
        |a| a.token().usages.push("x".into()),
        "bootstrapTokens.0.usages: Invalid value: \"[signing authentication x]\": invalid bootstrap token",
    ),
    (
        "ValidateBootstrapTokens",
        |a| a.token().expires = Some("2030-01-01T00:00:00Z".into()),
        "bootstrapTokens.0: Invalid value: \"\": the BootstrapToken .TTL and .Expires fields are mutually",
    ),
    (
        "ValidateBootstrapTokens",
        |a| a.token().expires = Some("tomorrow".into()),
        "bootstrapTokens.0.expires: Invalid value: \"tomorrow\"",
    ),
    (
        "ValidateUnmountFlags",
        |a| a.reset.unmount_flags = vec!["MNT_FORCE".into(), "X".into()],
        "unmountFlags: Invalid value: \"index 1\": unknown unmount flag X",
    ),
    (
        "ValidateUpgradeConfiguration",
        |a| a.upgrade.apply.patches.get_or_insert_default().directory = "p".into(),
        "apply.patches.directory: Invalid value: \"p\": path is not absolute",
    ),
    (
        "ValidateUpgradeConfiguration",
        |a| a.upgrade.node.patches.get_or_insert_default().directory = "p".into(),
        "node.patches.directory: Invalid value: \"p\": path is not absolute",
    ),
    (
        "ValidateUpgradeConfiguration",
        |a| a.upgrade.node.image_pull_policy = "x".into(),
        "node.imagePullPolicy: Invalid value: \"x\": invalid pull policy",
    ),
];

#[test]
fn rejects_each_fault_by_its_field() {
    assert_eq!(valid().validate(), "");
    for (function, damage, wanted) in CASES {
        let mut all = valid();
        damage(&mut all);
        let refused = all.validate();
        assert!(refused.contains(wanted), "{function}: wanted {wanted}, got {refused:?}");
        assert!(!refused.contains("secretsecret"), "{function}: {refused}");
    }
}

#[test]
fn has_a_case_for_every_upstream_function() {
    let have: BTreeSet<_> = CASES.iter().map(|(function, ..)| *function).collect();
    assert_eq!(have, UPSTREAM.iter().copied().collect());
}

#[test]
fn accepts_configurations_that_upstream_accepts() {
    let accepted: &[Damage] = &[
        |a| a.init.cluster.api_server.cert_sans = vec!["*.example.com".into(), "fd00::1".into()],
        |a| a.init.cluster.image_repository = "[fd00::1]:5000/a__b/c-d.e".into(),
        |a| a.init.cluster.image_repository = "Registry.Example:5000/k8s".into(),
        |a| a.init.cluster.image_repository = "localhost".into(),
        |a| a.init.init.node_registration.image_pull_policy.clear(),
        |a| a.external().endpoints = vec!["http://10.0.0.1:2379".into()],
        |a| {
            a.pods("10.0.0.0/26");
            a.manager_arg("allocate-node-cidrs", "false");
        },
        |a| {
            a.pods("10.0.0.0/25");
            a.manager_arg("node-cidr-mask-size-ipv4", "24");
            a.manager_arg("node-cidr-mask-size-ipv4", "26");
        },
        |a| a.pods("10.244.0.0/16,fd00:1::/48"),
        |a| {
            a.token().ttl = None;
            a.token().expires = Some("2030-01-01T00:00:00Z".into());
        },
        |a| {
            a.join.discovery.bootstrap_token.as_mut().unwrap().api_server_endpoint =
                "[fd00::1]:1".into()
        },
    ];
    for (i, change) in accepted.iter().enumerate() {
        let mut all = valid();
        change(&mut all);
        assert_eq!(all.validate(), "", "{i}");
    }
    validate_cluster(&valid().init.cluster).unwrap();
}
