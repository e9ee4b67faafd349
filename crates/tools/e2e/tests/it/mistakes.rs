//! Input that is no good: it is refused with upstream's words, and everything goes on.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use e2e::{Answer, Background, Cluster, Session, beside_others, exchange, inside, shared, until};
use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Requests as they are, through kubectl's proxy, which adds the administrator's certificate and nothing else.
struct Raw<'a> {
    session: &'a Session<'a>,
    _proxy: Background,
    address: SocketAddr,
}

impl<'a> Raw<'a> {
    fn new(session: &'a Session<'a>) -> Self {
        let mut proxy = session.start("proxy --port=0");
        let line = proxy.line(|line| line.contains("Starting to serve on"));
        let address = line.rsplit(' ').next().unwrap_or_default().parse();
        let address = address.unwrap_or_else(|e| panic!("{line}: {e}"));
        Self { session, _proxy: proxy, address }
    }

    #[track_caller]
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let (network, address) = (self.session.cluster.namespace.path(), self.address);
        inside(&network, || exchange(address, method, path, headers, body))
            .unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// The message of an answer that must be a failure of this kind.
    #[track_caller]
    fn refused(&self, code: u16, reason: &str, answer: &Answer) -> String {
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
fn malformed_and_oversize_bodies_are_refused() {
    let s = shared("mistakes-bodies");
    let raw = Raw::new(&s);
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

    // Three mebibytes are the limit of every kind of body.
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
fn unknown_and_wrongly_typed_fields_are_refused_told_or_dropped() {
    let s = shared("mistakes-fields");
    let raw = Raw::new(&s);
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

    // A wrong type cannot be dropped: whatever the validation, the object cannot be read.
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
    // kubectl's own words for the three.
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

/// kubectl as whoever a certificate and its key stand for.
fn with_certificate(
    s: &Session<'_>,
    authority: &Authority,
    subject: Subject,
    validity: Validity,
) -> e2e::Ran {
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
    // The signature of another key is as good as this one turned round.
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
    until("the end of a token whose account is gone", || {
        let ran = s.with_identity(&["--token", &token]);
        if ran.code == Some(0) { Err(ran.to_string()) } else { Ok(()) }
    });
}

#[test]
fn a_static_pod_follows_its_file_even_after_half_of_one() {
    let s = shared("mistakes-static");
    let node = s.field("nodes", "{.items[0].metadata.name}");
    let directory = s.cluster.root().join("etc/kubernetes/manifests");
    let log = s.cluster.root().join("var/log/agent.log");
    let manifest = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"fixed","namespace":"mistakes-static"},
        "spec":{"terminationGracePeriodSeconds":1,"containers":[{"name":"c","image":"box:1"}]}}"#;
    let pod = format!("pod/fixed-{node}");
    let told = |what: &str| {
        until(&format!("the kubelet's word about {what}"), || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let found = text.lines().any(|line| line.contains(what) && !line.contains(" INFO "));
            if found { Ok(()) } else { Err("it says nothing".to_owned()) }
        });
    };
    // Half of a manifest is no Pod, and the kubelet says which file it is; others are not kept waiting.
    fs::write(directory.join("half.json"), &manifest[..60]).unwrap();
    fs::write(directory.join("junk.yaml"), "\u{0}: [").unwrap();
    fs::write(directory.join("fixed.json"), manifest).unwrap();
    s.until(&format!("get {pod} -o jsonpath={{.status.phase}}"), |phase| phase == "Running");
    told("half.json");
    told("junk.yaml");
    // Half of a manifest where a whole one was leaves its Pod alone.
    let uid = s.field(&pod, "{.metadata.uid}");
    fs::write(directory.join("fixed.json"), &manifest[..manifest.len() / 2]).unwrap();
    told("fixed.json");
    assert_eq!(s.field(&pod, "{.metadata.uid}{.status.phase}"), format!("{uid}Running"));
    // Whole again, and changed: the Pod follows.
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
fn a_full_disk_under_the_store_stops_writes_and_nothing_else() {
    let _turn = beside_others();
    let cluster = Cluster::new("full");
    let store = cluster.root().join("var/lib/store");
    fs::create_dir_all(&store).unwrap();
    let store = store.display().to_string();
    cluster.run("mount", &["-t", "tmpfs", "-o", "size=24m", "windlass-e2e", &store]).ok();
    cluster.up().ok();
    let s = Session::own(&cluster);
    s.kubectl("create configmap before --from-literal=a=1").ok();
    let pids = || fs::read_to_string(cluster.root().join("run/control-plane.pid")).unwrap();
    let pid = pids();

    let filler = fs::File::create(cluster.root().join("var/lib/store/filler")).unwrap();
    let filled = std::io::copy(&mut std::io::repeat(b'x'), &mut &filler);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // What is left of the last page is soon used up.
    let refused = until("a write that is refused", || {
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
            return Err("it was written".to_owned());
        }
        Ok(ran.stderr)
    });
    // The first is what users of etcd search for.
    let both = ["database space exceeded", "No space left on device"];
    assert!(both.iter().all(|words| refused.contains(words)), "{refused}");
    assert_eq!(s.field("configmap before", "{.data.a}"), "1");
    s.kubectl("get pods -A").ok();
    let longer = format!("{{\"data\":{{\"a\":\"{}\"}}}}", "2".repeat(8192));
    s.kubectl_with(&["patch", "configmap", "before", "-p", &longer], "").refused();
    assert_eq!(s.field("configmap before", "{.data.a}"), "1", "a refused write is not seen");
    let status = cluster.windlass(&["status"]);
    assert!(status.code == Some(1) && status.stdout.contains("0 MiB free"), "{status}");

    drop(filler);
    fs::remove_file(cluster.root().join("var/lib/store/filler")).unwrap();
    s.until("patch configmap before -p {\"data\":{\"a\":\"3\"}}", |_| true);
    s.until("create configmap after", |_| true);
    assert_eq!(s.field("configmap before", "{.data.a}"), "3");
    assert_eq!(pids(), pid, "the control plane was restarted");
    // What was acknowledged is there after a restart too.
    cluster.kill("control-plane");
    s.until("get configmap before -o jsonpath={.data.a}", |value| value == "3");
    s.kubectl("get configmap after").ok();
}
