//! Bounds the processor time of a request, and keeps large requests away from the threads that answer everything else.
//!
//! Every request but a watch or a connection computes under a [`Meter`], which ends it with 413 or 504 once it has used up
//! its processor time or its deadline has passed. A request begins on the threads that also serve health checks, leases
//! and watches, where it has [`AT_ONCE`] of its processor time. A request that needs more, and one that is known to be
//! large when it arrives, computes on a [`ComputePool`]. There it takes turns: a second [`flow::Gate`] admits a few
//! requests at a time, so that the large requests of one user do not delay those of another by more than a few turns.
//!
//! A request that moves to the pool begins anew. It has changed nothing by then: the write to the store is the last thing
//! that it does, and from there on the meter does not end it.

use std::{sync::Arc, time::Duration};

use api_meta::{Status, steps::Ended};
use http::Response;
use rt::{ComputePool, PoolError};
use serve::Body;
use tokio::time::Instant;

use super::meter::{AbandonOnDrop, Busy, Meter, metered};
use crate::{
    answer,
    config::Config,
    handlers::{
        body::read_body,
        call::{Answer, Call},
        dispatch::dispatch,
        state::State,
    },
    request::{Accepted, RequestInfo, Shape},
    security::Selectors,
};

/// The share of a request's processor time that it may take before it moves to the pool, as a divisor.
const AT_ONCE: u32 = 100;
/// The length from which a body is known to be large.
const LARGE_BODY: u64 = 64 << 10;
/// The number of objects from which a list is known to be large: objects that are written anew, and objects that are
/// only compared with selectors.
const LARGE_LIST: (usize, usize) = (100, 1000);
/// The number of objects for which a list has the processor time of a whole request.
const OBJECTS: usize = 10_000;
/// Answers calls within their budgets.
pub(crate) struct Compute {
    pool: ComputePool,
    /// Makes OpenAPI documents, which take as long as there are kinds. A tenant has no influence on that, so that nobody
    /// who asks for a document waits for a tenant's requests.
    pub(crate) documents: ComputePool,
    /// The turns of large requests.
    pub(crate) turns: Arc<flow::Gate>,
    most: Duration,
    busy: Arc<Busy>,
}

impl Compute {
    pub(crate) fn new(config: &Config, tasks: &rt::Tasks) -> Self {
        let pool = ComputePool::new("large requests", tasks);
        // A request that waits for a webhook computes nothing: another one takes the thread.
        let turns = u32::try_from(4 * pool.threads()).unwrap_or(u32::MAX);
        // As in flow control: a request waits for a quarter of its time.
        let turns = flow::Gate::new(turns, config.request_timeout / 4);
        let busy: Arc<Busy> = Arc::default();
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

    /// Answers a call.
    pub(crate) async fn answer(&self, state: &Arc<State>, call: &Arc<Call>) -> Answer {
        if call.info.verb == "watch" || call.info.is_connection() {
            return dispatch(state, call).await;
        }
        let apart = self.pool.is_apart();
        if apart && call.received().length().is_none_or(|length| length >= LARGE_BODY) {
            // The threads of the pool compute. They do not wait for a slow sender, whose error the handler finds.
            let _ = read_body(state, call).await;
        }
        if !apart || !is_large(call) {
            let most = self.most(call);
            let meter = self.meter(if apart { most / AT_ONCE } else { most }, call);
            let done = metered(&meter, dispatch(state, call)).await;
            report(call, &meter, most);
            match done {
                Ok(answer) => return answer,
                Err(Ended) if apart && !meter.is_late() => call.begin_again(),
                Err(Ended) => return Err(meter.refusal(call)),
            }
        }
        Box::pin(self.answer_apart(state, call)).await
    }

    /// Answers a call on the pool, when its turn comes.
    async fn answer_apart(&self, state: &Arc<State>, call: &Arc<Call>) -> Answer {
        let came = Instant::now();
        let selectors = Selectors::of(&call.info);
        let attributes = selectors.attributes(&call.user, &call.info);
        let turn = self.turns.enter(&attributes, 1).await;
        call.elsewhere.add(came.elapsed());
        let turn = turn.map_err(|rejected| Box::new(rejected.status()))?;
        let meter = self.meter(self.most(call), call);
        let _abandoned = AbandonOnDrop(meter.clone());
        let (state, moved, own) = (state.clone(), call.clone(), meter.clone());
        let work = async move {
            // Held until the thread is free again, although the client may have gone.
            let _turn = turn.permit;
            let answer = metered(&own, dispatch(&state, &moved)).await;
            // An object that is wrong everywhere has a long refusal, which takes time to write.
            let refuse = |status: Box<Status>| refusal(&moved.info, moved.accepted, &status);
            answer.map(|answer| answer.unwrap_or_else(refuse))
        };
        let answer = self.pool.run(work).await.map_err(stopped)?;
        report(call, &meter, meter.most);
        answer.map_err(|Ended| meter.refusal(call))
    }

    /// The processor time of a call: that of one request, and for a list more as there are more objects.
    fn most(&self, call: &Call) -> Duration {
        let objects = if is_list(call) { objects(call) } else { 0 };
        self.most.saturating_mul(u32::try_from(1 + objects / OBJECTS).unwrap_or(u32::MAX))
    }
}

/// Logs a request that has used up its processor time. If it took much more than that, it computes somewhere without
/// counting its steps.
fn report(call: &Call, meter: &Meter, most: Duration) {
    let used = meter.used();
    if used >= most {
        let (user, path) = (&call.user.name, &call.info.path);
        tracing::warn!(verb = call.info.verb, %path, %user, ?used, "a request used up its processor time");
    }
}

/// A failure as it goes out, which is always a whole Status.
pub(crate) fn refusal(info: &RequestInfo, accepted: Accepted, status: &Status) -> Response<Body> {
    if status.code >= 500 {
        tracing::warn!(path = %info.path, verb = info.verb, message = %status.message, "request failed");
    }
    answer::status(Accepted { shape: Shape::Whole, ..accepted }, status)
}

/// The answer to a request that meets the end of the server.
pub(crate) fn stopped(error: PoolError) -> Box<Status> {
    Box::new(Status::service_unavailable(error.to_string()))
}

fn is_list(call: &Call) -> bool {
    matches!(call.info.verb, "list" | "deletecollection")
}

fn objects(call: &Call) -> usize {
    call.resource.cache.as_ref().map_or(0, |cache| cache.len())
}

/// Reports whether a call is known to be large before it is answered.
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
