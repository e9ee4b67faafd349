//! Service account tokens of an external signer.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use apiserver::{Config, TokenKeys};
use auth::authn::keys::SigningKey;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use parking_lot::Mutex;
use pki::{Key, KeyAlgorithm};
use serde_json::json;
use token_signer::{
    Signer,
    testing::{
        ExternalJwtSigner, ExternalJwtSignerServer, FetchKeysRequest, FetchKeysResponse,
        Key as PublicKey, MetadataRequest, MetadataResponse, SignJwtRequest, SignJwtResponse,
        Timestamp,
    },
};
use tonic::{Request, Response, Status};

use crate::harness::{Identity, TestServer, start, try_start};

/// A signer with keys in memory. The last one that is not hidden signs.
#[derive(Clone)]
struct FakeSigner(Arc<Inner>);

struct Inner {
    keys: Mutex<Vec<FakeKey>>,
    /// Answers that replace those of the next calls of `Sign`.
    signed: Mutex<VecDeque<Result<SignJwtResponse, Status>>>,
    /// The answer that replaces that of `FetchKeys`.
    fetched: Mutex<Option<FetchKeysResponse>>,
    max_expiration: i64,
    refresh: i64,
    fetches: AtomicUsize,
}

struct FakeKey {
    id: &'static str,
    key: SigningKey,
    der: Vec<u8>,
    hidden: bool,
}

fn key(id: &'static str, hidden: bool) -> FakeKey {
    let key = Key::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let pem = key.to_pem().unwrap();
    let der = key.public_der().unwrap();
    FakeKey { id, key: SigningKey::from_pem(pem.as_bytes()).unwrap(), der, hidden }
}

impl FakeSigner {
    fn new(keys: Vec<FakeKey>, refresh: i64, max_expiration: i64) -> Self {
        Self(Arc::new(Inner {
            keys: Mutex::new(keys),
            signed: Mutex::default(),
            fetched: Mutex::default(),
            max_expiration,
            refresh,
            fetches: AtomicUsize::new(0),
        }))
    }

    /// Serves on a socket until the runtime ends.
    fn serve(&self, socket: &Path) {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        let service = ExternalJwtSignerServer::new(self.clone());
        grpc::serve("token signer", socket, service, &tasks).unwrap();
    }

    fn header(&self, kid: &str) -> String {
        BASE64.encode(json!({"alg": "ES256", "kid": kid, "typ": "JWT"}).to_string())
    }

    /// Makes the next token one of a key that is given or, if it has none, one without a valid signature.
    fn answer_next(&self, header: String, signature: &str) {
        let signature = signature.to_owned();
        self.0.signed.lock().push_back(Ok(SignJwtResponse { header, signature }));
    }
}

#[tonic::async_trait]
impl ExternalJwtSigner for FakeSigner {
    async fn sign(
        &self,
        request: Request<SignJwtRequest>,
    ) -> Result<Response<SignJwtResponse>, Status> {
        if let Some(answer) = self.0.signed.lock().pop_front() {
            return answer.map(Response::new);
        }
        let claims = request.into_inner().claims;
        let keys = self.0.keys.lock();
        let key = keys.iter().rfind(|key| !key.hidden).unwrap();
        let header = self.header(key.id);
        let signature = key.key.sign(format!("{header}.{claims}").as_bytes()).unwrap();
        Ok(Response::new(SignJwtResponse { header, signature: BASE64.encode(signature) }))
    }

    async fn fetch_keys(
        &self,
        _: Request<FetchKeysRequest>,
    ) -> Result<Response<FetchKeysResponse>, Status> {
        self.0.fetches.fetch_add(1, SeqCst);
        if let Some(answer) = self.0.fetched.lock().clone() {
            return Ok(Response::new(answer));
        }
        let keys = self.0.keys.lock();
        let keys = keys.iter().map(|key| PublicKey {
            key_id: key.id.to_owned(),
            key: key.der.clone(),
            exclude_from_oidc_discovery: key.hidden,
        });
        Ok(Response::new(FetchKeysResponse {
            keys: keys.collect(),
            data_timestamp: Some(Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            refresh_hint_seconds: self.0.refresh,
        }))
    }

    async fn metadata(
        &self,
        _: Request<MetadataRequest>,
    ) -> Result<Response<MetadataResponse>, Status> {
        let max_token_expiration_seconds = self.0.max_expiration;
        Ok(Response::new(MetadataResponse { max_token_expiration_seconds }))
    }
}

/// Serves a signer beside the server's files, which the server uses.
fn select(config: &mut Config, signer: &FakeSigner) {
    let socket = config.tls_key.with_file_name("signer.sock");
    signer.serve(&socket);
    config.token_keys = TokenKeys::External(socket);
}

async fn server_with(signer: &FakeSigner) -> TestServer {
    start(|config| select(config, signer)).await
}

const TOKENS: &str = "/api/v1/namespaces/kube-system/serviceaccounts/tests/token";

async fn create_account(server: &TestServer) {
    let account = json!({"metadata": {"name": "tests"}});
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
    server.admin().post(accounts, &account).await.ok();
}

async fn token(server: &TestServer, seconds: i64) -> String {
    let request = json!({"spec": {"expirationSeconds": seconds}});
    let answer = server.admin().post(TOKENS, &request).await.ok();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// Returns the status of a request with a token.
async fn code(server: &TestServer, token: &str) -> u16 {
    server.tls(Identity::Token(token.to_owned())).get("/version").await.code
}

#[tokio::test(flavor = "multi_thread")]
async fn accepts_tokens_of_external_signer_while_it_has_their_key() {
    let signer = FakeSigner::new(vec![key("first", false), key("old", true)], 3600, 7200);
    let server = server_with(&signer).await;
    create_account(&server).await;
    let first = token(&server, 86_400).await;
    let header = String::from_utf8(BASE64.decode(first.split('.').next().unwrap()).unwrap());
    assert!(header.unwrap().contains("\"kid\":\"first\""));
    let claims = BASE64.decode(first.split('.').nth(1).unwrap()).unwrap();
    let claims: serde_json::Value = serde_json::from_slice(&claims).unwrap();
    let validity = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!(validity, 7200, "the signer's limit");
    assert_eq!(code(&server, &first).await, 200);

    let listed = server.admin().get("/openid/v1/jwks").await;
    let age = listed.header("cache-control").strip_prefix("public, max-age=").unwrap().to_owned();
    assert!((3000..=3600).contains(&age.parse::<u32>().unwrap()), "{age}");
    let ids: Vec<_> =
        listed.ok()["keys"].as_array().unwrap().iter().map(|key| key["kid"].clone()).collect();
    assert_eq!(ids, ["first"], "hidden keys are not published");

    // A new key is fetched when a token names it, and the token of a removed one becomes invalid.
    *signer.0.keys.lock() = vec![key("second", false)];
    let second = token(&server, 600).await;
    assert_eq!((code(&server, &second).await, code(&server, &first).await), (200, 401));
    let review = json!({"spec": {"token": second}});
    let review =
        server.admin().post("/apis/authentication.k8s.io/v1/tokenreviews", &review).await.ok();
    assert_eq!(review["status"]["user"]["username"], "system:serviceaccount:kube-system:tests");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn fetches_keys_at_signer_interval_and_keeps_them_without_it() {
    let signer = FakeSigner::new(vec![key("first", false)], 1, 7200);
    let server = server_with(&signer).await;
    create_account(&server).await;
    let token = token(&server, 600).await;
    let fetched = signer.0.fetches.load(SeqCst);
    let more = || signer.0.fetches.load(SeqCst) > fetched + 1;
    let (patience, pause) = (Duration::from_secs(30), Duration::from_millis(20));
    assert!(rt::wait_until(patience, pause, more).await);
    *signer.0.fetched.lock() = Some(FetchKeysResponse::default());
    let failed = signer.0.fetches.load(SeqCst);
    assert!(rt::wait_until(patience, pause, || signer.0.fetches.load(SeqCst) > failed).await);
    assert_eq!(code(&server, &token).await, 200);
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_invalid_answers_of_signer() {
    let signer = FakeSigner::new(vec![key("first", false), key("old", true)], 3600, 7200);
    let server = server_with(&signer).await;
    create_account(&server).await;
    let admin = server.admin();
    let good = signer.header("first");
    let with = |text: &str| BASE64.encode(text);
    let none = with(r#"{"alg":"none","kid":"first","typ":"JWT"}"#);
    let more = with(r#"{"alg":"ES256","kid":"first","typ":"JWT","jku":"https://a"}"#);
    for (header, signature, message) in [
        (good.clone(), "", "empty signature returned"),
        (good, "a.b", "while unwrapping signature: "),
        (none, "AA", "while validating header: bad signing algorithm \"none\""),
        (more, "AA", "while validating header: while parsing header JSON: unknown field"),
        (
            signer.header("old"),
            "AA",
            "while validating header: key used for signing JWT (kid: old) is excluded from OIDC discovery docs",
        ),
    ] {
        signer.answer_next(header, signature);
        let answer = admin.post(TOKENS, &json!({"spec": {}})).await;
        let text = String::from_utf8_lossy(&answer.body).replace("\\\"", "\"");
        assert_eq!(answer.code, 500, "{text}");
        assert!(text.contains(&format!("failed to generate token: {message}")), "{text}");
    }
    let failed = Status::unavailable("out of order");
    signer.0.signed.lock().push_back(Err(failed));
    let answer = admin.post(TOKENS, &json!({"spec": {}})).await;
    let text = String::from_utf8_lossy(&answer.body);
    let message = "while signing jwt: rpc error: code = Unavailable desc = out of order";
    assert!(answer.code == 500 && text.contains(message), "{text}");
    // An account that may not create tokens reaches no signer.
    let nobody = server.user("nobody", &[]).post(TOKENS, &json!({"spec": {}})).await;
    assert_eq!(nobody.code, 403);
    server.tasks.shutdown().stop();
}

/// Clients without credentials can name any key.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_fetches_for_tokens_with_unknown_keys() {
    let signer = FakeSigner::new(vec![key("first", false)], 3600, 7200);
    let server = server_with(&signer).await;
    let issuer = "https://kubernetes.default.svc.cluster.local";
    let claims = json!({
        "iss": issuer, "sub": "a", "exp": 2_000_000_000, "aud": [issuer],
        "kubernetes.io": {"namespace": "a", "serviceaccount": {"name": "a"}},
    });
    let claims = BASE64.encode(claims.to_string());
    let before = signer.0.fetches.load(SeqCst);
    let requests = (0..50).map(|kid| {
        let token = format!("{}.{claims}.AA", signer.header(&kid.to_string()));
        let server = &server;
        async move { code(server, &token).await }
    });
    let codes = futures_util::future::join_all(requests).await;
    assert!(codes.iter().all(|code| *code == 401), "{codes:?}");
    let fetched = signer.0.fetches.load(SeqCst) - before;
    assert!((1..=20).contains(&fetched), "{fetched} fetches for 50 tokens");
    server.tasks.shutdown().stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn rejects_unusable_keys_of_signer() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("signer.sock");
    let fake = FakeSigner::new(vec![key("first", false)], 0, 300);
    fake.serve(&socket);
    let signer = Signer::new(&socket);
    assert_eq!(
        signer.fetch_keys().await.unwrap_err().to_string(),
        "found invalid refresh hint (0s)"
    );
    assert_eq!(signer.max_token_expiration().await, Ok(300));
    let time = Some(Timestamp { seconds: 1, nanos: 0 });
    let with = |keys: Vec<PublicKey>, data_timestamp: Option<Timestamp>| {
        let answer = FetchKeysResponse { keys, data_timestamp, refresh_hint_seconds: 1 };
        *fake.0.fetched.lock() = Some(answer);
        signer.fetch_keys()
    };
    let one = |key_id: &str, key: &[u8]| {
        let (key_id, key) = (key_id.to_owned(), key.to_vec());
        vec![PublicKey { key_id, key, exclude_from_oidc_discovery: false }]
    };
    let endless = Timestamp { seconds: i64::MAX, nanos: 0 };
    for (keys, time, message) in [
        (Vec::new(), time, "found no keys"),
        (one("", b"k"), time, "found invalid public key id \"\""),
        (one("a", b""), time, "found empty public key"),
        (one("a", b"k"), None, "invalid data timestamp"),
        (one("a", b"k"), Some(endless), "invalid data timestamp"),
    ] {
        assert_eq!(with(keys, time).await.unwrap_err().to_string(), message);
    }
    let large = with(one("a", &vec![0; 100 << 20]), time).await.unwrap_err().to_string();
    assert!(large.contains("code = OutOfRange"), "{large}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_start_with_unusable_signer() {
    for (refresh, supported, wanted, message) in [
        (0, 7200, None, "while fetching token verification keys: found invalid refresh hint (0s)"),
        (
            3600,
            599,
            None,
            "supported by external-jwt-signer (599s) is less than acceptable (min 600s)",
        ),
        (3600, 7200, Some(7201), "supported by service-account-signing-endpoint: 2h0m1s > 2h0m0s"),
    ] {
        let signer = FakeSigner::new(vec![key("first", false)], refresh, supported);
        let change = |config: &mut Config| {
            select(config, &signer);
            config.max_token_expiration = wanted.map(Duration::from_secs);
        };
        let error = try_start(change, |chain| chain).await.err().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    }
}
