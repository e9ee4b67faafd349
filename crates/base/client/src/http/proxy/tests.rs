use tokio::net::{TcpListener, TcpStream};

use super::*;

/// The bytes that a proxy received, and those that went through it to the server.
struct ProxyTraffic {
    asked: Vec<u8>,
    through: Vec<u8>,
}

/// Runs a proxy that sends the next of `answers` for each message of a client, then reads what goes through.
async fn proxy(answers: Vec<Vec<u8>>) -> (u16, tokio::task::JoinHandle<ProxyTraffic>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        for answer in answers {
            asked.extend(message(&mut stream).await);
            stream.write_all(&answer).await.unwrap();
        }
        let mut through = Vec::new();
        let _ = stream.read_to_end(&mut through).await;
        ProxyTraffic { asked, through }
    });
    (port, serving)
}

async fn message(stream: &mut TcpStream) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let length = stream.read(&mut buffer).await.unwrap();
    buffer.truncate(length);
    buffer
}

fn no_tls() -> Arc<rustls::ClientConfig> {
    let material = crate::TlsMaterial { insecure: true, ..Default::default() };
    Arc::new(material.client_config().unwrap())
}

async fn reach(url: &str, target: &str) -> Result<(), String> {
    let proxy = Proxy::parse(url).map_err(|error| error.to_string())?;
    let mut stream =
        proxy.connect(target, Some(&no_tls())).await.map_err(|error| error.to_string())?;
    stream.write_all(b"hello").await.unwrap();
    stream.shutdown().await.unwrap();
    Ok(())
}

#[tokio::test]
async fn tunnels_by_connect_with_the_login_of_the_url() {
    let (port, serving) =
        proxy(vec![b"HTTP/1.1 200 Connection established\r\n\r\n".to_vec()]).await;
    reach(&format!("http://u:p%40@127.0.0.1:{port}"), "[fd00::1]:6443").await.unwrap();
    let reached = serving.await.unwrap();
    assert_eq!(
        String::from_utf8(reached.asked).unwrap(),
        "CONNECT [fd00::1]:6443 HTTP/1.1\r\nHost: [fd00::1]:6443\r\nProxy-Authorization: Basic dTpwQA==\r\n\r\n"
    );
    assert_eq!(reached.through, b"hello");
}

#[tokio::test]
async fn reports_answer_of_proxy_that_opens_no_tunnel() {
    for (answer, wanted) in [
        (&b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"[..], "HTTP/1.1 407 Proxy"),
        (b"nonsense\r\n\r\n", "it answered \"nonsense\""),
    ] {
        let (port, serving) = proxy(vec![answer.to_vec()]).await;
        let refused = reach(&format!("http://127.0.0.1:{port}"), "a:1").await.unwrap_err();
        assert!(refused.contains(wanted) && refused.contains("through the proxy"), "{refused}");
        serving.await.unwrap();
    }
    let (port, _serving) = proxy(vec![vec![b'x'; MAX_HEAD + 10]]).await;
    let refused = reach(&format!("http://127.0.0.1:{port}"), "a:1").await.unwrap_err();
    assert!(refused.contains("the head of its answer is too long"), "{refused}");
}

#[tokio::test]
async fn speaks_socks5_with_names_addresses_and_logins() {
    let accepted = vec![5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let (port, serving) = proxy(vec![vec![5, 0], accepted.clone()]).await;
    reach(&format!("socks5://127.0.0.1:{port}"), "api.example:6443").await.unwrap();
    let reached = serving.await.unwrap();
    let mut wanted = vec![5, 1, 0, 5, 1, 0, 3, 11];
    wanted.extend(b"api.example");
    wanted.extend([0x19, 0x2b]);
    assert_eq!((reached.asked, &reached.through[..]), (wanted, &b"hello"[..]));

    let (port, serving) = proxy(vec![vec![5, 2], vec![1, 0], accepted]).await;
    reach(&format!("socks5://u:p@127.0.0.1:{port}"), "10.0.0.1:1").await.unwrap();
    let reached = serving.await.unwrap();
    let wanted = [5, 2, 0, 2, 1, 1, b'u', 1, b'p', 5, 1, 0, 1, 10, 0, 0, 1, 0, 1];
    assert_eq!((&reached.asked[..], &reached.through[..]), (&wanted[..], &b"hello"[..]));

    let (port, _serving) = proxy(vec![vec![5, 0], vec![5, 5, 0, 1, 0, 0, 0, 0, 0, 0]]).await;
    let refused = reach(&format!("socks5://127.0.0.1:{port}"), "a:1").await.unwrap_err();
    assert!(refused.contains("SOCKS error 5"), "{refused}");
}

#[test]
fn parses_schemes_ports_and_logins() {
    let parsed = |url: &str| {
        let parsed = Proxy::parse(url).map(|p| (format!("{:?}", p.kind), p.authority, p.login));
        parsed.map_err(|error| error.to_string())
    };
    let login = Some(("a".to_owned(), "b:c".to_owned()));
    for (url, wanted) in [
        ("http://proxy", ("Http".to_owned(), "proxy:80".to_owned(), None)),
        ("https://proxy/", ("Https(None)".to_owned(), "proxy:443".to_owned(), None)),
        ("socks5://a:b%3Ac@[::1]", ("Socks5".to_owned(), "[::1]:1080".to_owned(), login)),
    ] {
        assert_eq!(parsed(url), Ok(wanted), "{url}");
    }
    for url in ["ftp://proxy", "proxy:1", ""] {
        assert!(parsed(url).is_err(), "{url}");
    }
    assert_eq!(
        parsed("ftp://proxy").unwrap_err(),
        "unsupported scheme \"ftp\", must be http, https, or socks5"
    );
}

#[tokio::test]
async fn tunnels_through_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("proxy.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let length = stream.read(&mut head).await.unwrap();
        head.truncate(length);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let mut stream = Proxy::unix(&socket).open("10.0.0.1:10250").await.unwrap();
    let mut through = String::new();
    stream.read_to_string(&mut through).await.unwrap();
    let head = serving.await.unwrap();
    assert_eq!(head, "CONNECT 10.0.0.1:10250 HTTP/1.1\r\nHost: 10.0.0.1:10250\r\n\r\n");
    assert_eq!(through, "hello");
    let error = Proxy::unix(&directory.path().join("none")).open("a:1").await.err().unwrap();
    assert!(error.to_string().contains("through the proxy"), "{error}");
}

#[tokio::test]
async fn tunnels_by_tls_with_settings_of_proxy() {
    use std::time::SystemTime;

    use pki::Validity;

    use crate::{TlsMaterial, http::tests};

    let authority = tests::authority();
    let validity = Validity::starting(SystemTime::now(), std::time::Duration::from_secs(3600));
    let names = vec![pki::AltName::Ip([127, 0, 0, 1].into())];
    let acceptor = tests::acceptor(&[b"http/1.1"], &authority, validity, names);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await.unwrap();
            stream.shutdown().await.unwrap();
        }
    });
    let trusting = |ca: Vec<u8>| {
        let material = TlsMaterial { ca: Some(ca), ..TlsMaterial::default() };
        Some(ClientTls::from(material.client_config().unwrap()))
    };
    let other = trusting(tests::authority().cert().to_pem().into_bytes());
    let error = Proxy::http_connect(&url, other).unwrap().open("a:1").await.err().unwrap();
    assert!(error.to_string().contains("through the proxy"), "{error}");
    let own = trusting(authority.cert().to_pem().into_bytes());
    let mut stream = Proxy::http_connect(&url, own).unwrap().open("a:1").await.unwrap();
    let mut through = String::new();
    stream.read_to_string(&mut through).await.unwrap();
    assert_eq!(through, "hello");
    serving.await.unwrap();
    let none = Proxy::http_connect(&url, None).unwrap().open("a:1").await.err().unwrap();
    assert!(none.to_string().contains("through the proxy"), "{none}");
    assert!(Proxy::http_connect("socks5://a", None).is_err());
}

#[test]
fn shows_urls_without_passwords() {
    for (url, shown) in [
        ("http://a:3128", "http://a:3128"),
        ("https://root:secret@a:3128/x", "https://a:3128/x"),
        ("http://root:sec@ret@a", "http://a"),
        ("root:secret@a", "a"),
        ("", ""),
    ] {
        assert_eq!(Proxy::shown_url(url), shown);
    }
}
