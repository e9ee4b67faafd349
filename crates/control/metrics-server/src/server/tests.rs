use std::time::Duration;

use client::{PatchKind, PatchTarget};
use pki::{Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use testkit::RealApi;

use super::*;
use crate::points::{Node, read};

const VALID: Duration = Duration::from_secs(3600);

/// A CA, and connections of a client with a certificate from it.
struct Signer(Authority);

impl Signer {
    fn new(name: &str) -> Self {
        let validity = Validity::starting(rt::now(), VALID);
        Self(Authority::create(name, KeyAlgorithm::EcdsaP256, validity).unwrap())
    }

    fn connection(&self, name: &str) -> Arc<Connection> {
        let spec =
            LeafSpec { subject: Subject::new(name), alt_names: vec![], usage: Usage::Client };
        let validity = Validity::starting(rt::now(), VALID);
        let (cert, _) = self.0.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
        let client_certificates = vec![cert.der().to_vec().into()];
        Arc::new(Connection { client_certificates, ..Connection::default() })
    }
}

/// Returns a kubelet's metrics of itself and of the Pod web, at a time in seconds.
fn kubelet_metrics(at: u32, cpu: u32) -> String {
    let at = u64::from(at) * 1000;
    let web = "{container=\"app\",namespace=\"default\",pod=\"web\"}";
    format!(
        "node_cpu_usage_seconds_total {cpu} {at}\nnode_memory_working_set_bytes 1048576 {at}\n\
         container_cpu_usage_seconds_total{web} {cpu} {at}\ncontainer_memory_working_set_bytes{web} 2048 {at}\n"
    )
}

/// Returns the results of two kubelets with the same metrics, one of which does not run the Pod.
fn known(points: &[(u32, u32)]) -> Nodes {
    let mut node = Node::default();
    points.iter().for_each(|(at, cpu)| node.store(read(&kubelet_metrics(*at, *cpu), 0)));
    Nodes::from([("one".to_owned(), node.clone()), ("liar".to_owned(), node)])
}

async fn server(api: &RealApi, signer: &Signer, nodes: Nodes) -> Server {
    let authority = ClientCa::from_pem(signer.0.cert().to_pem().as_bytes()).unwrap();
    let anyone = client::ClientTls::anyone();
    let scraper = Scraper::with_results(api.admin(), anyone, nodes);
    Server::new(api.admin(), authority, "front-proxy-client".to_owned(), Arc::new(scraper))
}

async fn ask(
    server: &Server,
    connection: Option<Arc<Connection>>,
    user: &str,
    group: &str,
    path: &str,
) -> (u16, Value) {
    ask_for(server, connection, (user, group), path, "application/json").await
}

async fn ask_for(
    server: &Server,
    connection: Option<Arc<Connection>>,
    (user, group): (&str, &str),
    path: &str,
    accept: &str,
) -> (u16, Value) {
    let request = Request::get(path)
        .header("X-Remote-User", user)
        .header("X-Remote-Group", group)
        .header("Accept", accept);
    let mut request = request.body(serve::full("")).unwrap();
    if let Some(connection) = connection {
        request.extensions_mut().insert(connection);
    }
    let response = server.handle(request).await;
    let code = response.status().as_u16();
    let body = client::read("", response.into_body(), 1 << 20).await.unwrap();
    (code, serde_json::from_slice(&body).unwrap())
}

/// Creates a node and a Pod that runs on it.
async fn objects(api: &RealApi) {
    let admin = api.admin();
    let node = json!({"metadata": {"name": "one", "labels": {"zone": "a"}}});
    let _: Value = admin.create(&Resource::NODES, "", &node).await.unwrap();
    let account = json!({"metadata": {"name": "default"}});
    // The namespace is created shortly after the server starts.
    const ACCOUNTS: &Resource = &Resource::SERVICE_ACCOUNTS;
    let create = || admin.create::<_, Value>(ACCOUNTS, "default", &account);
    rt::retry(Duration::from_secs(10), Duration::from_millis(50), |_| true, create).await.unwrap();
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"nodeName": "one", "automountServiceAccountToken": false,
            "containers": [{"name": "app", "image": "app"}]},
    });
    let _: Value = admin.create(&Resource::PODS, "default", &pod).await.unwrap();
    let at = PatchTarget { namespace: "default", name: "web", subresource: "status" };
    let status = json!({"status": {"phase": "Running"}});
    let _: Value = admin.patch(&Resource::PODS, at, PatchKind::Merge, &status).await.unwrap();
}

const ADMINS: &str = "system:masters";
const NODES: &str = "/apis/metrics.k8s.io/v1beta1/nodes";
const PODS: &str = "/apis/metrics.k8s.io/v1beta1/pods";
const WEB: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/web";

#[tokio::test]
async fn accepts_only_front_proxy_and_authorizes_users() {
    let api = RealApi::start().await.unwrap();
    objects(&api).await;
    let (proxy, stranger) = (Signer::new("front-proxy-ca"), Signer::new("front-proxy-ca"));
    let server = server(&api, &proxy, known(&[(100, 1), (110, 2)])).await;
    for connection in [
        None,
        Some(Arc::new(Connection::default())),
        Some(stranger.connection("front-proxy-client")),
        Some(proxy.connection("somebody-else")),
    ] {
        for path in [NODES, WEB, "/apis/metrics.k8s.io/v1beta1"] {
            let (code, body) = ask(&server, connection.clone(), "admin", ADMINS, path).await;
            assert_eq!((code, body["reason"].as_str()), (401, Some("Unauthorized")), "{path}");
        }
    }
    let trusted = || Some(proxy.connection("front-proxy-client"));
    let (code, body) = ask(&server, trusted(), "nobody", "system:authenticated", NODES).await;
    assert_eq!((code, body["reason"].as_str()), (403, Some("Forbidden")), "{body}");
    assert_eq!(ask(&server, trusted(), "admin", ADMINS, NODES).await.0, 200);
    for path in [
        "/",
        "/apis/apps/v1",
        "/apis/metrics.k8s.io/v1beta1/namespaces/../pods",
        "/apis/metrics.k8s.io/v1beta1/nodes/%2e%2e",
    ] {
        assert_eq!(ask(&server, trusted(), "admin", ADMINS, path).await.0, 404, "{path}");
    }
    let post =
        Request::post(NODES).header("X-Remote-User", "admin").body(serve::full("x")).unwrap();
    let (mut parts, _) = post.into_parts();
    parts.extensions.insert(proxy.connection("front-proxy-client"));
    assert_eq!(server.respond(&parts).await.unwrap_err().code, 405);
    api.stop().await;
}

#[tokio::test]
async fn filters_lists_and_omits_pods_with_one_point() {
    let api = RealApi::start().await.unwrap();
    objects(&api).await;
    let proxy = Signer::new("front-proxy-ca");
    let trusted = || Some(proxy.connection("front-proxy-client"));
    let server = server(&api, &proxy, known(&[(100, 1), (110, 2)])).await;
    let names = async |path: &str| {
        let (code, body) = ask(&server, trusted(), "admin", ADMINS, path).await;
        assert_eq!(code, 200, "{path}: {body}");
        body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    // A node that does not exist in the API is not reported, even if a kubelet with its name answered.
    assert_eq!(names(NODES).await, ["one"]);
    assert_eq!(names(&format!("{NODES}?labelSelector=zone%3Db")).await, [""; 0]);
    assert_eq!(names(&format!("{PODS}?labelSelector=app%3Dweb")).await, ["web"]);
    assert_eq!(names(&format!("{PODS}?fieldSelector=metadata.name%3Dother")).await, [""; 0]);
    for wrong in
        ["labelSelector=(", "fieldSelector=spec.nodeName%3Done", "fieldSelector=status.podIP!%3D"]
    {
        let (code, response) =
            ask(&server, trusted(), "admin", ADMINS, &format!("{PODS}?{wrong}")).await;
        assert_eq!(code, 400, "{wrong}: {response}");
    }
    assert_eq!(
        ask(&server, trusted(), "admin", ADMINS, &format!("{PODS}?watch=true")).await.0,
        405
    );
    let (_, web) = ask(&server, trusted(), "admin", ADMINS, WEB).await;
    assert_eq!((&web["window"], &web["kind"]), (&json!("10s"), &json!("PodMetrics")), "{web}");
    assert_eq!(
        web["containers"],
        json!([{"name": "app", "usage": {"cpu": "100m", "memory": "2Ki"}}])
    );
    assert_eq!(web["metadata"]["labels"], json!({"app": "web"}));
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let (_, table) = ask_for(&server, trusted(), ("admin", ADMINS), NODES, table).await;
    assert_eq!(table["rows"][0]["cells"], json!(["one", "100m", "1Mi", "10s"]), "{table}");

    let server = self::server(&api, &proxy, known(&[(100, 1)])).await;
    let (code, body) = ask(&server, trusted(), "admin", ADMINS, WEB).await;
    assert_eq!(
        (code, &body["message"]),
        (404, &json!("pods.metrics.k8s.io \"default/web\" not found"))
    );
    let other = WEB.replace("web", "other");
    assert_eq!(
        ask(&server, trusted(), "admin", ADMINS, &other).await.1["message"],
        "pods \"other\" not found"
    );
    api.stop().await;
}
