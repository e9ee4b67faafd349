use std::time::{Duration, UNIX_EPOCH};

use http::HeaderValue;
use serde_json::json;

use super::{token_file::TokenFile, *};
use crate::testing::Cluster;

fn authentication(anonymous: Anonymous) -> Authentication {
    Authentication {
        client_ca: None,
        front_proxy: None,
        tokens: vec![Box::new(TokenFile::parse("secret,alice,1,dev").unwrap())],
        api_audiences: vec!["api".into()],
        anonymous,
    }
}

fn ask(
    authentication: &Authentication,
    peer: &PeerCertificate,
    header: Option<(&'static str, &'static str)>,
) -> Result<UserInfo, Unauthenticated> {
    let mut headers = HeaderMap::new();
    if let Some((name, value)) = header {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let now = UNIX_EPOCH + Duration::from_secs(100);
    let presented = RequestCredentials { peer, headers: &headers, path: "/livez", now };
    let found = match authentication.authenticate(&presented, &Cluster::default())? {
        AuthenticationResult::Authenticated(found) => Ok(found),
        AuthenticationResult::UnknownToken(unknown) => unknown.settle(Ok(None)),
    };
    found.map(|found| found.user)
}

#[test]
fn returns_unknown_token_for_remote_authentication() {
    let all = authentication(Anonymous::On);
    let mut headers = HeaderMap::new();
    headers.insert("authorization", HeaderValue::from_static("Bearer other"));
    let (peer, now) = (&PeerCertificate::default(), UNIX_EPOCH);
    let presented = RequestCredentials { peer, headers: &headers, path: "/", now };
    let unknown = || match all.authenticate(&presented, &Cluster::default()).unwrap() {
        AuthenticationResult::UnknownToken(unknown) => unknown,
        AuthenticationResult::Authenticated(found) => panic!("{found:?}"),
    };
    assert_eq!(unknown().token, "other");
    let user = UserInfo::new("carol", &[]);
    let found = unknown().settle(Ok(Some(Authenticated { user, audiences: Vec::new() }))).unwrap();
    assert_eq!(found.user.groups, ["system:authenticated"]);
    let error = TokenError::ServiceAccount(ServiceAccountTokenError::Expired);
    let refused = unknown().settle(Err(error)).unwrap_err();
    assert_eq!(refused.to_string(), "invalid bearer token: service account token has expired");
}

#[test]
fn rejects_invalid_credential_instead_of_anonymous() {
    let all = authentication(Anonymous::On);
    let nobody = PeerCertificate::default();
    let alice = ask(&all, &nobody, Some(("authorization", "bearer secret"))).unwrap();
    assert_eq!(
        (alice.name.as_str(), alice.groups.join(" ")),
        ("alice", "dev system:authenticated".into())
    );
    // "c2VjcmV0" is "secret".
    let socket = Some((
        "sec-websocket-protocol",
        "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
    ));
    assert_eq!(ask(&all, &nobody, socket).unwrap().name, "alice");
    let wrong = ask(&all, &nobody, Some(("authorization", "Bearer wrong")));
    assert!(matches!(wrong, Err(Unauthenticated::UnknownToken)));
    assert_eq!(ask(&all, &nobody, None).unwrap(), UserInfo::anonymous());
    assert_eq!(
        ask(&all, &nobody, Some(("authorization", "Basic eDp5"))).unwrap(),
        UserInfo::anonymous()
    );
    let nobody_else = ask(&authentication(Anonymous::Off), &nobody, None);
    assert!(matches!(nobody_else, Err(Unauthenticated::NoCredentials)));
    let paths = |path: &str| authentication(Anonymous::Paths(vec![path.into()]));
    assert!(ask(&paths("/livez"), &nobody, None).is_ok());
    assert!(ask(&paths("/readyz"), &nobody, None).is_err());
}

#[test]
fn rejects_expired_certificate_of_open_connection() {
    let all = authentication(Anonymous::On);
    let until = |seconds| PeerCertificate {
        client: Some(Ok(VerifiedCertificate {
            user: UserInfo::new("bob", &[]),
            not_after: UNIX_EPOCH + Duration::from_secs(seconds),
        })),
        proxy: None,
    };
    assert_eq!(ask(&all, &until(200), None).unwrap().groups, ["system:authenticated"]);
    assert!(matches!(ask(&all, &until(50), None), Err(Unauthenticated::Certificate(_))));
    // A valid token wins over an invalid certificate.
    assert_eq!(
        ask(&all, &until(50), Some(("authorization", "Bearer secret"))).unwrap().name,
        "alice"
    );
}

#[test]
fn answers_token_reviews() {
    let all = authentication(Anonymous::On);
    let ask = |token: &str| {
        let mut review = json!({"spec": {"token": token}});
        let asked = review::TokenReviewRequest::of(&review, &all);
        let (token, audiences) = (&asked.token, asked.audiences.as_slice());
        let objects = &Cluster::default();
        let found =
            all.by_token(BearerToken { token, audiences, now: Timestamp::default(), objects });
        review::answer(&mut review, &asked, found);
        review["status"].clone()
    };
    assert_eq!(
        ask("secret"),
        json!({"authenticated": true, "audiences": ["api"], "user": {"username": "alice", "uid": "1", "groups": ["dev", "system:authenticated"]}})
    );
    assert_eq!(ask("other"), json!({"user": {}, "error": "invalid bearer token"}));
}
