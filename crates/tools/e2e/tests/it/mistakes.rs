//! Invalid input: it is rejected with upstream's messages, and the cluster keeps running.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use e2e::{
    Background, Cluster, HttpResponse, Session, exchange, in_network, share_machine, shared, until,
};
use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Sends raw HTTP requests through `kubectl proxy`, which only adds the administrator's certificate.
struct RawClient<'a> {
    session: &'a Session<'a>,
    _proxy: Background,
    address: SocketAddr,
}

impl<'a> RawClient<'a> {
    fn new(session: &'a Session<'a>) -> Self {
        let mut proxy = session.start("proxy --port=0");
        let line = proxy.wait_for_line(|line| line.contains("Starting to serve on"));
        let address = line.rsplit(' ').next().unwrap_or_default().parse();
        let address = address.unwrap_or_else(|e| panic!("{line}: {e}"));
        Self { session, _proxy: proxy, address }
    }

    #[track_caller]
    fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> HttpResponse {
        let (network, address) = (self.session.cluster.namespace.path(), self.address);
        in_network(&network, || exchange(address, method, path, headers, body))
            .unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// Asserts that the answer is a Status with this code and reason, and returns its message.
    #[track_caller]
    fn refused(&self, code: u16, reason: &str, answer: &HttpResponse) -> String {
        let status: Value = serde_json::from_str(&answer.body)
            .unwrap_or_else(|e| panic!("no Status ({e}): {answer:?}"));
        assert_eq!(
            (answer.code, &status["kind"], &status["reason"], &status["code"]),
            (code, &json!("Status"), &json!(reason), &json!(code)),
            "{answer:?}"
        );
        status["message"].as_str().unwrap_or_default().to_owned()
    }
}

#[test]
fn rejects_malformed_and_oversize_bodies() {
    let s = shared("mistakes-bodies");
    let raw = RawClient::new(&s);
    let path = "/api/v1/namespaces/mistakes-bodies/configmaps";
    for body in ["{", "[]", "{\"kind\":1}", "\u{0}\u{1}\u{2}", "nonsense"] {
        raw.refused(400, "BadRequest", &raw.send("POST", path, &[JSON], body.as_bytes()));
    }
    let other = r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a"}}"#;
    let message =
        raw.refused(400, "BadRequest", &raw.send("POST", path, &[JSON], other.as_bytes()));
    assert!(message.contains("cannot be handled as a ConfigMap"), "{message}");
    let deep = format!("{{\"metadata\":{}", "{\"a\":".repeat(100_000));
    raw.refused(400, "BadRequest", &raw.send("POST", path, &[JSON], deep.as_bytes()));
    let deep = format!("{{\"data\":{}1{}", "{\"a\":".repeat(50_000), "}".repeat(50_001));
    raw.refused(400, "BadRequest", &raw.send("POST", path, &[JSON], deep.as_bytes()));

    // Every request body is limited to 3 MiB.
    let large =
        json!({"metadata": {"name": "large"}, "data": {"x": "x".repeat(3 << 20)}}).to_string();
    let answer = raw.send("POST", path, &[JSON], large.as_bytes());
    let message = raw.refused(413, "RequestEntityTooLarge", &answer);
    assert_eq!(message, "Request entity too large: limit is 3145728");
    s.kubectl("create configmap fine").ok();
    let patch = ("Content-Type", "application/merge-patch+json");
    let answer = raw.send("PATCH", &format!("{path}/fine"), &[patch], large.as_bytes());
    raw.refused(413, "RequestEntityTooLarge", &answer);
    let within = json!({"metadata": {"name": "within"}, "data": {"x": "x".repeat((1 << 20) + 1)}})
        .to_string();
    let message = raw.refused(422, "Invalid", &raw.send("POST", path, &[JSON], within.as_bytes()));
    assert!(message.contains("Too long: may not be more than 1048576 bytes"), "{message}");

    let answer = raw.send("POST", path, &[("Content-Type", "text/plain")], b"{}");
    raw.refused(415, "UnsupportedMediaType", &answer);
    let answer = raw.send("GET", path, &[("Accept", "image/png")], b"");
    raw.refused(406, "NotAcceptable", &answer);
    let answer = raw.send("PUT", path, &[JSON], b"{}");
    raw.refused(405, "MethodNotAllowed", &answer);
    assert_eq!(raw.send("GET", "/api/v1/nonsense", &[], b"").code, 404);
    s.kubectl("get configmap fine").ok();
}

#[test]
fn field_validation_rejects_warns_or_drops_unknown_fields() {
    let s = shared("mistakes-fields");
    let raw = RawClient::new(&s);
    let path = |how: &str| {
        format!("/api/v1/namespaces/mistakes-fields/configmaps?fieldValidation={how}&dryRun=All")
    };
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","lables":{}},"dta":{},"data":{"a":"1","a":"2"}}"#;
    let answer = raw.send("POST", &path("Strict"), &[JSON], body.as_bytes());
    let message = raw.refused(400, "BadRequest", &answer);
    let wanted = "strict decoding error: ";
    assert!(message.contains(wanted), "{message}");
    for part in
        ["unknown field \"dta\"", "unknown field \"metadata.lables\"", "duplicate field \"data.a\""]
    {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    let answer = raw.send("POST", &path("Warn"), &[JSON], body.as_bytes());
    assert_eq!(answer.code, 201, "{answer:?}");
    let warnings: Vec<&str> = answer
        .head
        .lines()
        .filter(|line| line.to_lowercase().starts_with("warning: 299"))
        .collect();
    assert_eq!(warnings.len(), 3, "{}", answer.head);
    assert!(!answer.body.contains("dta") && !answer.body.contains("lables"), "{}", answer.body);
    let answer = raw.send("POST", &path("Ignore"), &[JSON], body.as_bytes());
    assert_eq!(answer.code, 201, "{answer:?}");
    assert!(!answer.head.to_lowercase().contains("warning:"), "{}", answer.head);
    raw.refused(422, "Invalid", &raw.send("POST", &path("Loose"), &[JSON], body.as_bytes()));

    // A field of the wrong type is an error at every level of validation.
    for how in ["Strict", "Warn", "Ignore"] {
        for wrong in [
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":1}}"#,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":7}}"#,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"immutable":"yes"}"#,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":[]}"#,
        ] {
            let message = raw.refused(
                400,
                "BadRequest",
                &raw.send("POST", &path(how), &[JSON], wrong.as_bytes()),
            );
            assert!(message.contains("json: cannot unmarshal"), "{message}");
        }
    }
    // The same levels with kubectl's flag.
    let unknown = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"k"},"dta":{}}"#;
    let create =
        |how: &str| s.kubectl_with(&["create", &format!("--validate={how}"), "-f", "-"], unknown);
    let refused = create("strict").refused();
    assert!(refused.contains("unknown field \"dta\""), "{refused}");
    let warned = create("warn");
    assert!(
        warned.code == Some(0) && warned.stderr.contains("Warning: unknown field \"dta\""),
        "{warned}"
    );
    s.kubectl("delete configmap k").ok();
    let ignored = create("ignore");
    assert!(ignored.code == Some(0) && ignored.stderr.is_empty(), "{ignored}");
}

/// Runs `kubectl auth whoami` with a new certificate for a subject.
fn with_certificate(
    s: &Session<'_>,
    authority: &Authority,
    subject: Subject,
    validity: Validity,
) -> e2e::Output {
    let directory = tempfile::tempdir().unwrap();
    let spec = LeafSpec { subject, alt_names: Vec::new(), usage: Usage::Client };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let (cert_file, key_file) = (directory.path().join("crt"), directory.path().join("key"));
    pki::write_cert(&cert_file, &cert).unwrap();
    pki::write_key(&key_file, &key).unwrap();
    s.with_identity(&[
        "--client-certificate",
        &cert_file.display().to_string(),
        "--client-key",
        &key_file.display().to_string(),
    ])
}

#[test]
fn rejects_foreign_and_expired_tokens_and_certificates() {
    let s = shared("mistakes-identity");
    let pki = s.cluster.root().join("etc/kubernetes/pki");
    let own = Authority::from_parts(
        pki::read_cert(&pki.join("ca.crt")).unwrap(),
        pki::read_key(&pki.join("ca.key")).unwrap(),
    )
    .unwrap();
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    let valid = Validity::starting(now, hour);
    let admin = || Subject::new("somebody").in_group("system:masters");
    assert!(with_certificate(&s, &own, admin(), valid).ok().contains("somebody"));
    let past = Validity { not_before: now - 2 * hour, not_after: now - hour };
    let early = Validity { not_before: now + hour, not_after: now + 2 * hour };
    let foreign = Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, valid).unwrap();
    for (ran, what) in [
        (with_certificate(&s, &own, admin(), past), "expired"),
        (with_certificate(&s, &own, admin(), early), "not yet valid"),
        (with_certificate(&s, &foreign, admin(), valid), "of another authority"),
    ] {
        let refused = ran.refused();
        assert!(refused.contains("401") || refused.contains("Unauthorized"), "{what}: {refused}");
    }

    s.kubectl("create serviceaccount someone").ok();
    let token = s.kubectl("create token someone").ok().trim().to_owned();
    assert!(s.with_identity(&["--token", &token]).ok().contains("someone"));
    let other = s.kubectl("create token someone --audience=other").ok().trim().to_owned();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    // Reverse the signature to get an invalid one.
    let foreign: String = signature.chars().rev().collect();
    let altered = token.replacen('e', "f", 1);
    for (bad, what) in [
        (other.as_str(), "for another audience"),
        (&format!("{signed}.{foreign}"), "with another signature"),
        (&altered, "altered"),
        (signed, "without a signature"),
        ("a.b.c", "of nothing"),
        ("abcdef.0123456789abcdef", "for bootstrapping, unknown"),
    ] {
        let refused = s.with_identity(&["--token", bad]).refused();
        assert!(refused.contains("401") || refused.contains("Unauthorized"), "{what}: {refused}");
    }
    s.kubectl("delete serviceaccount someone").ok();
    until("the rejection of a deleted account's token", || {
        let ran = s.with_identity(&["--token", &token]);
        if ran.code == Some(0) { Err(ran.to_string()) } else { Ok(()) }
    });
}

#[test]
fn static_pod_follows_its_file_after_a_partial_write() {
    let s = shared("mistakes-static");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let directory = s.cluster.root().join("etc/kubernetes/manifests");
    let log = s.cluster.root().join("var/log/agent.log");
    let manifest = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"fixed","namespace":"mistakes-static"},
        "spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"c","image":"box:1"}]}}"#;
    let pod = format!("pod/fixed-{node}");
    let wait_for_error = |what: &str| {
        until(&format!("a kubelet error about {what}"), || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let found = text.lines().any(|line| line.contains(what) && !line.contains(" INFO "));
            if found { Ok(()) } else { Err("the log has no such line".to_owned()) }
        });
    };
    // The kubelet reports invalid files by name and still starts the Pods of valid ones.
    fs::write(directory.join("half.json"), &manifest[..60]).unwrap();
    fs::write(directory.join("junk.yaml"), "\u{0}: [").unwrap();
    fs::write(directory.join("fixed.json"), manifest).unwrap();
    s.until(&format!("get {pod} -o jsonpath={{.status.phase}}"), |phase| phase == "Running");
    wait_for_error("half.json");
    wait_for_error("junk.yaml");
    // A partial write over a valid manifest does not change its Pod.
    let uid = s.field(&pod, "{.metadata.uid}");
    fs::write(directory.join("fixed.json"), &manifest[..manifest.len() / 2]).unwrap();
    wait_for_error("fixed.json");
    assert_eq!(s.field(&pod, "{.metadata.uid}{.status.phase}"), format!("{uid}Running"));
    // A changed, complete manifest replaces the Pod.
    let changed = manifest.replace("\"namespace\"", "\"labels\":{\"v\":\"2\"},\"namespace\"");
    fs::write(directory.join("fixed.json"), changed).unwrap();
    s.until(&format!("get {pod} -o jsonpath={{.metadata.labels.v}}/{{.status.phase}}"), |seen| {
        seen == "2/Running"
    });
    for name in ["junk.yaml", "half.json", "fixed.json"] {
        fs::remove_file(directory.join(name)).unwrap();
    }
    s.kubectl(&format!("wait {pod} --for=delete --timeout=90s")).ok();
}

#[test]
fn full_store_disk_rejects_writes_and_serves_reads() {
    let _turn = share_machine();
    let cluster = Cluster::new("full");
    let store = cluster.root().join("var/lib/store");
    fs::create_dir_all(&store).unwrap();
    let store = store.display().to_string();
    cluster.run("mount", &["-t", "tmpfs", "-o", "size=24m", "windlass-e2e", &store]).ok();
    cluster.up().ok();
    let s = Session::in_default_namespace(&cluster);
    s.kubectl("create configmap before --from-literal=a=1").ok();
    let pids = || fs::read_to_string(cluster.root().join("run/control-plane.pid")).unwrap();
    let pid = pids();

    let filler = fs::File::create(cluster.root().join("var/lib/store/filler")).unwrap();
    let filled = std::io::copy(&mut std::io::repeat(b'x'), &mut &filler);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // The first writes may still fit into the last page.
    let refused = until("a rejected write", || {
        let value = "x".repeat(4096);
        let ran = s.kubectl_with(
            &[
                "create",
                "configmap",
                "full",
                &format!("--from-literal=a={value}"),
                "--dry-run=none",
            ],
            "",
        );
        if ran.code == Some(0) {
            s.kubectl("delete configmap full").ok();
            return Err("the write succeeded".to_owned());
        }
        Ok(ran.stderr)
    });
    // The first message is etcd's, for which users search.
    let both = ["database space exceeded", "No space left on device"];
    assert!(both.iter().all(|words| refused.contains(words)), "{refused}");
    assert_eq!(s.field("configmap before", "{.data.a}"), "1");
    s.kubectl("get pods -A").ok();
    let longer = format!("{{\"data\":{{\"a\":\"{}\"}}}}", "2".repeat(8192));
    s.kubectl_with(&["patch", "configmap", "before", "-p", &longer], "").refused();
    assert_eq!(s.field("configmap before", "{.data.a}"), "1", "a rejected write was applied");
    let status = cluster.windlass(&["status"]);
    assert!(status.code == Some(1) && status.stdout.contains("0 MiB free"), "{status}");

    drop(filler);
    fs::remove_file(cluster.root().join("var/lib/store/filler")).unwrap();
    s.until("patch configmap before -p {\"data\":{\"a\":\"3\"}}", |_| true);
    s.until("create configmap after", |_| true);
    assert_eq!(s.field("configmap before", "{.data.a}"), "3");
    assert_eq!(pids(), pid, "the control plane was restarted");
    // Acknowledged writes survive a restart.
    cluster.kill("control-plane");
    s.until("get configmap before -o jsonpath={.data.a}", |value| value == "3");
    s.kubectl("get configmap after").ok();
}
