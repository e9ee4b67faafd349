//! Answers requests: decides who may ask, finds the page, and sets the headers that all answers have.

use std::{path::PathBuf, sync::Arc, time::Duration};

use client::Client;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use maud::Markup;
use serve::{Body, Handler, answer};

use crate::{
    access::{Access, names_this_machine},
    api::{Resource, is_name},
    error::PageError,
    layout::{self, STYLE},
    measurements::Measurements,
    pages,
};

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

/// The server of the pages.
pub(crate) struct Dashboard {
    pub(crate) client: Client,
    pub(crate) access: Access,
    pub(crate) measurements: Arc<Measurements>,
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
            let (head, _) = request.into_parts();
            let mut response = self.respond(&head).await;
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
    async fn respond(&self, request: &http::request::Parts) -> Response<Body> {
        let uri = &request.uri;
        if !names_this_machine(uri, &request.headers) {
            return plain(
                StatusCode::FORBIDDEN,
                "use the address that `windlass dashboard` printed\n",
            );
        }
        if request.method != Method::GET && request.method != Method::HEAD {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "the dashboard only reads\n");
        }
        if uri.path() == "/" && self.access.has_key(uri) {
            return self.enter();
        }
        if !self.access.has_cookie(&request.headers) {
            let message =
                "open the whole address that `windlass dashboard` printed; it contains the key\n";
            return plain(StatusCode::UNAUTHORIZED, message);
        }
        match uri.path() {
            "/style.css" => answer(StatusCode::OK, "text/css; charset=utf-8", STYLE),
            "/timeline" => self.timeline(),
            path => {
                let query = Parameters::of(uri.query().unwrap_or_default());
                let page = tokio::time::timeout(TIMEOUT, self.page(path, &query)).await;
                self.rendered(path, page.unwrap_or(Err(PageError::Timeout(TIMEOUT))))
            }
        }
    }

    /// Sets the cookie and leads to the first page without the key in its address.
    fn enter(&self) -> Response<Body> {
        let mut response = plain(StatusCode::SEE_OTHER, "");
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/"));
        if let Ok(cookie) = self.access.set_cookie().parse() {
            response.headers_mut().insert(header::SET_COOKIE, cookie);
        }
        response
    }

    async fn page(&self, path: &str, query: &Parameters) -> Result<Page, PageError> {
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        match *segments.as_slice() {
            [""] => Ok(Page::new("Overview", pages::overview::content(&self.client).await)),
            ["kinds"] => Ok(Page::new("All kinds", pages::kinds::content(&self.client).await?)),
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
                let content =
                    pages::list::content(&self.client, &resource, &namespace, &next).await?;
                Ok(Page::new(plural, content))
            }
            ["object", group, version, plural, namespace, name] => {
                let resource =
                    Resource::parse(group, version, plural).ok_or(PageError::NotFound)?;
                let (namespace, name) = names(namespace, name)?;
                let content =
                    pages::object::content(&self.client, &resource, namespace, name).await?;
                Ok(Page::new(format!("{plural} {name}"), content))
            }
            ["log", namespace, pod, container] if is_name(container) => {
                let (namespace, pod) = names(namespace, pod)?;
                let previous = query.get("previous") == "true";
                let content =
                    pages::log::content(&self.client, namespace, pod, container, previous).await?;
                Ok(Page {
                    is_live: query.is_live(),
                    ..Page::new(format!("Log of {pod}: {container}"), content)
                })
            }
            _ => Err(PageError::NotFound),
        }
    }

    fn rendered(&self, path: &str, page: Result<Page, PageError>) -> Response<Body> {
        let (status, page) = match page {
            Ok(page) => (StatusCode::OK, page),
            Err(error) => {
                (error.status(), Page::new("Nothing to see", layout::failure(&error.message())))
            }
        };
        let text = layout::page(&page.title, path, &page.content).into_string();
        let mut response = answer(status, HTML, text);
        if page.is_live {
            response.headers_mut().insert(header::REFRESH, HeaderValue::from_static(RELOAD));
        }
        response
    }

    /// Returns the timelines of this machine's clusters, which a browser loads again while they grow.
    fn timeline(&self) -> Response<Body> {
        let mut steps = Vec::new();
        for directory in &self.timelines {
            match telemetry::timeline::load(directory) {
                Ok(found) => steps.extend(found),
                Err(error) => return self.rendered("/timeline", Err(error.into())),
            }
        }
        let mut response = answer(StatusCode::OK, HTML, telemetry::timeline::html(&steps));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(TIMELINE_POLICY));
        headers.insert(header::REFRESH, HeaderValue::from_static(RELOAD));
        response
    }
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
