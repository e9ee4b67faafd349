//! Serves `/statusz`: version, start time and uptime. It is a text page for people; programs must request the versioned
//! kind by name.

use api_meta::{Status, Timestamp};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use serve::Body;

use super::{
    openapi::http_date,
    version::{GO_VERSION, KUBERNETES_VERSION},
};
use crate::{request::accept::quality, response};

pub(crate) const PATH: &str = "/statusz";
const TYPES: [&str; 3] = ["application/json", "application/yaml", "text/plain"];
const PATHS: [&str; 6] = ["/healthz", "/livez", "/metrics", "/readyz", PATH, "/version"];

/// The negotiated form.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Page,
    Kind { yaml: bool, version: &'static str },
}

/// Answers in the form that the client accepts.
pub(crate) fn answer(
    headers: &HeaderMap,
    started: Timestamp,
    now: Timestamp,
) -> Result<Response<Body>, Box<Status>> {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
    let form = form(accept).ok_or_else(|| Box::new(Status::not_acceptable(&TYPES)))?;
    let Form::Kind { yaml, version } = form else {
        let page = page(started, now);
        return Ok(response::bytes(StatusCode::OK, "text/plain; charset=utf-8", page));
    };
    let object = object(version, started, now);
    let (encoding, body) = if yaml {
        ("yaml", api_codec::to_yaml(&object).map_err(|e| Box::new(Status::internal(e)))?)
    } else {
        ("json", object.to_string())
    };
    let mut response = response::bytes(StatusCode::OK, "application/json", body);
    let kind = format!("application/{encoding};g=config.k8s.io;v={version};as=Statusz");
    if let Ok(kind) = HeaderValue::from_str(&kind) {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    if version == "v1alpha1" {
        let deprecated = "299 - \"This version of the statusz endpoint is deprecated. Please use a \
                          newer version.\"";
        response.headers_mut().insert(header::WARNING, HeaderValue::from_static(deprecated));
    }
    Ok(response)
}

/// Returns the accepted form with the highest quality. Plain JSON is not supported.
fn form(accept: &str) -> Option<Form> {
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
        (has("g=config.k8s.io") && has("as=Statusz")).then_some(Form::Kind { yaml, version })
    })
}

fn minor() -> &'static str {
    let version = KUBERNETES_VERSION.trim_start_matches('v');
    version.rsplit_once('.').map_or(version, |(minor, _)| minor)
}

fn object(version: &str, started: Timestamp, now: Timestamp) -> Value {
    json!({
        "kind": "Statusz",
        "apiVersion": format!("config.k8s.io/{version}"),
        "metadata": {"name": "apiserver"},
        "startTime": started.to_seconds(),
        "uptimeSeconds": now.since(started).as_secs(),
        "goVersion": GO_VERSION,
        "binaryVersion": KUBERNETES_VERSION.trim_start_matches('v'),
        "emulationVersion": minor(),
        "paths": PATHS,
    })
}

fn page(started: Timestamp, now: Timestamp) -> String {
    let up = now.since(started).as_secs();
    format!(
        "\napiserver statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
         compatibility guarantees and is for debugging purposes only.\n\nStarted: {}\n\
         Up: {} hr {:02} min {:02} sec\nGo version: {}\nBinary version: {}\n\
         Emulation version: {}\nPaths: {}\n",
        unix_date(started),
        up / 3600,
        up / 60 % 60,
        up % 60,
        GO_VERSION,
        KUBERNETES_VERSION.trim_start_matches('v'),
        minor(),
        PATHS.join(" "),
    )
}

/// Formats a time as `Mon Jan _2 15:04:05 UTC 2006`.
fn unix_date(time: Timestamp) -> String {
    let date = http_date(time.into());
    let mut parts = date.split(' ');
    let mut next = || parts.next().unwrap_or_default();
    let (weekday, day, month, year, clock) = (next(), next(), next(), next(), next());
    let (weekday, day) = (weekday.trim_end_matches(','), day.trim_start_matches('0'));
    format!("{weekday} {month} {day:>2} {clock} UTC {year}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(form(accept), wanted, "{accept}");
        }
    }

    #[test]
    fn formats_times_like_go() {
        let started = Timestamp::from_unix(1_795_444_239, 5);
        let page = page(started, started.plus(std::time::Duration::from_secs(7_265)));
        assert!(
            page.contains("Started: Mon Nov 23 14:30:39 UTC 2026\nUp: 2 hr 01 min 05 sec\n"),
            "{page}"
        );
        assert_eq!(unix_date(Timestamp::from_unix(0, 0)), "Thu Jan  1 00:00:00 UTC 1970");
    }
}
