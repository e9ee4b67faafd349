use std::fs;

use base64::{Engine, engine::general_purpose::STANDARD};
use pki::{Key, KeyAlgorithm, SigningRequest, Subject};
use testkit::FakeApi;

use super::*;
use crate::plan::BOOTSTRAPPERS;

const MAC: &str = "52:54:00:00:00:01";

/// Makes a machine's token for a boot and returns its user.
async fn boot(api: &FakeApi, machine: &str) -> String {
    let token = crate::tokens::make(&api.client("metal"), machine).await.unwrap();
    format!("system:bootstrap:{}", token.split('.').next().unwrap())
}

fn csr(name: &str, node: &str, user: &str) -> Value {
    let subject = Subject::new(format!("system:node:{node}")).in_group("system:nodes");
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let request = SigningRequest::create(&subject, &[], &key).unwrap();
    json!({"metadata": {"name": name}, "spec": {
        "request": STANDARD.encode(request.to_pem()),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["client auth", "digital signature"], "groups": [BOOTSTRAPPERS], "username": user,
    }})
}

fn node(boot: &str, ready: &str) -> Value {
    json!({"metadata": {"name": "rack-525400000001"}, "status": {
        "nodeInfo": {"bootID": boot},
        "conditions": [{"type": "Ready", "status": ready, "message": "as it is"}],
    }})
}

#[test]
fn node_changes_set_machine_stage() {
    let of = |value: Value| serde_json::from_value::<Node>(value).unwrap();
    let shown = |old: Option<Value>, new: Value| -> Vec<(Stage, Outcome)> {
        let events = stages(old.map(of).as_ref(), &of(new));
        events.into_iter().map(|event| (event.stage, event.outcome)).collect()
    };
    let kubelet = (Stage::Kubelet, Outcome::Succeeded);
    let (ready, lost) = ((Stage::Ready, Outcome::Succeeded), (Stage::Ready, Outcome::Failed));
    assert_eq!(shown(None, node("1", "False")), [kubelet]);
    assert_eq!(shown(Some(node("1", "False")), node("1", "True")), [ready]);
    assert_eq!(shown(Some(node("1", "True")), node("1", "True")), []);
    assert_eq!(shown(Some(node("1", "True")), node("1", "Unknown")), [lost]);
    // Wiped and rebooted before the node was found lost.
    assert_eq!(shown(Some(node("1", "True")), node("2", "True")), [kubelet, ready]);
}

#[test]
fn ignores_lost_node_while_machine_boots() {
    let inventory = Inventory::default();
    let lost = Event::new(Stage::Ready, Outcome::Failed);
    for (stage, news) in
        [(Stage::Kubelet, true), (Stage::Ready, true), (Stage::Dhcp, false), (Stage::Disks, false)]
    {
        let event = Event::new(stage, Outcome::Succeeded);
        inventory.record(MAC, Event { power_on: stage == Stage::Dhcp, ..event });
        assert_eq!(is_relevant(inventory.machine(MAC).as_ref(), &lost), news, "{stage:?}");
    }
    assert!(is_relevant(None, &lost));
}

#[tokio::test]
async fn approves_known_machines_only() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("groups")).unwrap();
    let group = |macs: Value| {
        let group = json!({ "id": "rack", "profile": "p", "selector": {"mac": macs}, "metadata": {"cluster": {}} });
        fs::write(dir.path().join("groups/rack.json"), group.to_string()).unwrap();
    };
    group(json!([MAC]));
    let (store, inventory) = (Arc::new(Store::new(dir.path())), Arc::new(Inventory::default()));
    let api = FakeApi::default();
    let tasks = Tasks::new(rt::Shutdown::new());
    watch(api.client("metal"), store, inventory.clone(), &tasks);
    let resource = Resource::CERTIFICATE_SIGNING_REQUESTS;
    let second = "52:54:00:00:00:02";
    let before = boot(&api, MAC).await;
    let (user, other) = (boot(&api, MAC).await, boot(&api, second).await);
    for (name, node, user) in [
        ("known", "rack-525400000001", &user),
        ("later", "rack-525400000002", &other),
        ("stolen", "rack-525400000001", &other),
        ("old", "rack-525400000001", &before),
        ("admin", "rack-525400000001", &"admin".to_owned()),
    ] {
        api.create(&resource, csr(name, node, user)).await;
    }
    let mut bad = csr("bad", "rack-525400000001", &user);
    bad["spec"]["usages"] = json!(["client auth", "digital signature", "server auth"]);
    api.create(&resource, bad).await;
    let decided = |api: &FakeApi, name: &str| {
        let csr = api.get(&resource, "", name).unwrap();
        csr["status"]["conditions"][0]["type"].as_str().map(str::to_owned)
    };
    api.until("all but one are decided", |api| {
        ["known", "bad", "stolen", "old", "admin"].iter().all(|name| decided(api, name).is_some())
    })
    .await;
    assert_eq!(decided(&api, "known").as_deref(), Some("Approved"));
    for name in ["bad", "stolen", "old", "admin"] {
        assert_eq!(decided(&api, name).as_deref(), Some("Denied"), "{name}");
    }
    assert_eq!(decided(&api, "later"), None);
    // Once its address is in the group, the request is approved.
    group(json!([MAC, second]));
    api.until("it is approved", |api| decided(api, "later").is_some()).await;
    assert_eq!(decided(&api, "later").as_deref(), Some("Approved"));
    api.create(&Resource::NODES, node("1", "True")).await;
    let there = |inventory: &Inventory| {
        inventory.machine(MAC).is_some_and(|m| m.last().is_some_and(|e| e.stage == Stage::Ready))
    };
    api.until("the machine is Ready", |_| there(&inventory)).await;
    assert!(tasks.drain(Duration::from_secs(5)).await.unfinished.is_empty());
}
