//! Handles get and list, and opens watches.

use std::{sync::Arc, time::Duration};

use api_meta::{ErrorList, FieldError, Path, Status};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use serve::Body;
use store::{KeyRange, Revision};
use telemetry::metrics::Histogram;
use tokio::time::Instant;

use super::{
    call::Call,
    options,
    state::State,
    stream::{BOOKMARK_EVERY, Stream},
};
use crate::{
    registry::{Definition, Object},
    request::{Encoding, Query},
    response::{self, ListMeta, compress, gzip_list},
    watch_cache::{Feed, Filter, Interest, Page, store_status},
};

/// The content of a continue token: the position and the revision of the list.
#[derive(Serialize, Deserialize)]
pub(crate) struct Continue {
    pub(crate) v: String,
    /// Negative: the current revision. Such a token is issued when the previous one is too old.
    pub(crate) rv: i64,
    /// The last sent key, without the resource's prefix.
    pub(crate) start: String,
    /// The number of remaining objects at that revision, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) left: Option<usize>,
}

pub(crate) async fn get(call: &Call) -> Result<Response<Body>, Box<Status>> {
    let object = current(call, call.info.query.get("resourceVersion")).await?;
    answer_object(call, StatusCode::OK, object).await
}

/// Answers with an object in the called version.
pub(crate) async fn answer_object(
    call: &Call,
    code: StatusCode,
    object: Arc<Object>,
) -> Result<Response<Body>, Box<Status>> {
    let definition = &call.resource.definition;
    let object = definition.shown_one(call.version, object).await?;
    Ok(response::object(definition, call.served(), call.accepted, code, &object))
}

/// Returns the object that the call names, at least as new as the last write before the call.
pub(crate) async fn current(
    call: &Call,
    version: Option<&str>,
) -> Result<Arc<Object>, Box<Status>> {
    fresh(call, version).await?;
    let cache = call.cache()?;
    let definition = &call.resource.definition;
    let key = definition.key(&call.path.namespace, &call.path.name);
    cache
        .get(&key)
        .ok_or_else(|| Box::new(Status::not_found(&definition.group_resource(), &call.path.name)))
}

/// Waits until the caches reach a resourceVersion: without one the current revision, with 0 any.
async fn fresh(call: &Call, version: Option<&str>) -> Result<Revision, Box<Status>> {
    let feed = &call.resource.feed;
    match parse_version(version)? {
        Some(0) => Ok(feed.applied()),
        Some(wanted) => {
            let reached = feed.wait_for_revision(wanted).await;
            reached.map_err(|_| {
                Box::new(Status::too_large_resource_version(wanted, feed.applied()))
            })?;
            Ok(feed.applied())
        }
        None => feed.consistent().await.map_err(store_status),
    }
}

pub(crate) async fn list(state: &State, call: &Call) -> Result<Response<Body>, Box<Status>> {
    let (meta, objects) = select(call).await?;
    let zip = call.accepted.is_stored_form() && compress::accepted(&call.headers);
    if zip && gzip_list::is_large(&objects) {
        let (blocks, definition) = (state.blocks.clone(), call.resource.definition.clone());
        return Ok(gzip_list::list(blocks, definition, call.version, &meta, objects));
    }
    let (definition, version) = (call.resource.definition.clone(), call.version);
    Ok(response::list(&definition, version, call.accepted, &meta, objects))
}

/// Returns the objects for a list or deletecollection.
pub(crate) async fn select(call: &Call) -> Result<(ListMeta, Vec<Arc<Object>>), Box<Status>> {
    let query = &call.info.query;
    let filter = Filter::parse(&call.info.query, &call.resource.definition)?;
    let definition = &call.resource.definition;
    let prefix = definition.key(&call.path.namespace, "");
    let limit = count(query, "limit")?;
    count(query, "timeoutSeconds")?;
    let token = query.get("continue").filter(|t| !t.is_empty());
    check_list_options(query, token)?;
    let exact = query.get("resourceVersionMatch") == Some("Exact");
    let version = query.get("resourceVersion");
    let everything = filter.is_everything();
    // With a filter, all objects must be read before the number of matches is known.
    let most = limit.filter(|_| everything).unwrap_or(usize::MAX);
    let (revision, Page { objects, behind, .. }) = match token {
        Some(token) => continued(call, &prefix, decode_token(token)?, most).await?,
        None if exact => {
            let revision = parse_version(version)?.unwrap_or_default();
            let old = || Status::expired("The resourceVersion for the provided list is too old.");
            (
                revision,
                at(call, &prefix, Position::START, revision, most)
                    .await?
                    .ok_or_else(|| Box::new(old()))?,
            )
        }
        None => {
            let revision = fresh(call, version).await?;
            let page = call.cache()?.page(&prefix, "", most, None);
            // Changes may arrive meanwhile: the list may contain objects newer than the awaited revision. Its revision
            // is then that of the newest.
            (revision.max(page.newest), page)
        }
    };
    let objects = definition.shown(call.version, objects).await?;
    let mut matching = objects.into_iter().filter(|o| everything || filter.matches(o));
    let Some(limit) = limit else {
        return Ok((ListMeta { revision, ..ListMeta::default() }, matching.collect()));
    };
    let page: Vec<_> = matching.by_ref().take(limit).collect();
    let rest = matching.count() + behind;
    let mut meta = ListMeta { revision, ..ListMeta::default() };
    if let Some(last) = page.last().filter(|_| rest > 0) {
        // As upstream: the number of remaining objects is unknown with a selector.
        meta.remaining = everything.then_some(rest as u64);
        meta.continue_token = encode_token(Continue {
            v: "meta.k8s.io/v1".to_owned(),
            rv: revision as i64,
            start: last.key.strip_prefix(&*definition.prefix).unwrap_or_default().to_owned(),
            left: everything.then_some(rest),
        });
    }
    Ok((meta, page))
}

/// Returns the rest of a list at the revision of its first page.
async fn continued(
    call: &Call,
    prefix: &str,
    token: Continue,
    most: usize,
) -> Result<(Revision, Page), Box<Status>> {
    let after = format!("{}{}", call.resource.definition.prefix, token.start);
    let Ok(revision) = Revision::try_from(token.rv) else {
        let revision = fresh(call, None).await?;
        let page = call.cache()?.page(prefix, &after, most, None);
        return Ok((revision.max(page.newest), page));
    };
    let position = Position { after: &after, left: token.left };
    if let Some(page) = at(call, prefix, position, revision, most).await? {
        return Ok((revision, page));
    }
    let mut status = Status::expired(CONTINUE_EXPIRED);
    let token = Continue { rv: -1, left: None, ..token };
    status.metadata.r#continue = encode_token(token);
    Err(Box::new(status))
}

/// A position in a list.
struct Position<'a> {
    /// The last key of the page before; empty for the first page.
    after: &'a str,
    /// The number of objects from here on, if it is known.
    left: Option<usize>,
}

impl Position<'_> {
    const START: Self = Self { after: "", left: None };
}

/// Returns a range at one revision: from the cache if nothing has changed since, otherwise from the store's history.
/// `None` if the revision has been compacted.
async fn at(
    call: &Call,
    prefix: &str,
    position: Position<'_>,
    revision: Revision,
    most: usize,
) -> Result<Option<Page>, Box<Status>> {
    let Position { after, left } = position;
    let cache = call.cache()?;
    let feed = &call.resource.feed;
    let reached = feed.wait_for_revision(revision).await;
    reached.map_err(|_| Box::new(Status::too_large_resource_version(revision, feed.applied())))?;
    if feed.is_compacted(revision) {
        return Ok(None);
    }
    if cache.newest() <= revision {
        let page = cache.page(prefix, after, most, left);
        if cache.newest() <= revision {
            return Ok(Some(page));
        }
    }
    let mut range = KeyRange::prefix(prefix);
    if after > prefix {
        // The smallest key after `after`.
        range.start = format!("{after}\0");
    }
    // The store's 0 is no limit.
    let limit = if most == usize::MAX { 0 } else { most };
    match feed.store.range(range, limit, revision).await {
        Ok(found) => {
            let object = |kv| Arc::new(call.resource.definition.loaded(kv).0);
            let objects: Vec<_> = found.items.iter().map(object).collect();
            let count = usize::try_from(found.count).unwrap_or(usize::MAX);
            let behind = count.saturating_sub(objects.len());
            Ok(Some(Page { objects, behind, ..Page::default() }))
        }
        Err(store::Error::Compacted { .. }) => Ok(None),
        Err(other) => Err(store_status(other)),
    }
}

/// Waits for a revision that this server has not applied yet: another server may have returned it. A revision beyond
/// the store's own predates a restored backup, and the client must list again.
async fn known(feed: &Feed, version: Revision) -> Result<(), Box<Status>> {
    if feed.wait_for_revision(version).await.is_err()
        && let Ok(current) = feed.store.revision().await
        && current < version
    {
        return Err(Box::new(Status::too_old_resource_version(version, current)));
    }
    Ok(())
}

/// The maximum number of requirements in the selectors of a watch. Each change is compared with them while all other
/// watches wait.
const MAX_REQUIREMENTS: usize = 256;

pub(crate) async fn watch(state: &State, call: &Call) -> Result<Response<Body>, Box<Status>> {
    let started = Instant::now();
    let query = &call.info.query;
    let timeout = count(query, "timeoutSeconds")?;
    let cache = call.cache()?.clone();
    let prefix = cache.definition.key(&call.path.namespace, "");
    let filter = Arc::new(watch_filter(call)?);
    let interest = interest(call, &cache.definition, &filter);
    let version = parse_version(query.get("resourceVersion"))?;
    let initial = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
    check_watch_options(query, initial)?;
    let send_state = initial.unwrap_or(matches!(version, None | Some(0)));
    let watcher = if send_state {
        fresh(call, query.get("resourceVersion")).await?;
        cache.watch_from_now(interest)
    } else {
        let from = match version {
            None | Some(0) => fresh(call, None).await?,
            Some(version) => version,
        };
        known(&call.resource.feed, from).await?;
        cache
            .watch(from, interest)
            .map_err(|old| Box::new(Status::too_old_resource_version(from, old.oldest)))?
    };
    // Convert the initial objects in one batch instead of one by one as they are sent.
    let there = watcher.backlog.iter().map(|event| event.object.clone()).collect();
    cache.definition.shown(call.version, there).await?;
    let floor = if send_state { 0 } else { version.unwrap_or(0) };
    // As upstream: between 30 and 60 minutes by default, if the client sets no timeout.
    let timeout = timeout.map_or_else(
        || state.config.serving.min_request_timeout.mul_f64(1.0 + rt::random::<f64>()),
        |seconds| Duration::from_secs(seconds as u64).min(rt::FAR),
    );
    let mut accepted = call.accepted;
    let custom = cache.definition.custom.is_some();
    if custom && accepted.encoding == Encoding::Protobuf || accepted.encoding == Encoding::Yaml {
        accepted.encoding = Encoding::Json;
    }
    let content_type = match accepted.encoding {
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Encoding::Cbor => "application/cbor-seq",
        Encoding::Json | Encoding::Yaml => "application/json",
    };
    let initial_end = initial == Some(true) && query.flag("allowWatchBookmarks");
    let seat = call.take_seat().filter(|_| !watcher.backlog.is_empty());
    let stream = Stream {
        resource: call.resource.clone(),
        pool: state.pool.clone(),
        version: call.version,
        filter,
        prefix,
        floor,
        accepted,
        bookmarks: query.flag("allowWatchBookmarks"),
        ends: Instant::now() + timeout,
        next_bookmark: Instant::now() + BOOKMARK_EVERY,
        initial_end: initial_end.then_some(watcher.revision),
        started,
        list_seconds: initial_end.then(|| list_seconds(state, call)),
        sent_columns: false,
        failed: false,
        seat: seat.map(|seat| seat.for_at_most(state.config.request_timeout)),
        watcher,
    };
    let frames = futures_util::stream::unfold(stream, |mut stream| async move {
        let bytes = stream.next().await?;
        Some((Ok(Frame::data(bytes)), stream))
    });
    let body = http_body_util::StreamBody::new(frames).boxed_unsync();
    let mut response = response::bytes(StatusCode::OK, content_type, Bytes::new());
    *response.body_mut() = body;
    Ok(response)
}

/// Returns the selectors of a watch.
fn watch_filter(call: &Call) -> Result<Filter, Box<Status>> {
    let mut filter = Filter::parse(&call.info.query, &call.resource.definition)?;
    if filter.requirements() > MAX_REQUIREMENTS {
        let message = format!(
            "the selectors of a watch may have at most {MAX_REQUIREMENTS} requirements, not {}: use `in` and `notin` \
             with several values, or watch all objects",
            filter.requirements()
        );
        return Err(Box::new(Status::bad_request(message)));
    }
    // A watch of one object by its deprecated path.
    if !call.path.name.is_empty() {
        filter.only(&call.path.name);
    }
    Ok(filter)
}

/// Returns the durations of streaming lists of the call's kind and scope.
fn list_seconds(state: &State, call: &Call) -> Histogram {
    let path = &call.path;
    let scope = match (&*path.name, &*path.namespace) {
        ("", "") => "cluster",
        ("", _) => "namespace",
        _ => "resource",
    };
    let of = [path.group.as_str(), &path.version, &path.resource, scope];
    state.watch_lists.with_label_values(&of)
}

/// Returns the events that the cache must deliver to the watch: as few as can be decided in advance.
fn interest(call: &Call, definition: &Definition, filter: &Arc<Filter>) -> Interest {
    let namespace = &call.path.namespace;
    let one = filter.name().filter(|_| !namespace.is_empty() || !definition.namespaced);
    Interest {
        scope: definition.key(namespace, one.unwrap_or_default()),
        // If a webhook converts the kind, selectors apply to the converted object.
        filter: definition.converter.is_none().then(|| filter.clone()),
    }
}

const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list \
    result. You can start a new list without the continue parameter, or use the continue token in this \
    response to retrieve the remainder of the results. Continuing with the provided token results in an \
    inconsistent list - objects that were created, modified, or deleted between the time the first chunk \
    was returned and now may show up in the list.";
/// Parses `resourceVersion`. An empty value is like none.
fn parse_version(text: Option<&str>) -> Result<Option<Revision>, Box<Status>> {
    match text.filter(|t| !t.is_empty()) {
        None => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            Box::new(Status::bad_request(format!(
                "Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
            )))
        }),
    }
}

/// Parses a count. Values below one mean no limit.
fn count(query: &Query, name: &str) -> Result<Option<usize>, Box<Status>> {
    let count = query.integer(name)?.and_then(|count| usize::try_from(count).ok());
    Ok(count.filter(|count| *count > 0))
}

fn check_list_options(query: &Query, token: Option<&str>) -> Result<(), Box<Status>> {
    let version = query.get("resourceVersion").unwrap_or_default();
    let (field, mut errors) = (Path::new(MATCH), ErrorList::new());
    let wanted = query.get(MATCH).unwrap_or_default();
    if !wanted.is_empty() {
        let mut forbid = |detail: &str| errors.push(FieldError::forbidden(&field, detail));
        if version.is_empty() {
            forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if token.is_some() {
            forbid(MATCH_AND_CONTINUE);
        }
        match wanted {
            "Exact" if version == "0" => {
                forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
            "Exact" | "NotOlderThan" => {}
            other => {
                let known = ["Exact", "NotOlderThan", ""];
                errors.push(FieldError::not_supported(&field, other, &known));
            }
        }
    }
    if query.get(INITIAL).is_some() {
        let detail = "sendInitialEvents is forbidden for list";
        errors.push(FieldError::forbidden(&Path::new(INITIAL), detail));
    }
    options::refuse("ListOptions", &errors)?;
    if token.is_some() && !matches!(version, "" | "0") {
        let message = "specifying resource version is not allowed when using continue";
        return Err(Box::new(Status::bad_request(message)));
    }
    Ok(())
}

const MATCH: &str = "resourceVersionMatch";
const MATCH_AND_CONTINUE: &str = "resourceVersionMatch is forbidden when continue is provided";
const INITIAL: &str = "sendInitialEvents";

fn check_watch_options(query: &Query, initial: Option<bool>) -> Result<(), Box<Status>> {
    let (field, mut errors) = (Path::new(MATCH), ErrorList::new());
    let mut forbid = |detail: &str| errors.push(FieldError::forbidden(&field, detail));
    let wanted = query.get(MATCH).unwrap_or_default();
    if initial.is_some() && wanted != "NotOlderThan" {
        forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if query.get("continue").is_some_and(|token| !token.is_empty()) {
        forbid(MATCH_AND_CONTINUE);
    }
    if !wanted.is_empty() {
        if initial.is_none() {
            forbid(
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        }
        if wanted != "NotOlderThan" {
            errors.push(FieldError::not_supported(&field, wanted, &["NotOlderThan"]));
        }
    }
    options::refuse("ListOptions", &errors)
}

pub(crate) fn encode_token(token: Continue) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
}

pub(crate) fn decode_token(text: &str) -> Result<Continue, Box<Status>> {
    let invalid = || Box::new(Status::bad_request("continue key is not valid"));
    let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| invalid())?;
    let token: Continue = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
    // The key comes from the client and must not leave the resource's prefix.
    if token.v != "meta.k8s.io/v1"
        || token.start.split('/').any(|part| part == ".." || part.is_empty())
    {
        return Err(invalid());
    }
    Ok(token)
}
