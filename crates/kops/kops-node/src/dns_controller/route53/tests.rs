//! Tests of changes of record sets, against scripted answers, and against moto at `KOPS_MOTO=http://127.0.0.1:PORT`.

use std::sync::Arc;

use aws::StaticKey;
use kops_core::dns::Records;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::dns_controller::tests::{change, records};

fn set(kind: &str, ttl: &str, values: &[&str]) -> Value {
    let records: Vec<_> = values.iter().map(|value| json!({"Value": value})).collect();
    json!({"Name": "a.example.", "Type": kind, "TTL": ttl, "ResourceRecords": records})
}

/// Returns changes as text: `UPSERT A 60 1.2.3.4,5.6.7.8`.
fn shown(changes: &[Value]) -> Vec<String> {
    let change = |change: &Value| {
        let set = change.at("ResourceRecordSet");
        let values = set.items("ResourceRecords.ResourceRecord").iter();
        let values: Vec<_> = values.map(|record| record.text("Value")).collect();
        let (action, kind, ttl) = (change.text("Action"), set.text("Type"), set.text("TTL"));
        format!("{action} {kind} {ttl} {}", values.join(","))
    };
    changes.iter().map(change).collect()
}

#[test]
fn changes_only_records_that_differ() {
    let v4 = || records(&["192.0.2.1", "192.0.2.2"], &[], None);
    let txt = set("TXT", "5", &["\"kept\""]);
    for (existing, wanted, expected) in [
        (vec![], v4(), &["UPSERT A 60 192.0.2.1,192.0.2.2"][..]),
        (vec![set("A", "60", &["192.0.2.2", "192.0.2.1"]), txt.clone()], v4(), &[]),
        (vec![set("A", "60", &["192.0.2.1"])], v4(), &["UPSERT A 60 192.0.2.1,192.0.2.2"]),
        (
            vec![set("A", "300", &["192.0.2.1", "192.0.2.2"])],
            v4(),
            &["UPSERT A 60 192.0.2.1,192.0.2.2"],
        ),
        (
            vec![set("CNAME", "300", &["b.example."])],
            v4(),
            &["DELETE CNAME 300 b.example.", "UPSERT A 60 192.0.2.1,192.0.2.2"],
        ),
        (vec![set("CNAME", "60", &["b.example."])], records(&[], &[], Some("b.example")), &[]),
        (
            vec![set("A", "60", &["192.0.2.1"]), set("AAAA", "60", &["2001:db8::1"])],
            records(&["192.0.2.1"], &[], None),
            &["DELETE AAAA 60 2001:db8::1"],
        ),
        (
            vec![set("A", "60", &["192.0.2.1"]), txt.clone()],
            Records::default(),
            &["DELETE A 60 192.0.2.1"],
        ),
        (vec![txt], Records::default(), &[]),
    ] {
        let changes = set_changes(&change("a.example", wanted), &existing).unwrap();
        assert_eq!(shown(&changes), expected, "{existing:?}");
    }
}

#[test]
fn records_with_a_policy_are_not_replaced() {
    let mut weighted = set("A", "60", &["192.0.2.1"]);
    weighted["SetIdentifier"] = json!("one");
    let alias = json!({"Name": "a.example.", "Type": "A", "AliasTarget": {"DNSName": "x."}});
    for existing in [weighted, alias] {
        for wanted in [records(&["192.0.2.9"], &[], None), Records::default()] {
            let error = set_changes(&change("a.example", wanted), std::slice::from_ref(&existing))
                .unwrap_err();
            assert!(error.to_string().contains("another name"), "{error}");
        }
    }
}

/// A server of AWS' API with scripted answers.
struct Scripted {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

/// Reads a request's head and body.
async fn read_request(stream: &mut TcpStream) -> String {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut chunk).await.unwrap();
        bytes.extend_from_slice(&chunk[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let wanted = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            if body.len() >= wanted.unwrap_or(0) || length == 0 {
                return text;
            }
        }
    }
}

impl Scripted {
    async fn start(answers: Vec<(u16, String)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = requests.clone();
        tokio::spawn(async move {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = read_request(&mut stream).await;
                seen.lock().push(request);
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { address, requests }
    }

    fn provider(&self) -> Route53 {
        route53(&format!("http://{}", self.address))
    }
}

fn route53(url: &str) -> Route53 {
    let environment = |name: &str| (name == "AWS_ENDPOINT_URL").then(|| url.to_owned());
    let client = Client::open("us-east-1", &environment).unwrap();
    let (key, secret) = ("testing".to_owned(), "hidden".to_owned());
    Route53 { client: client.with_key(StaticKey { key, secret, from: "test" }) }
}

fn listing(sets: &str) -> (u16, String) {
    let name = "ListResourceRecordSetsResponse";
    (200, format!("<{name}><ResourceRecordSets>{sets}</ResourceRecordSets></{name}>"))
}

fn set_xml(name: &str, kind: &str, value: &str) -> String {
    format!(
        "<ResourceRecordSet><Name>{name}</Name><Type>{kind}</Type><TTL>60</TTL><ResourceRecords><ResourceRecord>\
         <Value>{value}</Value></ResourceRecord></ResourceRecords></ResourceRecordSet>"
    )
}

fn changed() -> (u16, String) {
    let name = "ChangeResourceRecordSetsResponse";
    (200, format!("<{name}><ChangeInfo><Id>a</Id></ChangeInfo></{name}>"))
}

#[tokio::test]
async fn removes_wildcards_and_leaves_other_names() {
    let zone = Zone::new("Z1", "example.").unwrap();
    let sets =
        [set_xml("\\052.example.", "A", "192.0.2.1"), set_xml("a.example.", "A", "192.0.2.2")];
    let server = Scripted::start(vec![listing(&sets.concat()), changed()]).await;
    let removal = [change("*.example", Records::default())];
    server.provider().apply(&zone, &removal).await.unwrap();
    let requests = server.requests.lock().clone();
    assert!(requests[0].contains("/hostedzone/Z1/rrset?"), "{}", requests[0]);
    assert!(requests[0].contains("name=%2A.example"), "{}", requests[0]);
    assert!(requests[1].contains("<Action>DELETE</Action>"), "{}", requests[1]);
    assert!(requests[1].contains("<Value>192.0.2.1</Value>"));
    assert!(!requests[1].contains("192.0.2.2"));
    // Records that are right already need no change.
    let server = Scripted::start(vec![listing(&sets[1])]).await;
    let same = [change("a.example", records(&["192.0.2.2"], &[], None))];
    server.provider().apply(&zone, &same).await.unwrap();
}

#[tokio::test]
async fn reports_refusals_and_bad_answers() {
    let zone = Zone::new("Z1", "example.").unwrap();
    let problem = |status, code: &str| {
        let text = format!(
            "<ErrorResponse><Error><Code>{code}</Code><Message>m</Message></Error></ErrorResponse>"
        );
        (status, text)
    };
    let invalid =
        "<InvalidChangeBatch><Messages><Message>m</Message></Messages></InvalidChangeBatch>";
    let many = set_xml("a.example.", "TXT", "x").repeat(100);
    let deep = format!("{}{}", "<a>".repeat(2_000), "</a>".repeat(2_000));
    for (answers, effect) in [
        (vec![problem(403, "AccessDenied")], Effect::Refused),
        (vec![problem(404, "NoSuchHostedZone")], Effect::Refused),
        (vec![listing(""), problem(400, "InvalidChangeBatch")], Effect::Rejected),
        (vec![listing(""), (400, invalid.to_owned())], Effect::Rejected),
        (vec![listing(""), problem(500, "InternalError")], Effect::Unknown),
        (vec![listing(""), (200, "<html>".to_owned())], Effect::Unknown),
        (vec![listing(&many)], Effect::Rejected),
        (vec![(200, "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>".to_owned())], Effect::Unknown),
        (vec![(200, deep)], Effect::Unknown),
        (vec![(200, "\u{0}".repeat(1 << 20))], Effect::Unknown),
    ] {
        let shown = format!("{:.80}", answers[0].1);
        let server = Scripted::start(answers).await;
        let changes = [change("a.example", records(&["192.0.2.1"], &[], None))];
        let error = server.provider().apply(&zone, &changes).await.unwrap_err();
        assert_eq!(error.effect, effect, "{shown}: {error}");
    }
}

/// Sends a request to moto, which reads the account from the signature's credential.
async fn send(address: &str, line: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let scope = "Credential=testing/20260101/us-east-1/route53/aws4_request";
    let signed = format!("AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=a");
    let length = body.len();
    let request = format!(
        "{line} HTTP/1.1\r\nHost: {address}\r\nAuthorization: {signed}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn moto_has_exactly_the_wanted_records() {
    let Ok(url) = std::env::var("KOPS_MOTO") else {
        println!("skipped: KOPS_MOTO names no server of moto");
        return;
    };
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let name = format!("z{}.example", rt::random::<u32>());
    let request = format!(
        "<CreateHostedZoneRequest xmlns=\"https://route53.amazonaws.com/doc/2013-04-01/\"><Name>{name}</Name>\
         <CallerReference>{name}</CallerReference></CreateHostedZoneRequest>"
    );
    let answer = send(&address, "POST /2013-04-01/hostedzone", &request).await;
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    let provider = route53(&url);
    let zones = provider.zones().await.unwrap();
    let zone = zones.iter().find(|zone| zone.name == name).unwrap();
    let own = |label: &str| format!("{label}.{name}");
    let list = async |label: &str| {
        let mut all = Vec::new();
        for set in provider.sets(zone, &own(label)).await.unwrap() {
            all.extend(values(&set).map(|value| format!("{} {value}", set.text("Type"))));
        }
        all.sort();
        all
    };
    let first = [
        change(&own("a"), records(&["192.0.2.1", "192.0.2.2"], &["2001:db8::1"], None)),
        change(&own("*.apps"), records(&[], &[], Some("a.example"))),
    ];
    provider.apply(zone, &first).await.unwrap();
    provider.apply(zone, &first).await.unwrap();
    assert_eq!(list("a").await, ["A 192.0.2.1", "A 192.0.2.2", "AAAA 2001:db8::1"]);
    assert_eq!(list("*.apps").await, ["CNAME a.example"]);
    let second = [
        change(&own("a"), records(&["192.0.2.3"], &[], None)),
        change(&own("*.apps"), records(&["192.0.2.4"], &[], None)),
    ];
    provider.apply(zone, &second).await.unwrap();
    assert_eq!(list("a").await, ["A 192.0.2.3"]);
    assert_eq!(list("*.apps").await, ["A 192.0.2.4"]);
    let removals = [change(&own("a"), Records::default()), change(&own("b"), Records::default())];
    provider.apply(zone, &removals).await.unwrap();
    assert!(list("a").await.is_empty());
}
