//! The generated messages and the service of OTLP.

/// The trace service of OTLP 1.x.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}
