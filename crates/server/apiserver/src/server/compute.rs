//! Bounds the processor time of a request, and keeps large requests away from the threads that answer everything else.
//!
//! Every request, except connections, runs under a [`Meter`]; a watch does until its first event. The meter ends it
//! with 413 or 504 when its processor time is used up or its deadline has passed. A request starts on the threads that
//! also serve health checks, leases and watches, where it may use [`AT_ONCE`] of its processor time. A request that
//! needs more, or that is known to be large on arrival, runs on a [`ComputePool`]. There a second [`flow::Gate`] admits
//! a few requests at a time, so that one user's large requests delay another's by a few turns at most. The pool also
//! encodes large events of watches.
//!
//! A request that moves to the pool is restarted. It has no side effects up to that point: the write to the store is
//! its last step, and the meter does not end a request after the write has started.

use std::{sync::Arc, time::Duration};

use api_meta::{Status, steps::BudgetUsedUp};
use http::Response;
use rt::{ComputePool, PoolError};
use serve::Body;
use tokio::time::Instant;

use super::meter::{AbandonOnDrop, Meter, RunningCalls, metered};
use crate::{
    config::Config,
    handlers::{
        body::read_body,
        call::{Answer, Call},
        dispatch::dispatch,
        state::State,
    },
    request::{RequestInfo, ResponseFormat, Shape},
    response,
    security::Selectors,
};

/// The divisor for the part of a request's processor time that it may use before it moves to the pool.
const AT_ONCE: u32 = 100;
/// The `Content-Length` from which a request counts as large.
const LARGE_BODY: u64 = 64 << 10;
/// The number of objects from which a list counts as large: for lists that are encoded again, and for lists that are
/// only filtered by selectors.
const LARGE_LIST: (usize, usize) = (100, 1000);
/// The number of objects for which a list receives the processor time of one request.
const OBJECTS: usize = 10_000;
/// Runs calls within their budgets of processor time.
pub(crate) struct Compute {
    pub(crate) pool: Arc<ComputePool>,
    /// The pool for OpenAPI documents. They take long with many kinds. It is separate from the pool of large requests,
    /// so that a client that requests a document does not wait for a tenant's requests.
    pub(crate) documents: ComputePool,
    /// The gate that admits large requests to the pool.
    pub(crate) turns: Arc<flow::Gate>,
    most: Duration,
    busy: Arc<RunningCalls>,
}

impl Compute {
    pub(crate) fn new(config: &Config, tasks: &rt::Tasks) -> Self {
        let pool = Arc::new(ComputePool::new("large requests", tasks));
        // A request that waits for a webhook uses no processor time, so another one can use the thread.
        let turns = u32::try_from(4 * pool.threads()).unwrap_or(u32::MAX);
        // As in flow control: a request waits for at most a quarter of the request timeout.
        let turns = flow::Gate::new(turns, config.request_timeout / 4);
        let busy: Arc<RunningCalls> = Arc::default();
        let logged = busy.clone();
        tasks.keep("log of long computations", move || {
            let busy = logged.clone();
            async move { busy.log().await }
        });
        let documents = ComputePool::new("documents", tasks);
        Self { pool, documents, turns, most: config.processor_time, busy }
    }

    fn meter(&self, most: Duration, call: &Arc<Call>) -> Arc<Meter> {
        Arc::new(Meter::new(most, call.deadline).listed(&self.busy, call))
    }

    /// Answers a call, on the current thread or on the pool.
    pub(crate) async fn answer(&self, state: &Arc<State>, call: &Arc<Call>) -> Answer {
        if call.info.is_connection() {
            return dispatch(state, call).await;
        }
        let apart = self.pool.is_apart();
        if apart && call.received().length().is_none_or(|length| length >= LARGE_BODY) {
            // Read the body here: the pool's threads must not wait for a slow sender. The handler returns any read
            // error.
            let _ = read_body(state, call).await;
        }
        if !apart || !is_large(call) {
            let most = self.processor_time_limit(call);
            let meter = self.meter(if apart { most / AT_ONCE } else { most }, call);
            let done = metered(&meter, dispatch(state, call)).await;
            report(call, &meter, most);
            match done {
                Ok(answer) => return answer,
                Err(BudgetUsedUp) if apart && !meter.is_late() => call.begin_again(),
                Err(BudgetUsedUp) => return Err(meter.refusal(call)),
            }
        }
        Box::pin(self.answer_on_pool(state, call)).await
    }

    /// Answers a call on the pool, after the gate admits it.
    async fn answer_on_pool(&self, state: &Arc<State>, call: &Arc<Call>) -> Answer {
        let came = Instant::now();
        let selectors = Selectors::of(&call.info);
        let attributes = selectors.attributes(&call.user, &call.info);
        let turn = self.turns.enter(&attributes, 1).await;
        call.waited.add(came.elapsed());
        let turn = turn.map_err(|rejected| Box::new(rejected.status()))?;
        let meter = self.meter(self.processor_time_limit(call), call);
        let _abandoned = AbandonOnDrop(meter.clone());
        let (state, moved, own) = (state.clone(), call.clone(), meter.clone());
        let work = async move {
            // Held until the thread is free again, even if the client has disconnected.
            let _turn = turn.permit;
            let answer = metered(&own, dispatch(&state, &moved)).await;
            // Encode a refusal here as well: a refusal with many field errors takes time to write.
            let refuse = |status: Box<Status>| refusal(&moved.info, moved.accepted, &status);
            answer.map(|answer| answer.unwrap_or_else(refuse))
        };
        let answer = self.pool.run(otlp::carry(work)).await.map_err(stopped)?;
        report(call, &meter, meter.most);
        answer.map_err(|BudgetUsedUp| meter.refusal(call))
    }

    /// Returns the processor time of a call. Lists receive more for every [`OBJECTS`] objects.
    fn processor_time_limit(&self, call: &Call) -> Duration {
        let objects = if is_list(call) { objects(call) } else { 0 };
        self.most.saturating_mul(u32::try_from(1 + objects / OBJECTS).unwrap_or(u32::MAX))
    }
}

/// Logs a request that has used up its processor time. A request that used much more computes in code that does not
/// count its steps.
fn report(call: &Call, meter: &Meter, most: Duration) {
    let used = meter.used();
    if used >= most {
        let (user, path) = (&call.user.name, &call.info.path);
        tracing::warn!(verb = call.info.verb, %path, %user, ?used, "a request used up its processor time");
    }
}

/// Encodes a failure, always as a whole Status.
pub(crate) fn refusal(
    info: &RequestInfo,
    accepted: ResponseFormat,
    status: &Status,
) -> Response<Body> {
    if status.code >= 500 {
        tracing::warn!(path = %info.path, verb = info.verb, message = %status.message, "request failed");
    }
    response::status(ResponseFormat { shape: Shape::Whole, ..accepted }, status)
}

/// Returns the Status for a request that the shutdown of the server interrupts.
pub(crate) fn stopped(error: PoolError) -> Box<Status> {
    Box::new(Status::service_unavailable(error.to_string()))
}

fn is_list(call: &Call) -> bool {
    matches!(call.info.verb, "list" | "deletecollection")
}

fn objects(call: &Call) -> usize {
    call.resource.cache.as_ref().map_or(0, |cache| cache.len())
}

/// Reports whether a call is known to be large before it runs.
fn is_large(call: &Call) -> bool {
    if call.received().length().is_none_or(|length| length >= LARGE_BODY) {
        return true;
    }
    if !is_list(call) {
        return false;
    }
    let (written, compared) = LARGE_LIST;
    let selects =
        ["labelSelector", "fieldSelector"].iter().any(|name| call.info.query.get(name).is_some());
    let most = match (call.accepted.is_stored_form(), selects) {
        (false, _) => written,
        (true, true) => compared,
        (true, false) => return false,
    };
    objects(call) >= most
}
