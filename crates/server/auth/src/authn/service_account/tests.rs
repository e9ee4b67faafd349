use super::*;
use crate::testing::{Cluster, authenticate, signing_key as key};

const API: &str = "https://kubernetes.default.svc.cluster.local";

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    let account = json!({"metadata": {"name": "app", "namespace": "ns", "uid": "sa-1"}});
    cluster.put(&GroupResource::SERVICE_ACCOUNTS, account);
    cluster.put(&GroupResource::NODES, json!({"metadata": {"name": "n1", "uid": "node-1"}}));
    cluster.put(&GroupResource::PODS, pod("pod-1", None));
    cluster
}

fn pod(uid: &str, deleted: Option<&str>) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": uid, "deletionTimestamp": deleted},
        "spec": {"serviceAccountName": "app", "nodeName": "n1"}
    })
}

/// An issuer with a local key.
struct LocalIssuer {
    terms: TokenIssuer,
    key: SigningKey,
}

impl LocalIssuer {
    fn answer(
        &self,
        request: &mut Value,
        account: (&str, &str),
        cluster: &Cluster,
    ) -> Result<(), Status> {
        let issue = self.terms.issue(request, account, cluster, now(0), "id".into())?;
        let token = issue.sign(&self.key).unwrap();
        issue.answer(request, &token);
        Ok(())
    }

    fn authenticator(&self) -> ServiceAccountTokens {
        let keys = KeyRing::new(vec![self.key.public().clone()]);
        ServiceAccountTokens::new(vec![API.into()], keys)
    }
}

fn issuer() -> LocalIssuer {
    let terms = TokenIssuer {
        issuer: API.into(),
        api_audiences: vec![API.into()],
        max_expiration: None,
        extend: true,
    };
    LocalIssuer { terms, key: key(&rcgen::PKCS_ECDSA_P256_SHA256) }
}

fn now(seconds: i64) -> Timestamp {
    Timestamp::from_unix(1_700_000_000 + seconds, 0)
}

fn bound_to_pod(expiration: i64) -> Value {
    json!({"spec": {"expirationSeconds": expiration, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}})
}

#[test]
fn rejects_token_of_deleted_object() {
    let (issuer, mut cluster) = (issuer(), cluster());
    let tokens = issuer.authenticator();
    let mut request = bound_to_pod(600);
    issuer.answer(&mut request, ("ns", "app"), &cluster).unwrap();
    let token = request["status"]["token"].as_str().unwrap();
    assert_eq!(request["status"]["expirationTimestamp"], now(600).to_string());
    let ask = |cluster: &Cluster, at: i64| authenticate(&tokens, token, API, now(at), cluster);

    let user = ask(&cluster, 10).unwrap().unwrap().user;
    assert_eq!(user.name, "system:serviceaccount:ns:app");
    assert_eq!(
        user.groups,
        ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
    );
    assert_eq!(
        (user.extra_value(POD_NAME), user.extra_value(NODE_UID)),
        (Some("p"), Some("node-1"))
    );
    assert_eq!(user.extra_value(CREDENTIAL_ID), Some("JTI=id"));

    assert_eq!(ask(&cluster, 661).unwrap_err().to_string(), "service account token has expired");
    assert_eq!(
        ask(&cluster, -61).unwrap_err().to_string(),
        "service account token is not valid yet"
    );
    assert!(authenticate(&tokens, token, "other", now(0), &cluster).is_err());

    cluster.put(&GroupResource::PODS, pod("pod-1", Some(&now(0).to_string())));
    assert!(ask(&cluster, 30).is_ok(), "a Pod that is being deleted still needs its token");
    assert!(ask(&cluster, 61).is_err());
    cluster.put(&GroupResource::PODS, pod("pod-2", None));
    assert!(ask(&cluster, 1).is_err(), "another Pod of the same name");
    assert!(ask(&Cluster::default(), 1).is_err());
}

#[test]
fn ignores_tokens_of_other_issuers() {
    let (ours, theirs, cluster) = (issuer(), issuer(), cluster());
    let tokens = ours.authenticator();
    let mut request = json!({"spec": {}});
    theirs.answer(&mut request, ("ns", "app"), &cluster).unwrap();
    let ask = |token: &str| authenticate(&tokens, token, API, now(0), &cluster);
    assert!(
        ask(request["status"]["token"].as_str().unwrap()).is_err(),
        "our issuer's name, another key"
    );
    assert_eq!(ask("abcdef.0123456789abcdef").unwrap(), None);

    let terms = TokenIssuer { issuer: "https://other".into(), ..theirs.terms };
    let elsewhere = LocalIssuer { terms, ..theirs };
    elsewhere.answer(&mut request, ("ns", "app"), &cluster).unwrap();
    assert_eq!(ask(request["status"]["token"].as_str().unwrap()).unwrap(), None);
}

#[test]
fn accepts_automatic_tokens_for_a_year() {
    let (issuer, cluster) = (issuer(), cluster());
    let mut request = bound_to_pod(3607);
    issuer.answer(&mut request, ("ns", "app"), &cluster).unwrap();
    let claims: Claims = jwt::unverified(request["status"]["token"].as_str().unwrap()).unwrap();
    assert_eq!(claims.exp - claims.iat, EXTENDED_EXPIRATION);
    assert_eq!(claims.bound.warnafter, Some(now(3607).unix()));
    assert_eq!(request["status"]["expirationTimestamp"], now(3607).to_string());
}

#[test]
fn expires_automatic_tokens_without_extension() {
    let (mut issuer, cluster) = (issuer(), cluster());
    issuer.terms.extend = false;
    let mut request = bound_to_pod(3607);
    issuer.answer(&mut request, ("ns", "app"), &cluster).unwrap();
    let claims: Claims = jwt::unverified(request["status"]["token"].as_str().unwrap()).unwrap();
    assert_eq!((claims.exp - claims.iat, claims.bound.warnafter), (3607, None));
}

#[test]
fn rejects_invalid_requests() {
    let (issuer, cluster) = (issuer(), cluster());
    let object = |kind: &str, name: &str, uid: &str| json!({"spec": {"boundObjectRef": {"kind": kind, "apiVersion": "v1", "name": name, "uid": uid}}});
    let cases = [
        (
            json!({"spec": {"expirationSeconds": 1}}),
            422,
            "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
        ),
        (object("Pod", "none", ""), 404, "pods \"none\" not found"),
        (
            object("ConfigMap", "c", ""),
            400,
            "cannot bind token to object of type /v1, Kind=ConfigMap",
        ),
        (
            object("Pod", "p", "stale"),
            409,
            "Operation cannot be fulfilled on pods \"p\": the UID in the bound object reference (stale) does not match the UID in record. The object might have been deleted and then recreated",
        ),
    ];
    for (mut request, code, message) in cases {
        let refused = issuer.answer(&mut request, ("ns", "app"), &cluster).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (code, message));
    }
    let mut request = json!({"spec": {}});
    assert!(issuer.answer(&mut request, ("ns", "nobody"), &cluster).unwrap_err().is_not_found());
}

#[test]
fn rejects_cached_token_after_its_key_is_removed() {
    let (issuer, cluster) = (issuer(), cluster());
    let keys = KeyRing::new(vec![issuer.key.public().clone()]);
    let tokens = ServiceAccountTokens::new(vec![API.into()], keys.clone());
    let mut request = json!({"spec": {}});
    issuer.answer(&mut request, ("ns", "app"), &cluster).unwrap();
    let token = request["status"]["token"].as_str().unwrap();
    let ask = || authenticate(&tokens, token, API, now(0), &cluster);
    assert!(ask().unwrap().is_some());
    let unchanged = keys.current();
    keys.replace(vec![issuer.key.public().clone()]);
    assert!(Arc::ptr_eq(&unchanged, &keys.current()), "equal keys leave cached tokens valid");

    keys.replace(vec![key(&rcgen::PKCS_ECDSA_P256_SHA256).public().clone()]);
    let error = ask().unwrap_err();
    assert_eq!(error.to_string(), "invalid signature, no keys found");
    assert!(error.is_unknown_key());
    keys.replace(vec![issuer.key.public().clone()]);
    assert!(ask().unwrap().is_some());
}
