use api_config::yaml;
use serde_json::Value;

use super::*;

/// Prints documents as a user sees them.
fn printed(documents: Vec<Value>) -> String {
    yaml::to_string_all(&documents).unwrap()
}

#[test]
fn prints_fields_that_users_change() {
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
fn printed_defaults_are_valid() {
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
    assert!(all.custom_kubelet && all.custom_proxy);
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
fn migrates_v1beta3() {
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
fn rejects_unusable_documents() {
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
