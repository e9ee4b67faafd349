use api_config::yaml;
use serde_json::Value;

use super::*;

/// Writes documents and reads them back, as a user would see them.
fn printed(documents: Vec<Value>) -> String {
    yaml::to_string_all(&documents).unwrap()
}

#[test]
fn printed_defaults_name_what_a_user_may_change() {
    let init = printed(init_defaults(Kinds::Kubeadm, "registry.k8s.io").unwrap()).replace('"', "");
    let (node, cluster) = init.split_once("---\n").unwrap();
    for line in [
        "  advertiseAddress: 1.2.3.4\n",
        "  ttl: 24h0m0s\n",
        "  taints: null\n",
        "  tlsBootstrap: 5m0s\n",
    ] {
        assert!(node.contains(line), "{line} in {node}");
    }
    for line in [
        "apiServer: {}\n",
        "encryptionAlgorithm: RSA-2048\n",
        "kubernetesVersion: 1.36.0\n",
        "proxy: {}\n",
    ] {
        assert!(cluster.contains(line), "{line} in {cluster}");
    }
    assert!(printed(join_defaults("here").unwrap()).contains("  name: here\n"));
    assert!(
        printed(reset_defaults().unwrap())
            .starts_with("apiVersion: kubeadm.k8s.io/v1beta4\ncertificatesDir:")
    );
    assert!(
        printed(upgrade_defaults().unwrap()).contains("diff: {}\nkind: UpgradeConfiguration\n")
    );
}

#[test]
fn what_is_printed_is_read_and_valid() {
    let facts = Facts {
        hostname: "vm".into(),
        address: Some([10, 0, 0, 1].into()),
        token: Some("abcdef.0123456789abcdef".into()),
        ..Facts::default()
    };
    let text = printed(init_defaults(Kinds::WithComponents, "registry.k8s.io").unwrap());
    let read = read(&text).unwrap();
    assert_eq!((&read.strict, &read.warnings), (&vec![], &vec![]));
    let all = Init::complete(read.documents, &facts);
    assert!(all.kubelet_given && all.proxy_given);
    validate_init(&all).unwrap();
    let again = Init::complete(
        super::read(&printed(all.documents(Kinds::WithComponents).unwrap())).unwrap().documents,
        &facts,
    );
    assert_eq!(again, all);
}

const V1BETA3: &str = "
apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
apiServer:
  timeoutForControlPlane: 2m0s
  extraArgs: {b: '2', a: '1'}
etcd: {local: {dataDir: /data, extraArgs: {x: 'y'}}}
---
apiVersion: kubeadm.k8s.io/v1beta3
kind: JoinConfiguration
discovery: {timeout: 1m, bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'a:1', unsafeSkipCAVerification: true}}
nodeRegistration: {kubeletExtraArgs: {v: '4'}}
";

#[test]
fn v1beta3_is_migrated() {
    let read = read(V1BETA3).unwrap();
    assert_eq!(read.strict, Vec::<String>::new());
    assert_eq!(read.warnings.len(), 2);
    let text = printed(migrate(&read).unwrap());
    assert!(
        text.contains("controlPlaneComponentHealthCheck: 2m0s") && text.contains("discovery: 1m0s"),
        "{text}"
    );
    assert!(text.contains("extraArgs:\n  - name: a\n    value: \"1\"\n  - name: b\n"), "{text}");
    assert!(!text.contains("v1beta3") && !text.contains("timeoutForControlPlane"), "{text}");
}

#[test]
fn documents_that_cannot_be_used_are_named() {
    let cases = [
        ("a: 1", "every document needs an apiVersion and a kind"),
        ("apiVersion: kubeadm.k8s.io/v1beta2\nkind: InitConfiguration", "uses an old API spec"),
        ("apiVersion: kubeadm.k8s.io/v1beta4\nkind: Foo", "no kind \"Foo\" is registered"),
        (
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration",
            "specified twice",
        ),
    ];
    for (text, wanted) in cases {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let read = read("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nfoo: 1\n---\napiVersion: v1\nkind: Pod").unwrap();
    assert!(read.strict[0].contains("unknown field \"foo\""), "{:?}", read.strict);
    assert!(read.warnings[0].contains("Ignored configuration document"), "{:?}", read.warnings);
}

fn valid() -> Init {
    let facts = Facts {
        hostname: "vm".into(),
        address: Some([10, 0, 0, 1].into()),
        token: Some("abcdef.0123456789abcdef".into()),
        ..Facts::default()
    };
    Init::complete(Documents::default(), &facts)
}

#[test]
fn each_fault_is_told_by_its_field() {
    type Damage = fn(&mut Init);
    let cases: &[(Damage, &str)] = &[
        (
            |i| i.init.node_registration.name = "Node_1".into(),
            "nodeRegistration.name: Invalid value: \"Node_1\": a lowercase RFC 1123 subdomain",
        ),
        (
            |i| i.init.local_api_endpoint.advertise_address = "x".into(),
            "localAPIEndpoint.advertiseAddress: Invalid value: \"x\": ip address is not valid",
        ),
        (
            |i| i.init.local_api_endpoint.bind_port = 70000,
            "localAPIEndpoint.bindPort: Invalid value: 70000: port number is not valid",
        ),
        (
            |i| i.cluster.networking.service_subnet = "10.96.0.0".into(),
            "networking.serviceSubnet: Invalid value: \"10.96.0.0\": couldn't parse subnet",
        ),
        (|i| i.cluster.networking.service_subnet = "10.0.0.0/8".into(), "the mask must be >= 12"),
        (
            |i| i.cluster.networking.service_subnet = "10.0.0.0/29".into(),
            "subnet with 10 address(es) or more is required",
        ),
        (
            |i| i.cluster.networking.pod_subnet = "10.96.0.0/16".into(),
            "overlaps with the service subnet",
        ),
        (
            |i| i.cluster.networking.pod_subnet = "10.0.0.0/16,10.1.0.0/16".into(),
            "one of each family",
        ),
        (
            |i| i.cluster.certificates_dir = "pki".into(),
            "certificatesDir: Invalid value: \"pki\": path is not absolute",
        ),
        (
            |i| i.cluster.encryption_algorithm = "DSA".into(),
            "encryptionAlgorithm: Unsupported value: \"DSA\"",
        ),
        (
            |i| i.cluster.feature_gates = [("X".to_owned(), true)].into(),
            "X is not a valid feature name.",
        ),
        (|i| i.cluster.etcd.external = Some(Default::default()), "mutually exclusive"),
        (
            |i| i.init.bootstrap_tokens[0].token = "abc.secretsecret".into(),
            "Invalid value: \"abc.<secret>\": the bootstrap token is invalid",
        ),
        (|i| i.init.certificate_key = "00".into(), "certificateKey: Invalid value: \"<secret>\""),
        (
            |i| i.init.node_registration.cri_socket = "tcp://x".into(),
            "only URL scheme \"unix\" is supported",
        ),
        (
            |i| i.cluster.control_plane_endpoint = "a:b:c".into(),
            "controlPlaneEndpoint: Invalid value",
        ),
        (
            |i| i.cluster.api_server.cert_sans = vec!["*bad".into()],
            "altname is not a valid IP address",
        ),
    ];
    validate_init(&valid()).unwrap();
    for (damage, wanted) in cases {
        let mut all = valid();
        damage(&mut all);
        let error = validate_init(&all).unwrap_err().to_string();
        assert!(error.contains(wanted), "wanted {wanted}, got {error}");
        assert!(!error.contains("secretsecret"), "{error}");
    }
}

#[test]
fn discovery_needs_one_way_and_a_pin() {
    let facts = Facts { hostname: "vm".into(), ..Facts::default() };
    let mut join = api_config::kubeadm::JoinConfiguration::default();
    default_join(&mut join, &facts);
    let error = validate_join(&join).unwrap_err().to_string();
    assert!(error.contains("bootstrapToken or file must be set"), "{error}");
    let token = join.discovery.bootstrap_token.insert(Default::default());
    token.token = "abcdef.0123456789abcdef".into();
    token.api_server_endpoint = "10.0.0.1:6443".into();
    let error = validate_join(&join).unwrap_err().to_string();
    assert!(error.contains("without caCertHashes can be unsafe"), "{error}");
    join.discovery.bootstrap_token.get_or_insert_default().unsafe_skip_ca_verification = true;
    validate_join(&join).unwrap();
    join.discovery.file = Some(Default::default());
    assert!(validate_join(&join).unwrap_err().to_string().contains("cannot both be set"));
}
