//! Manifests on a real API server.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};
use testkit::RealApi;

use super::{files::SETTLED, *};

struct Scene {
    api: RealApi,
    root: tempfile::TempDir,
    manifests: Manifests,
}

impl Scene {
    async fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(DIRECTORY)).unwrap();
        let manifests = Manifests::new(root.path());
        Self { api: RealApi::start().await.unwrap(), root, manifests }
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.root.path().join(DIRECTORY).join(file), text).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.root.path().join(DIRECTORY).join(file)).unwrap();
    }

    /// Returns a time at which the files written so far are settled.
    fn later() -> SystemTime {
        SystemTime::now() + SETTLED
    }

    async fn sync(&mut self) -> Record {
        self.manifests.sync(&self.api.admin(), Self::later()).await.unwrap();
        Record::load(&self.root.path().join(RECORD)).unwrap()
    }

    async fn errors(&mut self, file: &str) -> String {
        self.sync().await.files[file].errors.join("\n")
    }

    /// Returns the names of the ConfigMaps with a label in `default`.
    async fn names(&self) -> Vec<String> {
        let options = client::ListOptions::labels("of=test");
        let maps = client::Resource::CONFIG_MAPS;
        let listed = self.api.admin().list::<Value>(&maps, "default", &options).await.unwrap();
        let name = |map: &Value| map["metadata"]["name"].as_str().unwrap().to_owned();
        listed.items.iter().map(name).collect()
    }

    async fn value(&self, name: &str) -> Value {
        let map: Value =
            self.api.admin().get(&client::Resource::CONFIG_MAPS, "default", name).await.unwrap();
        map["data"]["key"].clone()
    }
}

fn map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{of: test}}}}\n\
         data: {{key: \"{value}\"}}\n---\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_changes_and_prunes_what_is_gone() {
    let mut scene = Scene::start().await;
    assert!(!scene.manifests.is_due(Scene::later()).unwrap(), "an empty directory costs nothing");
    scene.write("a.yaml", &(map("one", "1") + &map("two", "2")));
    scene.write("b.yaml", &map("three", "3"));
    assert!(scene.manifests.is_due(Scene::later()).unwrap());
    let record = scene.sync().await;
    assert!(!record.has_errors(), "{record:?}");
    assert_eq!(scene.names().await, ["one", "three", "two"]);
    assert!(!scene.manifests.is_due(Scene::later()).unwrap());
    // An object moves to another file, and one entry changes.
    scene.write("a.yaml", &map("two", "changed"));
    scene.write("c.yaml", &map("one", "1"));
    assert!(!scene.sync().await.has_errors());
    assert_eq!(scene.names().await, ["one", "three", "two"]);
    assert_eq!(scene.value("two").await, "changed");
    // A new process knows what an earlier one has applied.
    scene.manifests = Manifests::new(scene.root.path());
    scene.remove("c.yaml");
    scene.write("a.yaml", "");
    let record = scene.sync().await;
    assert_eq!(scene.names().await, ["three"]);
    assert_eq!(record.counts(), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn never_deletes_objects_of_others() {
    let mut scene = Scene::start().await;
    let admin = scene.api.admin();
    let maps = client::Resource::CONFIG_MAPS;
    let own = json!({"metadata": {"name": "own", "labels": {"of": "test"}}});
    admin.create::<_, Value>(&maps, "default", &own).await.unwrap();
    scene.write("a.yaml", &(map("own", "1") + &map("anew", "1") + &map("refused", "1")));
    assert!(!scene.sync().await.has_errors());
    assert_eq!(scene.value("own").await, "1");
    // An object with the same name that others created later is another one.
    let options = client::DeleteOptions::default();
    admin.delete(&maps, "default", "anew", &options).await.unwrap();
    let anew = json!({"metadata": {"name": "anew", "labels": {"of": "test"}}});
    admin.create::<_, Value>(&maps, "default", &anew).await.unwrap();
    scene.remove("a.yaml");
    let record = scene.sync().await;
    assert_eq!(scene.names().await, ["anew", "own"]);
    assert_eq!(record, Record::default());
    // The apply of a file fails, others create the object, and the file is removed.
    let bad = map("late", "1").replace("data: {key: \"1\"}", "data: {key: {}}");
    scene.write("b.yaml", &bad);
    assert_ne!(scene.errors("b.yaml").await, "");
    let late = json!({"metadata": {"name": "late", "labels": {"of": "test"}}});
    admin.create::<_, Value>(&maps, "default", &late).await.unwrap();
    scene.remove("b.yaml");
    scene.sync().await;
    assert_eq!(scene.names().await, ["anew", "late", "own"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn file_with_errors_keeps_its_objects_and_stops_no_other() {
    let mut scene = Scene::start().await;
    scene.write("a.yaml", &map("one", "1"));
    scene.sync().await;
    for (text, words) in [
        ("a: [".to_owned(), "document 1: "),
        (map("one", "1") + "kind: ConfigMap\n", "needs apiVersion and kind"),
        ("apiVersion: v1\nkind: ConfigMap\n".to_owned(), "needs metadata.name"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ../x}\n".to_owned(), "\"../x\""),
        ("apiVersion: ../../version\nkind: X\nmetadata: {name: x}\n".to_owned(), "apiVersion"),
        (
            "apiVersion: none.example.com/v1\nkind: X\nmetadata: {name: x}\n".to_owned(),
            "X x: the API server does not serve none.example.com/v1",
        ),
        (
            "apiVersion: v1\nkind: X\nmetadata: {name: x}\n".to_owned(),
            "X x: the API server has no kind X in v1",
        ),
        (
            "apiVersion: v1\nkind: Node\nmetadata: {name: x, namespace: other}\n".to_owned(),
            "Node x has no namespace",
        ),
        (
            map("new", "1").replace("{name", "{namespace: none, name"),
            "namespaces \"none\" not found",
        ),
        (
            map("strict", "1") + "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\nfoo: 1\n",
            "foo",
        ),
        ("[]".to_owned(), "needs apiVersion"),
        ("text".to_owned(), "needs apiVersion"),
    ] {
        scene.write("a.yaml", &text);
        let other = format!("other-{}", words.len());
        scene.write("b.yaml", &map(&other, "1"));
        let errors = scene.errors("a.yaml").await;
        assert!(errors.contains(words), "{text}: {errors}");
        let names = scene.names().await;
        assert!(names.contains(&other), "{names:?}");
        if words.contains("not found") {
            // All entries are known, so the one that is gone was deleted.
            assert!(!names.contains(&"one".to_owned()), "{names:?}");
            scene.write("a.yaml", &map("one", "1"));
            scene.sync().await;
        } else {
            assert!(names.contains(&"one".to_owned()), "{text}: {names:?}");
        }
    }
    // A file whose entries are in another one.
    scene.write("a.yaml", &map("one", "1"));
    scene.write("b.yaml", &map("one", "2"));
    assert_eq!(scene.errors("b.yaml").await, "ConfigMap default/one is also in the file a.yaml");
    assert_eq!(scene.value("one").await, "1");
    scene.remove("a.yaml");
    assert_eq!(scene.errors("b.yaml").await, "");
    assert_eq!(scene.value("one").await, "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_for_files_that_may_be_half_written() {
    let mut scene = Scene::start().await;
    scene.write("a.yaml", &(map("one", "1") + &map("two", "2")));
    scene.sync().await;
    scene.write("a.yaml", &map("one", "1"));
    let now = SystemTime::now();
    scene.manifests.sync(&scene.api.admin(), now).await.unwrap();
    assert_eq!(scene.names().await, ["one", "two"]);
    assert!(scene.manifests.is_due(now).unwrap());
    scene.sync().await;
    assert_eq!(scene.names().await, ["one"]);
    // An object moves to a file that is still being written.
    scene.write("a.yaml", "");
    let file = fs::File::options().write(true).open(scene.root.path().join("manifests/a.yaml"));
    file.unwrap().set_modified(now - 10 * SETTLED).unwrap();
    scene.write("b.yaml", &map("one", "1"));
    scene.manifests.sync(&scene.api.admin(), SystemTime::now()).await.unwrap();
    assert_eq!(scene.names().await, ["one"]);
    // A file that is removed before it is settled.
    scene.remove("b.yaml");
    assert!(scene.manifests.is_due(now).unwrap());
    scene.write("b.yaml", &map("one", "1"));
    scene.sync().await;
    // A missing directory, such as that of a disk that is not mounted, deletes nothing.
    fs::remove_dir_all(scene.root.path().join(DIRECTORY)).unwrap();
    assert!(scene.manifests.is_due(now).is_err());
    scene.manifests.sync(&scene.api.admin(), now).await.unwrap_err();
    assert_eq!(scene.names().await, ["one"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_files_that_every_user_may_write() {
    let mut scene = Scene::start().await;
    scene.write("a.yaml", &map("one", "1"));
    let directory = scene.root.path().join(DIRECTORY);
    let file = directory.join("a.yaml");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(scene.errors("a.yaml").await.contains("every user may write"));
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let refused = scene.manifests.sync(&scene.api.admin(), Scene::later()).await;
    assert!(matches!(refused, Err(ManifestsError::Writable { .. })));
    assert_eq!(scene.names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_refuses_the_user_deletes_nothing() {
    let mut scene = Scene::start().await;
    scene.write("a.yaml", &map("one", "1"));
    scene.sync().await;
    scene.write("a.yaml", &map("two", "1"));
    let user = scene.api.user("nobody");
    scene.manifests.sync(&user, Scene::later()).await.unwrap();
    let record = Record::load(&scene.root.path().join(RECORD)).unwrap();
    assert!(record.files["a.yaml"].errors.join("").contains("forbidden"), "{record:?}");
    assert_eq!(scene.names().await, ["one"]);
    // The files are tried again, with growing delays.
    let (at, delay) = scene.manifests.retry.unwrap();
    assert!(!scene.manifests.is_due(at - delay).unwrap() && scene.manifests.is_due(at).unwrap());
    scene.sync().await;
    assert_eq!(scene.names().await, ["two"]);
    assert_eq!(scene.manifests.retry, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn applies_thousands_of_documents() {
    let mut scene = Scene::start().await;
    let text: String = (0..3_000).map(|number| map(&format!("m{number:04}"), "1")).collect();
    scene.write("a.yaml", &text);
    let record = scene.sync().await;
    assert_eq!(record.counts(), (1, 3_000));
    // All have an error; the record stays small.
    let text = text.replace("1\"}", "1\", bad: {}}");
    scene.write("a.yaml", &text);
    let errors = scene.errors("a.yaml").await;
    assert_eq!(errors.lines().count(), 11, "{errors}");
    assert!(errors.ends_with("and 2990 more errors"), "{errors}");
    scene.write("a.yaml", "");
    assert_eq!(scene.sync().await.counts(), (0, 0));
    assert_eq!(scene.names().await, [""; 0]);
}
