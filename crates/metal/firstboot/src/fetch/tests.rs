use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    thread,
};

use ignition::spec::{Header, Verification};

use super::*;

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

fn resource(source: &str) -> Resource {
    Resource { source: Some(source.into()), ..Resource::default() }
}

fn fetch(resource: &Resource) -> Result<Vec<u8>, FetchError> {
    run(Fetcher::new(true).fetch(resource))
}

/// Starts a server that sends these answers, one per connection. Returns its URL and the requests.
fn server(answers: Vec<String>) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = move || {
        let mut asked = Vec::new();
        for answer in answers {
            let mut stream = accept(&listener);
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            asked.push(String::from_utf8(head).unwrap());
        }
        asked
    };
    (url, thread::spawn(serve))
}

/// Accepts the next connection and fails after a timeout.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    for _ in 0..1000 {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("accepting: {error}"),
        }
    }
    panic!("nobody asks any more");
}

fn answer(status: &str, head: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{head}\r\n{body}", body.len())
}

#[test]
fn retries_and_follows_redirects_without_headers() {
    let (url, served) = server(vec![
        answer("503 Busy", "", ""),
        answer("302 Found", "Location: /there\r\n", ""),
        answer("200 OK", "", "hi"),
    ]);
    let mut wanted = resource(&format!("{url}/a?b=c"));
    wanted.http_headers = vec![
        Header { name: "X-Key".into(), value: Some("secret".into()) },
        Header { name: "user-agent".into(), value: Some("mine".into()) },
    ];
    assert_eq!(fetch(&wanted).unwrap(), b"hi");
    let asked = served.join().unwrap();
    assert!(asked[0].starts_with("GET /a?b=c HTTP/1.1\r\n") && asked[1].contains("x-key: secret"));
    assert!(asked[1].contains("user-agent: mine"));
    assert!(asked[2].starts_with("GET /there ") && !asked[2].contains("secret"));
}

#[test]
fn does_not_retry_client_errors() {
    let words = "group \"g\":\x1b[31m no profile\n";
    let (url, served) = server(vec![answer("404 Not Found", "", words)]);
    let error = fetch(&resource(&url)).unwrap_err().to_string();
    assert!(error.ends_with("the server answered 404: group \"g\":[31m no profile"), "{error}");
    served.join().unwrap();
}

/// Programs that write a signature to the requested file.
struct Tpm;

impl sys::Programs for Tpm {
    fn run(&self, command: &[&str], _: &[u8]) -> Result<sys::ProgramOutput, sys::ProgramError> {
        if let ["tpm2", "sign", .., "-o", out, input, "-Q"] = command {
            let text = std::fs::read_to_string(input).unwrap();
            std::fs::write(out, format!("signed {text}")).unwrap();
        }
        Ok(sys::ProgramOutput { code: Some(0), stdout: String::new(), stderr: String::new() })
    }
}

#[test]
fn signs_challenge_once_and_for_one_server() {
    let asks = |n: u8| answer("401 Unauthorized", &format!("WWW-Authenticate: TPM c{n}\r\n"), "no");
    let get = |url: &str, of: &str| {
        let mut fetcher = Fetcher::new(true);
        // One request more than the server answers must not be retried forever.
        fetcher.settings.total = Some(Duration::from_secs(5));
        fetcher.settings.tpm = tpm::Signer::of(&of.parse().unwrap(), Arc::new(Tpm));
        run(fetcher.fetch(&resource(url)))
    };
    let (url, served) = server(vec![asks(1), answer("200 OK", "", "config")]);
    assert_eq!(get(&format!("{url}/a"), &url).unwrap(), b"config");
    let asked = served.join().unwrap();
    // "signed c1" in Base64.
    assert!(asked[1].contains("authorization: TPM c1.c2lnbmVkIGMx\r\n"), "{asked:?}");
    assert!(!asked[0].contains("authorization"));
    let (url, served) = server(vec![asks(1), asks(2)]);
    let error = get(&url, &url).unwrap_err().to_string();
    assert!(error.ends_with("answered 401: no"), "{error}");
    served.join().unwrap();
    let (url, served) = server(vec![asks(1)]);
    let error = get(&url, "https://another.test").unwrap_err().to_string();
    assert!(error.ends_with("answered 401: no"), "{error}");
    served.join().unwrap();
}

#[test]
fn verifies_hash_of_decompressed_data() {
    let packed = "data:;base64,H4sIAAAAAAACA8vIBACsKpPYAgAAAA==";
    let sum = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4";
    let mut wanted = resource(packed);
    wanted.compression = Some("gzip".into());
    wanted.verification = Verification { hash: Some(format!("sha256-{sum}")) };
    assert_eq!(fetch(&wanted).unwrap(), b"hi");
    wanted.verification = Verification { hash: Some(format!("sha512-{}", "0".repeat(128))) };
    assert!(matches!(fetch(&wanted), Err(FetchError::Hash { .. })));
    wanted.source = Some("data:,plain".into());
    assert!(matches!(fetch(&wanted), Err(FetchError::Data { .. })));
}

#[test]
fn fetches_only_data_urls_without_network() {
    let offline = |url: &str| run(Fetcher::new(false).fetch(&resource(url)));
    assert_eq!(offline("data:,x").unwrap(), b"x");
    assert!(matches!(offline("http://127.0.0.1/"), Err(FetchError::NeedsNetwork { .. })));
}

#[test]
fn sends_whole_url_to_proxy() {
    let (url, served) = server(vec![answer("200 OK", "", "via")]);
    let proxy = ignition::spec::Proxy { http_proxy: Some(url), ..Default::default() };
    let config = Ignition { proxy, ..Ignition::default() };
    let got = run(async {
        let mut fetcher = Fetcher::new(true);
        fetcher.configure(&config).await?;
        fetcher.fetch(&resource("http://far.test/x")).await
    });
    assert_eq!(got.unwrap(), b"via");
    assert!(served.join().unwrap()[0].starts_with("GET http://far.test/x HTTP/1.1\r\n"));
}

#[test]
fn fetches_file_by_tftp() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("tftp://{}/dir/a%20b", socket.local_addr().unwrap());
    let contents: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
    let sent = contents.clone();
    let server = thread::spawn(move || {
        let mut buffer = [0; 2048];
        let (length, client) = socket.recv_from(&mut buffer).unwrap();
        let transfer = UdpSocket::bind("127.0.0.1:0").unwrap();
        transfer.send_to(b"\0\x06blksize\x001024\0", client).unwrap();
        transfer.recv_from(&mut [0; 4]).unwrap();
        for (number, block) in (1u16..).zip(sent.chunks(1024)) {
            let packet = [&[0, 3], &number.to_be_bytes()[..], block].concat();
            // A repeated block is acknowledged but not written again.
            transfer.send_to(&packet, client).unwrap();
            transfer.recv_from(&mut [0; 4]).unwrap();
            transfer.send_to(&packet, client).unwrap();
        }
        buffer[..length].to_vec()
    });
    assert_eq!(fetch(&resource(&url)).unwrap(), contents);
    assert_eq!(server.join().unwrap(), b"\0\x01dir/a b\0octet\0blksize\x001468\0");
}
