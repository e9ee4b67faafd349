//! Targets of proxies: only addresses of the API's objects, never of the API server's own machine or link.

use std::net::{IpAddr, TcpListener, UdpSocket};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Api, FORGED_IDENTITY, Identity, admin, pod, shared};

/// A listener that must receive no connection.
pub(crate) struct Trap(TcpListener);

impl Trap {
    pub(crate) fn set() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    #[track_caller]
    pub(crate) fn is_untouched(&self, what: &str) {
        // The kernel completes connections before they are accepted, so one would be visible by now.
        assert!(self.0.accept().is_err(), "{what} connected");
    }
}

/// Returns an address of this machine other than loopback, if it has a network.
pub(crate) fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the kernel only selects the source address.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then_some(address)
}

pub(crate) async fn pod_at(api: &Api, namespace: &str, name: &str, ip: &str, port: u16) {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = json!("n1");
    pod["spec"]["containers"][0]["ports"] = json!([{"name": "web", "containerPort": port}]);
    api.post(&pods, &pod).await.ok();
    let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
    api.patch(&format!("{pods}/{name}/status"), "merge", &status).await.ok();
}

async fn node_at(api: &Api, name: &str, address: &Value, port: u16) {
    api.post("/api/v1/nodes", &json!({"metadata": {"name": name}})).await.ok();
    let status = json!({"status": {
        "addresses": [address],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }});
    api.patch(&format!("/api/v1/nodes/{name}/status"), "merge", &status).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_hostile_target_names() {
    let (api, namespace, trap) = (admin(), admin().namespace().await, Trap::set());
    let port = trap.port();
    pod_at(&api, &namespace, "p", "10.255.255.1", 80).await;
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let service = json!({"metadata": {"name": "p"}, "spec": {"ports": [{"port": 80}]}});
    api.post(&services, &service).await.ok();
    let node = format!("{namespace}-p");
    node_at(&api, &node, &json!({"type": "InternalIP", "address": "10.255.255.2"}), 10250).await;
    for (kind, resource, name) in [
        ("pod", format!("namespaces/{namespace}/pods"), "p"),
        ("service", format!("namespaces/{namespace}/services"), "p"),
        ("node", "nodes".to_owned(), node.as_str()),
    ] {
        for hostile in [
            format!("http:{name}:80@127.0.0.1:{port}"),
            format!("http:{name}:80@127.0.0.1"),
            format!("{name}:80@localhost:{port}"),
            format!("{name}:{port}@127.0.0.1"),
            format!("{name}:80%40127.0.0.1:{port}"),
            format!("{name}%3A80%40127.0.0.1%3A{port}"),
            format!("http:{name}:{port}%2F..%2F"),
            format!("http:{name}:80%3F@127.0.0.1:{port}"),
            format!("http:{name}:80%23"),
            format!("gopher:{name}:{port}"),
            format!("http://127.0.0.1:{port}"),
            format!("{name}:0"),
            format!("{name}:65536"),
            format!("{name}:-1"),
            format!("http:{name}:80:80"),
            format!("http::{port}"),
        ] {
            let answer = api.get(&format!("/api/v1/{resource}/{hostile}/proxy/")).await;
            trap.is_untouched(&hostile);
            // A slash turns it into another path, which is not served.
            if hostile.contains("//") {
                assert!(answer.code >= 400, "{hostile}: {}", answer.code);
                continue;
            }
            let message = answer.refused(400, "BadRequest");
            assert!(message.starts_with(&format!("invalid {kind} request ")), "{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_own_addresses_in_statuses() {
    let (api, namespace, trap) = (admin(), admin().namespace().await, Trap::set());
    let port = trap.port();
    let addresses = ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "224.0.0.1"];
    for (n, ip) in addresses.into_iter().enumerate() {
        let (pod, node) = (format!("p{n}"), format!("{namespace}-n{n}"));
        pod_at(&api, &namespace, &pod, ip, port).await;
        let core = "/api/v1";
        let pods = format!("{core}/namespaces/{namespace}/pods");
        for name in [pod.clone(), format!("http:{pod}:{port}"), format!("{pod}:web")] {
            let answer = api.get(&format!("{pods}/{name}/proxy/")).await;
            assert_eq!(answer.refused(400, "BadRequest"), "address not allowed", "{ip}");
        }
        node_at(&api, &node, &json!({"type": "InternalIP", "address": ip}), port).await;
        for name in [node.clone(), format!("{node}:{port}"), format!("http:{node}:80")] {
            let answer = api.get(&format!("{core}/nodes/{name}/proxy/pods")).await;
            assert_eq!(answer.refused(400, "BadRequest"), "address not allowed", "{ip}");
        }
        let mut on_it = crate::harness::pod(&format!("on-{n}"));
        on_it["spec"]["nodeName"] = json!(node);
        api.post(&pods, &on_it).await.ok();
        let answer = api.get(&format!("{pods}/on-{n}/log")).await;
        assert_eq!(answer.refused(400, "BadRequest"), "address not allowed", "{ip}");
    }
    // A name is resolved and validated.
    let node = format!("{namespace}-named");
    node_at(&api, &node, &json!({"type": "Hostname", "address": "localhost"}), port).await;
    let answer = api.get(&format!("/api/v1/nodes/{node}/proxy/pods")).await;
    assert_eq!(answer.refused(400, "BadRequest"), "address not allowed");
    trap.is_untouched("a status");
}

#[tokio::test(flavor = "multi_thread")]
async fn validates_log_options_and_container_before_node() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    api.post(&pods, &crate::harness::pod("p")).await.ok();
    for (query, code, reason, text) in [
        (
            "tailLines=-1",
            422,
            "Invalid",
            "tailLines: Invalid value: -1: must be greater than or equal",
        ),
        ("container=none", 400, "BadRequest", "container none is not valid for pod p"),
        ("tailLines=1", 400, "BadRequest", "pod p does not have a host assigned"),
    ] {
        let answer = api.get(&format!("{pods}/p/log?{query}")).await;
        let message = answer.refused(code, reason);
        assert!(message.contains(text), "{query}: {message}");
    }
}

fn slice(service: &str, ip: &str, port: u16, target: &Value) -> Value {
    json!({
        "metadata": {"generateName": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "", "port": port}],
        "endpoints": [{"addresses": [ip], "targetRef": target}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_services_only_to_pods_of_namespace() {
    let (api, namespace, other) = (admin(), admin().namespace().await, admin().namespace().await);
    pod_at(&api, &namespace, "mine", "10.255.255.3", 80).await;
    pod_at(&api, &other, "theirs", "10.255.255.4", 80).await;
    pod_at(&api, &namespace, "home", "127.0.0.1", 80).await;
    let target =
        |namespace: &str, name: &str| json!({"kind": "Pod", "namespace": namespace, "name": name});
    for (n, (ip, target)) in [
        ("10.255.255.5", json!(null)),
        ("10.255.255.4", target(&other, "theirs")),
        ("10.255.255.4", target(&namespace, "theirs")),
        ("10.255.255.4", target(&namespace, "mine")),
        ("10.255.255.3", target(&other, "mine")),
        ("10.255.255.6", target(&namespace, "home")),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("s{n}");
        let services = format!("/api/v1/namespaces/{namespace}/services");
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        api.post(&services, &service).await.ok();
        let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
        api.post(&slices, &slice(&name, ip, 80, &target)).await.ok();
        let answer = api.get(&format!("{services}/{name}/proxy/")).await;
        let message = answer.refused(503, "ServiceUnavailable");
        assert_eq!(message, format!("no endpoints available for service \"{name}\""), "{ip}");
        let answer = api.get(&format!("{services}/{name}:81/proxy/")).await;
        let message = answer.refused(503, "ServiceUnavailable");
        assert_eq!(message, format!("no service port 81 found for service \"{name}\""));
    }
}

/// Answers one request and returns its head.
async fn backend(listener: &tokio::net::TcpListener, answer: &str) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

#[tokio::test(flavor = "multi_thread")]
async fn strips_credentials_for_backends() {
    let Some(address) = own_address() else {
        eprintln!("skipped: this machine has no address but loopback's");
        return;
    };
    let namespace = admin().namespace().await;
    let listener = tokio::net::TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    pod_at(&admin(), &namespace, "p", &address.to_string(), port).await;
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    admin().post(&services, &service).await.ok();
    let target = json!({"kind": "Pod", "namespace": namespace, "name": "p"});
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let slice = slice("s", &address.to_string(), port, &target);
    admin().post(&slices, &slice).await.ok();
    let api = shared().tls(Identity::Token(shared().powerful_token(&namespace).await));
    let more = [
        ("impersonate-user", "somebody"),
        ("impersonate-group", "system:masters"),
        ("te", "trailers"),
        ("x-stays", "yes"),
    ];
    let headers = [FORGED_IDENTITY.as_slice(), &more].concat();
    for path in [
        format!("pods/p:{port}/proxy/a"),
        "pods/p:web/proxy/a".to_owned(),
        "pods/http:p:/proxy/a".to_owned(),
        "services/s/proxy/a".to_owned(),
        "services/s:80/proxy/a".to_owned(),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/{path}");
        let moved =
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        let (answer, head) =
            tokio::join!(api.send("GET", &path, &headers, ""), backend(&listener, moved));
        // A redirect is passed to the caller.
        assert_eq!(answer.code, 302, "{path}: {:?}", answer.body);
        assert!(head.starts_with("get /a http/1.1\r\n") && head.contains("x-stays: yes"), "{head}");
        for ours in ["authorization", "x-remote", "x_remote", "impersonate", "\r\nte:", "bearer"] {
            assert!(!head.contains(ours), "{ours} went to {path}:\n{head}");
        }
    }
    let unknown = format!("/api/v1/namespaces/{namespace}/pods/p:other/proxy/");
    let message = api.get(&unknown).await.refused(503, "ServiceUnavailable");
    assert!(message.ends_with("lookup tcp/other: unknown port"), "{message}");
}

/// A double slash would shift the parts of the path: a backend would be asked for `/proxy/a`, and a redirected client
/// would take `api` for a host.
#[tokio::test(flavor = "multi_thread")]
async fn rejects_paths_with_double_slashes() {
    let Some(address) = own_address() else {
        eprintln!("skipped: this machine has no address but loopback's");
        return;
    };
    let namespace = admin().namespace().await;
    let listener = TcpListener::bind((address, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    pod_at(&admin(), &namespace, "p", &address.to_string(), port).await;
    let api = shared().tls(Identity::Token(shared().powerful_token(&namespace).await));
    for path in [
        format!("//api/v1/namespaces/{namespace}/pods/p:web/proxy/a"),
        format!("//api/v1/namespaces/{namespace}/pods/p:web/proxy"),
        format!("/api//v1/namespaces/{namespace}/pods/p:web/proxy/a"),
        format!("/api/v1//namespaces/{namespace}/pods/p:web/proxy/a"),
        format!("/api/v1/watch/namespaces/{namespace}/pods/p:web/proxy/a"),
        format!("//api/v1/namespaces/{namespace}/pods/p"),
    ] {
        let answer = api.send("GET", &path, &[], "").await;
        assert!(matches!(answer.code, 403 | 404), "{path}: {} {:?}", answer.code, answer.body);
        assert!(listener.accept().is_err(), "{path} came to the Pod");
    }
    // The path after the subresource belongs to the backend.
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/pods/p:web/proxy//a/../b");
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let (answer, head) = tokio::join!(api.send("GET", &path, &[], ""), backend(&listener, ok));
    assert_eq!(answer.code, 200);
    assert!(head.starts_with("get //a/../b http/1.1\r\n"), "{head}");
}
