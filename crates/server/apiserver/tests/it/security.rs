//! Authentication and authorization: certificates, tokens, anonymous access, RBAC, reviews, impersonation and the Node
//! authorizer.

use std::time::{Duration, SystemTime};

use pki::{Authority, KeyAlgorithm, Subject, Validity};
use serde_json::{Value, json};

use crate::harness::{Api, Identity, admin, config_map, pod, shared, start, validity};

fn certified(name: &str, group: &str) -> Api {
    let subject = Subject::new(name).in_group(group);
    shared().tls(Identity::issued(&shared().authority, subject, validity()))
}

#[tokio::test(flavor = "multi_thread")]
async fn authenticates_by_certificate() {
    let whoami = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let me = certified("alice", "devs").post(reviews, &whoami).await.ok();
    let user = &me["status"]["userInfo"];
    assert_eq!(
        (&user["username"], &user["groups"]),
        (&json!("alice"), &json!(["devs", "system:authenticated"]))
    );

    // Invalid certificates get an HTTP response, and the connection stays open.
    let long_ago = SystemTime::now() - Duration::from_secs(86_400 * 30);
    let past = Validity { not_before: long_ago, not_after: long_ago + Duration::from_secs(3600) };
    let subject = || Subject::new("admin").in_group("system:masters");
    let expired = Identity::issued(&shared().authority, subject(), past);
    let foreign = Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity()).unwrap();
    let foreign = Identity::issued(&foreign, subject(), validity());
    for bad in
        [expired, foreign, Identity::Token("nonsense".into()), Identity::Token("a.b.c".into())]
    {
        let message =
            shared().tls(bad).get("/api/v1/namespaces").await.refused(401, "Unauthorized");
        assert_eq!(message, "Unauthorized");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allows_anonymous_public_endpoints() {
    let nobody = shared().tls(Identity::Nobody);
    // As upstream, health pages fail while the initial objects are written.
    let ask = || async {
        let code = nobody.get("/readyz").await.code;
        if code == 200 { Ok(()) } else { Err(code) }
    };
    let (patience, pause) = (Duration::from_secs(30), Duration::from_millis(10));
    rt::retry(patience, pause, |code| *code == 500, ask).await.unwrap();
    for path in ["/livez", "/readyz", "/healthz", "/version"] {
        assert_eq!(nobody.get(path).await.code, 200, "{path}");
    }
    let message = nobody.get("/api/v1/namespaces").await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "namespaces is forbidden: User \"system:anonymous\" cannot list resource \"namespaces\" in API group \"\" at the cluster scope"
    );
    for path in ["/metrics", "/metrics/slis", "/statusz", "/flagz"] {
        let message = nobody.get(path).await.refused(403, "Forbidden");
        let words = format!("forbidden: User \"system:anonymous\" cannot get path \"{path}\"");
        assert_eq!(message, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_statusz_as_page_or_kind() {
    let page = admin().get("/statusz").await;
    assert_eq!((page.code, page.header("content-type")), (200, "text/plain; charset=utf-8"));
    let text = String::from_utf8(page.body.to_vec()).unwrap();
    assert!(
        text.contains("\nPaths: /flagz /healthz /livez /metrics /readyz /statusz /version\n"),
        "{text}"
    );
    let kind = |version| format!("application/json;v={version};g=config.k8s.io;as=Statusz");
    let ask = async |accept: &str| admin().send("GET", "/statusz", &[("accept", accept)], "").await;
    let status = ask(&kind("v1beta1")).await;
    assert_eq!(status.json()["apiVersion"], "config.k8s.io/v1beta1");
    assert_eq!(
        status.header("content-type"),
        "application/json;g=config.k8s.io;v=v1beta1;as=Statusz"
    );
    assert!(ask(&kind("v1alpha1")).await.header("warning").contains("deprecated"));
    let message = ask("application/json").await.refused(406, "NotAcceptable");
    assert!(message.ends_with("application/json, application/yaml, text/plain"), "{message}");
}

/// Labels taken from requests could fill the memory, and inject lines into the page.
#[tokio::test(flavor = "multi_thread")]
async fn ignores_client_chosen_metric_labels() {
    let (api, nobody) = (admin(), shared().tls(Identity::Nobody));
    let hostile = [
        "/apis/hostile-group/v1/pods",
        "/apis/apps/hostile-version/deployments",
        "/api/v1/namespaces/hostile-namespace/hostile-resource/x",
        "/api/v1/namespaces/default/pods/x/hostile-subresource",
        "/hostile-path",
        "/apis/hostile%22%7D%20666%0Ainjected%20/v1/pods",
    ];
    for path in hostile {
        nobody.get(path).await.refused(403, "Forbidden");
        api.get(path).await.refused(404, "NotFound");
    }
    api.get("/api/v1/namespaces/default/pods/missing").await.refused(404, "NotFound");
    let page = api.get("/metrics").await.body;
    let page = String::from_utf8(page.to_vec()).unwrap();
    assert!(!page.contains("hostile") && !page.contains("injected"), "{page}");
    let series = "apiserver_request_total{code=\"404\",component=\"apiserver\",dry_run=\"\",group=\"\",\
                  resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\"} ";
    assert!(page.contains(series), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn allows_only_by_roles() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let bob = certified("bob", "devs");
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    assert_eq!(
        bob.get(&format!("{maps}/a")).await.refused(403, "Forbidden"),
        format!(
            "configmaps \"a\" is forbidden: User \"bob\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"{namespace}\""
        )
    );
    let base = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]});
    api.post(&format!("{base}/roles"), &role).await.ok();
    let binding = json!({
        "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
    });
    api.post(&format!("{base}/rolebindings"), &binding).await.ok();
    api.get(&format!("{base}/rolebindings")).await.ok();
    bob.get(&maps).await.ok();
    bob.post(&maps, &config_map("x", json!({}))).await.refused(403, "Forbidden");

    let review = |verb: &str| json!({"spec": {"resourceAttributes": {"namespace": namespace, "verb": verb, "resource": "configmaps"}}});
    let own = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    for (verb, allowed) in [("get", true), ("delete", false)] {
        assert_eq!(bob.post(own, &review(verb)).await.ok()["status"]["allowed"], allowed, "{verb}");
        let mut asked = review(verb);
        asked["spec"]["user"] = json!("bob");
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        assert_eq!(api.post(path, &asked).await.ok()["status"]["allowed"], allowed, "{verb}");
        asked["metadata"] = json!({"namespace": namespace});
        let path = format!(
            "/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"
        );
        assert_eq!(api.post(&path, &asked).await.ok()["status"]["allowed"], allowed, "{verb}");
    }
    let rules = json!({"spec": {"namespace": namespace}});
    let rules =
        bob.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &rules).await.ok();
    let granted = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["configmaps"]});
    assert!(rules["status"]["resourceRules"].as_array().unwrap().contains(&granted), "{rules}");

    // A user who may write roles may not grant permissions that the user lacks.
    let writer = json!({"metadata": {"name": "w"}, "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]}]});
    api.post(&format!("{base}/roles"), &writer).await.ok();
    let mut binding = binding.clone();
    (binding["metadata"]["name"], binding["roleRef"]["name"]) = (json!("bw"), json!("w"));
    api.post(&format!("{base}/rolebindings"), &binding).await.ok();
    api.get(&format!("{base}/rolebindings")).await.ok();
    let grab = json!({"metadata": {"name": "g"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    let message = bob.post(&format!("{base}/roles"), &grab).await.refused(403, "Forbidden");
    assert!(
        message.contains("is attempting to grant RBAC permissions not currently held"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn requires_permission_to_impersonate() {
    let api = admin();
    let headers = [("impersonate-user", "carol"), ("impersonate-group", "devs")];
    let whoami =
        json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}).to_string();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = api.send("POST", path, &headers, whoami.clone()).await.ok();
    assert_eq!(answer["status"]["userInfo"]["username"], "carol");
    let refused = certified("bob", "devs").send("POST", path, &headers, whoami).await;
    let message = refused.refused(403, "Forbidden");
    assert!(
        message.contains("cannot impersonate-on:user-info:create resource \"selfsubjectreviews\""),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn issues_and_reviews_service_account_tokens() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let made = api.post(&pods, &pod("p")).await.ok();
    let request = json!({"spec": {"expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": made["metadata"]["uid"]}}});
    let answer = api.post(&format!("{account}/token"), &request).await;
    assert_eq!(answer.code, 201);
    let token = answer.ok()["status"]["token"].as_str().unwrap().to_owned();
    let holder = shared().tls(Identity::Token(token.clone()));
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let me = holder.post(path, &json!({})).await.ok();
    let user = &me["status"]["userInfo"];
    assert_eq!(user["username"], format!("system:serviceaccount:{namespace}:default"));
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));

    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = |token: &str| json!({"spec": {"token": token}});
    let reviewed = api.post(reviews, &review(&token)).await.ok();
    assert_eq!(
        (&reviewed["status"]["authenticated"], &reviewed["status"]["user"]["username"]),
        (&json!(true), &user["username"])
    );
    let reviewed = api.post(reviews, &review("nonsense")).await.ok();
    assert_ne!(reviewed["status"]["authenticated"], json!(true));

    // The token becomes invalid with the deletion of its Pod.
    api.delete(&format!("{pods}/p"), &json!({})).await.ok();
    api.get(&pods).await.ok();
    holder.post(path, &json!({})).await.refused(401, "Unauthorized");
    let reviewed = api.post(reviews, &review(&token)).await.ok();
    assert_ne!(reviewed["status"]["authenticated"], json!(true));
    for (request, code, reason) in [
        (json!({"spec": {"expirationSeconds": 1}}), 422, "Invalid"),
        (
            json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "none"}}}),
            404,
            "NotFound",
        ),
    ] {
        api.post(&format!("{account}/token"), &request).await.refused(code, reason);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restricts_node_to_own_objects() {
    let (api, namespace) = (admin(), admin().namespace().await);
    let node = certified("system:node:n7", "system:nodes");
    let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
    for name in ["used", "unused"] {
        api.post(&secrets, &json!({"metadata": {"name": name}})).await.ok();
    }
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = json!("n7");
    bound["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": "used"}}]);
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    api.post(&pods, &bound).await.ok();
    api.post(&pods, &pod("other")).await.ok();
    api.get(&pods).await.ok();
    node.get(&format!("{secrets}/used")).await.ok();
    let watch = format!("{secrets}?fieldSelector=metadata.name%3Dused&watch=true&timeoutSeconds=1");
    assert_eq!(node.get(&watch).await.code, 200);
    let message = node.get(&format!("{secrets}/unused")).await.refused(403, "Forbidden");
    assert!(
        message.contains("no relationship found between node 'n7' and this object"),
        "{message}"
    );
    node.get(&secrets).await.refused(403, "Forbidden");

    let object = json!({"metadata": {"name": "n7"}});
    node.post("/api/v1/nodes", &object).await.ok();
    node.post("/api/v1/nodes", &json!({"metadata": {"name": "n8"}}))
        .await
        .refused(403, "Forbidden");
    let status = json!({"status": {"phase": "Running"}});
    node.patch(&format!("{pods}/p/status"), "merge", &status).await.ok();
    node.patch(&format!("{pods}/other/status"), "merge", &status).await.refused(403, "Forbidden");
    let taint = json!({"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}});
    node.patch("/api/v1/nodes/n7", "merge", &taint).await.refused(403, "Forbidden");
    let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
    node.post(&account, &json!({"spec": {}})).await.refused(403, "Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_flow_schema_in_headers() {
    let answer = admin().get("/api/v1/namespaces").await;
    let schemas =
        admin().get("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/exempt").await.ok();
    assert_eq!(json!(answer.header("x-kubernetes-pf-flowschema-uid")), schemas["metadata"]["uid"]);
    let levels =
        admin().get("/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations").await.ok();
    let level = levels["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|l| l["metadata"]["name"] == "exempt")
        .unwrap();
    assert_eq!(json!(answer.header("x-kubernetes-pf-prioritylevel-uid")), level["metadata"]["uid"]);
    let refused = shared().tls(Identity::Nobody).get("/api/v1/namespaces").await;
    assert_eq!(refused.header("x-kubernetes-pf-flowschema-uid"), "");
    let _: Value = refused.json();
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_authorities_for_extension_servers() {
    let names = |name: &str| vec![name.to_owned()];
    let server = start(|config| {
        config.front_proxy = Some(apiserver::FrontProxy {
            ca: config.client_ca.clone().unwrap(),
            allowed_names: names("front-proxy-client"),
            username_headers: names("X-Remote-User"),
            uid_headers: names("X-Remote-Uid"),
            group_headers: names("X-Remote-Group"),
            extra_prefixes: names("X-Remote-Extra-"),
        });
    })
    .await;
    let maps = "/api/v1/namespaces/kube-system/configmaps";
    let name = "extension-apiserver-authentication";
    let published = server.admin().get(&format!("{maps}/{name}")).await.ok();
    let authority = server.authority.cert().to_pem();
    let wanted = json!({
        "client-ca-file": authority,
        "requestheader-client-ca-file": authority,
        "requestheader-allowed-names": r#"["front-proxy-client"]"#,
        "requestheader-username-headers": r#"["X-Remote-User"]"#,
        "requestheader-uid-headers": r#"["X-Remote-Uid"]"#,
        "requestheader-group-headers": r#"["X-Remote-Group"]"#,
        "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
    });
    assert_eq!(published["data"], wanted);
    let tracking = format!("{maps}/kube-apiserver-legacy-service-account-token-tracking");
    let since = server.admin().get(&tracking).await.ok()["data"]["since"].clone();
    assert_eq!(since.as_str().map(str::len), Some("2026-11-21".len()), "{since}");
}

#[tokio::test(flavor = "multi_thread")]
async fn issues_no_extended_tokens_if_disabled() {
    let server = start(|config| config.extend_token_expiration = false).await;
    let api = server.admin();
    let namespace = api.namespace().await;
    let pod = api
        .post(&format!("/api/v1/namespaces/{namespace}/pods"), &crate::harness::pod("p"))
        .await
        .ok();
    assert_eq!(pod["spec"]["serviceAccountName"], "default");
    let request = json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
    let token = api.post(&path, &request).await.ok();
    let claims = token["status"]["token"].as_str().unwrap().split('.').nth(1).unwrap().to_owned();
    let claims = data_encoding::BASE64URL_NOPAD.decode(claims.as_bytes()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let lifetime = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!(lifetime, 3607, "{claims}");
    assert!(claims["kubernetes.io"].get("warnafter").is_none(), "{claims}");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_objects_of_disabled_apis() {
    let server = start(|_| {}).await;
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", server.admin().namespace().await);
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": template}});
    server.admin().post(&jobs, &job).await.ok();
    server.tasks.shutdown().stop();
    let off = ["batch/v1=false".to_owned(), "batch/v1/cronjobs=true".to_owned()];
    let off = apiserver::flags::RuntimeConfig::parse(&off).unwrap();
    let server = server.beside_with(|config| config.runtime_config = off).await;
    let api = server.admin();
    api.get(&format!("{jobs}/j")).await.refused(404, "NotFound");
    api.post(&jobs, &job).await.refused(404, "NotFound");
    let found = api.get("/apis/batch/v1").await.ok();
    let names: Vec<&str> = found["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["cronjobs", "cronjobs/status"]);
    api.get(&jobs.replace("/jobs", "/cronjobs")).await.ok();
    server.tasks.shutdown().stop();
    let server = server.beside().await;
    server.admin().get(&format!("{jobs}/j")).await.ok();
    server.tasks.shutdown().stop();
}

#[tokio::test]
async fn accepts_tokens_of_token_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.csv");
    std::fs::write(&file, "s3cret,robot,7,\"system:masters,others\"\n").unwrap();
    let server = start(|config| config.token_auth_file = Some(file)).await;
    let whoami = |token: &str| {
        let api = server.tls(Identity::Token(token.to_owned()));
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        async move { api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await }
    };
    let found = whoami("s3cret").await.ok();
    let user = &found["status"]["userInfo"];
    assert_eq!((&user["username"], &user["uid"]), (&json!("robot"), &json!("7")));
    assert_eq!(user["groups"], json!(["system:masters", "others", "system:authenticated"]));
    for wrong in ["s3cre", "s3cret2", "S3CRET"] {
        whoami(wrong).await.refused(401, "Unauthorized");
    }
}

/// The use of a token in a Secret is recorded, and a label of the Secret invalidates it.
#[tokio::test(flavor = "multi_thread")]
async fn refuses_token_of_secret_marked_invalid() {
    let server = start(|_| {}).await;
    let (api, namespace) = (server.admin(), server.admin().namespace().await);
    let at = format!("/api/v1/namespaces/{namespace}");
    let account = json!({"metadata": {"name": "old"}});
    let account = api.post(&format!("{at}/serviceaccounts"), &account).await.ok();
    let uid = account["metadata"]["uid"].as_str().unwrap();
    let pem = std::fs::read(server.directory.path().join("sa.key")).unwrap();
    let key = auth::authn::keys::SigningKey::from_pem(&pem).unwrap();
    let token = auth::authn::legacy_token::sign(&key, &namespace, "s", "old", uid).unwrap();
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"token": token}});
    api.post(&format!("{at}/secrets"), &secret).await.ok();
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let ask = || async {
        let holder = server.tls(Identity::Token(token.clone()));
        holder.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review).await
    };
    let me = ask().await.ok();
    let name = format!("system:serviceaccount:{namespace}:old");
    assert_eq!(me["status"]["userInfo"]["username"], name.as_str());
    let used = || async {
        let secret = api.get(&format!("{at}/secrets/s")).await.ok();
        let used = &secret["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"];
        if used.as_str().is_some_and(|date| date.len() == 10) { Ok(()) } else { Err(secret) }
    };
    rt::retry(Duration::from_secs(30), Duration::from_millis(10), |_| true, used).await.unwrap();
    let label = |value: Value| json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": value}}});
    let merge = "merge";
    api.patch(&format!("{at}/secrets/s"), merge, &label("2026-11-01".into())).await.ok();
    ask().await.refused(401, "Unauthorized");
    api.patch(&format!("{at}/secrets/s"), merge, &label(Value::Null)).await.ok();
    ask().await.ok();
    server.tasks.shutdown().stop();
}
