use hickory_proto::rr::Record;
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{directive::directives, records::address_data};

fn parse(text: &str) -> Result<Forward, CorefileError> {
    Forward::parse(&directives(text, None).unwrap()[0])
}

fn query() -> Message {
    let mut query = Message::new(7, MessageType::Query, OpCode::Query);
    query.add_query(Query::query(Name::from_ascii("a.example.").unwrap(), RecordType::A));
    query
}

fn response(query: &[u8], code: ResponseCode, last: u8) -> Message {
    let query = Message::from_vec(query).unwrap();
    let mut response = Message::response(query.metadata.id, OpCode::Query);
    response.metadata.response_code = code;
    let name = query.queries[0].name().clone();
    response.add_queries(query.queries);
    response.add_answer(Record::from_rdata(name, 60, address_data([192, 0, 2, last].into())));
    response
}

/// Serves UDP on a port of 127.0.0.1. Each answer has the code and this last number of its address.
async fn udp(code: ResponseCode, last: u8, truncated: bool) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 1024];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
            let mut response = response(&buffer[..length], code, last);
            response.metadata.truncation = truncated;
            // Someone who guesses the id wrong, or the question.
            let mut forged = response.clone();
            forged.metadata.id = forged.metadata.id.wrapping_add(1);
            socket.send_to(&forged.to_vec().unwrap(), peer).await.unwrap();
            socket.send_to(b"x", peer).await.unwrap();
            socket.send_to(&response.to_vec().unwrap(), peer).await.unwrap();
        }
    });
    address
}

/// Serves TCP, or TLS with a certificate of `dns.example`; answers have the number of connections so far.
async fn tcp(address: SocketAddr, tls: Option<TlsAcceptor>) -> SocketAddr {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for count in 1.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            let tls = tls.clone();
            tokio::spawn(async move {
                match tls {
                    None => serve(stream, count).await,
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => serve(stream, count).await,
                        Err(_) => None,
                    },
                }
            });
        }
    });
    address
}

async fn serve(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, count: u8) -> Option<()> {
    loop {
        let mut query = vec![0; stream.read_u16().await.ok()?.into()];
        stream.read_exact(&mut query).await.ok()?;
        let bytes = response(&query, ResponseCode::NoError, count).to_vec().ok()?;
        stream.write_all(&[&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()).await.ok()?;
        stream.flush().await.ok()?;
    }
}

/// Returns the last number of the address and the code.
async fn ask(forward: &Forward, over_tcp: bool) -> String {
    match forward.send(&query(), over_tcp).await {
        Ok(answer) => {
            assert_eq!(answer.metadata.id, 7, "the id is the client's");
            let address = answer.answers[0].data.to_string();
            format!("{} {:?}", address.rsplit('.').next().unwrap(), answer.metadata.response_code)
        }
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn asks_another_server_after_failures_and_codes() {
    let closed = "127.0.0.1:1";
    let good = udp(ResponseCode::NoError, 1, false).await;
    let failing = udp(ResponseCode::ServFail, 2, false).await;
    let forward = |servers: String, options: &str| {
        parse(&format!("forward . {servers} {{\n policy sequential\n {options}\n}}")).unwrap()
    };
    assert_eq!(ask(&forward(format!("{closed} {good}"), ""), false).await, "1 NoError");
    assert_eq!(ask(&forward(format!("{failing} {good}"), ""), false).await, "2 ServFail");
    assert_eq!(
        ask(&forward(format!("{failing} {good}"), "failover SERVFAIL"), false).await,
        "1 NoError"
    );
    assert_eq!(ask(&forward(format!("{failing}"), "failover SERVFAIL"), false).await, "2 ServFail");
    let error = ask(&forward(closed.to_owned(), ""), false).await;
    assert!(error.contains("no server answered in time; the last, 127.0.0.1:1"), "{error}");
    let all_down = forward(closed.to_owned(), "failfast_all_unhealthy_upstreams");
    (0..2).for_each(|_| all_down.servers[0].record_health(false));
    assert_eq!(ask(&all_down, false).await, "forward: all servers are unhealthy");
}

#[tokio::test]
async fn health_check_finds_server_again() {
    let good = udp(ResponseCode::Refused, 1, false).await;
    let forward = parse(&format!("forward . {good}")).unwrap();
    (0..5).for_each(|_| forward.servers[0].record_health(false));
    forward.servers[0].suspect();
    forward.check(&forward.servers[0]).await;
    assert!(!forward.servers[0].is_down(2) && !forward.servers[0].is_suspect());
}

#[tokio::test]
async fn uses_transport_of_options() {
    let address = udp(ResponseCode::NoError, 100, true).await;
    tcp(address, None).await;
    let of = |options: &str| parse(&format!("forward . {address} {{\n {options}\n}}")).unwrap();
    assert_eq!(ask(&of(""), false).await, "100 NoError");
    let force = of("force_tcp");
    assert_eq!(ask(&force, false).await, "1 NoError");
    assert_eq!(ask(&force, false).await, "1 NoError", "the connection is used again");
    assert_eq!(ask(&of("prefer_udp"), true).await, "2 NoError", "the answer over UDP is cut off");
    let once = of("force_tcp\n expire 0s");
    assert_eq!(ask(&once, false).await, "3 NoError");
    assert_eq!(ask(&once, false).await, "4 NoError");
    assert_eq!(ask(&of("max_concurrent 1"), true).await, "5 NoError");
}

#[tokio::test]
async fn verifies_certificate_of_tls_server() {
    let validity = Validity::starting(rt::now(), Duration::from_secs(3600));
    let authority = Authority::create("ca", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let alt_names = vec![AltName::Dns("dns.example".to_owned())];
    let spec = LeafSpec { subject: Subject::new("dns"), alt_names, usage: Usage::Server };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = builder
        .with_no_client_auth()
        .with_single_cert(vec![cert.to_rustls()], key.to_rustls().unwrap());
    let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
    let address = tcp("127.0.0.1:0".parse().unwrap(), Some(acceptor)).await;
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), authority.cert().to_pem()).unwrap();
    let of = |server: &str, options: &str| {
        parse(&format!("forward . {server} {{\n tls {}\n {options}\n}}", ca.path().display()))
    };
    let named = of(&format!("tls://{address}"), "tls_servername dns.example").unwrap();
    assert_eq!(ask(&named, false).await, "1 NoError");
    let port = address.port();
    let inline = of(&format!("tls://127.0.0.1%dns.example:{port}"), "").unwrap();
    assert_eq!(ask(&inline, false).await, "2 NoError");
    for (server, options) in [
        (format!("tls://{address}"), ""),
        (format!("tls://{address}"), "tls_servername other.example"),
    ] {
        let error = ask(&of(&server, options).unwrap(), false).await;
        assert!(error.contains("certificate"), "{error}");
    }
    assert!(
        of(&format!("tls://127.0.0.1%a:{port}"), "tls_servername b")
            .unwrap_err()
            .reason
            .contains("twice")
    );
}

#[test]
fn reads_servers_from_addresses_and_files() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "# x\nsearch a b\nnameserver 192.0.2.1\n nameserver fe80::1%eth0\noptions edns0\n",
    )
    .unwrap();
    for (text, expected) in [
        ("192.0.2.7", vec!["192.0.2.7:53"]),
        ("dns://192.0.2.7:54", vec!["192.0.2.7:54"]),
        ("[fd00::1]:54", vec!["[fd00::1]:54"]),
        (file.path().to_str().unwrap(), vec!["192.0.2.1:53", "[fe80::1]:53"]),
    ] {
        let parsed = parse(&format!("forward . {text}")).unwrap();
        let found: Vec<_> = parsed.servers.iter().map(|server| format!("{server:?}")).collect();
        assert_eq!(found, expected);
    }
    for (text, reason) in [
        ("/no/such/file", "/no/such/file"),
        ("https://192.0.2.1", "there are servers over"),
        ("dns.example.org", "neither an address"),
        ("tls://dns.example.org", "no IP address"),
        ("tls://192.0.2.1 {\n tls /no/such/ca\n}", "reading /no/such/ca"),
        (&"192.0.2.1 ".repeat(16), "more than 15"),
        ("192.0.2.1 {\n failover NOERROR\n}", "no reason"),
        ("192.0.2.1 {\n resolver 192.0.2.2\n}", "unknown option"),
        ("192.0.2.1 {\n max_concurrent 18446744073709551615\n}", "too large"),
    ] {
        let error = parse(&format!("forward . {text}")).unwrap_err();
        assert!(error.reason.contains(reason), "{text}: {error}");
    }
}

#[test]
fn splits_name_of_tls_server() {
    for (text, address, name) in [
        ("9.9.9.9", "9.9.9.9:853", None),
        ("9.9.9.9:10853", "9.9.9.9:10853", None),
        ("9.9.9.9%dns.quad9.net", "9.9.9.9:853", Some("dns.quad9.net")),
        ("9.9.9.9%dns.quad9.net:10853", "9.9.9.9:10853", Some("dns.quad9.net")),
        ("2620:fe::fe%dns.quad9.net:10853", "[2620:fe::fe]:10853", Some("dns.quad9.net")),
    ] {
        let (bare, found) = split_server_name(text);
        let found = (socket_address(&bare, 853).unwrap().to_string(), found);
        assert_eq!(found, (address.to_owned(), name.map(str::to_owned)), "{text}");
    }
}

#[test]
fn skips_servers_that_failed_their_health_checks() {
    let parsed = parse("forward . 192.0.2.1 192.0.2.2 {\n policy sequential\n}").unwrap();
    let first = |forward: &Forward| forward.order()[0].address.to_string();
    assert_eq!(first(&parsed), "192.0.2.1:53");
    parsed.servers[0].record_health(false);
    assert_eq!(first(&parsed), "192.0.2.1:53", "one failure is not enough");
    parsed.servers[0].record_health(false);
    assert_eq!((first(&parsed).as_str(), parsed.order().len()), ("192.0.2.2:53", 1));
    parsed.servers[0].record_health(true);
    assert_eq!(parsed.order().len(), 2);
    let never = parse("forward . 192.0.2.1 192.0.2.2 {\n max_fails 0\n}").unwrap();
    (0..9).for_each(|_| never.servers[0].record_health(false));
    assert_eq!(never.order().len(), 2);
}
