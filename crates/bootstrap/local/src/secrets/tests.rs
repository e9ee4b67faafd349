//! Rotations on a real API server, interrupted at each step.

use std::{sync::Arc, time::Duration};

use client::Resource;
use encryption::Encryption;
use serde_json::{Value, json};
use testkit::RealApi;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);
const KEY: &str = "/registry/secrets/default/";

struct Scene {
    api: RealApi,
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Scene {
    /// Starts an API server with the encryption of a new cluster and some Secrets.
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("encryption-config.yaml");
        create(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let clock = Arc::new(rt::SystemClock);
        let loaded = Encryption::load(file.clone(), true, tasks.clone(), clock).await.unwrap();
        let loaded = Arc::new(loaded);
        let (followed, path) = (loaded.clone(), file.clone());
        tasks.keep("encryption configuration", move || {
            followed.clone().follow(path.clone(), Duration::from_millis(20))
        });
        let api = RealApi::encrypted(loaded).await.unwrap();
        for number in 0..5 {
            let secret =
                json!({"metadata": {"name": format!("s{number}")}, "stringData": {"a": "b"}});
            api.admin().create::<_, Value>(&Resource::SECRETS, "default", &secret).await.unwrap();
        }
        Self { api, file, _directory: directory }
    }

    fn rotation(&self, client: Client) -> Rotation {
        let target = Target { file: self.file.clone(), client };
        Rotation { target, patience: PATIENCE }
    }

    fn keys(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.file).unwrap();
        Configuration::parse(&self.file, &text).unwrap().entries().swap_remove(0).keys
    }

    /// Returns the names of the keys that stored values are encrypted with, and checks that the API serves them all.
    async fn keys_of_data(&self) -> Vec<String> {
        let mut names = Vec::new();
        for number in 0..5 {
            let name = format!("s{number}");
            let secret: Value =
                self.api.admin().get(&Resource::SECRETS, "default", &name).await.unwrap();
            assert_eq!(secret["data"]["a"], "Yg==", "{name}");
            let stored = self.api.store().get(&format!("{KEY}{name}")).await.unwrap().0.unwrap();
            let prefix =
                String::from_utf8_lossy(&stored.value[..80.min(stored.value.len())]).into_owned();
            let of_key =
                prefix.strip_prefix("k8s:enc:secretbox:v1:").unwrap_or_else(|| panic!("{prefix}"));
            names.push(of_key.split(':').next().unwrap().to_owned());
        }
        names.dedup();
        names
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotates_key_and_removes_old_one() {
    let scene = Scene::start().await;
    let old = scene.keys();
    assert_eq!(scene.keys_of_data().await, old);
    scene.rotation(scene.api.admin()).rotate().await.unwrap();
    let new = scene.keys();
    assert!(new.len() == 1 && new[0] > old[0], "{new:?}");
    assert_eq!(scene.keys_of_data().await, new);
    scene.rotation(scene.api.admin()).status().await.unwrap();
    // A second rotation starts at the first step.
    scene.rotation(scene.api.admin()).rotate().await.unwrap();
    assert_eq!(scene.keys().len(), 1);
    assert_ne!(scene.keys(), new);
    assert_eq!(scene.keys_of_data().await, scene.keys());
}

#[tokio::test(flavor = "multi_thread")]
async fn continues_after_end_at_each_step() {
    let scene = Scene::start().await;
    let old = scene.keys();
    for stage in [Stage::Prepared, Stage::Rotated] {
        // The process ends as soon as the file is at this stage.
        let rotation = scene.rotation(scene.api.admin());
        let reached = async {
            loop {
                let text = fs::read_to_string(&scene.file).unwrap();
                if Configuration::parse(&scene.file, &text).unwrap().stage() == stage {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = reached => {}
            done = rotation.rotate() => panic!("not interrupted at {stage:?}: {done:?}"),
        }
        assert!(scene.keys().contains(&old[0]), "{stage:?}");
        scene.keys_of_data().await;
    }
    let new = scene.keys().swap_remove(0);
    // A Secret of another client is written meanwhile.
    let secret = json!({"metadata": {"name": "meanwhile"}, "stringData": {"a": "b"}});
    scene.api.admin().create::<_, Value>(&Resource::SECRETS, "default", &secret).await.unwrap();
    scene.rotation(scene.api.admin()).rotate().await.unwrap();
    assert_eq!(scene.keys(), std::slice::from_ref(&new));
    assert_eq!(scene.keys_of_data().await, [new]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_old_key_if_caller_may_not_rewrite() {
    let scene = Scene::start().await;
    let before = fs::read_to_string(&scene.file).unwrap();
    let stranger = scene.rotation(scene.api.user("stranger"));
    assert!(
        matches!(stranger.rotate().await, Err(SecretsError::Api(error)) if error.is_forbidden())
    );
    assert!(
        matches!(stranger.reencrypt().await, Err(SecretsError::Api(error)) if error.is_forbidden())
    );
    assert_eq!(fs::read_to_string(&scene.file).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_old_keys_of_resource_that_is_not_served() {
    let scene = Scene::start().await;
    let text = fs::read_to_string(&scene.file).unwrap();
    let mut tree = api_config::yaml::parse(&text).unwrap();
    tree["resources"][0]["resources"] = json!(["secrets", "pandas.example.com"]);
    fs::write(&scene.file, api_config::yaml::to_string(&tree).unwrap()).unwrap();
    let rotation = scene.rotation(scene.api.admin());
    let error = rotation.rotate().await.unwrap_err();
    assert!(
        matches!(&error, SecretsError::NotServed(name) if name == "pandas.example.com"),
        "{error}"
    );
    assert_eq!(scene.keys().len(), 2);
    scene.keys_of_data().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_nothing_unless_server_uses_file() {
    let scene = Scene::start().await;
    let other = scene.file.with_file_name("other.yaml");
    create(&other).unwrap();
    let target = Target { file: other.clone(), client: scene.api.admin() };
    let rotation = Rotation { target, patience: Duration::from_millis(100) };
    assert!(matches!(rotation.reencrypt().await, Err(SecretsError::NotLoaded { .. })));
    assert!(matches!(rotation.rotate().await, Err(SecretsError::NotLoaded { .. })));
    let text = fs::read_to_string(&other).unwrap();
    assert_eq!(Configuration::parse(&other, &text).unwrap().stage(), Stage::Prepared);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_second_process_and_finishes_user_rotation() {
    let scene = Scene::start().await;
    let rotation = scene.rotation(scene.api.admin());
    let lock = rotation.lock().unwrap();
    assert!(matches!(rotation.rotate().await, Err(SecretsError::Locked(_))));
    drop(lock);
    // A key of the user behind the current one may be an old one, which data still needs.
    let text = fs::read_to_string(&scene.file).unwrap();
    let mut configuration = Configuration::parse(&scene.file, &text).unwrap();
    configuration.prepare("mine");
    rotation.write(&configuration).unwrap();
    assert_eq!(configuration.stage(), Stage::Rotated);
    rotation.reencrypt().await.unwrap();
    assert_eq!(scene.keys().len(), 1);
    assert_eq!(scene.keys_of_data().await, scene.keys());
}

#[test]
fn finds_file_that_server_uses() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut cluster = crate::cluster::example(root);
    let args = ClusterArgs {
        name: cluster.name.clone(),
        root: Some(root.to_owned()),
        kubernetes_dir: root.join("none"),
        timeout: 1,
    };
    cluster.save().unwrap();
    assert!(matches!(args.target(), Err(Error::Secrets(SecretsError::NotConfigured))));
    let flags = "apiServer: {extraArgs: [{name: encryption-provider-config, value: /e.yaml}]}";
    cluster.settings.config = crate::config::tests::read(flags).unwrap();
    cluster.save().unwrap();
    assert!(matches!(args.target(), Err(Error::Secrets(SecretsError::NotReloaded(_)))));
    // The control plane does not start with two files.
    create(&crate::cluster::encryption_file(root)).unwrap();
    assert!(matches!(args.target(), Err(Error::Document(_))));
}
