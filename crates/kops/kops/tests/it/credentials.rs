//! Tests of secrets and SSH public keys.

use std::fs;

use crate::stored::TestStore;

const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBPuFjoI6iK9Nl3hxVuQ7SBhKT2CpsSwp9dVQ4BnFZxY me@here\n";

#[test]
fn stores_shows_and_deletes_secrets() {
    let place = TestStore::with_cluster("metal");
    let kops = |args: &[&str]| place.kops(&[args, &["--name", "demo.local"]].concat());
    assert_eq!(kops(&["get", "secrets"]).unwrap_err(), "no secrets found");
    let docker = r#"{"auths": {"registry.example": {"auth": "bWU6c2VjcmV0"}}}"#;
    let file = place.file(docker);
    let made = place.kops(&["create", "secret", "dockerconfig", "demo.local", "-f", &file]);
    assert_eq!(made.unwrap(), "");
    let stored = place.read("demo.local/secrets/dockerconfig");
    assert_eq!(
        stored,
        r#"{"Data":"eyJhdXRocyI6IHsicmVnaXN0cnkuZXhhbXBsZSI6IHsiYXV0aCI6ICJiV1U2YzJWamNtVjAifX19"}"#
    );
    let file = place.file("kind: EncryptionConfiguration\n");
    kops(&["create", "secret", "encryptionconfig", "-f", &file]).unwrap();
    let file = place.file("keys: 3 rfc4106(gcm(aes)) 00 128\n");
    kops(&["create", "secret", "ciliumpassword", "-f", &file]).unwrap();
    let shown = kops(&["get", "secrets"]).unwrap();
    assert_eq!(shown, "NAME\nciliumpassword\ndockerconfig\nencryptionconfig\n");
    let shown = kops(&["get", "secret", "dockerconfig", "-o", "plaintext"]).unwrap();
    assert_eq!(shown, format!("{docker}\n"));
    for (args, message) in [
        (vec!["-o", "yaml"], "yaml output format is not (currently) supported for secrets"),
        (vec!["-o", "json"], "json output format is not (currently) supported for secrets"),
        (vec!["none"], "no secrets found"),
        (vec!["--type", "keypair"], "use 'kops get keypairs' instead"),
        (vec!["--type", "sshpublickey"], "use 'kops get sshpublickey' instead"),
        (vec!["--type", "x"], "unknown secret type \"x\""),
    ] {
        let error = kops(&[&["get", "secrets"], &args[..]].concat()).unwrap_err();
        assert_eq!(error, message);
    }
    let plain = kops(&["get", "ig", "-o", "plaintext"]).unwrap_err();
    assert_eq!(plain, "unknown output format: \"plaintext\"");
    let file = place.file("keys: other\n");
    let again = kops(&["create", "secret", "ciliumpassword", "-f", &file]).unwrap_err();
    assert_eq!(
        again,
        "failed to create the Cilium IPSec secret as it already exists. Pass the `--force` flag to replace an \
         existing secret"
    );
    kops(&["create", "secret", "ciliumpassword", "-f", &file, "--force"]).unwrap();
    let shown = kops(&["get", "secret", "ciliumpassword", "-o", "plaintext"]).unwrap();
    assert_eq!(shown, "keys: other\n\n");
    kops(&["delete", "secret", "ciliumpassword"]).unwrap();
    assert!(!place.has("demo.local/secrets/ciliumpassword"));
    let error = kops(&["delete", "secret", "ciliumpassword"]).unwrap_err();
    assert_eq!(error, "secret \"ciliumpassword\" not found");
}

#[test]
fn rejects_bad_secrets_without_changes() {
    let place = TestStore::with_cluster("metal");
    let kops = |args: &[&str]| place.kops(&[args, &["--name", "demo.local"]].concat());
    kops(&["create", "secret", "encryptionconfig", "-f", &place.file("a: b\n")]).unwrap();
    let huge = format!("{{\"a\": \"{}\"}}", "x".repeat(1 << 20));
    let before = place.objects();
    for (kind, content, reason) in [
        ("dockerconfig", "", "unable to parse JSON"),
        ("dockerconfig", "a: b\n", "unable to parse JSON"),
        ("dockerconfig", "[1]", "unable to parse JSON"),
        ("dockerconfig", "{\"a\": 1}{", "unable to parse JSON"),
        ("dockerconfig", huge.as_str(), "larger than 1048576 bytes"),
        ("encryptionconfig", "", "unable to parse YAML"),
        ("encryptionconfig", "- a\n", "unable to parse YAML"),
        ("encryptionconfig", "a: &a [*a, *a]\n", "unable to parse YAML"),
        ("ciliumpassword", "a: [", "unable to parse YAML"),
    ] {
        let file = place.file(content);
        let error = kops(&["create", "secret", kind, "--force", "-f", &file]).unwrap_err();
        assert!(error.contains(reason), "{kind}: {error}");
        assert!(!error.contains("xxx"), "the error quotes the secret");
        assert_eq!(place.objects(), before, "{kind}");
    }
    let file = place.file("{}");
    let two = place.kops(&[
        "create",
        "secret",
        "dockerconfig",
        "demo.local",
        "--name",
        "demo.local",
        "-f",
        &file,
    ]);
    assert_eq!(two.unwrap_err(), "cannot specify cluster via --name and positional argument");
    for name in ["other.local", "../state/demo.local", "/etc", ""] {
        let args = ["create", "secret", "dockerconfig", "-f", &file, "--name", name];
        assert!(place.kops(&args).is_err(), "{name}");
        assert!(place.kops(&["get", "secrets", "--name", name]).is_err(), "{name}");
    }
    for secret in ["../config", "..", "a/b", "/etc/passwd"] {
        let error = kops(&["delete", "secret", secret]).unwrap_err();
        assert!(error.contains("is not a name"), "{secret}: {error}");
    }
    assert!(kops(&["create", "secret", "dockerconfig", "-f", &place.path("none")]).is_err());
    assert_eq!(place.objects(), before);
    place.put("demo.local/secrets/damaged", "{\"Data\": 7");
    let error = kops(&["get", "secrets", "damaged", "-o", "plaintext"]).unwrap_err();
    assert!(error.contains("demo.local/secrets/damaged"), "{error}");
}

#[test]
fn stores_ssh_credentials_of_files() {
    let place = TestStore::with_cluster("metal");
    let credential = |label: &str, key: &str| {
        place.file(&format!(
            "apiVersion: kops.k8s.io/v1alpha2\nkind: SSHCredential\nmetadata:\n  name: admin\n  labels: {{{label}: \
             demo.local}}\nspec: {{publicKey: {key:?}}}\n"
        ))
    };
    let before = place.objects();
    for (label, key, reason) in [
        ("a", KEY, "label with cluster name on SSHCredential \"admin\""),
        ("kops.k8s.io/cluster", "", "has no public key"),
        ("kops.k8s.io/cluster", "ssh-rsa x", "is not a public key"),
    ] {
        let error = place.kops(&["create", "-f", &credential(label, key)]).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert_eq!(place.objects(), before);
    }
    let file = credential("kops.k8s.io/cluster", KEY);
    assert_eq!(place.kops(&["create", "-f", &file]).unwrap(), "\nAdded ssh credential\n");
    let stored = place.objects();
    assert_eq!(stored.len(), before.len() + 1);
    place.kops(&["replace", "-f", &file]).unwrap();
    assert_eq!(place.objects(), stored);
    let asked = place.kops(&["delete", "-f", &file]).unwrap();
    assert!(asked.contains("Must specify --yes") && place.objects() == stored, "{asked}");
    place.kops(&["delete", "-f", &file, "--yes"]).unwrap();
    assert_eq!(place.objects(), before);
}

#[test]
fn rejects_secrets_and_keys_that_local_machines_ignore() {
    let place = TestStore::with_cluster("local");
    let kops = |args: &[&str]| place.kops(&[args, &["--name", "demo.local"]].concat());
    let before = place.objects();
    for (kind, content, reason) in [
        ("ciliumpassword", "a: b\n", "secret \"ciliumpassword\": machines of cloud local"),
        ("dockerconfig", r#"{"credsStore": "x"}"#, "run no credential helpers"),
        ("dockerconfig", r#"{"auths": {"a": {"auth": "x"}}}"#, "has no user and password for a"),
        ("encryptionconfig", "a: b\n", "is not an EncryptionConfiguration"),
        (
            "encryptionconfig",
            "kind: EncryptionConfiguration\n",
            "is not an EncryptionConfiguration",
        ),
        (
            "encryptionconfig",
            "kind: EncryptionConfiguration\nresources: [{resources: [secrets]}]\n",
            "is not an EncryptionConfiguration",
        ),
        (
            "encryptionconfig",
            &encryption("{aescbc: {keys: []}}"),
            "resources[0].providers[0].aescbc.keys",
        ),
        (
            "encryptionconfig",
            &encryption("{aescbc: {key: c2hvcnQ=}}"),
            "is not an EncryptionConfiguration",
        ),
        (
            "encryptionconfig",
            &encryption("{aescbc: {keys: [{name: a, secret: c2hvcnQ=}]}}"),
            "resources[0].providers[0].aescbc.keys[0].secret",
        ),
    ] {
        let file = place.file(content);
        let error = kops(&["create", "secret", kind, "-f", &file]).unwrap_err();
        assert!(error.contains(reason) && !error.contains("c2hvcnQ"), "{content}: {error}");
    }
    let file = place.file(KEY);
    let error = kops(&["create", "sshpublickey", "-i", &file]).unwrap_err();
    assert!(error.contains("run no SSH server"), "{error}");
    assert_eq!(place.objects(), before);
    // Another kOps may have stored it.
    place.put("demo.local/secrets/ciliumpassword", r#"{"Data":"e30="}"#);
    let error = kops(&["update", "cluster"]).unwrap_err();
    assert!(error.contains("secret \"ciliumpassword\": machines of cloud local"), "{error}");
    kops(&["delete", "secret", "ciliumpassword"]).unwrap();
    assert_eq!(place.objects(), before);
}

/// A provider with a key of 32 bytes.
const AES: &str =
    "{aescbc: {keys: [{name: a, secret: MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=}]}}";

fn encryption(providers: &str) -> String {
    format!(
        "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets]\n  \
         providers: [{providers}]\n"
    )
}

#[test]
fn encrypts_stored_data_of_cloud_local_and_keeps_it_readable() {
    let place = TestStore::with_cluster("local");
    let kops = |args: &[&str]| place.kops(&[args, &["--name", "demo.local"]].concat());
    let file = place.file(r#"{"auths": {"registry.example": {"auth": "bWU6c2VjcmV0"}}}"#);
    kops(&["create", "secret", "dockerconfig", "-f", &file]).unwrap();
    kops(&["update", "cluster"]).unwrap();
    place.kops(&["edit", "cluster", "demo.local", "--set", "spec.encryptionConfig=true"]).unwrap();
    let error = kops(&["update", "cluster"]).unwrap_err();
    assert!(error.contains("needs the secret \"encryptionconfig\""), "{error}");
    let create = |provider: &str| {
        let file = place.file(&encryption(provider));
        kops(&["create", "secret", "encryptionconfig", "--force", "-f", &file]).unwrap();
    };
    let plan = || {
        let path = place.path("plan.json");
        kops(&["update", "cluster", "--plan-out", &path]).unwrap();
        fs::read_to_string(&path).unwrap()
    };
    create(&format!("{AES}, {{identity: {{}}}}"));
    let shown = plan();
    assert!(shown.contains("InstanceGroup") && !shown.contains("aescbc"), "{shown}");
    // After an update with encryption, it ends only once nothing new is encrypted.
    place.put(
        "demo.local/cluster-completed.spec",
        &crate::stored::CLUSTER.replace("  iam: {}\n", "  iam: {}\n  encryptionConfig: true\n"),
    );
    for end in [["--set", "spec.encryptionConfig=false"], ["--unset", "spec.encryptionConfig"]] {
        place.kops(&[&["edit", "cluster", "demo.local"], &end[..]].concat()).unwrap();
        let error = kops(&["update", "cluster"]).unwrap_err();
        assert!(error.contains("cannot end yet"), "{error}");
    }
    create(&format!("{{identity: {{}}}}, {AES}"));
    kops(&["update", "cluster"]).unwrap();
    kops(&["delete", "secret", "encryptionconfig"]).unwrap();
    assert!(kops(&["update", "cluster"]).unwrap_err().contains("cannot end yet"));
}

#[test]
fn stores_shows_and_deletes_ssh_keys() {
    let place = TestStore::with_cluster("metal");
    let kops = |args: &[&str]| place.kops(&[args, &["demo.local"]].concat());
    assert_eq!(kops(&["get", "sshpublickeys"]).unwrap_err(), "no SSH public key found");
    assert_eq!(kops(&["get", "ssh", "-o", "json"]).unwrap(), "[]\n");
    kops(&["create", "sshpublickey", "-i", &place.file(KEY)]).unwrap();
    let shown = kops(&["get", "sshpublickey"]).unwrap();
    let id = shown.strip_prefix("ID\n").unwrap().trim();
    assert_eq!(id.len(), 47, "{shown}");
    let path = format!("demo.local/pki/ssh/public/admin/{}", id.replace(':', ""));
    assert_eq!(place.read(&path), KEY);
    let yaml = kops(&["get", "sshpublickeys", "-o", "yaml"]).unwrap();
    let wrapped = KEY.replace(" me@here", "\n    me@here");
    assert_eq!(yaml, format!("- id: {id}\n  publicKey: {wrapped}"));
    let before = place.objects();
    kops(&["create", "sshpublickey", "--ssh-public-key", &place.file(KEY)]).unwrap();
    assert_eq!(place.objects(), before);
    for content in ["", "x", "-----BEGIN OPENSSH PRIVATE KEY-----\n", &KEY.repeat(2)] {
        let error = kops(&["create", "sshpublickey", "-i", &place.file(content)]).unwrap_err();
        assert!(error.contains("file.yaml"), "{error}");
        assert_eq!(place.objects(), before, "{content}");
    }
    let huge = place.file(&"#".repeat(70_000));
    let error = kops(&["create", "sshpublickey", "-i", &huge]).unwrap_err();
    assert!(error.contains("larger than 65536 bytes"), "{error}");
    assert!(place.kops(&["create", "sshpublickey", "../x", "-i", &place.file(KEY)]).is_err());
    assert_eq!(place.objects(), before);
    kops(&["delete", "sshpublickey"]).unwrap();
    assert!(!place.has(&path));
    let bytes = place.path("bytes");
    fs::write(&bytes, b"\xff\xfe").unwrap();
    assert!(kops(&["create", "sshpublickey", "-i", &bytes]).unwrap_err().contains("is not text"));
}
