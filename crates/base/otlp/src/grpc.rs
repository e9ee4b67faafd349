//! Spans of gRPC calls.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower::Service;

use crate::{
    record::SpanKind,
    span::{Span, span},
};

/// A gRPC channel whose calls are parts of the task's current span, and carry its context as metadata. A span ends when
/// the response begins.
#[derive(Clone, Debug)]
pub struct Traced<S>(S);

impl<S> Traced<S> {
    /// Wraps a channel.
    pub fn new(channel: S) -> Self {
        Self(channel)
    }
}

impl<S, B, R> Service<Request<B>> for Traced<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = TracedCall<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let span = call_span(request.uri().path());
        span.inject(request.headers_mut());
        TracedCall { call: self.0.call(request), span: Some(span) }
    }
}

/// Starts the span of a call to `/SERVICE/METHOD`.
fn call_span(path: &str) -> Span {
    let name = path.trim_start_matches('/');
    let mut span = span(|| name.to_owned(), SpanKind::Client);
    if span.is_recording() {
        span.set("rpc.system", "grpc");
        if let Some((service, method)) = name.split_once('/') {
            span.set("rpc.service", service);
            span.set("rpc.method", method);
        }
    }
    span
}

pin_project! {
    /// The response of a call, with the call's span.
    pub struct TracedCall<F> {
        #[pin]
        call: F,
        span: Option<Span>,
    }
}

impl<F, R, E> Future for TracedCall<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let done = ready!(this.call.poll(context));
        if let Some(mut span) = this.span.take().filter(Span::is_recording) {
            match &done {
                Ok(response) => finish(&mut span, response),
                Err(_) => span.fail("the connection failed"),
            }
        }
        Poll::Ready(done)
    }
}

/// Records the status of a response. A successful call reports it after the message, and is then still unknown here.
fn finish<R>(span: &mut Span, response: &Response<R>) {
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let code = header("grpc-status").and_then(|code| code.parse::<u16>().ok()).unwrap_or(0);
    span.set("rpc.grpc.status_code", code);
    if code != 0 {
        span.fail(header("grpc-message").unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use telemetry::metrics::Metrics;
    use tower::ServiceExt as _;

    use super::*;
    use crate::{
        context::SpanContext,
        queue::{DroppedSpans, SpanQueue},
        record::AttributeValue,
        span::Tracer,
    };

    #[tokio::test]
    async fn sends_context_and_records_status() {
        let (queue, mut spans) = SpanQueue::new(DroppedSpans::new(&Metrics::default()));
        let tracer = Tracer::new(queue, 1_000_000);
        let answer = |request: Request<()>| async move {
            let mut response = Response::new(SpanContext::from_headers(request.headers()));
            let headers = response.headers_mut();
            headers.insert("grpc-status", 5.into());
            headers.insert("grpc-message", "no such container".parse().unwrap());
            Ok::<_, Infallible>(response)
        };
        let channel = Traced::new(tower::service_fn(answer));
        let request =
            || Request::post("/runtime.v1.RuntimeService/StopContainer").body(()).unwrap();
        let untraced = channel.clone().oneshot(request()).await.unwrap();
        assert_eq!(untraced.into_body(), None);
        let root = tracer.root_span("syncPod");
        let response = root.within(channel.oneshot(request())).await.unwrap();
        let span = spans.recv().await.unwrap();
        assert_eq!(response.into_body(), Some(span.context));
        assert_eq!(span.name, "runtime.v1.RuntimeService/StopContainer");
        assert_eq!(span.error.as_deref(), Some("no such container"));
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        let wanted = [
            ("rpc.system", text("grpc")),
            ("rpc.service", text("runtime.v1.RuntimeService")),
            ("rpc.method", text("StopContainer")),
            ("rpc.grpc.status_code", AttributeValue::Number(5)),
        ];
        assert_eq!(span.attributes, wanted);
    }
}
