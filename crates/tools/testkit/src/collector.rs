//! A fake collector of traces: OTLP over a unix socket. It keeps the spans, and can be made to fail.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use otlp::v1::{
    self, ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use parking_lot::{Mutex, MutexGuard};
use tonic::{Request, Response, Status};

use crate::fault::Fault;

/// The time that a test waits for a span.
const PATIENCE: Duration = Duration::from_secs(30);

/// A collector that answers while its [`rt::Tasks`] run.
pub struct Collector {
    socket: PathBuf,
    state: Mutex<State>,
}

/// A span and the attributes of the component that sent it.
#[derive(Clone, Debug)]
pub struct CollectedSpan {
    /// The attributes of the component.
    pub resource: Vec<v1::KeyValue>,
    /// The span.
    pub span: v1::Span,
}

#[derive(Default)]
struct State {
    spans: Vec<CollectedSpan>,
    fault: Option<Fault>,
}

impl Collector {
    /// Starts a collector with a socket in a directory.
    pub fn serve(directory: &Path, tasks: &rt::Tasks) -> std::io::Result<Arc<Self>> {
        let socket = directory.join("collector.sock");
        let collector = Arc::new(Self { socket, state: Mutex::default() });
        let service = TraceServiceServer::new(CollectorService(collector.clone()));
        grpc::serve("trace collector", &collector.socket, service, tasks)?;
        Ok(collector)
    }

    /// Returns the endpoint for a `TracingConfiguration`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Makes exports fail.
    pub fn set_fault(&self, fault: Option<Fault>) {
        self.state().fault = fault;
    }

    /// Returns the names of the spans in the order in which they arrived.
    pub fn names(&self) -> Vec<String> {
        self.state().spans.iter().map(|collected| collected.span.name.clone()).collect()
    }

    /// Waits for a span that fulfils a condition.
    pub async fn wait_for(&self, condition: impl Fn(&v1::Span) -> bool) -> CollectedSpan {
        let mut found = None;
        let arrived = || {
            found = self.state().spans.iter().find(|one| condition(&one.span)).cloned();
            found.is_some()
        };
        let came = rt::wait_until(PATIENCE, Duration::from_millis(10), arrived).await;
        assert!(came, "the span did not arrive; these did: {:?}", self.names());
        found.unwrap_or_else(|| unreachable!("it was found"))
    }

    /// Waits for a span of this name.
    pub async fn span(&self, name: &str) -> CollectedSpan {
        self.wait_for(|span| span.name == name).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The gRPC service of a collector.
struct CollectorService(Arc<Collector>);

#[tonic::async_trait]
impl TraceService for CollectorService {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let fault = self.0.state().fault.clone();
        Fault::happen(fault).await?;
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let collected = spans.map(|span| CollectedSpan { resource: attributes.clone(), span });
            self.0.state().spans.extend(collected);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}
