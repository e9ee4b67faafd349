use std::{collections::BTreeMap, path::Path};

use futures_util::FutureExt;
use hickory_proto::rr::RData;
use net_core::api::EndpointSlice;
use parking_lot::RwLock;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{corefile, index::Index};

const CLIENT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 7)), 4000);
const UDP: QueryOrigin = QueryOrigin { client: CLIENT, port: 53, tcp: false };
const TCP: QueryOrigin = QueryOrigin { client: CLIENT, port: 53, tcp: true };

fn context(index: Index, is_synced: bool) -> Context {
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    Context::new(Arc::new(RwLock::new(index)), Arc::new(move || is_synced), Arc::default(), tasks)
}

fn blocks(corefile: &str) -> Vec<Block> {
    corefile::build(&corefile::read(corefile, Path::new("/nonexistent")).unwrap(), 53).unwrap()
}

fn resolver(corefile: &str, endpoints: usize) -> Arc<Resolver> {
    let mut index = Index::default();
    index.set_namespace("default", Some(BTreeMap::new()));
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
    let pod = serde_json::from_value(
        json!({"metadata": {"namespace": "default"}, "status": {"podIPs": [{"ip": "10.1.0.7"}]}}),
    );
    index.set_pod(None, Some(&pod.unwrap()));
    Resolver::new(blocks(corefile), context(index, true))
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

fn bytes(resolver: &Arc<Resolver>, packet: &[u8], via: QueryOrigin) -> Option<Vec<u8>> {
    let answers =
        resolver.clone().answer(packet, via).now_or_never().expect("it is answered at once");
    answers.into_iter().next()
}

fn local(resolver: &Arc<Resolver>, packet: &[u8], via: QueryOrigin) -> Message {
    Message::from_vec(&bytes(resolver, packet, via).unwrap()).unwrap()
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
        let bytes = bytes(&resolver, &query(name, RecordType::A, payload), via).unwrap();
        assert!(bytes.len() <= limit);
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(message.metadata.truncation, message.answers.len() < 600);
        counts.push(message.answers.len());
    }
    assert!(counts.is_sorted() && counts[0] > 20 && counts[3] == 600, "{counts:?}");
}

#[test]
fn follows_aliases_without_loops() {
    let resolver = resolver(CLUSTER, 0);
    for (name, expected) in [
        ("alias.default.svc.cluster.local.", vec![RecordType::CNAME, RecordType::A]),
        ("circle.default.svc.cluster.local.", vec![RecordType::CNAME; 9]),
    ] {
        let answers = local(&resolver, &query(name, RecordType::A, None), TCP).answers;
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
    assert!(bytes(&resolver, &changed(2, 0x81), UDP).is_none(), "a response");
    assert!(bytes(&resolver, &good[..2], UDP).is_none());
    assert_eq!(
        local(&resolver, &good, QueryOrigin { port: 54, ..UDP }).metadata.response_code,
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
    let resolver = Resolver::new(blocks(CLUSTER), context(Index::default(), false));
    let answer =
        local(&resolver, &query("web.default.svc.cluster.local.", RecordType::A, None), UDP);
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}

proptest! {
    #[test]
    fn never_panics_on_any_packet(bytes in prop::collection::vec(any::<u8>(), 0..100), at in 0usize..60, byte in any::<u8>()) {
        let resolver = resolver(CLUSTER, 1);
        let _ = super::tests::bytes(&resolver, &bytes, UDP);
        let mut packet = query("web.default.svc.cluster.local.", RecordType::SRV, Some(1232));
        let at = at % packet.len();
        packet[at] = byte;
        let _ = super::tests::bytes(&resolver, &packet, UDP);
    }
}

/// Returns the answer as text: the code, and the records of each section.
fn show(resolver: &Arc<Resolver>, name: &str, kind: RecordType) -> String {
    let answer = local(resolver, &query(name, kind, Some(1232)), TCP);
    assert_eq!(
        answer.queries[0].name,
        Name::from_ascii(name).unwrap(),
        "the question is that of the client"
    );
    let texts = |records: &[Record]| {
        let text = |record: &Record| {
            format!("{} {} {} {}", record.name, record.ttl, record.record_type(), record.data)
        };
        records.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    let sections =
        [&answer.answers, &answer.authorities, &answer.additionals].map(|records| texts(records));
    format!("{:?} {}", answer.metadata.response_code, sections.join(" | "))
}

/// Returns a resolver for the plugins, followed by a plugin that answers with an address.
fn with(plugins: &str) -> Arc<Resolver> {
    resolver(
        &format!(
            ". {{\n{plugins}\n hosts /nonexistent {{\n  192.0.2.1 known.example www.service.consul target.example a.internal.example\n  \
             ttl 60\n  fallthrough\n }}\n whoami\n}}"
        ),
        2,
    )
}

#[test]
fn rewrites_names_and_answers() {
    use RecordType::A;
    const REWRITES: &str = "rewrite name exact red.example known.example\n\
         rewrite continue {\n ttl suffix .ttl.example 5-30\n }\n\
         rewrite stop {\n name regex (.*)-(us)\\.rocks {1}.service.consul\n answer name (.*)\\.service\\.consul {1}-us.rocks\n }\n\
         rewrite name suffix .outside.example. .internal.example. answer auto\n\
         rewrite name substring plain known\n\
         rewrite type MX A\n\
         rewrite name exact a.ttl.example known.example\n\
         rewrite name regex bad\\.example {0}..x\n";
    let resolver = with(&format!(
        "rewrite continue rcode exact refused.example REFUSED NXDOMAIN\n\
         {REWRITES}acl {{\n block net 10.1.0.7\n }}\n"
    ));
    // The access list comes after the rewriting.
    assert_eq!(show(&resolver, "refused.example.", A), "NXDomain  |  | ");
    let resolver = with(REWRITES);
    for (name, kind, expected) in [
        ("red.example.", A, "NoError red.example. 60 A 192.0.2.1 |  | "),
        ("RED.example.", A, "NoError red.example. 60 A 192.0.2.1 |  | "),
        ("www-us.rocks.", A, "NoError www-us.rocks. 60 A 192.0.2.1 |  | "),
        ("a.outside.example.", A, "NoError a.outside.example. 60 A 192.0.2.1 |  | "),
        ("plain.example.", A, "NoError known.example. 60 A 192.0.2.1 |  | "),
        ("known.example.", RecordType::MX, "NoError known.example. 60 A 192.0.2.1 |  | "),
        ("a.ttl.example.", A, "NoError a.ttl.example. 30 A 192.0.2.1 |  | "),
        ("bad.example.", A, "ServFail  |  | "),
    ] {
        assert_eq!(show(&resolver, name, kind), expected, "{name}");
    }
}

#[test]
fn rewrites_target_of_alias_and_class() {
    let resolver = with(
        "rewrite cname suffix .cdn.example. .example.\n\
         template IN A alias.example {\n answer \"{{ .Name }} 60 IN CNAME target.cdn.example.\"\n }",
    );
    let expected =
        "NoError alias.example. 60 CNAME target.example., target.example. 60 A 192.0.2.1 |  | ";
    assert_eq!(show(&resolver, "alias.example.", RecordType::A), expected);
    let resolver = with("chaos v1 me\n rewrite class CH IN");
    let mut message = Message::from_vec(&query("version.bind.", RecordType::TXT, None)).unwrap();
    message.queries[0].query_class = hickory_proto::rr::DNSClass::CH;
    let answer = local(&resolver, &message.to_vec().unwrap(), UDP);
    assert_eq!(answer.answers[0].data.to_string(), "v1");
    message.queries[0].name = Name::from_ascii("known.example.").unwrap();
    message.queries[0].query_type = RecordType::A;
    assert_eq!(local(&resolver, &message.to_vec().unwrap(), UDP).answers.len(), 1);
}

#[test]
fn writes_records_from_templates() {
    use RecordType::{A, MX, PTR};
    let resolver = with(
        "template IN A dc.example {\n match (^|[.])ip-(?P<a>[0-9]*)-(?P<b>[0-9a-f]{2})[.]dc[.]example[.]$\n \
           answer \"{{ .Name }} 60 IN A 10.0.{{ .Group.a }}.{{ parseInt .Group.b 16 8 }}\"\n fallthrough\n }\n\
         template IN MX dc.example {\n answer \"{{ .Name }} 60 {{ .Class }} {{ .Type }} 10 mail.{{ .Zone }}\"\n \
           additional \"mail.{{ .Zone }} 60 IN A 192.0.2.9\"\n authority \"{{ .Zone }} 60 IN NS ns.{{ .Zone }}\"\n }\n\
         template ANY ANY invalid {\n rcode NXDOMAIN\n authority \"invalid. 60 {{ .Class }} SOA ns.invalid. h.invalid. (1 60 60 60 60)\"\n \
           ederror 21 \"Blocked according to RFC2606\"\n }\n\
         template IN PTR in-addr.arpa {\n match ^(?P<d>[0-9]*)[.]0[.]0[.]10[.]in-addr[.]arpa[.]$\n answer \"{{ .Name }} 60 IN PTR {{ index .Match 1 }}.dc.example.\"\n }\n\
         template IN A broken.example {\n answer \"{{ .Name }} 60 IN A {{ .Name }}\"\n }",
    );
    for (name, kind, expected) in [
        ("x.ip-7-ff.dc.example.", A, "NoError x.ip-7-ff.dc.example. 60 A 10.0.7.255 |  | "),
        (
            "other.dc.example.",
            A,
            "NoError  |  | other.dc.example. 0 A 10.1.0.7, _tcp.other.dc.example. 0 SRV 0 0 4000 .",
        ),
        (
            "dc.example.",
            MX,
            "NoError dc.example. 60 MX 10 mail.dc.example. | dc.example. 60 NS ns.dc.example. | mail.dc.example. 60 A 192.0.2.9",
        ),
        ("a.invalid.", A, "NXDomain  | invalid. 60 SOA ns.invalid. h.invalid. 1 60 60 60 60 | "),
        (
            "5.0.0.10.in-addr.arpa.",
            PTR,
            "NoError 5.0.0.10.in-addr.arpa. 60 PTR 5.dc.example. |  | ",
        ),
        ("5.0.0.11.in-addr.arpa.", PTR, "ServFail  |  | "),
        ("a.broken.example.", A, "ServFail  |  | "),
    ] {
        assert_eq!(show(&resolver, name, kind), expected, "{name}");
    }
    let denied = local(&resolver, &query("a.invalid.", A, Some(1232)), UDP);
    let option = denied.edns.as_ref().unwrap().option(15.into()).cloned();
    let text = [&21u16.to_be_bytes()[..], b"Blocked according to RFC2606"].concat();
    assert_eq!(option, Some(hickory_proto::rr::rdata::opt::EdnsOption::Unknown(15, text)));
}

#[test]
fn allows_blocks_filters_and_drops_by_client() {
    let resolver = with(
        "acl blocked.example {\n allow type AAAA\n block net 10.1.0.0/16\n }\n acl filtered.example {\n filter type A net *\n }\n \
         acl dropped.example {\n allow net 192.0.2.0/24\n drop\n }",
    );
    for (name, kind, expected) in [
        ("a.blocked.example.", RecordType::A, "Refused  |  | "),
        ("filtered.example.", RecordType::A, "NoError  |  | "),
    ] {
        assert_eq!(show(&resolver, name, kind), expected, "{name}");
    }
    assert!(show(&resolver, "a.blocked.example.", RecordType::AAAA).contains("SRV"), "allowed");
    assert_eq!(bytes(&resolver, &query("dropped.example.", RecordType::A, None), UDP), None);
    let other = QueryOrigin { client: "192.0.2.5:1".parse().unwrap(), ..UDP };
    assert!(bytes(&resolver, &query("dropped.example.", RecordType::A, None), other).is_some());
}

#[test]
fn answers_local_names_and_any_queries() {
    use RecordType::{A, AAAA, ANY, NS, PTR};
    let resolver = with("local\n any");
    for (name, kind, expected) in [
        ("localhost.", A, "NoError localhost. 604800 A 127.0.0.1 |  | "),
        ("a.localhost.", AAAA, "NoError a.localhost. 604800 AAAA ::1 |  | "),
        ("localhost.example.org.", A, "NoError localhost.example.org. 604800 A 127.0.0.1 |  | "),
        (
            "1.0.0.127.in-addr.arpa.",
            PTR,
            "NoError 1.0.0.127.in-addr.arpa. 604800 PTR localhost. |  | ",
        ),
        ("127.in-addr.arpa.", NS, "NoError 127.in-addr.arpa. 604800 NS localhost. |  | "),
        (
            "2.0.0.127.in-addr.arpa.",
            PTR,
            "NXDomain  | 127.in-addr.arpa. 604800 SOA localhost. root.localhost. 1 0 0 0 604800 | ",
        ),
        (
            "known.example.",
            ANY,
            "NoError known.example. 8482 HINFO ANY obsoleted See RFC 8482 |  | ",
        ),
    ] {
        assert_eq!(show(&resolver, name, kind), expected, "{name}");
    }
    assert!(
        show(&with("local {\n localhost_prefix off\n }"), "localhost.example.org.", A)
            .contains("SRV")
    );
}

#[test]
fn makes_ipv6_addresses_for_clients_over_ipv6() {
    let resolver = with("dns64 {\n prefix 64:ff9b::/96\n }");
    let asked = query("known.example.", RecordType::AAAA, None);
    assert!(local(&resolver, &asked, UDP).answers.is_empty(), "the client has IPv4");
    let over6 = QueryOrigin { client: "[fd00::7]:1".parse().unwrap(), ..UDP };
    assert_eq!(local(&resolver, &asked, over6).answers[0].data.to_string(), "64:ff9b::c000:201");
    let all = with("dns64 {\n allow_ipv4\n }");
    assert_eq!(local(&all, &asked, UDP).answers.len(), 1);
}

#[test]
fn changes_flags_and_limits_sizes() {
    let resolver = resolver(
        ". {\n header {\n  response set aa\n  response clear ra\n }\n bufsize 512\n kubernetes cluster.local\n}",
        600,
    );
    let name = "many.default.svc.cluster.local.";
    let bytes = bytes(&resolver, &query(name, RecordType::A, Some(4096)), UDP).unwrap();
    let answer = Message::from_vec(&bytes).unwrap();
    let header = &answer.metadata;
    assert!(
        bytes.len() <= 512
            && header.truncation
            && header.authoritative
            && !header.recursion_available
    );
}

#[test]
fn follows_search_path_of_pod() {
    let corefile = "cluster.local . {\n autopath @kubernetes\n kubernetes cluster.local {\n  pods verified\n }\n hosts /nonexistent {\n  \
                    192.0.2.1 known.example\n  fallthrough\n }\n}";
    let resolver = resolver(corefile, 2);
    let shown = |name: &str| show(&resolver, name, RecordType::A);
    assert_eq!(
        shown("known.example.default.svc.cluster.local."),
        "NoError known.example.default.svc.cluster.local. 3600 CNAME known.example., known.example. 3600 A 192.0.2.1 |  | "
    );
    assert_eq!(
        shown("web.default.svc.cluster.local."),
        "NoError web.default.svc.cluster.local. 5 A 10.96.0.5 |  | "
    );
    assert!(shown("none.example.default.svc.cluster.local.").starts_with("NXDomain"));
    let stranger = QueryOrigin { client: "192.0.2.5:1".parse().unwrap(), ..UDP };
    let asked = query("known.example.default.svc.cluster.local.", RecordType::A, None);
    assert_eq!(local(&resolver, &asked, stranger).metadata.response_code, ResponseCode::NXDomain);
}

#[test]
fn transfers_zones_only_to_listed_clients() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("db");
    let records: String =
        (0..1000).map(|n| format!("n{n} A 10.0.{}.{}\n", n / 250, n % 250)).collect();
    std::fs::write(&file, format!("@ 60 SOA ns h 1 2 3 4 5\n{records}")).unwrap();
    let corefile = format!(
        ". {{\n file {} example.org\n kubernetes cluster.local\n transfer example.org cluster.local {{\n  to 10.1.0.7\n }}\n}}",
        file.display()
    );
    let resolver = resolver(&corefile, 2);
    let messages = |name: &str, via| {
        let answers = resolver
            .clone()
            .answer(&query(name, RecordType::AXFR, None), via)
            .now_or_never()
            .unwrap();
        answers.map(|bytes| Message::from_vec(&bytes).unwrap()).collect::<Vec<_>>()
    };
    let sent = messages("example.org.", TCP);
    let records: Vec<_> = sent.iter().flat_map(|message| &message.answers).collect();
    assert!(sent.len() > 1 && records.len() == 1002);
    assert!(
        [records[0], records[1001]].iter().all(|record| record.record_type() == RecordType::SOA)
    );
    assert!(messages("cluster.local.", TCP)[0].answers.len() > 5);
    // Over UDP, the client learns the serial number. It changes with each object that decides about names.
    let serial = |resolver: &Arc<Resolver>| {
        let reply = local(resolver, &query("cluster.local.", RecordType::IXFR, None), UDP);
        let [Record { data: RData::SOA(soa), .. }] = &reply.answers[..] else {
            panic!("{:?}", reply.answers)
        };
        soa.serial
    };
    let before = serial(&resolver);
    resolver.context().index.write().set_namespace("new", Some(Default::default()));
    assert_ne!(serial(&resolver), before);
    let stranger = QueryOrigin { client: "192.0.2.5:1".parse().unwrap(), ..TCP };
    for (name, via) in [
        ("example.org.", stranger),
        ("example.org.", UDP),
        ("n1.example.org.", TCP),
        ("other.org.", TCP),
    ] {
        let refused = messages(name, via);
        assert!(refused.len() == 1 && refused[0].answers.is_empty(), "{name} {via:?}");
        assert_eq!(refused[0].metadata.response_code, ResponseCode::Refused);
    }
}

#[test]
fn answers_from_zone_file_and_hosts_without_fallthrough() {
    let folder = tempfile::tempdir().unwrap();
    let zone = "@ 60 SOA ns h 1 2 3 4 5\n@ NS ns\nns A 192.0.2.2\nwww CNAME known.other\n@ MX 10 ns\nsub NS ns\n";
    std::fs::write(folder.path().join("db"), zone).unwrap();
    let corefile = format!(
        ". {{\n file db example.org\n root {}\n hosts /nonexistent other example.org {{\n  192.0.2.1 known.other *.wild.other\n  \
         fallthrough example.org\n }}\n}}",
        folder.path().display()
    );
    let resolver = resolver(&corefile, 0);
    for (name, kind, expected) in [
        (
            "example.org.",
            RecordType::MX,
            "NoError example.org. 60 MX 10 ns.example.org. | example.org. 60 NS ns.example.org. | ns.example.org. 60 A 192.0.2.2",
        ),
        (
            "none.example.org.",
            RecordType::A,
            "NXDomain  | example.org. 5 SOA ns.example.org. h.example.org. 1 2 3 4 5 | ",
        ),
        (
            "a.sub.example.org.",
            RecordType::A,
            "NoError  | sub.example.org. 60 NS ns.example.org. | ns.example.org. 60 A 192.0.2.2",
        ),
        ("a.wild.other.", RecordType::A, "NoError a.wild.other. 3600 A 192.0.2.1 |  | "),
        ("a.b.wild.other.", RecordType::A, "ServFail  |  | "),
        ("known.other.", RecordType::TXT, "NoError  |  | "),
        (
            "1.2.0.192.in-addr.arpa.",
            RecordType::PTR,
            "NoError 1.2.0.192.in-addr.arpa. 3600 PTR known.other. |  | ",
        ),
    ] {
        assert_eq!(show(&resolver, name, kind), expected, "{name}");
    }
    assert_eq!(
        show(&resolver, "www.example.org.", RecordType::A),
        "NoError www.example.org. 60 CNAME known.other.example.org. | example.org. 5 SOA ns.example.org. h.example.org. 1 2 3 4 5 | "
            .replace("NoError", "NXDomain")
    );
}

#[tokio::test]
async fn sends_edns_options_of_rewrites_to_servers_only() {
    use hickory_proto::rr::rdata::opt::{ClientSubnet, EdnsOption};
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let corefile = format!(
        ". {{\n rewrite continue edns0 local set 0xffee {{client_ip}}\n rewrite continue edns0 subnet set 24 56\n \
         rewrite continue edns0 local replace 0xfff1 never\n \
         rewrite continue edns0 local set 0xfff0 {{kubernetes/client-namespace}}\n rewrite edns0 local append 65519 0x6162\n \
         metadata\n kubernetes cluster.local\n forward . {}\n}}",
        socket.local_addr().unwrap()
    );
    let resolver = resolver(&corefile, 0);
    let packet = query("a.example.", RecordType::A, None);
    let server = async {
        let mut buffer = [0; 512];
        let (length, peer) = socket.recv_from(&mut buffer).await.unwrap();
        let received = Message::from_vec(&buffer[..length]).unwrap();
        let mut reply = received.clone();
        reply.metadata.message_type = MessageType::Response;
        socket.send_to(&reply.to_vec().unwrap(), peer).await.unwrap();
        received
    };
    let (answers, received) = tokio::join!(resolver.answer(&packet, UDP), server);
    let option = |code: u16| received.edns.as_ref().unwrap().option(code.into()).cloned();
    let local = |code: u16, data: &[u8]| Some(EdnsOption::Unknown(code, data.to_vec()));
    assert_eq!(option(0xffee), local(0xffee, &[10, 1, 0, 7]));
    assert_eq!(option(0xffef), local(0xffef, b"ab"));
    assert_eq!(option(0xfff0), local(0xfff0, b"default"));
    assert_eq!(option(0xfff1), None);
    assert_eq!(option(8), Some(EdnsOption::Subnet(ClientSubnet::new([10, 1, 0, 0].into(), 24, 0))));
    assert!(
        Message::from_vec(answers.first().unwrap()).unwrap().edns.is_none(),
        "the client has no EDNS"
    );
}
