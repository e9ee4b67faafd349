use client::{ClientTls, HttpTransport, Resource};
use http::header;
use serde_json::json;
use testkit::{
    RealApi, free_port,
    metrics::{OF_COMPONENTS, assert_published, published},
};

use super::*;

/// A component's server, and the API server that decides about its clients.
struct Scene {
    api: RealApi,
    client: Client,
}

impl Scene {
    async fn start() -> Self {
        let api = RealApi::start().await.unwrap();
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let reviewer = api.user("system:kube-scheduler");
        let settings = Settings {
            component: "kube-scheduler",
            address,
            identity: None,
            tls: TlsPolicy::default(),
            client_ca: None,
            authentication: Some(reviewer.clone()),
            authorization: Some(reviewer),
            metrics: crate::component_metrics(&FeatureGates::default()),
            features: FeatureGates::default(),
            page: Some(Page {
                path: "/metrics/resources",
                text: Arc::new(|| "kube_pod_resource_request 1\n".to_owned()),
            }),
            configuration: json!({"kubescheduler.config.k8s.io": {"parallelism": 16}}),
        };
        serve(settings, &api.tasks()).await.unwrap();
        let server = format!("https://{address}");
        let transport = HttpTransport::http1(&server, ClientTls::anyone()).unwrap();
        Self { api, client: Client::new(Arc::new(transport), "test") }
    }

    async fn ask(&self, method: &str, path: &str, credentials: &str) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        if !credentials.is_empty() {
            request = request.header(header::AUTHORIZATION, credentials);
        }
        let request = request.body(client::empty()).unwrap();
        let response = self.client.request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = client::read(path, response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// Creates a service account and returns the header with its token.
    async fn account(&self, name: &str) -> String {
        let (admin, accounts) = (self.api.admin(), &Resource::SERVICE_ACCOUNTS);
        let account = json!({"metadata": {"name": name}});
        admin.create::<_, Value>(accounts, "kube-system", &account).await.unwrap();
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 600}});
        let issued = admin
            .create_subresource::<_, Value>(accounts, "kube-system", name, "token", &request)
            .await
            .unwrap();
        format!("Bearer {}", issued["status"]["token"].as_str().unwrap())
    }

    async fn allow(&self, account: &str, paths: &[&str]) {
        let admin = self.api.admin();
        let group = "rbac.authorization.k8s.io";
        let roles = Resource::constant(group, "v1", "clusterroles", "ClusterRole", false);
        let bindings =
            Resource::constant(group, "v1", "clusterrolebindings", "ClusterRoleBinding", false);
        let role = json!({"metadata": {"name": account},
            "rules": [{"nonResourceURLs": paths, "verbs": ["get"]}]});
        admin.create::<_, Value>(&roles, "", &role).await.unwrap();
        let binding = json!({"metadata": {"name": account},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}]});
        admin.create::<_, Value>(&bindings, "", &binding).await.unwrap();
    }
}

const PRIVATE: [&str; 7] = [
    "/metrics",
    "/metrics/slis",
    "/metrics/resources",
    "/configz",
    "/flagz",
    "/statusz",
    "/anything",
];

#[tokio::test]
async fn refuses_clients_without_right() {
    let scene = Scene::start().await;
    let stranger = scene.account("stranger").await;
    let forged = format!("{}x", stranger);
    for path in PRIVATE {
        assert_eq!(scene.ask("GET", path, "").await.0, 403, "anonymous: {path}");
        for credentials in [&*forged, "Bearer ", "Bearer x.y.z", "Basic YTpi", "nothing", "Bearer"]
        {
            let (status, body) = scene.ask("GET", path, credentials).await;
            assert_eq!((status, &*body), (401, "Unauthorized\n"), "{credentials}: {path}");
        }
        let (status, body) = scene.ask("GET", path, &stranger).await;
        assert_eq!(status, 403, "{path}");
        let name = "system:serviceaccount:kube-system:stranger";
        assert_eq!(body, format!("forbidden: User {name:?} cannot get path {path:?}\n"));
        assert_eq!(scene.ask("POST", path, &stranger).await.0, 403, "{path}");
    }
    for path in ["/healthz", "/livez", "/readyz", "/healthz?verbose"] {
        assert_eq!(scene.ask("GET", path, &forged).await.0, 200, "{path}");
    }
    assert!(scene.api.stop().await.unfinished.is_empty());
}

#[tokio::test]
async fn serves_pages_to_permitted_client() {
    let scene = Scene::start().await;
    let monitor = scene.account("monitor").await;
    scene.allow("monitor", &["/metrics", "/metrics/*", "/configz", "/flagz", "/statusz"]).await;
    let get = async |path: &str| {
        let (status, body) = scene.ask("GET", path, &monitor).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    };
    assert_published(&get("/metrics").await, OF_COMPONENTS);
    get("/readyz").await;
    let checks = [
        published("kubernetes_healthcheck", "gauge", &["name", "type"]),
        published("kubernetes_healthchecks_total", "counter", &["name", "status", "type"]),
    ];
    let slis = get("/metrics/slis").await;
    assert_published(&slis, &checks);
    assert!(slis.contains("kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1\n"), "{slis}");
    assert_eq!(get("/metrics/resources").await, "kube_pod_resource_request 1\n");
    assert_eq!(get("/configz").await, "{\"kubescheduler.config.k8s.io\":{\"parallelism\":16}}");
    assert!(get("/flagz").await.starts_with("\nkube-scheduler flagz\nWarning: "));
    assert!(get("/statusz").await.contains("\nBinary version: 1.36.2\nEmulation version: 1.36\n"));
    assert_eq!(scene.ask("GET", "/metrics/other", &monitor).await.0, 404);
    assert_eq!(scene.ask("POST", "/metrics", &monitor).await.0, 403, "only get is permitted");
    assert!(scene.api.stop().await.unfinished.is_empty());
}

#[tokio::test]
async fn rejects_everyone_but_health_without_api_server() {
    let access = Access {
        client_ca: None,
        authentication: None,
        authorization: None,
        tokens: TtlCache::default(),
        decisions: TtlCache::default(),
    };
    let request = |credentials: &'static str| {
        let request = Request::builder().header(header::AUTHORIZATION, credentials);
        request.body(()).unwrap().into_parts().0
    };
    assert!(access.user(&request("Bearer t")).await.is_none());
    let anonymous = access.user(&Request::new(()).into_parts().0).await.unwrap();
    assert!(!access.is_authorized(&anonymous, "get", "/metrics").await);
}

#[tokio::test]
async fn names_flag_when_port_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = Settings {
        component: "kube-scheduler",
        address: taken.local_addr().unwrap(),
        identity: None,
        tls: TlsPolicy::default(),
        client_ca: None,
        authentication: None,
        authorization: None,
        metrics: Metrics::default(),
        features: FeatureGates::default(),
        page: None,
        configuration: Value::Null,
    };
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let error = serve(settings.clone(), &tasks).await.unwrap_err().to_string();
    assert!(error.contains("choose another --secure-port"), "{error}");
    let missing = Settings { client_ca: Some("/nothing/ca.crt".into()), ..settings };
    let error = serve(missing, &tasks).await.unwrap_err().to_string();
    assert!(error.contains("correct --client-ca-file"), "{error}");
}

/// Returns the number of requests for a resource that the API server has answered.
async fn reviews(scene: &Scene, resource: &str) -> f64 {
    let page = scene.api.admin().call(Method::GET, "/metrics", "", "".into()).await.unwrap();
    let page = String::from_utf8_lossy(&page).into_owned();
    let is_wanted = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && line.contains(&format!("resource=\"{resource}\""))
    };
    let values = page.lines().filter(is_wanted).filter_map(|line| line.rsplit(' ').next());
    values.filter_map(|value| value.parse::<f64>().ok()).sum()
}

#[tokio::test]
async fn asks_api_server_once_for_frequent_client() {
    let scene = Scene::start().await;
    let monitor = scene.account("monitor").await;
    scene.allow("monitor", &["/metrics"]).await;
    for _ in 0..5 {
        assert_eq!(scene.ask("GET", "/metrics", &monitor).await.0, 200);
        assert_eq!(scene.ask("GET", "/configz", &monitor).await.0, 403);
        assert_eq!(scene.ask("GET", "/metrics", "Bearer forged").await.0, 401);
    }
    // A valid and a forged token; a permitted and a forbidden path.
    assert_eq!(reviews(&scene, "tokenreviews").await, 2.0);
    assert_eq!(reviews(&scene, "subjectaccessreviews").await, 2.0);
}
