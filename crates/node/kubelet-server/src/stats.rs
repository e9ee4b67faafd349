//! Serves metrics and statistics of the node and of the kubelet.

use http::{Response, StatusCode};
use kubelet_stats::Page;
use serve::{Body, answer};

use crate::{
    backend::Backend,
    query::Query,
    response::{json, text},
};

fn response(page: Page) -> Response<Body> {
    answer(StatusCode::OK, page.content_type, page.body)
}

pub(crate) async fn cadvisor(backend: &Backend) -> Response<Body> {
    response(backend.stats.cadvisor().await)
}

pub(crate) async fn resource(backend: &Backend) -> Response<Body> {
    response(backend.stats.resource().await)
}

pub(crate) fn probes(backend: &Backend) -> Response<Body> {
    response(backend.stats.probe_metrics())
}

/// Serves the statistics of the node and its Pods (stats.k8s.io).
pub(crate) async fn summary(backend: &Backend, query: &Query) -> Response<Body> {
    let is_brief = query.is("only_cpu_and_memory");
    match backend.stats.summary(backend.pods.as_ref(), is_brief).await {
        Ok(summary) => json(&summary),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Serves the kubelet's own metrics.
pub(crate) async fn metrics(backend: &Backend) -> Response<Body> {
    response(backend.stats.kubelet_metrics(backend.pods.as_ref()).await)
}
