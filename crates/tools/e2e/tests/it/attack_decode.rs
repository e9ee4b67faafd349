//! Small requests that are expensive to decode, sent by users with few rights. The API server rejects each one and
//! keeps running.

use std::{fs, path::PathBuf, time::Instant};

use api_codec::protobuf;
use e2e::{Session, shared};
use serde_json::{Value, json};

/// A user with a token and one right.
struct Attacker<'a> {
    session: &'a Session<'a>,
    token: String,
    directory: tempfile::TempDir,
}

impl<'a> Attacker<'a> {
    fn new(session: &'a Session<'a>, verbs: &str, resource: &str) -> Self {
        session.kubectl("create serviceaccount attacker").ok();
        let account = format!("--serviceaccount={}:attacker", session.namespace);
        session.kubectl(&format!("create role attacker --verb={verbs} --resource={resource}")).ok();
        session.kubectl(&format!("create rolebinding attacker --role=attacker {account}")).ok();
        let verb = verbs.split(',').next().unwrap_or_default();
        let one = resource.split(',').next().unwrap_or_default();
        let user = format!("system:serviceaccount:{}:attacker", session.namespace);
        session.until(&format!("auth can-i {verb} {one} --as={user}"), |answer| {
            answer.trim() == "yes"
        });
        let token = session.kubectl("create token attacker").ok().trim().to_owned();
        Self { session, token, directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str, body: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, body).unwrap();
        path
    }

    /// Sends requests over one connection. Returns the status code of each and the number of connections it opened.
    fn send(&self, requests: &[(&str, &str, &str, &[u8])]) -> Vec<(u16, u32)> {
        let config = self.session.json("config view --minify -o json");
        let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap_or_default();
        let ca = self.session.cluster.root().join("etc/kubernetes/pki/ca.crt");
        let ca = ca.display().to_string();
        let bearer = format!("Authorization: Bearer {}", self.token);
        let mut args: Vec<String> = Vec::new();
        for (at, (method, path, kind, body)) in requests.iter().enumerate() {
            let file = self.file(&at.to_string(), body);
            if at > 0 {
                args.push("--next".to_owned());
            }
            let content = format!("Content-Type: {kind}");
            let data = format!("@{}", file.display());
            let url = format!("{server}{path}");
            let fixed = ["-sS", "--max-time", "60", "--output", "/dev/null", "--cacert", &ca];
            args.extend(fixed.map(str::to_owned));
            let more = ["--write-out", "%{http_code} %{num_connects}\n", "--header", &bearer];
            args.extend(more.map(str::to_owned));
            args.extend(["--header", &content, "--request", method, &url].map(str::to_owned));
            if *method != "GET" {
                args.extend(["--data-binary", &data].map(str::to_owned));
            }
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let seen = self.session.on_node("curl", &args).ok();
        seen.lines()
            .map(|line| {
                let (code, connects) = line.split_once(' ').unwrap();
                (code.parse().unwrap(), connects.parse().unwrap())
            })
            .collect()
    }
}

/// Returns the pid of the API server and its peak resident memory in kB.
fn server(session: &Session<'_>) -> (u32, u64) {
    let pid = session.cluster.pid("control-plane");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    (pid, most.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn json_patch_of_nested_copies_uses_little_memory() {
    let s = shared("attack-copies");
    let attacker = Attacker::new(&s, "patch,get", "configmaps");
    s.kubectl("create configmap victim --from-literal=k=v").ok();
    let copies: Value = (0..27)
        .map(|i| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/a{i}")}))
        .collect();
    let (pid, before) = server(&s);
    let path = "/api/v1/namespaces/attack-copies/configmaps/victim";
    let started = Instant::now();
    let kind = "application/json-patch+json";
    let body = copies.to_string();
    let seen = attacker.send(&[
        ("PATCH", path, kind, body.as_bytes()),
        ("PATCH", path, kind, body.as_bytes()),
        ("GET", path, "", b""),
    ]);
    assert!(matches!(seen[0], (413 | 422, 1)) && matches!(seen[1], (413 | 422, 0)), "{seen:?}");
    assert_eq!(seen[2], (200, 0));
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    let (same, after) = server(&s);
    assert_eq!(same, pid, "the API server was restarted");
    assert!(after < before + 300_000, "from {before} to {after} kB");
}

/// Returns a protobuf message with one field.
fn field(number: u32, inner: &[u8]) -> Vec<u8> {
    protobuf::message(&[(number, inner)])
}

#[test]
fn nested_protobuf_envelopes_do_not_crash_the_server() {
    let s = shared("attack-envelopes");
    let attacker = Attacker::new(&s, "create,list", "configmaps");
    // Nest envelopes in managedFields and in the raw object of a ControllerRevision.
    let fields = (0..1500).fold(b"{}".to_vec(), |inner, _| {
        let entry = field(7, &field(1, &inner));
        protobuf::envelope("v1", "ConfigMap", &field(1, &field(17, &entry)))
    });
    let data = (0..1500).fold(b"{}".to_vec(), |inner, _| {
        protobuf::envelope("apps/v1", "ControllerRevision", &field(2, &field(1, &inner)))
    });
    let (pid, _) = server(&s);
    let path = "/api/v1/namespaces/attack-envelopes/configmaps";
    let kind = "application/vnd.kubernetes.protobuf";
    // Every user may create a SelfSubjectAccessReview, and the API server decodes its body.
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let seen = attacker.send(&[
        ("POST", path, kind, &fields),
        ("POST", path, kind, &data),
        ("POST", review, kind, &fields),
        ("GET", path, "", b""),
    ]);
    assert_eq!(seen, [(400, 1), (400, 0), (400, 0), (200, 0)]);
    assert_eq!(server(&s).0, pid, "the API server was restarted");
}

#[test]
fn scale_through_a_string_field_keeps_the_connection_open() {
    let s = shared("attack-scale");
    s.apply(
        r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "crossings.attack.example.com"},
            "spec": {"group": "attack.example.com", "scope": "Namespaced",
                "names": {"plural": "crossings", "singular": "crossing", "kind": "Crossing", "listKind": "CrossingList"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "subresources": {"scale": {"specReplicasPath": ".spec.color.replicas", "statusReplicasPath": ".status.replicas"}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                        "properties": {"color": {"type": "string"}}}}}}}]}}"#,
    );
    s.kubectl("wait crd/crossings.attack.example.com --for=condition=Established --timeout=30s")
        .ok();
    s.apply(
        r#"{"apiVersion": "attack.example.com/v1", "kind": "Crossing", "metadata": {"name": "a"}, "spec": {"color": "red"}}"#,
    );
    let resources = "crossings.attack.example.com,crossings.attack.example.com/scale";
    let attacker = Attacker::new(&s, "patch,update,get", resources);
    let one = "/apis/attack.example.com/v1/namespaces/attack-scale/crossings/a";
    let scale = format!("{one}/scale");
    let body = br#"{"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "a"}, "spec": {"replicas": 2}}"#;
    let (pid, _) = server(&s);
    let seen = attacker.send(&[
        ("PUT", &scale, "application/json", body),
        ("PATCH", &scale, "application/merge-patch+json", br#"{"spec": {"replicas": 2}}"#),
        ("GET", one, "", b""),
    ]);
    assert_eq!(seen, [(500, 1), (500, 0), (200, 0)]);
    assert_eq!(server(&s).0, pid, "the API server was restarted");
}
