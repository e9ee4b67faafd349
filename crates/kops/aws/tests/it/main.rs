//! Tests of the client against a server with scripted answers.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread::JoinHandle,
};

use aws::{Client, StaticKey};
use parking_lot::Mutex;
use serde_json::{Value, json};

struct Fake {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Starts a server that answers requests with the given texts, in order.
    fn start(answers: Vec<(u16, String)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("{e}")).to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let own = requests.clone();
        let thread = std::thread::spawn(move || {
            for (status, body) in answers {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let request = read_request(&mut stream).unwrap_or_default();
                own.lock().push(request);
                let length = body.len();
                let text = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                );
                let _ = stream.write_all(text.as_bytes());
            }
        });
        Self { address, requests, thread: Some(thread) }
    }

    fn requests(mut self) -> Vec<String> {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.requests.lock().clone()
    }

    fn client(&self) -> Client {
        let url = format!("http://{}", self.address);
        let set = |name: &str| (name == "AWS_ENDPOINT_URL").then(|| url.clone());
        let client = Client::open("eu-west-1", &set).unwrap_or_else(|e| panic!("{e}"));
        let (key, secret) = ("AKID".to_owned(), "hidden".to_owned());
        client.with_key(StaticKey { key, secret, from: "test" })
    }
}

/// Reads a request's head and body.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if reader.read_line(&mut text).ok()? == 0 {
            return None;
        }
    }
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(text + &String::from_utf8_lossy(&body))
}

fn vpcs(inner: &str) -> (u16, String) {
    (200, format!("<DescribeVpcsResponse><requestId>r</requestId>{inner}</DescribeVpcsResponse>"))
}

fn problem(status: u16, code: &str) -> (u16, String) {
    let text = format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors></Response>"
    );
    (status, text)
}

#[tokio::test]
async fn signs_calls_and_retries_when_throttled() {
    let vpc = "<vpcSet><item><vpcId>vpc-1</vpcId></item></vpcSet>";
    let fake = Fake::start(vec![problem(503, "RequestLimitExceeded"), vpcs(vpc)]);
    let client = fake.client();
    let answer = client.call("ec2", "DescribeVpcs", &Value::Null).await.unwrap();
    assert_eq!(answer.pointer("/vpcSet/0/vpcId"), Some(&json!("vpc-1")));
    assert_eq!(client.calls(), 2);
    let requests = fake.requests();
    let signed = "Credential=AKID/";
    assert!(requests.iter().all(|text| text.contains(signed) && text.contains("/eu-west-1/ec2/")));
    assert!(!requests.concat().contains("hidden"));
}

#[tokio::test]
async fn does_not_repeat_calls_with_unknown_outcome() {
    let fake = Fake::start(vec![problem(500, "InternalError")]);
    let error = fake.client().call("ec2", "CreateInternetGateway", &Value::Null).await.unwrap_err();
    assert_eq!(error.code(), "InternalError");
    assert_eq!(fake.requests().len(), 1);
    // A throttled call has had no effect, so it is repeated.
    let made = "<CreateInternetGatewayResponse><a/></CreateInternetGatewayResponse>".to_owned();
    let fake = Fake::start(vec![problem(503, "Throttling"), (200, made)]);
    fake.client().call("ec2", "CreateInternetGateway", &Value::Null).await.unwrap();
    // A reading call may be repeated, too.
    let fake = Fake::start(vec![problem(500, "InternalError"), vpcs("")]);
    fake.client().call("ec2", "DescribeVpcs", &Value::Null).await.unwrap();
}

#[tokio::test]
async fn follows_pages_and_rejects_listings_without_end() {
    let page = |token: &str| vpcs(&format!("<vpcSet/><nextToken>{token}</nextToken>"));
    let fake = Fake::start(vec![page("a b"), vpcs("<vpcSet/>")]);
    assert_eq!(fake.client().pages("ec2", "DescribeVpcs", &Value::Null).await.unwrap().len(), 2);
    assert!(fake.requests()[1].ends_with("&NextToken=a%20b"));
    let roles = |inner: &str| {
        let name = "GetAccountAuthorizationDetails";
        (200, format!("<{name}Response><{name}Result>{inner}</{name}Result></{name}Response>"))
    };
    let cut = vpcs("").1;
    let cut = cut[..cut.len() - 5].to_owned();
    // 5 MB of one text per page.
    let huge = |token: usize| {
        page(&format!("{token}</nextToken><a>{}</a><nextToken>{token}", "x".repeat(5 << 20)))
    };
    for (service, operation, answers, cause) in [
        ("ec2", "DescribeVpcs", vec![page("a"), page("a")], "it repeats a page"),
        ("ec2", "DescribeVpcs", vec![page("a"), page("b"), page("a")], "it repeats a page"),
        ("ec2", "DescribeVpcs", vec![page("a"), (200, cut)], "it is truncated"),
        ("ec2", "DescribeVpcs", (0..26).map(huge).collect(), "its pages are too large"),
        (
            "iam",
            "GetAccountAuthorizationDetails",
            vec![roles("<IsTruncated>true</IsTruncated>")],
            "it is truncated, but names no next page",
        ),
    ] {
        let count = answers.len();
        let fake = Fake::start(answers);
        let error = fake.client().pages(service, operation, &Value::Null).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(operation) && text.contains(cause), "{text}");
        assert_eq!(fake.requests().len(), count, "{cause}");
    }
    let last = roles("<IsTruncated>false</IsTruncated><Marker>a</Marker>");
    let client = Fake::start(vec![last]);
    let pages = client.client().pages("iam", "GetAccountAuthorizationDetails", &Value::Null).await;
    assert_eq!(pages.unwrap().len(), 1);
}
