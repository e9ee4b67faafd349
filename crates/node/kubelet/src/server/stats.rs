//! Serves metrics and statistics of the node and of the kubelet.

use std::sync::Arc;

use http::{Response, StatusCode};
use serve::Body;

use super::{Query, answer, text};
use crate::{context::Context, pods::Pods, stats::Text};

fn response((kind, text): Text) -> Response<Body> {
    answer(StatusCode::OK, kind, text)
}

pub(super) async fn cadvisor(ctx: &Arc<Context>) -> Response<Body> {
    response(ctx.stats.cadvisor(ctx).await)
}

pub(super) async fn resource(ctx: &Arc<Context>) -> Response<Body> {
    response(ctx.stats.resource(ctx).await)
}

pub(super) fn probes(ctx: &Context) -> Response<Body> {
    response(ctx.stats.probes())
}

/// Serves the statistics of the node and its Pods (stats.k8s.io).
pub(super) async fn summary(ctx: &Arc<Context>, pods: &Pods, query: &Query) -> Response<Body> {
    match ctx.stats.summary(ctx, pods, query.is("only_cpu_and_memory")).await {
        Ok(summary) => super::json(&summary),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Serves the kubelet's own metrics.
pub(super) async fn metrics(ctx: &Arc<Context>, pods: &Pods) -> Response<Body> {
    response(ctx.stats.kubelet_metrics(ctx, pods).await)
}
