//! `/flagz`, `/statusz` and `/metrics/slis`, which every component of Kubernetes has.

use api_config::FeatureGates;
use diagnostics::{ComponentInfo, NotAcceptable, Slis};
use http::{Method, Response, StatusCode, request::Parts};
use serve::Body;

use crate::response::text;

const PATHS: &[&str] = &[
    "/configz",
    "/flagz",
    "/healthz",
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/probes",
    "/metrics/resource",
    "/metrics/slis",
    "/statusz",
];
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The state of the pages.
pub(crate) struct Pages {
    info: ComponentInfo,
    slis: Slis,
    features: FeatureGates,
}

impl Pages {
    pub(crate) fn new(features: FeatureGates) -> Self {
        let info = ComponentInfo { name: "kubelet", started: rt::now().into(), paths: PATHS };
        Self { info, slis: Slis::default(), features }
    }

    /// Answers a request; `None` if the path is not one of these pages.
    pub(crate) fn answer(&self, request: &Parts) -> Option<Response<Body>> {
        if request.method != Method::GET {
            return None;
        }
        let path = request.uri.path();
        if path == "/metrics/slis" {
            return Some(serve::answer(StatusCode::OK, CONTENT_TYPE, self.slis.text()));
        }
        let page = self.info.page(path, &request.headers, &self.features)?;
        let refused = |error: NotAcceptable| text(StatusCode::NOT_ACCEPTABLE, error.to_string());
        Some(page.unwrap_or_else(refused))
    }

    /// Records the answer of a health check.
    pub(crate) fn record(&self, method: &Method, path: &str, status: StatusCode) {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return;
        }
        let page = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        if ["healthz", "livez", "readyz"].contains(&page) {
            self.slis.record(page, "syncloop", status.is_success());
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    async fn ask(pages: &Pages, method: Method, path: &str) -> Option<String> {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let response = pages.answer(&request.into_parts().0)?;
        let body = client::read(path, response.into_body(), 1 << 20).await.unwrap();
        Some(String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn answers_pages_and_records_health() {
        let pages = Pages::new(FeatureGates::default());
        for number in 0..50 {
            pages.record(&Method::GET, &format!("/hostile-{number}/healthz"), StatusCode::OK);
            pages.record(
                &Method::GET,
                &format!("/healthz/hostile-{number}"),
                StatusCode::NOT_FOUND,
            );
        }
        let text = ask(&pages, Method::GET, "/metrics/slis").await.unwrap();
        assert!(!text.contains("hostile"), "{text}");
        let line = "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 0\n";
        assert!(text.contains(line), "{text}");
        let flags = ask(&pages, Method::GET, "/flagz").await.unwrap();
        assert!(flags.starts_with("\nkubelet flagz\nWarning: "), "{flags}");
        assert!(ask(&pages, Method::GET, "/statusz").await.unwrap().contains("kubelet statusz"));
        assert_eq!(ask(&pages, Method::POST, "/flagz").await, None);
        assert_eq!(ask(&pages, Method::GET, "/pods").await, None);
    }

    #[tokio::test]
    async fn hides_pages_whose_gate_is_off() {
        let gates = [("ComponentFlagz", false), ("ComponentStatusz", false)];
        let pages = Pages::new(FeatureGates::of_known(gates));
        for path in ["/flagz", "/statusz"] {
            assert_eq!(ask(&pages, Method::GET, path).await, None, "{path}");
        }
    }

    #[tokio::test]
    async fn counts_health_checks_of_reading_methods_only() {
        let pages = Pages::new(FeatureGates::default());
        pages.record(&Method::POST, "/healthz", StatusCode::NOT_FOUND);
        pages.record(&Method::GET, "/healthz", StatusCode::OK);
        let text = ask(&pages, Method::GET, "/metrics/slis").await.unwrap();
        assert!(text.contains("{name=\"syncloop\",type=\"healthz\"} 1\n"), "{text}");
        assert!(!text.contains("status=\"error\""), "{text}");
    }
}
