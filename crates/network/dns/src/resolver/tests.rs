use net_core::api::EndpointSlice;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::corefile;

const UDP: Via = Via { port: 53, tcp: false };
const TCP: Via = Via { port: 53, tcp: true };

fn resolver(corefile: &str, endpoints: usize) -> Resolver {
    let mut index = Index::default();
    index.set_namespace("default", true);
    let service = |spec| {
        Some(Arc::new(
            serde_json::from_value(json!({"metadata": {"namespace": "default"}, "spec": spec}))
                .unwrap(),
        ))
    };
    index.set_service("default/many", service(json!({"clusterIP": "None"})));
    index.set_service("default/web", service(json!({"clusterIP": "10.96.0.5"})));
    index.set_service(
        "default/alias",
        service(json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"})),
    );
    index.set_service(
        "default/circle",
        service(
            json!({"type": "ExternalName", "externalName": "circle.default.svc.cluster.local"}),
        ),
    );
    let list: Vec<_> = (0..endpoints)
        .map(|n| json!({"addresses": [format!("10.1.{}.{}", n / 250, n % 250)]}))
        .collect();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "many-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "many"}}, "endpoints": list,
    })).unwrap();
    index.set_slice("default/many-1", None, Some(Arc::new(slice)));
    let blocks = corefile::parse(corefile, 53).unwrap();
    Resolver::new(blocks, Arc::new(RwLock::new(index)), Box::new(|| true), Arc::default()).unwrap()
}

const CLUSTER: &str = ".:53 {\n kubernetes cluster.local in-addr.arpa {\n pods insecure\n ttl 30\n }\n hosts {\n 192.0.2.9 gate.example\n fallthrough\n }\n loadbalance\n}";

fn query(name: &str, kind: RecordType, payload: Option<u16>) -> Vec<u8> {
    let mut message = Message::new(4242, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

fn local(resolver: &Resolver, packet: &[u8], via: Via) -> Message {
    match resolver.local(packet, via) {
        Local::Answer(bytes) => Message::from_vec(&bytes).unwrap(),
        _ => panic!("not answered at once"),
    }
}

#[test]
fn answers_have_flags_and_denials_have_authority() {
    let resolver = resolver(CLUSTER, 2);
    let answer =
        local(&resolver, &query("WEB.default.svc.cluster.local.", RecordType::A, Some(4096)), UDP);
    let metadata = &answer.metadata;
    assert!(
        metadata.authoritative
            && metadata.recursion_desired
            && metadata.recursion_available
            && !metadata.truncation
    );
    assert_eq!((metadata.id, answer.answers.len(), answer.edns.is_some()), (4242, 1, true));
    assert!(answer.queries[0].name.eq_case(&answer.answers[0].name));
    for (name, code) in [
        ("none.default.svc.cluster.local.", ResponseCode::NXDomain),
        ("default.svc.cluster.local.", ResponseCode::NoError),
    ] {
        let denial = local(&resolver, &query(name, RecordType::A, None), UDP);
        assert_eq!((denial.metadata.response_code, denial.answers.len()), (code, 0));
        assert_eq!(
            (denial.authorities[0].record_type(), denial.edns.is_some()),
            (RecordType::SOA, false)
        );
    }
    assert_eq!(
        local(&resolver, &query("gate.example.", RecordType::A, None), UDP).answers.len(),
        1
    );
}

#[test]
fn truncates_large_answers() {
    let resolver = resolver(CLUSTER, 600);
    let name = "many.default.svc.cluster.local.";
    let mut counts = Vec::new();
    for (payload, via, limit) in
        [(None, UDP, 512), (Some(1232), UDP, 1232), (Some(65_000), UDP, 4096), (None, TCP, 65_535)]
    {
        let Local::Answer(bytes) = resolver.local(&query(name, RecordType::A, payload), via) else {
            panic!()
        };
        assert!(bytes.len() <= limit);
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(message.metadata.truncation, message.answers.len() < 600);
        counts.push(message.answers.len());
    }
    assert!(counts.is_sorted() && counts[0] > 20 && counts[3] == 600, "{counts:?}");
}

#[tokio::test]
async fn follows_aliases_without_loops() {
    let resolver = resolver(CLUSTER, 0);
    for (name, expected) in [
        ("alias.default.svc.cluster.local.", vec![RecordType::CNAME, RecordType::A]),
        ("circle.default.svc.cluster.local.", vec![RecordType::CNAME; 9]),
    ] {
        let bytes = resolver.answer(&query(name, RecordType::A, None), TCP).await.unwrap();
        let answers = Message::from_vec(&bytes).unwrap().answers;
        assert_eq!(answers.iter().map(Record::record_type).collect::<Vec<_>>(), expected, "{name}");
    }
}

#[test]
fn rejects_or_ignores_invalid_queries() {
    let resolver = resolver(CLUSTER, 0);
    let good = query("web.default.svc.cluster.local.", RecordType::A, Some(1232));
    let changed = |at: usize, byte: u8| {
        let mut packet = good.clone();
        packet[at] = byte;
        packet
    };
    let code = |packet: &[u8]| local(&resolver, packet, UDP).metadata.response_code;
    assert_eq!(code(&changed(2, 0x28)), ResponseCode::NotImp, "an update");
    assert_eq!(code(&changed(5, 0)), ResponseCode::FormErr, "no question");
    assert_eq!(code(&good[..20]), ResponseCode::FormErr, "cut off");
    assert_eq!(code(&query("cluster.local.", RecordType::AXFR, None)), ResponseCode::Refused);
    assert_eq!(
        code(&query("example.com.", RecordType::A, None)),
        ResponseCode::ServFail,
        "no server to forward to"
    );
    assert!(matches!(resolver.local(&changed(2, 0x81), UDP), Local::Ignore), "a response");
    assert!(matches!(resolver.local(&good[..2], UDP), Local::Ignore));
    assert_eq!(
        local(&resolver, &good, Via { port: 54, tcp: false }).metadata.response_code,
        ResponseCode::Refused,
        "not on this port"
    );
    let version = good.len() - 5;
    assert_eq!(
        local(&resolver, &changed(version, 1), UDP).edns.unwrap().rcode_high(),
        1,
        "BADVERS"
    );
}

#[test]
fn answers_servfail_before_sync() {
    let blocks = corefile::parse(CLUSTER, 53).unwrap();
    let resolver =
        Resolver::new(blocks, Arc::default(), Box::new(|| false), Arc::default()).unwrap();
    let answer =
        local(&resolver, &query("web.default.svc.cluster.local.", RecordType::A, None), UDP);
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}

proptest! {
    #[test]
    fn never_panics_on_any_packet(bytes in prop::collection::vec(any::<u8>(), 0..100), at in 0usize..60, byte in any::<u8>()) {
        let resolver = resolver(CLUSTER, 1);
        let _ = resolver.local(&bytes, UDP);
        let mut packet = query("web.default.svc.cluster.local.", RecordType::SRV, Some(1232));
        let at = at % packet.len();
        packet[at] = byte;
        let _ = resolver.local(&packet, UDP);
    }
}
