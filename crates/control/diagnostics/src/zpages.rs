//! `/statusz` and `/flagz`: version, start and flags of a component. They are text pages for people; programs must
//! request the versioned kind by name.

use std::{fmt::Write as _, sync::OnceLock};

use api_config::FeatureGates;
use api_meta::Timestamp;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value, json};
use serve::Body;

/// The media types that the pages are served in.
const TYPES: [&str; 3] = ["application/json", "application/yaml", "text/plain"];
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

/// The flags of this process, if it is one component.
static FLAGS: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Sets the flags that the process was started with, each with its value. Only the first call has an effect.
pub fn set_flags(flags: Vec<(String, String)>) {
    let _ = FLAGS.set(flags);
}

/// Returns the flags of this process. A process of several components has none.
pub fn flags() -> &'static [(String, String)] {
    FLAGS.get().map(Vec::as_slice).unwrap_or_default()
}

/// The error of a request that accepts none of the forms of a page.
#[derive(Debug, thiserror::Error)]
#[error("only the following media types are accepted: {}", TYPES.join(", "))]
pub struct NotAcceptable;

impl NotAcceptable {
    /// Returns the media types that would be accepted.
    pub fn accepted(&self) -> &'static [&'static str] {
        &TYPES
    }
}

/// The facts about a component that the pages show.
#[derive(Clone, Copy, Debug)]
pub struct ComponentInfo {
    /// The name of the component.
    pub name: &'static str,
    /// The time at which the component started.
    pub started: Timestamp,
    /// The paths that the component serves for debugging.
    pub paths: &'static [&'static str],
}

/// The negotiated form.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Page,
    Kind { yaml: bool, version: &'static str },
}

impl ComponentInfo {
    /// Answers a request for `/flagz` or `/statusz`. Returns `None` for another path, and for a page whose gate is off.
    pub fn page(
        &self,
        path: &str,
        headers: &HeaderMap,
        features: &FeatureGates,
    ) -> Option<Result<Response<Body>, NotAcceptable>> {
        match path {
            "/flagz" if features.is_enabled("ComponentFlagz") => Some(self.flagz(headers, flags())),
            "/statusz" if features.is_enabled("ComponentStatusz") => {
                Some(self.statusz(headers, rt::now().into()))
            }
            _ => None,
        }
    }

    /// Answers a request for `/statusz` in the form that the client accepts.
    ///
    /// # Errors
    ///
    /// Returns an error if the client accepts none.
    pub fn statusz(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Response<Body>, NotAcceptable> {
        answer(headers, "Statusz", &self.status_page(now), self.status(now))
    }

    /// Answers a request for `/flagz` in the form that the client accepts.
    ///
    /// # Errors
    ///
    /// Returns an error if the client accepts none.
    pub fn flagz(
        &self,
        headers: &HeaderMap,
        flags: &[(String, String)],
    ) -> Result<Response<Body>, NotAcceptable> {
        let page = self.flag_page(flags);
        let flags: Map<String, Value> =
            flags.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let object = json!({"metadata": {"name": self.name}, "flags": flags});
        answer(headers, "Flagz", &page, object)
    }

    /// Returns the text page of `/flagz`, with one flag a line.
    pub fn flag_page(&self, flags: &[(String, String)]) -> String {
        let mut page = format!("\n{} flagz\n{WARNING}\n\n", self.name);
        for (name, value) in flags {
            let _ = writeln!(page, "{name}={}", value.replace('\n', "\\n"));
        }
        page
    }

    fn status(&self, now: Timestamp) -> Value {
        json!({
            "metadata": {"name": self.name},
            "startTime": self.started.to_seconds(),
            "uptimeSeconds": now.since(self.started).as_secs(),
            "goVersion": GO_VERSION,
            "binaryVersion": number(),
            "emulationVersion": minor(),
            "paths": self.paths,
        })
    }

    /// Returns the text page of `/statusz`.
    pub fn status_page(&self, now: Timestamp) -> String {
        let up = now.since(self.started).as_secs();
        format!(
            "\n{} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {GO_VERSION}\n\
             Binary version: {}\nEmulation version: {}\nPaths: {}\n",
            self.name,
            unix_date(self.started),
            up / 3600,
            up / 60 % 60,
            up % 60,
            number(),
            minor(),
            self.paths.join(" "),
        )
    }
}

/// Returns the version without `v`.
fn number() -> &'static str {
    version::KUBERNETES_VERSION.trim_start_matches('v')
}

/// Returns major and minor version.
fn minor() -> &'static str {
    number().rsplit_once('.').map_or(number(), |(minor, _)| minor)
}

/// The value of `goVersion`. There is no Go here.
pub const GO_VERSION: &str = "none (windlass)";

fn answer(
    headers: &HeaderMap,
    kind: &str,
    page: &str,
    mut object: Value,
) -> Result<Response<Body>, NotAcceptable> {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
    let Form::Kind { yaml, version } = form(accept, kind).ok_or(NotAcceptable)? else {
        return Ok(uncached("text/plain; charset=utf-8", page.to_owned()));
    };
    if let Some(members) = object.as_object_mut() {
        members.insert("kind".to_owned(), json!(kind));
        members.insert("apiVersion".to_owned(), json!(format!("config.k8s.io/{version}")));
    }
    let (encoding, body) = match yaml.then(|| api_codec::to_yaml(&object)) {
        Some(Ok(text)) => ("yaml", text),
        Some(Err(error)) => {
            // Strings and numbers can always be encoded.
            tracing::error!(%error, kind, "failed to encode a page");
            return Err(NotAcceptable);
        }
        None => ("json", object.to_string()),
    };
    let mut response = uncached("application/json", body);
    let media_type = format!("application/{encoding};g=config.k8s.io;v={version};as={kind}");
    if let Ok(media_type) = HeaderValue::from_str(&media_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    }
    if version == "v1alpha1" {
        let deprecated = format!(
            "299 - \"This version of the {} endpoint is deprecated. Please use a newer version.\"",
            kind.to_lowercase()
        );
        if let Ok(deprecated) = HeaderValue::from_str(&deprecated) {
            response.headers_mut().insert(header::WARNING, deprecated);
        }
    }
    Ok(response)
}

/// Returns a response that no proxy may keep.
fn uncached(media_type: &'static str, body: String) -> Response<Body> {
    let mut response = serve::answer(StatusCode::OK, media_type, body);
    let kept = HeaderValue::from_static("no-cache, private");
    response.headers_mut().insert(header::CACHE_CONTROL, kept);
    response
}

fn quality(range: &str) -> f32 {
    let q = range.split(';').find_map(|part| part.trim().strip_prefix("q="));
    q.and_then(|q| q.parse().ok()).unwrap_or(1.0)
}

/// Returns the accepted form with the highest quality. Plain JSON is not supported.
fn form(accept: &str, kind: &str) -> Option<Form> {
    let mut ranges: Vec<&str> = accept.split(',').filter(|range| quality(range) > 0.0).collect();
    ranges.sort_by(|a, b| quality(b).total_cmp(&quality(a)));
    ranges.into_iter().find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next()?;
        let parameters: Vec<&str> = parts.collect();
        let has = |parameter: &str| parameters.contains(&parameter);
        let yaml = match media {
            "" | "*/*" | "text/*" | "text/plain" => return Some(Form::Page),
            "application/json" => false,
            "application/yaml" => true,
            _ => return None,
        };
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|v| has(&format!("v={v}")))?;
        let is_kind = has("g=config.k8s.io") && has(&format!("as={kind}"));
        is_kind.then_some(Form::Kind { yaml, version })
    })
}

/// Formats a time as `Mon Jan _2 15:04:05 UTC 2006`.
fn unix_date(time: Timestamp) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let weekday = DAYS[time.unix().div_euclid(86_400).rem_euclid(7) as usize];
    // The parts of RFC 3339 have fixed positions: 1994-11-06T08:49:37Z.
    let text = time.to_seconds().to_string();
    let at = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default();
    let month = at(5..7).parse::<usize>().unwrap_or(1).wrapping_sub(1);
    let month = MONTHS.get(month).copied().unwrap_or_default();
    let day = at(8..10).trim_start_matches('0');
    format!("{weekday} {month} {day:>2} {} UTC {}", at(11..19), at(0..4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> ComponentInfo {
        ComponentInfo {
            name: "kube-scheduler",
            started: Timestamp::from_unix(1_795_444_239, 5),
            paths: &["/healthz", "/statusz"],
        }
    }

    #[test]
    fn negotiates_page_or_versioned_kind() {
        let kind = |yaml, version| Some(Form::Kind { yaml, version });
        for (accept, wanted) in [
            ("", Some(Form::Page)),
            ("application/json, */*", Some(Form::Page)),
            (
                "text/plain;q=0.5, application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                kind(false, "v1beta1"),
            ),
            ("application/yaml;as=Statusz;v=v1alpha1;g=config.k8s.io", kind(true, "v1alpha1")),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("application/json;v=v2;g=config.k8s.io;as=Statusz", None),
            ("application/vnd.kubernetes.protobuf", None),
            ("text/plain;q=0", None),
            (",;,;;=,", Some(Form::Page)),
        ] {
            assert_eq!(form(accept, "Statusz"), wanted, "{accept}");
        }
    }

    #[test]
    fn formats_times_like_go() {
        let info = info();
        let page = info.status_page(info.started.plus(std::time::Duration::from_secs(7_265)));
        assert!(
            page.contains("Started: Mon Nov 23 14:30:39 UTC 2026\nUp: 2 hr 01 min 05 sec\n"),
            "{page}"
        );
        assert_eq!(unix_date(Timestamp::from_unix(0, 0)), "Thu Jan  1 00:00:00 UTC 1970");
    }

    #[tokio::test]
    async fn lists_flags_on_one_line_each() {
        let flags = [("v".to_owned(), "2\nroot=1".to_owned())];
        let info = info();
        let page = info.flagz(&HeaderMap::new(), &flags).unwrap();
        let text = client::read("/flagz", page.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(text.ends_with("\n\nv=2\\nroot=1\n"), "{text}");
        let mut headers = HeaderMap::new();
        let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        let kind = info.flagz(&headers, &flags).unwrap();
        let body = client::read("/flagz", kind.into_body(), 1 << 20).await.unwrap();
        let object: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (&object["kind"], &object["flags"]["v"]),
            (&json!("Flagz"), &json!("2\nroot=1"))
        );
        assert!(info.statusz(&headers, info.started).is_err(), "it is another kind");
    }
}
