//! Upstream's mock of a KMS v2 plugin, whose keys are in SoftHSM: Secrets at rest, rotation, and a plugin that is down.

use std::{fs, path::PathBuf, time::Duration};

use e2e::{Background, Cluster, Programs, Session, share_machine, until, until_within};
use serde_json::{Value, json};

/// Creates a token with an AES key in the working directory.
const PREPARE: &str = r#"
    mkdir tokens
    echo "directories.tokendir = $PWD/tokens" >softhsm2.conf
    export SOFTHSM2_CONF=$PWD/softhsm2.conf
    softhsm2-util --init-token --free --label kms-test --pin 1234 --so-pin 1234
    head -c 32 /dev/urandom >key
    softhsm2-util --import key --aes --token kms-test --label kms-test --id 01 --pin 1234
    rm key
    echo '{"path": "/usr/lib/softhsm/libsofthsm2.so", "tokenLabel": "kms-test", "pin": "1234"}' >config.json
"#;

/// A little more than the time for which a seed encrypts without its plugin.
const SEED_EXPIRY: Duration = Duration::from_secs(240);

/// A plugin with a key of its own.
struct Plugin<'a> {
    cluster: &'a Cluster,
    program: PathBuf,
    name: &'static str,
    directory: PathBuf,
    process: Option<Background>,
}

impl<'a> Plugin<'a> {
    fn create(cluster: &'a Cluster, programs: &Programs, name: &'static str) -> Self {
        let directory = cluster.directory.join(name);
        fs::create_dir_all(&directory).unwrap();
        let script = format!("set -e; cd {}; {PREPARE}", directory.display());
        cluster.run("sh", &["-c", &script]).ok();
        let program = programs.path("bin/mock-kms-plugin");
        let mut plugin = Self { cluster, program, name, directory, process: None };
        plugin.start();
        plugin
    }

    fn endpoint(&self) -> String {
        format!("unix://{}/kms.sock", self.directory.display())
    }

    fn start(&mut self) {
        // The former process leaves its socket.
        let _ = fs::remove_file(self.directory.join("kms.sock"));
        let config = self.directory.join("config.json").display().to_string();
        let flags = ["--listen-addr", &self.endpoint(), "--config-file-path", &config];
        let program = self.program.display().to_string();
        let mut command = self.cluster.namespace.command(&program, &flags);
        command.env("SOFTHSM2_CONF", self.directory.join("softhsm2.conf"));
        self.process = Some(Background::start(command));
    }

    fn stop(&mut self) {
        self.process = None;
    }

    fn provider(&self) -> Value {
        json!({"kms": {"apiVersion": "v2", "name": self.name, "endpoint": self.endpoint(), "timeout": "3s"}})
    }
}

/// Replaces the API server's file of providers, the first of which encrypts.
fn configure(cluster: &Cluster, providers: &[Value]) {
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}],
    });
    let [new, file] = ["new.json", "encryption.json"].map(|name| cluster.directory.join(name));
    fs::write(&new, configuration.to_string()).unwrap();
    fs::rename(&new, &file).unwrap();
}

/// Returns `true` if a file of the store contains a text.
fn stores(cluster: &Cluster, text: &str) -> bool {
    let store = cluster.root().join("var/lib/store").display().to_string();
    cluster.run("grep", &["-rqa", text, &store]).code == Some(0)
}

/// Creates a Secret with a value that no other object contains.
fn create(s: &Session<'_>, name: &str) -> e2e::Output {
    s.kubectl(&format!("create secret generic {name} --from-literal=a=plain-text-of-{name}"))
}

fn is_readable(s: &Session<'_>, name: &str) {
    let template = format!("get secret {name} -o go-template={{{{.data.a|base64decode}}}}");
    s.until(&template, |text| text == format!("plain-text-of-{name}"));
}

fn up(cluster: &Cluster) {
    let file = cluster.directory.join("encryption.json");
    let document = json!({
        "apiVersion": "windlass.io/v1alpha1",
        "kind": "Cluster",
        "apiServer": {"extraArgs": [
            {"name": "encryption-provider-config", "value": file},
            {"name": "encryption-provider-config-automatic-reload", "value": "true"},
        ]},
    });
    let path = cluster.directory.join("cluster.json");
    fs::write(&path, document.to_string()).unwrap();
    cluster.up_with(&["--config", &path.display().to_string()]).ok();
}

/// Checks that reads continue without the plugin, that writes end, and that health and error name the cause.
fn survives_lost_plugin(s: &Session<'_>, plugin: &mut Plugin<'_>) {
    plugin.stop();
    is_readable(s, "one");
    s.kubectl("create configmap unencrypted").ok();
    until("the failed check", || {
        let health = s.kubectl("get --raw /healthz?verbose");
        if health.stderr.contains("[-]kms-providers failed") {
            Ok(())
        } else {
            Err(health.to_string())
        }
    });
    let mut number = 0;
    let refused = until_within(SEED_EXPIRY, "a refused write", || {
        number += 1;
        let output = s.kubectl(&format!("annotate secret one turn={number} --overwrite"));
        if output.code == Some(0) { Err(output.to_string()) } else { Ok(output.stderr) }
    });
    let words = "encryptedDEKSource with keyID hash \"sha256:";
    assert!(refused.contains(words) && refused.contains("expired at"), "{refused}");
    is_readable(s, "one");
    s.kubectl("get secrets").ok();
    s.kubectl("create configmap still-unencrypted").ok();
    plugin.start();
    until("a Secret after the plugin's return", || create(s, "after").ok_if(|_| true));
    s.until("get --raw /healthz/kms-providers", |text| text == "ok");
}

#[test]
fn secrets_are_encrypted_by_kms_plugin() {
    let Some(programs) = Programs::of("kms") else { return };
    let _turn = share_machine();
    let cluster = Cluster::new("kms");
    let mut first = Plugin::create(&cluster, &programs, "first");
    configure(&cluster, &[first.provider()]);
    up(&cluster);
    let s = Session::in_default_namespace(&cluster);
    create(&s, "one").ok();
    assert!(stores(&cluster, "k8s:enc:kms:v2:first:"));
    // The value is base64 in JSON.
    assert!(!stores(&cluster, "plain-text-of-one") && !stores(&cluster, "cGxhaW4tdGV4dC1vZi1v"));
    cluster.kill("control-plane");
    is_readable(&s, "one");
    survives_lost_plugin(&s, &mut first);

    let second = Plugin::create(&cluster, &programs, "second");
    configure(&cluster, &[second.provider(), first.provider()]);
    until("a Secret of the second key", || {
        let _ = s.kubectl("delete secret two");
        create(&s, "two").ok();
        if stores(&cluster, "k8s:enc:kms:v2:second:") { Ok(()) } else { Err("not yet".to_owned()) }
    });
    let all = s.kubectl("get secrets --all-namespaces -o json").ok();
    s.kubectl_with(&["replace", "-f", "-"], &all).ok();
    first.stop();
    configure(&cluster, &[second.provider()]);
    cluster.kill("control-plane");
    for name in ["one", "after", "two"] {
        is_readable(&s, name);
    }
    s.until("get --raw /healthz/kms-providers", |text| text == "ok");
    create(&s, "three").ok();
    cluster.down(&[]).ok();
}
