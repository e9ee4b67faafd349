use serde_json::json;
use store::Expected;

use super::*;

struct Stores {
    below: Arc<dyn Store>,
    above: UpstreamForm,
    _directory: tempfile::TempDir,
}

fn stores() -> Stores {
    let directory = tempfile::tempdir().unwrap();
    let options = store::embedded::Options::default();
    let below: Arc<dyn Store> =
        Arc::new(store::embedded::Embedded::open(directory.path(), options).unwrap());
    Stores { above: UpstreamForm::new(below.clone()), below, _directory: directory }
}

impl Stores {
    /// Writes an object, and returns the stored value and the value that is read back.
    async fn through(&self, key: &str, object: &Value) -> (Bytes, Bytes) {
        self.value_through(key, api_codec::encode_stored(object).into()).await
    }

    async fn value_through(&self, key: &str, value: Bytes) -> (Bytes, Bytes) {
        let op = Op::Put { value: value.clone(), ttl_seconds: None };
        let mut watch = self.above.watch(KeyRange::prefix(key), 1).await.unwrap();
        self.above.write(Write { key: key.into(), expected: Expected::Any, op }).await.unwrap();
        let below = self.below.get(key).await.unwrap().0.unwrap().value;
        let above = self.above.get(key).await.unwrap().0.unwrap().value;
        let range = self.above.range(KeyRange::prefix(key), 0, 0).await.unwrap();
        assert_eq!(range.items[0].value, above);
        let seen = loop {
            match watch.next().await.unwrap() {
                WatchMessage::Changes(changes) => break changes[0].kv.value.clone(),
                WatchMessage::Progress(_) => {}
            }
        };
        assert_eq!(seen, above);
        assert_eq!(above, value, "the way there and back changes nothing");
        if value.starts_with(api_codec::STORED_PREFIX) {
            let (bytes, version) = storage_form::split(&value);
            let mut tree: Value = serde_json::from_slice(&bytes).unwrap();
            tree.put("metadata.resourceVersion", "7");
            tree.put("kind", "Other");
            if let Some(version) = version {
                tree.put(&["apiVersion"], version);
            }
            let encoded = self.above.object_encoder().unwrap().encode(key, tree);
            assert_eq!(encoded.unwrap(), below, "a tree is stored like its JSON");
        }
        (below, above)
    }
}

#[tokio::test]
async fn stores_built_in_kinds_as_protobuf() {
    let stores = stores();
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "100m"}, "requests": {"cpu": "100m"}},
            "imagePullPolicy": "Always", "terminationMessagePath": "/t", "terminationMessagePolicy": "File"}],
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "securityContext": {}, "schedulerName": "default-scheduler", "enableServiceLinks": true},
        "status": {"phase": "Pending"},
    });
    let (below, _) = stores.through("/registry/pods/default/web", &pod).await;
    let envelope = protobuf::open(&below).unwrap();
    assert_eq!((envelope.api_version, envelope.kind), ("v1", "Pod"));
    let secret = json!({"metadata": {"name": "s", "namespace": "x"}, "data": {"k": "dg=="}, "type": "Opaque"});
    let (below, _) = stores.through("/registry/secrets/x/s", &secret).await;
    assert!(below.starts_with(b"k8s\0"));
}

#[tokio::test]
async fn encodes_trees_with_separate_managed_fields() {
    let stores = stores();
    let builtin = builtin();
    let definition = builtin.iter().find(|d| d.is("", "configmaps")).unwrap();
    let managed = json!([{"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {}},
        "manager": "m", "operation": "Update", "time": "2026-01-01T00:00:00Z"}]);
    let (key, version) = ("/registry/configmaps/n/a", definition.storage);
    let map = |name: &str, data: Value| json!({"metadata": {"name": name, "namespace": "n"}, "data": data});
    let encode = async |tree: Value| {
        let managed = Some(managed.to_string().into_bytes());
        let encoded = definition.to_store(version, tree, managed).await.unwrap();
        (encoded.bytes.clone(), encoded.into_value(&stores.above, key))
    };
    let (bytes, value) = encode(map("a", json!({"k": "v"}))).await;
    assert!(value.starts_with(protobuf::MAGIC));
    assert_eq!(stores.value_through(key, bytes).await.0, value);
    // An object that has no encoding stays JSON, and its write returns the error.
    let (bytes, value) = encode(map("a", json!({"k": 1}))).await;
    assert_eq!(bytes, value);
    let op = Op::Put { value, ttl_seconds: None };
    let write = Write { key: key.into(), expected: Expected::Any, op };
    let error = stores.above.write(write).await.unwrap_err().to_string();
    assert!(error.contains("ConfigMap.data"), "{error}");
    // A store without a form of its own gets the JSON.
    let encoded = definition.to_store(version, map("a", json!({})), None).await.unwrap();
    let bytes = encoded.bytes.clone();
    assert_eq!(encoded.into_value(&*stores.below, key), bytes);
}

#[tokio::test]
async fn applies_defaults_when_reading() {
    let stores = stores();
    let key = "/registry/persistentvolumeclaims/x/c";
    let claim =
        json!({"metadata": {"name": "c", "namespace": "x"}, "spec": {"volumeMode": "Filesystem"}});
    let value = protobuf::to_protobuf(Schema::builtin(), "v1", "PersistentVolumeClaim", &claim);
    let op = Op::Put { value: value.unwrap().into(), ttl_seconds: None };
    let write = Write { key: key.into(), expected: Expected::Any, op };
    stores.below.write(write).await.unwrap();
    let read = stores.above.get(key).await.unwrap().0.unwrap().value;
    let read: Value = serde_json::from_slice(&read).unwrap();
    assert_eq!(read["status"], json!({"phase": "Pending"}));
}

#[tokio::test]
async fn stores_custom_kinds_as_json_with_kind() {
    let stores = stores();
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "storage": false}, {"name": "v2", "storage": true}]},
    });
    let key = format!("{CUSTOM_DEFINITIONS}widgets.example.com");
    let (below, _) = stores.through(&key, &definition).await;
    let below: Value = serde_json::from_slice(&below).unwrap();
    assert_eq!(
        (&below["kind"], &below["apiVersion"]),
        (&json!("CustomResourceDefinition"), &json!("apiextensions.k8s.io/v1"))
    );
    let widget = json!({"metadata": {"name": "w", "namespace": "n"}, "spec": {"size": 3}});
    // In the current storage version, and in a former one.
    for version in ["example.com/v2", "example.com/v1"] {
        let value = storage_form::mark(api_codec::encode_stored(&widget), version);
        let key = format!("/registry/example.com/widgets/n/{}", version.replace('/', "-"));
        let (below, _) = stores.value_through(&key, value).await;
        let below: Value = serde_json::from_slice(&below).unwrap();
        let named = (&below["kind"], &below["apiVersion"]);
        assert_eq!(named, (&json!("Widget"), &json!(version)));
    }
}

#[tokio::test]
async fn passes_other_values_unchanged() {
    let stores = stores();
    for value in ["17", "", "k8s\0garbage"] {
        let op = Op::Put { value: Bytes::copy_from_slice(value.as_bytes()), ttl_seconds: None };
        let key = store::COMPACTION_KEY;
        stores.above.write(Write { key: key.into(), expected: Expected::Any, op }).await.unwrap();
        assert_eq!(stores.above.get(key).await.unwrap().0.unwrap().value, value);
    }
}

#[tokio::test]
async fn reads_custom_objects_that_upstream_stored_as_cbor() {
    let stores = stores();
    let thing = json!({"kind": "Thing", "apiVersion": "a.example.com/v1", "metadata": {"name": "t"}, "spec": {"size": 3}});
    let key = "/registry/a.example.com/things/default/t";
    let op = Op::Put { value: cbor::to_cbor(&thing).into(), ttl_seconds: None };
    let write = Write { key: key.into(), expected: Expected::Any, op };
    stores.below.write(write).await.unwrap();
    let read = stores.above.get(key).await.unwrap().0.unwrap().value;
    let (bytes, version) = storage_form::split(&read);
    let tree: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((&tree["spec"]["size"], version), (&json!(3), Some("a.example.com/v1")));
}

#[tokio::test]
async fn shares_custom_kinds_between_stores() {
    let (main, other) = (stores(), stores());
    let beside = main.above.beside(other.below.clone());
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "storage": true}]},
    });
    let value = api_codec::encode_stored(&definition).into();
    let op = Op::Put { value, ttl_seconds: None };
    let key = format!("{CUSTOM_DEFINITIONS}widgets.example.com").into();
    beside.write(Write { key, expected: Expected::Any, op }).await.unwrap();
    let widget = json!({"metadata": {"name": "w", "namespace": "n"}});
    let encoder = main.above.object_encoder().unwrap();
    let stored = encoder.encode("/registry/example.com/widgets/n/w", widget).unwrap();
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(
        (&stored["kind"], &stored["apiVersion"]),
        (&json!("Widget"), &json!("example.com/v1"))
    );
}
