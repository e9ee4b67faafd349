//! Distributed tracing: spans of requests, the W3C trace context of headers, and the export of spans by OTLP over gRPC.
//!
//! Read [`Tracer`] first, then [`Span`]. Callers decide which requests are traced, and whose trace context is trusted;
//! logs are the task of `telemetry`.
//!
//! Invariants:
//! - The current span belongs to the task, so that clients find it without an argument ([`inject`]). Without a tracer,
//!   nothing is recorded, and no random value is drawn.
//! - Recording never waits. A full queue drops spans and counts them.

mod context;
mod endpoint;
mod export;
mod grpc;
mod proto;
mod queue;
mod record;
mod span;

pub use context::SpanContext;
pub use endpoint::{Endpoint, EndpointError};
pub use export::{Exporter, ExporterError, Resource};
pub use grpc::Traced;
pub use proto::v1;
pub use record::{AttributeValue, SpanKind};
pub use span::{Span, Tracer, carry, inject, span};
