//! The etcd v3 engine: the store's trait over gRPC. Read [`Etcd`] first.
//!
//! It writes as upstream's API server does: one transaction per write, which compares the key's mod revision, and
//! leases shared by many keys for expiry. Encoding and encryption of values are tasks of other crates.
//!
//! Invariants: a read goes through the leader's quorum, so it returns every acknowledged write whichever member
//! answers. A write is repeated only if it certainly was not sent before. A watch that cannot continue ends, and its
//! consumer resumes from the last revision it received.

use std::time::Duration;

use store::{
    Error, Expected, KeyRange, KeyValue, ObjectEncoder, Op, Outcome, RangeResult, Reply, Result,
    Revision, Store, WatchStream, Write,
};

mod channel;
mod convert;
mod lease;
mod options;
mod proto;
mod status;
mod version;
mod watch;

use channel::{Channels, Connection, Repeat};
use lease::Leases;
pub use options::{Options, REQUEST_LIMIT, TlsFiles};
use proto::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    StatusRequest, TxnRequest, TxnResponse, compare, kv_client::KvClient,
    maintenance_client::MaintenanceClient, request_op::Request, response_op::Response,
};
use status::RequestFailure;
use watch::Watches;

/// The number of leases that a write tries before it fails.
const LEASES_TRIED: usize = 3;

/// A store in an etcd cluster.
pub struct Etcd {
    channels: Channels,
    leases: Leases,
    watches: Watches,
    page: usize,
}

impl Etcd {
    /// Reads the TLS files and queries etcd's version. An error names the endpoint and the cause.
    pub async fn connect(options: Options) -> Result<Self> {
        let channels = Channels::new(&options)?;
        let status = status_of(&channels).await?;
        Ok(Self::of(channels, options, &status))
    }

    /// Connects like [`Self::connect`], but waits without a time limit for an etcd with a quorum, and logs the cause.
    /// Only unusable settings are an error.
    pub async fn connect_patiently(options: Options) -> Result<Self> {
        let channels = Channels::new(&options)?;
        let status = loop {
            match status_of(&channels).await {
                Ok(status) => break status,
                Err(error) => wait_after(&error).await,
            }
        };
        let etcd = Self::of(channels, options, &status);
        while let Err(error) = etcd.current().await {
            wait_after(&error).await;
        }
        Ok(etcd)
    }

    fn of(channels: Channels, options: Options, status: &proto::StatusResponse) -> Self {
        let ordered = version::has_ordered_progress(&status.version);
        if !ordered {
            tracing::warn!(
                version = %status.version,
                "this version of etcd may report a watch's progress before its changes, so progress is not requested; \
                 upgrade to 3.4.25, 3.5.8 or later"
            );
        }
        Self {
            channels,
            leases: Leases::new(options.clock),
            watches: Watches::new(ordered),
            page: options.page.max(1),
        }
    }

    async fn range_request(
        &self,
        operation: &'static str,
        request: RangeRequest,
    ) -> Result<RangeResponse> {
        let requested = revision_of(request.revision);
        match self.send_range(request).await {
            Ok(response) => Ok(response),
            Err(failed) if status::is_compacted(&failed.status) => {
                Err(self.compacted(requested).await)
            }
            Err(failed) if status::is_future(&failed.status) => {
                let current = self.current().await?;
                Err(Error::FutureRevision { requested, current })
            }
            Err(failed) => Err(status::error(operation, &failed)),
        }
    }

    async fn send_range(&self, request: RangeRequest) -> Result<RangeResponse, RequestFailure> {
        self.channels
            .call(Repeat::Always, |channel| {
                let request = request.clone();
                async move { client(channel).range(request).await }
            })
            .await
    }

    /// Returns the error for a compacted revision. etcd reports the oldest revision only to a watch.
    async fn compacted(&self, requested: Revision) -> Error {
        let oldest = watch::oldest_revision(&self.channels).await.unwrap_or(0);
        Error::Compacted { requested, oldest }
    }

    /// Returns the newest revision, agreed on by a quorum.
    async fn current(&self) -> Result<Revision> {
        let request = RangeRequest { key: b"/".to_vec(), count_only: true, ..Default::default() };
        let response = self
            .send_range(request)
            .await
            .map_err(|failed| status::error("query the revision", &failed))?;
        Ok(convert::revision(response.header.as_ref()))
    }

    /// Fails unless a watch can start after `after`. etcd itself accepts an impossible watch, and ends it later.
    async fn can_follow(&self, after: Revision) -> Result<()> {
        let request = RangeRequest {
            key: b"/".to_vec(),
            count_only: true,
            revision: after as i64,
            ..Default::default()
        };
        self.range_request("watch", request).await.map(drop)
    }

    /// Returns `None` if nothing was written, because the lease expired between its grant and the write.
    async fn put_or_delete(&self, write: &Write) -> Result<Option<Outcome>> {
        let key = write.key.as_bytes().to_vec();
        let (change, lease) = match &write.op {
            Op::Delete => {
                let request = DeleteRangeRequest { key, ..Default::default() };
                (Request::RequestDeleteRange(request), None)
            }
            Op::Put { value, ttl_seconds } => {
                let lease = match ttl_seconds {
                    Some(ttl) => Some(self.leases.get(&self.channels, *ttl).await?),
                    None => None,
                };
                let request = PutRequest {
                    key,
                    value: value.clone(),
                    lease: lease.unwrap_or(0),
                    ..Default::default()
                };
                (Request::RequestPut(request), lease)
            }
        };
        match (self.transact(transaction(write, change)).await, lease) {
            (Ok(response), _) => outcome(response).map(Some),
            (Err(failed), Some(lease)) if status::is_lease_gone(&failed.status) => {
                self.leases.forget(lease);
                Ok(None)
            }
            (Err(failed), _) => Err(status::write_error(write, &failed)),
        }
    }

    async fn transact(&self, request: TxnRequest) -> Result<TxnResponse, RequestFailure> {
        self.channels
            .call(Repeat::IfUnsent, |channel| {
                let request = request.clone();
                async move { client(channel).txn(request).await }
            })
            .await
    }
}

/// Builds a transaction in upstream's form: the change on success, a read of the key on failure.
fn transaction(write: &Write, change: Request) -> TxnRequest {
    let key = write.key.as_bytes().to_vec();
    let compare = match write.expected {
        Expected::Any => Vec::new(),
        Expected::ModRevision(revision) => vec![proto::Compare {
            result: compare::CompareResult::Equal.into(),
            target: compare::CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(compare::TargetUnion::ModRevision(revision as i64)),
        }],
    };
    let read = Request::RequestRange(RangeRequest { key, ..Default::default() });
    TxnRequest {
        compare,
        success: vec![RequestOp { request: Some(change) }],
        failure: vec![RequestOp { request: Some(read) }],
    }
}

fn outcome(response: TxnResponse) -> Result<Outcome> {
    let revision = convert::revision(response.header.as_ref());
    if response.succeeded {
        return Ok(Outcome::Done { revision });
    }
    let answer = response.responses.into_iter().next().and_then(|op| op.response);
    let found = match answer {
        Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
        _ => None,
    };
    Ok(Outcome::Conflict { current: found.map(convert::key_value).transpose()? })
}

async fn wait_after(error: &Error) {
    tracing::warn!(%error, "waiting for etcd");
    tokio::time::sleep(Duration::from_secs(1)).await;
}

async fn status_of(channels: &Channels) -> Result<proto::StatusResponse> {
    channels
        .call(Repeat::Always, |channel| async move {
            MaintenanceClient::new(channel).status(StatusRequest {}).await
        })
        .await
        .map_err(|failed| status::error("query the status", &failed))
}

fn client(connection: Connection) -> KvClient<Connection> {
    // Lists may be of any size; etcd bounds what one request may write.
    KvClient::new(connection).max_decoding_message_size(usize::MAX)
}

fn revision_of(wire: i64) -> Revision {
    Revision::try_from(wire).unwrap_or(0)
}

impl Store for Etcd {
    fn below(&self) -> &dyn Store {
        self
    }

    fn is_stale<'a>(&'a self, _key: &'a str) -> Reply<'a, bool> {
        // An engine encrypts nothing.
        Box::pin(async { Ok(false) })
    }

    fn object_encoder(&self) -> Option<&dyn ObjectEncoder> {
        None
    }

    fn get<'a>(&'a self, key: &'a str) -> Reply<'a, (Option<KeyValue>, Revision)> {
        Box::pin(async move {
            let request = RangeRequest { key: key.as_bytes().to_vec(), ..Default::default() };
            let response = self.range_request("get", request).await?;
            let found = response.kvs.into_iter().next().map(convert::key_value).transpose()?;
            Ok((found, convert::revision(response.header.as_ref())))
        })
    }

    fn range(&self, range: KeyRange, limit: usize, revision: Revision) -> Reply<'_, RangeResult> {
        Box::pin(async move {
            let (mut key, range_end) = convert::bounds(&range);
            let mut result = RangeResult { revision, ..RangeResult::default() };
            loop {
                let wanted = if limit == 0 { self.page } else { limit - result.items.len() };
                let request = RangeRequest {
                    key: key.clone(),
                    range_end: range_end.clone(),
                    limit: wanted.min(self.page) as i64,
                    revision: result.revision as i64,
                    ..Default::default()
                };
                let page = self.range_request("range", request).await?;
                if result.items.is_empty() {
                    result.count = u64::try_from(page.count).unwrap_or(0);
                }
                // All pages are of the same revision.
                if result.revision == 0 {
                    result.revision = convert::revision(page.header.as_ref());
                }
                for kv in page.kvs {
                    key.clone_from(&kv.key);
                    result.items.push(convert::key_value(kv)?);
                }
                result.more = page.more;
                if !page.more || result.items.len() == limit {
                    return Ok(result);
                }
                key.push(0);
            }
        })
    }

    fn write(&self, write: Write) -> Reply<'_, Outcome> {
        Box::pin(async move {
            let size = write.size();
            if size > REQUEST_LIMIT {
                return Err(Error::TooLarge { key: write.key, size, limit: REQUEST_LIMIT });
            }
            for _ in 0..LEASES_TRIED {
                if let Some(outcome) = self.put_or_delete(&write).await? {
                    return Ok(outcome);
                }
            }
            let detail = format!("leases for {} expired before it was written", write.key);
            Err(Error::Unavailable { operation: "write", detail })
        })
    }

    fn watch(&self, range: KeyRange, after: Revision) -> Reply<'_, Box<dyn WatchStream>> {
        Box::pin(async move {
            // Always name the revision: a member that lags behind has an older 'now'.
            let after = if after == 0 { self.current().await? } else { after };
            self.can_follow(after).await?;
            self.watches.open(&self.channels, &range, after).await
        })
    }

    fn revision(&self) -> Reply<'_, Revision> {
        Box::pin(self.current())
    }

    fn compact(&self, revision: Revision) -> Reply<'_, ()> {
        Box::pin(async move {
            let request = CompactionRequest { revision: revision as i64 };
            let sent =
                self.channels
                    .call(Repeat::Always, |channel| async move {
                        client(channel).compact(request).await
                    })
                    .await;
            match sent {
                Ok(_) => Ok(()),
                Err(failed) if status::is_compacted(&failed.status) => Ok(()),
                Err(failed) if status::is_future(&failed.status) => {
                    let current = self.current().await?;
                    Err(Error::FutureRevision { requested: revision, current })
                }
                Err(failed) => Err(status::error("compact", &failed)),
            }
        })
    }

    fn size_bytes(&self) -> Reply<'_, u64> {
        Box::pin(async move {
            let status = status_of(&self.channels).await?;
            Ok(u64::try_from(status.db_size).unwrap_or(0))
        })
    }

    /// Has no effect on an etcd that does not order progress after changes.
    fn request_progress(&self) -> Reply<'_, ()> {
        Box::pin(async move {
            self.watches.request_progress();
            Ok(())
        })
    }
}
