//! Answers requests: decides who may ask and with which rights, finds the page, and sets the headers that all answers
//! have.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use client::Client;
use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{self, BoxFuture},
    stream,
};
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header, request::Parts,
};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use maud::{Markup, html};
use serve::{Body, Handler, answer};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::{
    access::{Access, names_this_machine},
    api::{self, Resource, is_name},
    error::PageError,
    layout::{self, STYLE},
    login::{self, Login, LoginError},
    measurements::Measurements,
    pages::{self, overview::Watches},
    shared::{Readings, Viewer},
};

const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const TIMEOUT: Duration = Duration::from_secs(20);
/// The seconds after which a browser loads a live page again.
const RELOAD: &str = "2";
/// The policy of all pages: no scripts, nothing from elsewhere, no frames.
const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";
/// The policy of the timeline, a page of its own that contains its style.
const TIMELINE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";
const HEADERS: [(HeaderName, &str); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
];

/// The largest body of a form in bytes.
const MAX_FORM: usize = 16 << 10;

/// The only viewer of a dashboard without a login.
const LOCAL: Viewer = [0; 32];

/// The users who may look at the pages.
pub(crate) enum Users {
    /// The user of this machine who knows the key, with the kubeconfig's rights.
    Local { access: Access, client: Client },
    /// Users of other machines, each with the rights of a token.
    Remote(Login),
}

/// The server of the pages.
pub(crate) struct Dashboard {
    pub(crate) users: Users,
    pub(crate) measurements: Arc<Measurements>,
    /// The first page's counts.
    pub(crate) counts: Readings,
    /// The problems on the first page.
    pub(crate) problems: Arc<Readings>,
    /// The caches that the problems are found in.
    pub(crate) watches: Arc<Watches>,
    /// The searches for problems.
    pub(crate) tasks: rt::Tasks,
    /// The directories of the timelines.
    pub(crate) timelines: Vec<PathBuf>,
}

/// A rendered page.
struct Page {
    title: String,
    content: Markup,
    /// `true` if the browser loads it again and again.
    is_live: bool,
}

impl Page {
    fn new(title: impl Into<String>, content: Markup) -> Self {
        Self { title: title.into(), content, is_live: false }
    }
}

impl Handler for Dashboard {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        async move {
            let (head, body) = request.into_parts();
            let mut response = match &self.users {
                Users::Local { access, client } => self.respond(&head, access, client).await,
                Users::Remote(login) => self.respond_remote(&head, body, login).await,
            };
            let headers = response.headers_mut();
            for (name, value) in HEADERS {
                headers.insert(name, HeaderValue::from_static(value));
            }
            headers
                .entry(header::CONTENT_SECURITY_POLICY)
                .or_insert(HeaderValue::from_static(POLICY));
            response
        }
        .boxed()
    }
}

impl Dashboard {
    /// Answers a request on a loopback address.
    async fn respond(&self, request: &Parts, access: &Access, client: &Client) -> Response<Body> {
        let uri = &request.uri;
        if !names_this_machine(uri, &request.headers) {
            return plain(
                StatusCode::FORBIDDEN,
                "use the address that `windlass dashboard` printed\n",
            );
        }
        if !is_read(request) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "the dashboard only reads\n");
        }
        if uri.path() == "/" && access.has_key(uri) {
            return to("/", Some(access.set_cookie()));
        }
        if !access.has_cookie(&request.headers) {
            let message =
                "open the whole address that `windlass dashboard` printed; it contains the key\n";
            return plain(StatusCode::UNAUTHORIZED, message);
        }
        self.read(uri, client, LOCAL, None).await
    }

    /// Answers a request from another machine.
    async fn respond_remote(&self, request: &Parts, body: Body, login: &Login) -> Response<Body> {
        let uri = &request.uri;
        if request.method == Method::POST && uri.path() == "/logout" {
            return match login::leave(uri, &request.headers) {
                Ok(cookie) => to("/login", Some(cookie)),
                Err(error) => refused(&error),
            };
        }
        if request.method == Method::POST && uri.path() == "/login" {
            let entered = tokio::time::timeout(TIMEOUT, enter(request, body, login)).await;
            return match entered.unwrap_or(Err(LoginError::Busy)) {
                Ok(cookie) => to("/", Some(cookie)),
                Err(error) => refused(&error),
            };
        }
        if !is_read(request) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "the dashboard only reads\n");
        }
        match uri.path() {
            "/style.css" => return answer(StatusCode::OK, CSS, STYLE),
            "/login" => return form(StatusCode::OK, None),
            _ => {}
        }
        match login.client(&request.headers) {
            Ok(Some((client, viewer))) => {
                let Some(page) = login.try_page() else {
                    return plain(
                        StatusCode::TOO_MANY_REQUESTS,
                        "too many pages at once; try again\n",
                    );
                };
                self.read(uri, &client, viewer, Some(page)).await
            }
            // The user may be logged in: browsers send no cookie when the user follows a link from another site.
            Ok(None) => to("/login", None),
            Err(error) => refused(&error),
        }
    }

    /// Returns the page of a user with the client's rights. `permit` is held until the page has been read from the API
    /// server, however slowly the browser takes it.
    async fn read(
        &self,
        uri: &Uri,
        client: &Client,
        viewer: Viewer,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Response<Body> {
        let path = uri.path();
        if path == "/style.css" {
            return answer(StatusCode::OK, CSS, STYLE);
        }
        let query = Parameters::of(uri.query().unwrap_or_default());
        let shown = async {
            if self.is_remote() && ["/timeline", "/measurements"].contains(&path) {
                login::check_machine(client).await?;
            }
            if path == "/timeline" {
                return self.timeline();
            }
            if path == "/" {
                return self.overview(client, viewer, permit).await;
            }
            let page = self.page(client, path, &query).await?;
            Ok(self.rendered(StatusCode::OK, path, &page))
        };
        match tokio::time::timeout(TIMEOUT, shown).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => self.failed(path, &error),
            Err(_) => self.failed(path, &PageError::Timeout(TIMEOUT)),
        }
    }

    fn is_remote(&self) -> bool {
        matches!(self.users, Users::Remote(_))
    }

    /// Returns the first page, which viewers with the same credentials share. Each viewer's credentials are checked
    /// first, and no other request is sent if the API server does not know them. The counts are sent at once, and the
    /// problems when the search for them has ended.
    async fn overview(
        &self,
        client: &Client,
        viewer: Viewer,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Response<Body>, PageError> {
        api::check_user(client).await?;
        let counts = self.counts.get(viewer, pages::overview::counts(client)).await;
        let content = html! { (counts) (layout::later("Searching nodes, Pods and workloads …")) };
        let page = layout::page("Overview", "/", self.is_remote(), &content);
        let (head, tail) = layout::split(page);
        let (problems, watches) = (self.problems.clone(), self.watches.clone());
        let client = client.clone();
        let (mut sender, found) = oneshot::channel();
        // A separate task ends the search at its deadline and returns the permit, even if the peer stops reading: the
        // body is polled only while the peer reads.
        self.tasks.spawn_until_shutdown("overview", async move {
            let _permit = permit;
            let search = problems.get(viewer, pages::overview::problems(&client, &watches));
            let found = tokio::select! {
                found = tokio::time::timeout(TIMEOUT, search) => found,
                // The browser has closed the connection.
                () = sender.closed() => return,
            };
            let late = |_| layout::failure(&PageError::Timeout(TIMEOUT).message());
            let _ = sender.send(found.unwrap_or_else(late));
        });
        let rest = async move {
            let found = found.await.unwrap_or_else(|_| layout::failure("the search was stopped"));
            found.into_string() + &tail
        };
        let parts = stream::once(future::ready(head)).chain(stream::once(rest));
        let frames = parts.map(|text| Ok(Frame::data(Bytes::from(text))));
        let mut response = answer(StatusCode::OK, HTML, "");
        *response.body_mut() = StreamBody::new(frames).boxed_unsync();
        Ok(response)
    }

    async fn page(
        &self,
        client: &Client,
        path: &str,
        query: &Parameters,
    ) -> Result<Page, PageError> {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match *segments.as_slice() {
            ["kinds"] => Ok(Page::new("All kinds", pages::kinds::content(client).await?)),
            ["measurements"] => {
                let content = pages::measurements::content(&self.measurements);
                Ok(Page { is_live: query.is_live(), ..Page::new("Measurements", content) })
            }
            ["list", group, version, plural] => {
                let resource =
                    Resource::parse(group, version, plural).ok_or(PageError::NotFound)?;
                let (namespace, next) = (query.get("namespace"), query.get("continue"));
                if !namespace.is_empty() && !is_name(&namespace) {
                    return Err(PageError::NotFound);
                }
                let content = pages::list::content(client, &resource, &namespace, &next).await?;
                Ok(Page::new(plural, content))
            }
            ["object", group, version, plural, namespace, name] => {
                let resource =
                    Resource::parse(group, version, plural).ok_or(PageError::NotFound)?;
                let (namespace, name) = names(namespace, name)?;
                let content = pages::object::content(client, &resource, namespace, name).await?;
                Ok(Page::new(format!("{plural} {name}"), content))
            }
            ["log", namespace, pod, container] if is_name(container) => {
                let (namespace, pod) = names(namespace, pod)?;
                let previous = query.get("previous") == "true";
                let content =
                    pages::log::content(client, namespace, pod, container, previous).await?;
                Ok(Page {
                    is_live: query.is_live(),
                    ..Page::new(format!("Log of {pod}: {container}"), content)
                })
            }
            _ => Err(PageError::NotFound),
        }
    }

    fn failed(&self, path: &str, error: &PageError) -> Response<Body> {
        let (status, message) = (error.status(), error.message());
        // The token has expired.
        if self.is_remote() && status == StatusCode::UNAUTHORIZED {
            return form(status, Some(&message));
        }
        self.rendered(status, path, &Page::new("Nothing to see", layout::failure(&message)))
    }

    fn rendered(&self, status: StatusCode, path: &str, page: &Page) -> Response<Body> {
        let text = layout::page(&page.title, path, self.is_remote(), &page.content).into_string();
        let mut response = answer(status, HTML, text);
        if page.is_live {
            response.headers_mut().insert(header::REFRESH, HeaderValue::from_static(RELOAD));
        }
        response
    }

    /// Returns the timelines of this machine's clusters. The browser reloads the page while steps are added.
    fn timeline(&self) -> Result<Response<Body>, PageError> {
        let mut steps = Vec::new();
        for directory in &self.timelines {
            steps.extend(telemetry::timeline::load(directory)?);
        }
        let mut response = answer(StatusCode::OK, HTML, telemetry::timeline::html(&steps));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(TIMELINE_POLICY));
        headers.insert(header::REFRESH, HeaderValue::from_static(RELOAD));
        Ok(response)
    }
}

fn is_read(request: &Parts) -> bool {
    request.method == Method::GET || request.method == Method::HEAD
}

/// Reads the form of a login, and checks its token.
async fn enter(request: &Parts, body: Body, login: &Login) -> Result<String, LoginError> {
    let form = client::read("/login", body, MAX_FORM).await.map_err(|_| LoginError::Form)?;
    let form = std::str::from_utf8(&form).map_err(|_| LoginError::Form)?;
    let token = Parameters::of(form).get("token");
    login.enter(&request.uri, &request.headers, &token).await
}

/// Returns the page with the form of the login.
fn form(status: StatusCode, message: Option<&str>) -> Response<Body> {
    answer(status, HTML, layout::frame("Log in", &login::page(message)).into_string())
}

fn refused(error: &LoginError) -> Response<Body> {
    form(error.status(), Some(&error.to_string()))
}

/// Redirects to another page and may set a cookie, so that the address no longer contains the key.
fn to(path: &'static str, cookie: Option<String>) -> Response<Body> {
    let mut response = plain(StatusCode::SEE_OTHER, "");
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(path));
    if let Some(cookie) = cookie.and_then(|cookie| cookie.parse().ok()) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

/// Checks the namespace, or `-` for none, and the name in a path.
fn names<'a>(namespace: &'a str, name: &'a str) -> Result<(&'a str, &'a str), PageError> {
    match (namespace, name) {
        ("-", name) if is_name(name) => Ok(("", name)),
        (namespace, name) if is_name(namespace) && is_name(name) => Ok((namespace, name)),
        _ => Err(PageError::NotFound),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", text)
}

/// The parameters of a query.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn of(query: &str) -> Self {
        let decode = |text: &str| api_meta::query_decode(text);
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.filter_map(|(name, value)| Some((decode(name)?, decode(value)?))).collect())
    }

    fn get(&self, name: &str) -> String {
        let found = self.0.iter().find(|(found, _)| found == name);
        found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    }

    fn is_live(&self) -> bool {
        self.get("live") == "true"
    }
}
