use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering},
};

use hickory_proto::{
    op::Query,
    rr::{RData, Record, rdata::SOA},
};

use super::*;
use crate::{
    chain::{Chain, Context, Failure, Server},
    directive::directives,
    records::address_data,
};

/// A plugin whose n-th answer is the address 192.0.2.n, a denial for `none.`, or a failure.
#[derive(Debug, Default)]
struct Source {
    asked: AtomicU8,
    fails: AtomicBool,
}

/// The error of a source that is switched off.
#[derive(Debug, thiserror::Error)]
#[error("the source fails")]
struct Off;

impl Plugin for Source {
    fn answer<'a>(&'a self, request: &'a mut Request, _next: Next<'a>) -> BoxFuture<'a, Answer> {
        let count = self.asked.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if self.fails.load(Ordering::Relaxed) {
            return Box::pin(async { Err(Failure::new(ResponseCode::ServFail, Off)) });
        }
        let name = request.name().clone();
        let mut reply = request.reply(ResponseCode::NoError);
        match name.to_ascii().to_lowercase().as_str() {
            "none." => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                let soa = SOA::new(name.clone(), name.clone(), 1, 2, 3, 4, 20);
                reply.add_authority(Record::from_rdata(name, 100, RData::SOA(soa)));
            }
            "broken." => reply.metadata.response_code = ResponseCode::ServFail,
            "large." => {
                for _ in 0..300 {
                    let data = address_data([192, 0, 2, count].into());
                    reply.add_answer(Record::from_rdata(name.clone(), 100, data));
                }
            }
            _ => {
                reply.add_answer(Record::from_rdata(
                    name,
                    100,
                    address_data([192, 0, 2, count].into()),
                ));
            }
        }
        Box::pin(async move { Ok(Some(reply)) })
    }
}

struct Alone(Context);

impl Server for Alone {
    fn context(&self) -> &Context {
        &self.0
    }

    fn resolve<'a>(self: Arc<Self>, request: &'a mut Request) -> BoxFuture<'a, Answer> {
        Box::pin(async move { Ok(Some(request.reply(ResponseCode::Refused))) })
    }
}

struct Setup {
    source: Arc<Source>,
    cache: Arc<Cache>,
    chain: Chain,
    server: Arc<dyn Server>,
}

fn setup(options: &str) -> Setup {
    let lines = directives(&format!("cache {options}"), None).unwrap();
    let cache = Arc::new(Cache::parse(&lines[0], &[Name::root()]).unwrap());
    let source = Arc::new(Source::default());
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let context = Context::new(Arc::default(), Arc::new(|| true), Arc::default(), tasks);
    let chain: Vec<Arc<dyn Plugin>> = vec![cache.clone(), source.clone()];
    Setup { source, cache, chain: chain.into(), server: Arc::new(Alone(context)) }
}

fn request(name: &str) -> Request {
    let mut header = Message::query().metadata;
    header.id = 7;
    Request {
        header,
        question: Query::query(Name::from_ascii(name).unwrap(), RecordType::A),
        edns: None,
        client: "192.0.2.99:5000".parse().unwrap(),
        port: 53,
        tcp: false,
        size: 30,
        depth: 0,
        is_refresh: false,
    }
}

impl Setup {
    /// Returns the last number of the address with its TTL, or the code.
    async fn ask(&self, name: &str) -> String {
        let mut request = request(name);
        let reply = match Next::new(&self.chain, &self.server).answer(&mut request).await {
            Ok(Some(reply)) => reply,
            other => return format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
        };
        assert_eq!((reply.metadata.id, &reply.queries[0]), (7, &request.question));
        match reply.answers.first() {
            Some(record) => format!("{} for {}", record.data, record.ttl).replace("192.0.2.", ""),
            None => format!("{:?}", reply.metadata.response_code),
        }
    }
}

/// Large answers would fill the memory, and the options of an answer are for one client.
#[tokio::test(start_paused = true)]
async fn keeps_neither_large_answers_nor_options() {
    let setup = setup("60");
    assert_eq!(setup.ask("large.").await, "1 for 100");
    assert_eq!(setup.ask("large.").await, "2 for 100");
    let mut reply = request("a.").reply(ResponseCode::NoError);
    reply.set_edns(hickory_proto::op::Edns::new());
    assert!(kept_form(&reply).unwrap().edns.is_none());
}

async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn answers_age_and_expire() {
    let setup = setup("60");
    assert_eq!(setup.ask("a.").await, "1 for 60", "no longer than the cache keeps it");
    after(10).await;
    assert_eq!(setup.ask("A.").await, "1 for 50");
    after(50).await;
    assert_eq!(setup.ask("a.").await, "2 for 60");
    let keeps = self::setup("60 {\n keepttl\n}");
    keeps.ask("a.").await;
    after(10).await;
    assert_eq!(keeps.ask("a.").await, "1 for 60");
}

#[tokio::test(start_paused = true)]
async fn stores_follow_their_options() {
    let setup = setup(
        "{\n success 2000 30\n denial 2000 10\n disable success off.example\n servfail 2s\n}",
    );
    for name in ["a.", "none.", "broken.", "b.off.example."] {
        setup.ask(name).await;
        setup.ask(name).await;
    }
    assert_eq!(
        setup.source.asked.load(Ordering::Relaxed),
        5,
        "only the disabled zone is asked twice"
    );
    after(3).await;
    setup.ask("broken.").await;
    assert_eq!(setup.source.asked.load(Ordering::Relaxed), 6);
    after(8).await;
    setup.ask("none.").await;
    setup.ask("a.").await;
    assert_eq!(setup.source.asked.load(Ordering::Relaxed), 7);
    after(30).await;
    setup.ask("a.").await;
    assert_eq!(setup.source.asked.load(Ordering::Relaxed), 8);
}

#[tokio::test(start_paused = true)]
async fn popular_answers_are_fetched_before_they_expire() {
    let setup = setup("{\n prefetch 2 1m 20%\n}");
    for _ in 0..3 {
        setup.ask("a.").await;
        after(41).await;
    }
    // The query after 82 seconds is the second one without a long gap, in the last fifth of the TTL.
    assert_eq!(setup.source.asked.load(Ordering::Relaxed), 2);
    assert!(setup.ask("a.").await.starts_with("2 for"));
}

#[tokio::test(start_paused = true)]
async fn old_answers_are_served_while_the_source_fails() {
    let immediate = setup("{\n serve_stale 1h immediate 30s\n}");
    immediate.ask("a.").await;
    after(200).await;
    assert_eq!(immediate.ask("a.").await, "1 for 30");
    after(1).await;
    assert_eq!(immediate.ask("a.").await, "2 for 99", "it was refreshed");
    immediate.source.fails.store(true, Ordering::Relaxed);
    after(200).await;
    for _ in 0..3 {
        assert_eq!(immediate.ask("a.").await, "2 for 30");
        after(10).await;
    }
    after(3600).await;
    assert_eq!(immediate.ask("a.").await, "Err", "it is too old");
    let verify = setup("{\n serve_stale 1h verify\n}");
    verify.ask("a.").await;
    after(200).await;
    assert_eq!(verify.ask("a.").await, "2 for 100");
    verify.source.fails.store(true, Ordering::Relaxed);
    after(200).await;
    assert_eq!(verify.ask("a.").await, "2 for 0");
}

#[tokio::test(start_paused = true)]
async fn cache_is_bounded_and_keeps_recent_hits() {
    let setup = setup("{\n success 1024\n}");
    setup.ask("hit.").await;
    for n in 0..5000 {
        setup.ask(&format!("{n}.example.")).await;
        assert!(setup.ask("hit.").await.starts_with("1 for"));
        assert!(setup.cache.len() <= 1024);
    }
}
