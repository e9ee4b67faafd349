//! Answers ResourcePoolStatusRequests: counts the devices of the pools of a driver once, and deletes old requests.

mod plan;

use std::{sync::Arc, time::Duration};

use api_meta::{ObjectMeta, Timestamp, null_default};
use client::{Error, Resource, WorkQueue};
use sched_core::ResourceSliceView;
use serde::Deserialize;
use serde_json::json;

use plan::PoolRequestSpec;

use crate::{
    certificates::delete_request,
    context::{Context, synced},
    shared::Watched,
    views::{Condition, ResourceClaim},
};

const REQUESTS: Resource = Resource::RESOURCE_POOL_STATUS_REQUESTS;
/// The number of times that a request waits for the missing slices of a pool.
const MAX_WAITS: u32 = 5;
/// The time between two attempts to find all slices of a pool.
const WAIT: Duration = Duration::from_millis(100);
/// The time between two searches for old requests.
const PERIOD: Duration = Duration::from_secs(10 * 60);
const ANSWERED_AGE: Duration = Duration::from_secs(60 * 60);
const UNANSWERED_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A ResourcePoolStatusRequest, reduced to the fields that this controller reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PoolRequest {
    metadata: ObjectMeta,
    spec: PoolRequestSpec,
    status: Option<PoolRequestStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PoolRequestStatus {
    #[serde(deserialize_with = "null_default")]
    conditions: Vec<Condition>,
}

impl PoolRequest {
    /// Reports whether users had the time to read the answer, or nothing has answered for long.
    fn is_old(&self, now: Timestamp) -> bool {
        let Some(status) = &self.status else {
            let created = self.metadata.creation_timestamp;
            return created.is_some_and(|created| now.since(created) >= UNANSWERED_AGE);
        };
        let last = status.conditions.iter().filter_map(|c| c.last_transition_time).max();
        last.is_some_and(|last| now.since(last) >= ANSWERED_AGE)
    }
}

#[derive(Clone)]
struct Pools {
    requests: Watched<PoolRequest>,
    slices: Watched<ResourceSliceView>,
    claims: Watched<ResourceClaim>,
    queue: WorkQueue<String>,
    waits: Arc<parking_lot::Mutex<std::collections::HashMap<String, u32>>>,
}

pub(crate) fn start(context: Context) {
    let queue = WorkQueue::default();
    let pools = Pools {
        requests: context.watch(REQUESTS),
        slices: context.watch(Resource::RESOURCE_SLICES),
        claims: context.watch(Resource::RESOURCE_CLAIMS),
        queue: queue.clone(),
        waits: Arc::default(),
    };
    let (add, waits) = (queue.clone(), pools.waits.clone());
    pools.requests.on(move |change| match change.new {
        Some(request) if request.status.is_none() => add.add(change.key.to_owned()),
        _ => drop(waits.lock().remove(change.key)),
    });
    let all = vec![synced(&pools.requests), synced(&pools.slices), synced(&pools.claims)];
    let (cleaner, requests) = (context.clone(), pools.requests.clone());
    context.tasks.keep("old requests for pools", move || clean(cleaner.clone(), requests.clone()));
    let state = (context.clone(), pools);
    context.run(&queue, 1, all, state, |(context, pools), key| async move {
        pools.answer(&context, &key).await
    });
}

impl Pools {
    async fn answer(&self, context: &Context, key: &str) -> Result<(), Error> {
        let Some(request) = self.requests.get(key).filter(|request| request.status.is_none())
        else {
            return Ok(());
        };
        let slices = self.slices.list();
        let pools = plan::pools(&request.spec, &slices, &self.claims.list());
        if pools.incomplete > 0 && self.waits(key) {
            self.queue.add_after(key.to_owned(), WAIT);
            return Ok(());
        }
        let count = pools.count;
        let mut message = format!("Calculated status for {count} pools");
        if pools.incomplete > 0 {
            message = format!("{message} ({} incomplete)", pools.incomplete);
        }
        let condition = json!({"type": "Complete", "status": "True", "reason": "CalculationComplete",
            "message": message, "lastTransitionTime": context.now().to_seconds()});
        let status = json!({"poolCount": count, "pools": pools.shown, "conditions": [condition]});
        let change = json!({ "status": status });
        context.merge_by_update(&REQUESTS, &request.metadata, "status", &change).await.map(drop)
    }

    /// Reports whether a request shall wait for the missing slices of a pool, and counts that.
    fn waits(&self, key: &str) -> bool {
        let mut waits = self.waits.lock();
        let count = waits.entry(key.to_owned()).or_default();
        *count += 1;
        *count <= MAX_WAITS
    }
}

async fn clean(context: Context, requests: Watched<PoolRequest>) {
    synced(&requests).await;
    loop {
        let now = context.now();
        for request in requests.list().iter().filter(|request| request.is_old(now)) {
            delete_request(&context, &REQUESTS, &request.metadata).await;
        }
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletes_answered_requests_after_an_hour_and_others_after_a_day() {
        let start = Timestamp::from_unix(1_790_000_000, 0);
        let at = |age: Duration| start.plus(age);
        let request = |status: serde_json::Value| -> PoolRequest {
            let metadata = json!({"name": "r", "creationTimestamp": start});
            serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
        };
        let second = Duration::from_secs(1);
        let waiting = request(serde_json::Value::Null);
        assert!(!waiting.is_old(at(UNANSWERED_AGE - second)));
        assert!(waiting.is_old(at(UNANSWERED_AGE)));
        let condition = json!({"type": "Complete", "status": "True", "lastTransitionTime": start});
        let answered = request(json!({"conditions": [condition]}));
        assert!(!answered.is_old(at(ANSWERED_AGE - second)));
        assert!(answered.is_old(at(ANSWERED_AGE)));
    }
}
