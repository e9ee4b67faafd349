//! Tests with shell scripts as providers.

use std::{fs, path::Path, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_config::CredentialProviderPaths;
use kubelet_objects::Objects;
use pod_core::Timestamp;
use serde_json::json;
use tempfile::TempDir;

use super::{PodAccount, Providers, ProvidersError, provider::Provided};

const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// A directory with providers' programs and their configuration.
struct Setup {
    dir: TempDir,
    entries: Vec<serde_json::Value>,
}

impl Setup {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), entries: Vec::new() }
    }

    /// Adds a provider whose program is a shell script.
    fn provider(&mut self, name: &str, pattern: &str, script: &str) -> &mut serde_json::Value {
        let path = self.dir.path().join(name);
        testkit::write_script(&path, script);
        self.entries.push(json!({
            "name": name, "matchImages": [pattern], "defaultCacheDuration": "10m", "apiVersion": V1,
        }));
        self.entries.last_mut().unwrap()
    }

    fn load(&self) -> Result<Providers, ProvidersError> {
        self.load_with(true)
    }

    /// Loads the providers. `account_tokens` is the feature gate of service account tokens.
    fn load_with(&self, account_tokens: bool) -> Result<Providers, ProvidersError> {
        let file = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
            "providers": self.entries,
        });
        let config = self.dir.path().join("config.yaml");
        fs::write(&config, file.to_string()).unwrap();
        let programs = self.dir.path().to_owned();
        Providers::load(Some(&CredentialProviderPaths { config, programs, account_tokens }))
    }

    /// Returns the number of runs that a script recorded with `echo >> runs`.
    fn runs(&self) -> usize {
        let runs = fs::read_to_string(self.dir.path().join("runs")).unwrap_or_default();
        runs.lines().count()
    }
}

/// Returns a script that prints a response with these fields.
fn response(fields: &str) -> String {
    format!(
        r#"cat > "$(dirname "$0")/request"
echo run >> "$(dirname "$0")/runs"
cat <<END
{{"kind": "CredentialProviderResponse", "apiVersion": "{V1}", {fields}}}
END"#
    )
}

fn auth(pattern: &str, user: &str) -> String {
    format!(r#""auth": {{"{pattern}": {{"username": "{user}", "password": "secret"}}}}"#)
}

async fn credentials_of(providers: &Providers, image: &str, api: &testkit::FakeApi) -> Provided {
    credentials_by(providers, image, api.client("kubelet")).await
}

async fn credentials_by(providers: &Providers, image: &str, api: client::Client) -> Provided {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "pod-uid"},
        "spec": {"containers": [], "serviceAccountName": "builder"},
    }))
    .unwrap();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let objects = Objects::new(Some(api), &tasks);
    let now = Timestamp::from_second(1_790_000_000).unwrap();
    providers.credentials(image, &PodAccount { pod: &pod, objects: &objects, now }).await
}

/// An API server with one service account.
struct AccountApi;

impl client::Transport for AccountApi {
    fn send(
        &self,
        request: http::Request<client::Body>,
    ) -> futures_util::future::BoxFuture<'_, Result<http::Response<client::Body>, client::Error>>
    {
        let body = match request.uri().path() {
            "/api/v1/namespaces/ns/serviceaccounts/builder/token" => json!({ "status": {
                "token": "account-token", "expirationTimestamp": "2100-01-01T00:00:00Z" } }),
            _ => json!({ "metadata": { "name": "builder", "namespace": "ns", "uid": "account-uid",
                "annotations": { "example.com/role": "r", "private": "x" } } }),
        };
        Box::pin(async move { Ok(http::Response::new(client::full(body.to_string()))) })
    }
}

fn users(provided: &Provided) -> Vec<&str> {
    provided.credentials.iter().map(|credential| credential.username.as_str()).collect()
}

fn request(dir: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(dir.join("request")).unwrap()).unwrap()
}

#[tokio::test]
async fn returns_credentials_of_providers_that_match_the_image() {
    let (mut setup, api) = (Setup::new(), testkit::FakeApi::default());
    let global = response(&format!(
        r#""cacheKeyType": "Global", {}"#,
        auth("*.registry.example", "$NAME-$1")
    ));
    let entry = setup.provider("first", "*.registry.example", &global);
    entry["args"] = json!(["argument"]);
    entry["env"] = json!([{"name": "NAME", "value": "value"}]);
    setup.provider("other", "other.example", "exit 1");
    let providers = setup.load().unwrap();
    let provided = credentials_of(&providers, "a.registry.example/team/app:1", &api).await;
    assert_eq!(users(&provided), ["value-argument"]);
    assert!(provided.errors.is_empty(), "a provider of another registry was run");
    assert_eq!(
        request(setup.dir.path()),
        json!({ "kind": "CredentialProviderRequest", "apiVersion": V1, "image": "a.registry.example/team/app" })
    );
    assert!(credentials_of(&providers, "app:1", &api).await.credentials.is_empty());
}

#[tokio::test]
async fn caches_responses_by_key_type_and_duration() {
    for (fields, runs) in [
        (r#""cacheKeyType": "Global""#, [1, 1, 1, 1]),
        (r#""cacheKeyType": "Registry""#, [1, 1, 1, 2]),
        (r#""cacheKeyType": "Image""#, [1, 1, 2, 3]),
        (r#""cacheKeyType": "Global", "cacheDuration": "0s""#, [1, 2, 3, 4]),
    ] {
        let (mut setup, api) = (Setup::new(), testkit::FakeApi::default());
        setup.provider(
            "cached",
            "*.example",
            &response(&format!("{fields}, {}", auth("*.example", "u"))),
        );
        let providers = setup.load().unwrap();
        let images = ["a.example/app:1", "a.example/app:2", "a.example/web", "b.example/app"];
        for (image, runs) in images.into_iter().zip(runs) {
            assert_eq!(users(&credentials_of(&providers, image, &api).await), ["u"], "{fields}");
            assert_eq!(setup.runs(), runs, "{fields} {image}");
        }
    }
}

#[tokio::test]
async fn goes_on_with_other_providers_if_one_fails() {
    let wrong_version = response(r#""cacheKeyType": "Image""#).replace(V1, "v2");
    for (script, cause) in [
        ("exit 3", "exit status: 3"),
        ("echo secret garbage", "its program's response is malformed"),
        ("head -c 2000000 /dev/zero; sleep 1000", "printed more than 1048576 bytes"),
        ("sleep 1000", "did not end within 1s and was killed"),
        ("sleep 1000 & exec sleep 1000", "did not end within 1s and was killed"),
        (&response(r#""cacheKeyType": "Pod""#), "did not return a valid cacheKeyType: \"Pod\""),
        (&response(r#""cacheKeyType": "Image", "cacheDuration": "-1s""#), "which is negative"),
        (&wrong_version, "expected CredentialProviderResponse"),
        ("exec >&-; kill -9 $$", "signal: 9"),
    ] {
        let (mut setup, api) = (Setup::new(), testkit::FakeApi::default());
        setup.provider("bad", "a.example", script);
        let good = response(&format!(r#""cacheKeyType": "Image", {}"#, auth("a.example", "good")));
        setup.provider("good", "a.example", &good);
        let mut providers = setup.load().unwrap();
        providers.limit_time(Duration::from_secs(1));
        let provided = credentials_of(&providers, "a.example/app", &api).await;
        assert_eq!(users(&provided), ["good"], "{script}");
        let error = provided.errors[0].to_string();
        assert!(error.starts_with("image credential provider \"bad\": "), "{error}");
        assert!(error.contains(cause) && !error.contains("secret"), "{script}: {error}");
    }
}

#[tokio::test]
async fn kills_children_of_a_provider_that_hangs() {
    let (mut setup, api) = (Setup::new(), testkit::FakeApi::default());
    let script = r#"sleep 1000 & echo $! > "$(dirname "$0")/child"; wait"#;
    setup.provider("hangs", "a.example", script);
    let mut providers = setup.load().unwrap();
    providers.limit_time(Duration::from_millis(500));
    let provided = credentials_of(&providers, "a.example/app", &api).await;
    assert_eq!(provided.errors.len(), 1);
    let child = fs::read_to_string(setup.dir.path().join("child")).unwrap();
    let stat = format!("/proc/{}/stat", child.trim());
    let is_gone = || {
        let stat = fs::read_to_string(&stat).unwrap_or_default();
        // A process that nobody waits for stays as a zombie.
        stat.is_empty() || stat.contains(") Z ")
    };
    let gone = rt::wait_until(Duration::from_secs(5), Duration::from_millis(10), is_gone).await;
    assert!(gone, "the program's child still runs");
}

#[tokio::test]
async fn sends_service_account_token_and_annotations() {
    let (mut setup, api) = (Setup::new(), testkit::FakeApi::default());
    let script = response(&format!(r#""cacheKeyType": "Global", {}"#, auth("a.example", "u")));
    let entry = setup.provider("tokens", "a.example", &script);
    entry["tokenAttributes"] = json!({
        "serviceAccountTokenAudience": "registry", "requireServiceAccount": true, "cacheType": "ServiceAccount",
        "requiredServiceAccountAnnotationKeys": ["example.com/role"],
        "optionalServiceAccountAnnotationKeys": ["example.com/other"],
    });
    let providers = setup.load().unwrap();
    let provided = credentials_of(&providers, "a.example/app", &api).await;
    let error = provided.errors[0].to_string();
    assert!(error.contains("the service account \"builder\" does not exist"), "{error}");
    let account = |annotations: serde_json::Value| {
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
            "name": "builder", "namespace": "ns", "uid": "account-uid", "annotations": annotations } })
    };
    let accounts = &client::Resource::SERVICE_ACCOUNTS;
    api.create(accounts, account(json!({ "private": "x" }))).await;
    let provided = credentials_of(&providers, "a.example/app", &api).await;
    let error = provided.errors[0].to_string();
    assert!(error.contains("lacks the annotation \"example.com/role\""), "{error}");
    assert_eq!(setup.runs(), 0, "the program ran without the required annotation");

    let api = client::Client::new(std::sync::Arc::new(AccountApi), "kubelet");
    let provided = credentials_by(&providers, "a.example/app", api).await;
    let account = provided.credentials[0].account.as_ref().unwrap();
    assert_eq!((account.name.as_str(), account.uid.as_str()), ("builder", "account-uid"));
    assert_eq!(
        request(setup.dir.path()),
        json!({ "kind": "CredentialProviderRequest", "apiVersion": V1, "image": "a.example/app",
            "serviceAccountToken": "account-token", "serviceAccountAnnotations": { "example.com/role": "r" } })
    );
}

#[test]
fn rejects_invalid_configuration() {
    type Change = fn(&mut serde_json::Value);
    let changes: [(Change, &str); 11] = [
        (|entry| entry["name"] = json!("../up"), "provider name cannot be empty"),
        (|entry| entry["name"] = json!(".."), "provider name cannot be empty"),
        (|entry| entry["name"] = json!("absent"), "cannot be executed"),
        (|entry| entry["apiVersion"] = json!("v1"), "supported values"),
        (|entry| entry["matchImages"] = json!([]), "at least 1 item in matchImages"),
        (
            |entry| entry["defaultCacheDuration"] = json!(null),
            "defaultCacheDuration: good: required",
        ),
        (|entry| entry["defaultCacheDuration"] = json!("-1s"), "greater than or equal to 0"),
        (|entry| entry["tokenAttributes"] = json!({}), "serviceAccountTokenAudience is required"),
        (
            |entry| entry["tokenAttributes"] = json!({"serviceAccountTokenAudience": "a"}),
            "requireServiceAccount is required",
        ),
        (
            |entry| {
                entry["tokenAttributes"] =
                    json!({"serviceAccountTokenAudience": "a", "requireServiceAccount": true});
            },
            "cacheType is required",
        ),
        (
            |entry| {
                entry["apiVersion"] = json!("credentialprovider.kubelet.k8s.io/v1beta1");
                entry["tokenAttributes"] = json!({"serviceAccountTokenAudience": "a"});
            },
            "only supported for credentialprovider.kubelet.k8s.io/v1",
        ),
    ];
    for (change, cause) in changes {
        let mut setup = Setup::new();
        change(setup.provider("good", "a.example", "exit 0"));
        let error = setup.load().err().unwrap().to_string();
        assert!(error.contains(cause), "{error}");
    }
    let mut setup = Setup::new();
    setup.provider("good", "a.example", "exit 0")["tokenAttributes"] = json!({
        "serviceAccountTokenAudience": "a", "requireServiceAccount": true, "cacheType": "Token" });
    assert!(setup.load_with(true).is_ok());
    let error = setup.load_with(false).err().unwrap().to_string();
    assert!(error.contains("KubeletServiceAccountTokenForCredentialProviders"), "{error}");
    let mut setup = Setup::new();
    assert!(setup.load().err().unwrap().to_string().contains("at least 1 item in plugins"));
    setup.provider("twice", "a.example", "exit 0");
    setup.provider("twice", "b.example", "exit 0");
    assert!(setup.load().err().unwrap().to_string().contains("duplicate provider name \"twice\""));
}

#[test]
fn merges_files_of_a_directory_in_the_order_of_their_names() {
    let (mut setup, dir) = (Setup::new(), tempfile::tempdir().unwrap());
    let paths = CredentialProviderPaths {
        config: dir.path().to_owned(),
        programs: setup.dir.path().to_owned(),
        account_tokens: true,
    };
    let load = || Providers::load(Some(&paths)).map_err(|error| error.to_string());
    assert!(load().err().unwrap().contains("no configuration files found in directory"));
    for (file, name) in [("b.yml", "one"), ("a.json", "two"), ("c.txt", "three")] {
        let entry = setup.provider(name, "a.example", "exit 0").clone();
        let text = json!({
            "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [entry],
        });
        fs::write(dir.path().join(file), text.to_string()).unwrap();
    }
    assert!(load().is_ok());
    fs::write(dir.path().join("d.yaml"), "kind: Pod\napiVersion: v1\n").unwrap();
    assert!(load().err().unwrap().contains("no kind \"Pod\" is known for version \"v1\""));
}
