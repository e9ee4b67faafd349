//! Versions and kinds that are served on demand: `--runtime-config` and feature gates.

use api_config::FeatureGates;
use apiserver::flags::RuntimeConfig;
use serde_json::{Value, json};

use crate::harness::{Api, TestServer, start};

async fn configured(runtime: &str, gates: &[&str]) -> TestServer {
    let runtime = RuntimeConfig::parse(&[runtime.to_owned()]).unwrap();
    let features = FeatureGates::parse(gates.iter().copied()).unwrap();
    start(|config| (config.runtime_config, config.features) = (runtime, features)).await
}

const GROUP: &str = "/apis/resource.k8s.io";

/// Returns the names of the resources that a group version serves.
async fn resources(api: &Api, version: &str) -> Vec<String> {
    let list = api.get(&format!("/apis/{version}")).await.ok();
    let names = list["resources"].as_array().unwrap().iter();
    names.map(|resource| resource["name"].as_str().unwrap().to_owned()).collect()
}

fn pem(name: &str) -> String {
    let validity = crate::harness::validity();
    let algorithm = pki::KeyAlgorithm::EcdsaP256;
    pki::Authority::create(name, algorithm, validity).unwrap().cert().to_pem()
}

#[tokio::test(flavor = "multi_thread")]
async fn converts_claims_and_slices_between_versions() {
    let server = configured("api/beta=true", &[]).await;
    let api = server.admin();
    let namespace = api.namespace().await;
    let claims = |version: &str| format!("{GROUP}/{version}/namespaces/{namespace}/resourceclaims");
    let beta = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
        {"name": "one", "deviceClassName": "gpu"},
        {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]}]}}});
    let made = api.post(&claims("v1beta1"), &beta).await.ok();
    assert_eq!(made["apiVersion"], "resource.k8s.io/v1beta1");
    let request = &made["spec"]["devices"]["requests"][0];
    assert_eq!((&request["allocationMode"], &request["count"]), (&json!("ExactCount"), &json!(1)));
    for version in ["v1", "v1beta2"] {
        let found = api.get(&format!("{}/c", claims(version))).await.ok();
        let requests = &found["spec"]["devices"]["requests"];
        assert_eq!(requests[0]["exactly"]["deviceClassName"], "gpu", "{version}: {found}");
        assert_eq!(requests[1]["firstAvailable"][0]["count"], 1, "{version}: {found}");
        assert_eq!(found["apiVersion"], format!("resource.k8s.io/{version}"));
    }
    let wrong = json!({"metadata": {"name": "w"}, "spec": {"devices": {"requests": [
        {"name": "one", "deviceClassName": "gpu", "count": -1}]}}});
    let message = api.post(&claims("v1beta1"), &wrong).await.refused(422, "Invalid");
    assert!(message.contains("must be greater than zero"), "{message}");
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "a", "basic": {"attributes": {"size": {"int": 1}}}}]}});
    api.post(&format!("{GROUP}/v1beta1/resourceslices"), &slice).await.ok();
    let found = api.get(&format!("{GROUP}/v1/resourceslices/s")).await.ok();
    assert_eq!(
        found["spec"]["devices"],
        json!([{"name": "a", "attributes": {"size": {"int": 1}}}])
    );
    let list = api.get(&format!("{GROUP}/v1beta1/resourceslices")).await.ok();
    assert_eq!(list["items"][0]["spec"]["devices"], slice["spec"]["devices"]);
    // An apply in one version and one in another share the ownership of the fields.
    let labelled = json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "labels": {"a": "b"}}});
    let at = format!("{}/c?fieldManager=m", claims("v1beta1"));
    assert_eq!(api.patch(&at, "apply", &labelled).await.ok()["metadata"]["labels"]["a"], "b");
    api.delete(&format!("{}/c", claims("v1beta2")), &json!({})).await.ok();
    let documents = api.get("/openapi/v3").await.ok();
    assert!(documents["paths"].get("apis/resource.k8s.io/v1beta1").is_some());
    let definitions = api.get("/openapi/v2").await.ok();
    assert!(definitions["paths"].get("/apis/resource.k8s.io/v1beta1/resourceslices").is_some());
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn serves_gated_kinds_only_with_their_gate() {
    let server = configured("api/all=true", &[]).await;
    let api = server.admin();
    api.get("/apis/storagemigration.k8s.io/v1beta1").await.refused(404, "NotFound");
    api.get("/apis/certificates.k8s.io/v1beta1/clustertrustbundles").await.refused(404, "NotFound");
    assert_eq!(resources(&api, "storage.k8s.io/v1beta1").await, ["volumeattributesclasses"]);
    let policies = resources(&api, "admissionregistration.k8s.io/v1alpha1").await;
    assert_eq!(policies, ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"]);
    server.tasks.shutdown().stop();
    let gates = ["ClusterTrustBundle=true", "StorageVersionMigrator=true"];
    let server = configured("api/beta=true", &gates).await;
    let api = server.admin();
    assert_eq!(resources(&api, "certificates.k8s.io/v1beta1").await, ["clustertrustbundles"]);
    let migrations = resources(&api, "storagemigration.k8s.io/v1beta1").await;
    assert_eq!(migrations, ["storageversionmigrations", "storageversionmigrations/status"]);
    server.tasks.shutdown().stop();
    // The gate alone does not serve the version.
    let server = configured("api/ga=true", &gates).await;
    let path = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    server.admin().get(path).await.refused(404, "NotFound");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_trust_bundles_while_their_version_is_off() {
    let on = "certificates.k8s.io/v1beta1=true";
    let server = configured(on, &["ClusterTrustBundle=true"]).await;
    let (api, path) = (server.admin(), "/apis/certificates.k8s.io/v1beta1/clustertrustbundles");
    let bundle = |name: &str, signer: &str| json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": pem("ca")}});
    api.post(path, &bundle("plain", "")).await.ok();
    api.post(path, &bundle("a.b:c:one", "a.b/c")).await.ok();
    let selected = api.get(&format!("{path}?fieldSelector=spec.signerName%3Da.b/c")).await.ok();
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table: Value = api.send("GET", path, &table, "").await.ok();
    assert_eq!(table["rows"][0]["cells"], json!(["a.b:c:one", "a.b/c"]));
    // A user without the right to attest for the signer cannot create or change its bundles.
    let role = json!({"metadata": {"name": "bundles"}, "rules": [{"verbs": ["*"],
        "apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"]}]});
    let binding = json!({"metadata": {"name": "bundles"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bundles"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    api.post(&format!("{rbac}/clusterroles"), &role).await.ok();
    api.post(&format!("{rbac}/clusterrolebindings"), &binding).await.ok();
    // The answer waits for the cache from which rights are decided.
    api.get(&format!("{rbac}/clusterrolebindings")).await.ok();
    let eve = server.user("eve", &[]);
    eve.post(path, &bundle("eves", "")).await.ok();
    let message = eve.post(path, &bundle("a.b:c:two", "a.b/c")).await.refused(403, "Forbidden");
    assert!(message.contains("user not permitted to attest for signerName"), "{message}");
    let other = json!({"spec": {"trustBundle": pem("evil")}});
    eve.patch(&format!("{path}/a.b:c:one"), "merge", &other).await.refused(403, "Forbidden");
    server.user("mallory", &[]).get(path).await.refused(403, "Forbidden");
    // Service accounts may read all bundles.
    let groups = ["system:serviceaccounts", "system:serviceaccounts:default"];
    server.user("system:serviceaccount:default:default", &groups).get(path).await.ok();
    server.tasks.shutdown().stop();
    let off = server.beside().await;
    off.admin().get(path).await.refused(404, "NotFound");
    off.tasks.shutdown().stop();
    let again = server
        .beside_with(|config| {
            config.runtime_config = RuntimeConfig::parse(&[on.to_owned()]).unwrap();
            config.features = FeatureGates::parse(["ClusterTrustBundle=true"]).unwrap();
        })
        .await;
    let found = again.admin().get(path).await.ok();
    assert_eq!(found["items"].as_array().unwrap().len(), 3);
    let alpha = "/apis/certificates.k8s.io/v1alpha1/clustertrustbundles";
    again.admin().get(alpha).await.refused(404, "NotFound");
    again.tasks.shutdown().stop();
}

/// A signer's authority, and a Pod's key with its request.
pub(crate) struct PodCertificate {
    authority: pki::Authority,
    key: pki::Key,
}

impl PodCertificate {
    pub(crate) fn new() -> Self {
        let algorithm = pki::KeyAlgorithm::EcdsaP256;
        let validity = crate::harness::validity();
        let key = pki::WorkloadKeyType::Ed25519.generate().unwrap();
        Self { authority: pki::Authority::create("ca", algorithm, validity).unwrap(), key }
    }

    pub(crate) fn request(&self, name: &str) -> Value {
        let stub = pki::SigningRequest::create(&pki::Subject::default(), &[], &self.key).unwrap();
        let stub = data_encoding::BASE64.encode(stub.der());
        json!({"metadata": {"name": name}, "spec": {"signerName": "a.b/c", "podName": "p",
            "podUID": "1", "serviceAccountName": "default", "serviceAccountUID": "2",
            "nodeName": "n1", "nodeUID": "3", "stubPKCS10Request": stub}})
    }

    pub(crate) fn status(&self) -> Value {
        let seconds = |time: std::time::SystemTime| api_meta::Timestamp::from(time).to_seconds();
        let now = std::time::SystemTime::from(seconds(std::time::SystemTime::now()));
        let not_after = now + std::time::Duration::from_secs(7200);
        let validity = pki::Validity { not_before: now, not_after };
        let (subject, usage) = (pki::Subject::new("p"), pki::Usage::Client);
        let spec = pki::LeafSpec { subject, alt_names: Vec::new(), usage };
        let chain = self.authority.issue(&spec, &self.key, validity).unwrap().to_pem();
        let refresh = now + std::time::Duration::from_secs(3600);
        json!({"status": {"certificateChain": chain, "notBefore": seconds(now),
            "notAfter": seconds(not_after), "beginRefreshAt": seconds(refresh),
            "conditions": [{"type": "Issued", "status": "True", "reason": "Signed",
                "lastTransitionTime": seconds(now)}]}})
    }
}

/// Binds a user to a new cluster role with one rule.
async fn allow(api: &Api, name: &str, user: &str, rule: Value) {
    let role = json!({"metadata": {"name": name}, "rules": [rule]});
    let binding = json!({"metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    api.post(&format!("{rbac}/clusterroles"), &role).await.ok();
    api.post(&format!("{rbac}/clusterrolebindings"), &binding).await.ok();
    // The answer waits for the cache from which rights are decided.
    api.get(&format!("{rbac}/clusterrolebindings")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_signers_issue_certificates_of_pods() {
    let gate = ["PodCertificateRequest=true"];
    let server = configured("certificates.k8s.io/v1beta1=true", &gate).await;
    let api = server.admin();
    assert_eq!(
        resources(&api, "certificates.k8s.io/v1beta1").await,
        ["podcertificaterequests", "podcertificaterequests/status"]
    );
    let namespace = api.namespace().await;
    let path =
        format!("/apis/certificates.k8s.io/v1beta1/namespaces/{namespace}/podcertificaterequests");
    let certificate = PodCertificate::new();
    let mut claimed = certificate.request("r");
    claimed["status"] = certificate.status()["status"].clone();
    let made = api.post(&path, &claimed).await.ok();
    assert_eq!(made["spec"]["maxExpirationSeconds"], 86_400);
    assert_eq!(made["status"], json!({}), "{made}");
    // A service account creates no request without permission.
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")];
    let account = server.user(&format!("system:serviceaccount:{namespace}:default"), &groups);
    account.post(&path, &certificate.request("s")).await.refused(403, "Forbidden");
    // Permission for the status is not enough.
    let all = json!({"verbs": ["*"], "apiGroups": ["certificates.k8s.io"],
        "resources": ["podcertificaterequests", "podcertificaterequests/status"]});
    allow(&api, "statuses", "eve", all).await;
    let other = json!({"verbs": ["sign"], "apiGroups": ["certificates.k8s.io"],
        "resources": ["signers"], "resourceNames": ["a.b/other"]});
    allow(&api, "other-signer", "eve", other).await;
    let (eve, status) = (server.user("eve", &[]), certificate.status());
    let at = format!("{path}/r/status");
    let message = eve.patch(&at, "merge", &status).await.refused(422, "Invalid");
    let wanted = "spec.signerName: Forbidden: User \"eve\" is not permitted to \"sign\" for signer \"a.b/c\"";
    assert!(message.contains(wanted), "{message}");
    // Labels by the status endpoint are not changed, and need no permission.
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let same = eve.patch(&at, "merge", &labels).await.ok();
    assert_eq!(same["metadata"]["labels"], Value::Null);
    let own = json!({"verbs": ["sign"], "apiGroups": ["certificates.k8s.io"],
        "resources": ["signers"], "resourceNames": ["a.b/*"]});
    allow(&api, "signer", "eve", own).await;
    let mut late = status.clone();
    late["status"]["beginRefreshAt"] = late["status"]["notAfter"].clone();
    let message = eve.patch(&at, "merge", &late).await.refused(422, "Invalid");
    assert!(message.contains("at least 10 minutes before status.notAfter"), "{message}");
    eve.patch(&at, "merge", &status).await.ok();
    let again = json!({"status": {"beginRefreshAt": status["status"]["notBefore"]}});
    let message = api.patch(&at, "merge", &again).await.refused(422, "Invalid");
    assert!(message.contains("immutable after PodCertificateRequest is issued"), "{message}");
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table: Value = api.send("GET", &path, &table, "").await.ok();
    assert_eq!(table["rows"][0]["cells"], json!(["r", "p", "default", "n1", "a.b/c", "Issued"]));
    for (field, count) in
        [("spec.nodeName=n1", 1), ("spec.podName=q", 0), ("spec.signerName=a.b/c", 1)]
    {
        let field = field.replace('=', "%3D");
        let found = api.get(&format!("{path}?fieldSelector={field}")).await.ok();
        assert_eq!(found["items"].as_array().unwrap().len(), count, "{field}");
    }
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn drops_certificates_of_pods_while_their_gate_is_off() {
    let pod = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {
        "containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false,
        "volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": {
            "signerName": "a.b/c", "keyType": "ED25519", "keyPath": "k"}}]}}]}})
    };
    for (gates, source) in [
        (&[][..], json!({})),
        (
            &["PodCertificateRequest=true"][..],
            json!({"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519", "keyPath": "k",
                "maxExpirationSeconds": 86_400}}),
        ),
    ] {
        let server = configured("", gates).await;
        let api = server.admin();
        let namespace = api.namespace().await;
        let made = api.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod("p")).await.ok();
        assert_eq!(made["spec"]["volumes"][0]["projected"]["sources"], json!([source]));
        server.tasks.shutdown().stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_groups_need_their_workload_and_their_gate() {
    let on = "scheduling.k8s.io/v1alpha2=true";
    let server = configured(on, &["GenericWorkload=true"]).await;
    let (api, version) = (server.admin(), "scheduling.k8s.io/v1alpha2");
    assert_eq!(resources(&api, version).await, ["podgroups", "podgroups/status", "workloads"]);
    let namespace = api.namespace().await;
    let path = |plural: &str| format!("/apis/{version}/namespaces/{namespace}/{plural}");
    let group = |name: &str, template: &str| {
        json!({"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}},
            "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": template}}},
            "status": {"conditions": [{"type": "PodGroupScheduled", "status": "True"}]}})
    };
    let message = api.post(&path("podgroups"), &group("g", "a")).await.refused(403, "Forbidden");
    assert!(message.contains("PodGroup rejected: Workload \"w\" not found"), "{message}");
    let template = json!({"name": "a", "schedulingPolicy": {"gang": {"minCount": 2}}});
    let workload = json!({"metadata": {"name": "w"}, "spec": {"podGroupTemplates": [template]}});
    api.post(&path("workloads"), &workload).await.ok();
    api.post(&path("podgroups"), &group("h", "b")).await.refused(403, "Forbidden");
    let made = api.post(&path("podgroups"), &group("g", "a")).await.ok();
    assert_eq!(made["metadata"]["finalizers"], json!(["scheduling.k8s.io/podgroup-protection"]));
    assert_eq!(made["status"], json!({}), "users do not set the status");
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table: Value = api.send("GET", &path("podgroups"), &table, "").await.ok();
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..4], ["g", "Gang", "w", ""]);
    let mallory = server.user("mallory", &[]);
    mallory.post(&path("podgroups"), &group("m", "a")).await.refused(403, "Forbidden");
    let scheduler = server.user("system:kube-scheduler", &[]);
    let condition = json!({"type": "PodGroupScheduled", "status": "True", "reason": "Scheduled",
        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"status": {"conditions": [condition]}});
    let at = format!("{}/g/status", path("podgroups"));
    scheduler.patch(&at, "strategic", &status).await.ok();
    mallory.patch(&at, "strategic", &status).await.refused(403, "Forbidden");
    let hostile =
        json!({"status": {"conditions": [{"type": "PodGroupScheduled", "status": "Maybe"}]}});
    scheduler.patch(&at, "strategic", &hostile).await.refused(422, "Invalid");
    // A Pod keeps its group while the gate is off, and a new one has none.
    let pod = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"schedulingGroup": {"podGroupName": "g"},
        "containers": [{"name": "c", "image": "i"}]}})
    };
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let made = api.post(&pods, &pod("member")).await.ok();
    assert_eq!(made["spec"]["schedulingGroup"]["podGroupName"], "g");
    let other = json!({"spec": {"schedulingGroup": {"podGroupName": "h"}}});
    api.patch(&format!("{pods}/member"), "merge", &other).await.refused(422, "Invalid");
    let mut nameless = pod("nameless");
    nameless["spec"]["schedulingGroup"] = json!({});
    api.post(&pods, &nameless).await.refused(422, "Invalid");
    server.tasks.shutdown().stop();
    let off = server.beside().await;
    let api = off.admin();
    api.get(&path("podgroups")).await.refused(404, "NotFound");
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let kept = api.patch(&format!("{pods}/member"), "merge", &labelled).await.ok();
    assert_eq!(kept["spec"]["schedulingGroup"]["podGroupName"], "g");
    let made = api.post(&pods, &pod("later")).await.ok();
    assert!(made["spec"].get("schedulingGroup").is_none(), "{made}");
    off.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_controller_answers_requests_for_pools() {
    let server = configured("resource.k8s.io/v1alpha3=true", &["DRAResourcePoolStatus=true"]).await;
    let api = server.admin();
    let path = format!("{GROUP}/v1alpha3/resourcepoolstatusrequests");
    let request = json!({"metadata": {"name": "r"}, "spec": {"driver": "d.example.com"},
        "status": {"poolCount": 7}});
    let made = api.post(&path, &request).await.ok();
    assert!(made.get("status").is_none(), "{made}");
    assert_eq!(made["spec"]["limit"], 100);
    let at = format!("{path}/r/status");
    let answer = |count: i64| {
        json!({"status": {"poolCount": count, "pools": [{"driver": "d.example.com",
        "poolName": "p", "generation": 1, "totalDevices": 0}]}})
    };
    server.user("mallory", &[]).patch(&at, "merge", &answer(1)).await.refused(403, "Forbidden");
    let name = "system:serviceaccount:kube-system:resourcepoolstatusrequest-controller";
    let controller = server.user(name, &["system:serviceaccounts"]);
    controller.patch(&at, "merge", &answer(-1)).await.refused(422, "Invalid");
    let done = controller.patch(&at, "merge", &answer(1)).await.ok();
    assert_eq!(done["status"]["pools"][0]["totalDevices"], 0);
    let message = controller.patch(&at, "merge", &answer(2)).await.refused(422, "Invalid");
    assert!(message.contains("field is immutable"), "{message}");
    let driver = json!({"spec": {"driver": "e.example.com"}});
    api.patch(&format!("{path}/r"), "merge", &driver).await.refused(422, "Invalid");
    server.tasks.shutdown().stop();
}
