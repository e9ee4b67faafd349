//! Serves health and metrics of the controller manager and the scheduler over TLS, like upstream.
//!
//! Health is public. For the rest, a client needs a certificate of the client CA or a token, and the API server
//! authenticates and authorizes it.

use std::{
    fmt::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use api_config::known::{self, Flag, KnownFlags};
use api_meta::{
    UserInfo,
    user::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_UNAUTHENTICATED},
};
use auth::authn::certificate::ClientCa;
use client::{Client, Resource};
use http::{Method, Request, Response, StatusCode, header};
use pki::AltName;
use serde_json::{Value, json};
use serve::{Body, Connection, Handler, ServerTls};
use telemetry::metrics::{self, Metrics};
use tokio::net::TcpListener;

use crate::failure::Failure;

/// The flags of every component that serves diagnostics, except the address.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub(crate) struct Args {
    /// The certificate for health and metrics [default: generated at every start]
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// The lowest TLS version: VersionTLS12 or VersionTLS13
    #[arg(long, default_value = "")]
    tls_min_version: String,
    /// The cipher suites of TLS 1.2; those of TLS 1.3 are always on
    #[arg(long, value_delimiter = ',')]
    tls_cipher_suites: Vec<String>,
    #[command(flatten)]
    refused: KnownFlags<RefusedFlags>,
    #[command(flatten)]
    ignored: KnownFlags<IgnoredFlags>,
}

/// The flags that request security features that do not exist here.
const REFUSED: &[Flag] = &[
    ("authorization-always-allow-paths", true, "only health is public"),
    ("requestheader-uid-headers", true, "front proxies are not trusted"),
    ("disable-http2-serving", false, "clients choose between HTTP/1.1 and HTTP/2"),
    ("master", true, "the kubeconfig names the API server and its CA"),
    ("tls-curve-preferences", true, "the curves are X25519, P-256 and P-384"),
    ("tls-sni-cert-key", true, "there is one serving certificate"),
];

const NO_PROXY: &str = "front proxies are not trusted";
const NO_CACHE: &str = "the API server decides every request";

/// Upstream's flags that are accepted without effect.
const IGNORED: &[Flag] = &[
    ("authentication-skip-lookup", false, "the API server's configuration is not read"),
    ("authentication-token-webhook-cache-ttl", true, NO_CACHE),
    ("authentication-tolerate-lookup-failure", false, "there is no lookup at the start"),
    ("authorization-webhook-cache-authorized-ttl", true, NO_CACHE),
    ("authorization-webhook-cache-unauthorized-ttl", true, NO_CACHE),
    ("cert-dir", true, "a generated certificate stays in memory"),
    ("http2-max-streams-per-connection", true, "there are few connections"),
    ("permit-address-sharing", false, "the address is not shared"),
    ("permit-port-sharing", false, "the port is not shared"),
    ("requestheader-allowed-names", true, NO_PROXY),
    ("requestheader-extra-headers-prefix", true, NO_PROXY),
    ("requestheader-group-headers", true, NO_PROXY),
    ("requestheader-username-headers", true, NO_PROXY),
    ("unsupported-kube-api-over-localhost", false, "the API server is the kubeconfig's"),
];

/// The table of refused flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedFlags;

impl known::Tables for RefusedFlags {
    const TABLES: &'static [&'static [Flag]] = &[REFUSED];
}

/// The table of ignored flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredFlags;

impl known::Tables for IgnoredFlags {
    const TABLES: &'static [&'static [Flag]] = &[IGNORED];
}

/// The settings of a component's diagnostics.
pub(crate) struct Diagnostics<'a> {
    /// The name of the component.
    pub(crate) component: &'static str,
    /// The address to listen on.
    pub(crate) address: SocketAddr,
    /// The CA of client certificates; without it, certificates are rejected.
    pub(crate) client_ca: Option<&'a Path>,
    /// The client for TokenReviews; without it, tokens are rejected.
    pub(crate) authentication: Option<Client>,
    /// The client for SubjectAccessReviews; without it, only administrators are authorized.
    pub(crate) authorization: Option<Client>,
}

/// Serves until shutdown. Port 0 disables serving, as upstream.
pub(crate) async fn serve(
    settings: Diagnostics<'_>,
    args: &Args,
    tasks: &rt::Tasks,
) -> Result<(), Failure> {
    if let Some((flag, reason)) = args.refused.given().next() {
        return Err(format!("--{flag} is not supported: {reason}; start without it").into());
    }
    let policy = serve::TlsPolicy::new(&args.tls_min_version, &args.tls_cipher_suites)?;
    args.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    if settings.address.port() == 0 {
        return Ok(());
    }
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| format!("reading {}: {error}", path.display()))
    };
    let client_ca =
        settings.client_ca.map(|path| Ok::<_, Failure>(ClientCa::from_pem(&read(path)?)?));
    let client_ca = client_ca.transpose()?;
    let hints = client_ca.as_ref().map(ClientCa::authorities).unwrap_or_default();
    let tls = match (&args.tls_cert_file, &args.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            ServerTls::from_files_under(policy, certificate, key, hints)?
        }
        _ => {
            // Probes do not verify the certificate.
            let names = vec![AltName::dns("localhost"), AltName::Ip(settings.address.ip())];
            let (certificate, key) = pki::self_signed(settings.component, names, rt::now())?;
            ServerTls::new_under(&policy, &certificate, &key, hints)?
        }
    };
    let listener = TcpListener::bind(settings.address)
        .await
        .map_err(|error| format!("listening for health checks on {}: {error}", settings.address))?;
    let metrics = Metrics::default();
    let build = metrics.gauges(
        "kubernetes_build_info",
        "The version, as a label.",
        &["component", "git_version"],
    );
    build.with_label_values(&[settings.component, apiserver::KUBERNETES_VERSION]).set(1.0);
    let handler = DiagnosticsHandler {
        client_ca,
        authentication: settings.authentication,
        authorization: settings.authorization,
        metrics,
        tasks: tasks.clone(),
    };
    // Only probes and a few scrapers connect: more connections are an attack or a leak.
    let limits = serve::Limits { connections: 64, ..serve::Limits::default() };
    let serving = serve::serve(listener, Some(tls), limits, Arc::new(handler), tasks.clone());
    tasks.essential("diagnostics", serving);
    Ok(())
}

struct DiagnosticsHandler {
    client_ca: Option<ClientCa>,
    authentication: Option<Client>,
    authorization: Option<Client>,
    metrics: Metrics,
    tasks: rt::Tasks,
}

impl Handler for DiagnosticsHandler {
    fn handle(
        &self,
        request: Request<Body>,
    ) -> futures_util::future::BoxFuture<'_, Response<Body>> {
        // The body is not needed, so drop it before calling the API server.
        let (parts, _) = request.into_parts();
        Box::pin(async move {
            let (status, content) = self.respond(&parts).await;
            let kind = match parts.uri.path() {
                "/metrics" => metrics::CONTENT_TYPE,
                _ => "text/plain; charset=utf-8",
            };
            serve::answer(status, kind, content)
        })
    }
}

impl DiagnosticsHandler {
    async fn respond(&self, request: &http::request::Parts) -> (StatusCode, String) {
        let path = request.uri.path();
        if ["/healthz", "/livez", "/readyz"].contains(&path) {
            let verbose = request.uri.query().is_some_and(|query| has_parameter(query, "verbose"));
            return health(&self.tasks, path.trim_start_matches('/'), verbose);
        }
        let Some(user) = self.user(request).await else {
            return (StatusCode::UNAUTHORIZED, "Unauthorized\n".to_owned());
        };
        let verb = match request.method {
            Method::GET | Method::HEAD => "get",
            _ => "post",
        };
        if !self.is_authorized(&user, verb, path).await {
            let message = format!("forbidden: User {:?} cannot {verb} path {path:?}\n", user.name);
            return (StatusCode::FORBIDDEN, message);
        }
        match path {
            "/metrics" => (StatusCode::OK, self.metrics.text()),
            _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        }
    }

    /// Authenticates a request. Returns `None` if the credentials are rejected.
    async fn user(&self, request: &http::request::Parts) -> Option<UserInfo> {
        let connection = request.extensions.get::<Arc<Connection>>();
        let chain = connection.map_or(&[][..], |c| &c.client_certificates);
        if let (Some(ca), false) = (&self.client_ca, chain.is_empty()) {
            return match ca.verify(chain, rt::now()) {
                Ok(Some(verified)) => {
                    let mut user = verified.user;
                    user.groups.push(GROUP_AUTHENTICATED.to_owned());
                    Some(user)
                }
                Ok(None) => None,
                Err(error) => {
                    tracing::debug!(%error, "rejected a client certificate");
                    None
                }
            };
        }
        let Some(credentials) = request.headers.get(header::AUTHORIZATION) else {
            return Some(UserInfo::new(ANONYMOUS, &[GROUP_UNAUTHENTICATED]));
        };
        let (kind, token) = credentials.to_str().ok()?.split_once(' ')?;
        if !kind.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let review = json!({"spec": {"token": token.trim()}});
        let client = self.authentication.as_ref()?;
        let status = review_of(client, &Resource::TOKEN_REVIEWS, &review).await?;
        (status["authenticated"] == true)
            .then(|| serde_json::from_value(status["user"].clone()).ok())
            .flatten()
    }

    async fn is_authorized(&self, user: &UserInfo, verb: &str, path: &str) -> bool {
        if user.groups.iter().any(|group| group == GROUP_MASTERS) {
            return true;
        }
        let Some(client) = &self.authorization else { return false };
        let review = json!({"spec": {
            "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": verb},
        }});
        let status = review_of(client, &Resource::SUBJECT_ACCESS_REVIEWS, &review).await;
        status.is_some_and(|status| status["allowed"] == true)
    }
}

/// Returns `true` if a query has a parameter of this name.
fn has_parameter(query: &str, name: &str) -> bool {
    query.split('&').any(|pair| pair.split('=').next() == Some(name))
}

/// Returns the health in upstream's format. An ended loop fails every check. An unsynced informer fails only readiness,
/// and other checks merely list it: a restart by a liveness probe would not restore a missing permission.
fn health(tasks: &rt::Tasks, check: &str, verbose: bool) -> (StatusCode, String) {
    let mut text = String::from("[+]ping ok\n");
    let (missing, unready) = (tasks.missing(), tasks.not_ready());
    for name in missing.iter().map(|task| &task.name).chain(&unready) {
        let _ = writeln!(text, "[-]{name} failed: reason withheld");
    }
    if missing.is_empty() && (unready.is_empty() || check != "readyz") {
        let passed = format!("{text}{check} check passed\n");
        return (StatusCode::OK, if verbose { passed } else { "ok".to_owned() });
    }
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{text}{check} check failed\n"))
}

/// Creates a review and returns its status.
async fn review_of(client: &Client, resource: &Resource, review: &Value) -> Option<Value> {
    match client.create::<_, Value>(resource, "", review).await {
        Ok(mut review) => Some(review["status"].take()),
        Err(error) => {
            tracing::warn!(%error, kind = %resource.kind, "a review by the API server failed");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reports_panicked_loop_and_unready_informer() {
        let tasks = rt::Tasks::new(rt::Shutdown::new());
        assert_eq!(health(&tasks, "healthz", false), (StatusCode::OK, "ok".to_owned()));
        let unready = tasks.unready("informer of pods");
        let named = "[+]ping ok\n[-]informer of pods failed: reason withheld\n";
        let (status, text) = health(&tasks, "readyz", false);
        assert_eq!((status.as_u16(), text), (500, format!("{named}readyz check failed\n")));
        let (status, text) = health(&tasks, "healthz", true);
        assert_eq!((status.as_u16(), text), (200, format!("{named}healthz check passed\n")));
        drop(unready);
        tasks.keep("node monitor", || async { panic!("a secret") });
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        for check in ["healthz", "livez", "readyz"] {
            let (status, text) = health(&tasks, check, false);
            assert_eq!(status.as_u16(), 500, "{check}");
            assert!(text.contains("[-]node monitor failed: reason withheld\n"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
