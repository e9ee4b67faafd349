//! Invalidates, and later deletes, token Secrets that a former release made for service accounts and that nothing uses.
//! The API server records since when it tracks the use of tokens, and the last use of each.

use std::{collections::BTreeSet, time::Duration};

use api_meta::{ObjectMeta, Timestamp};
use auth::authn::legacy_token::{INVALID_SINCE, LAST_USED, TRACKING, date};
use client::{Error, NotFoundExt as _, Resource};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{TokenSecret, delete};
use crate::{
    context::{Context, synced},
    shared::Watched,
    views::{ConfigMap, ServiceAccount},
};

/// The interval between two looks at all Secrets.
const PERIOD: Duration = Duration::from_secs(24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// The pause after a failed look.
const RETRY: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq)]
enum Plan {
    Keep,
    Invalidate,
    Delete,
}

/// The dates that decide about Secrets.
struct Dates {
    now: Timestamp,
    /// The time since which a Secret must not have been used, nor invalidated if it is to be deleted.
    limit: Timestamp,
}

impl Dates {
    /// Returns the dates, or `None` while the use of tokens has not been tracked for all of `period`.
    fn new(now: Timestamp, period: Duration, tracked_since: &str) -> Option<Self> {
        // The day on which tracking began counts as untracked.
        let complete = parse(tracked_since)?.plus(DAY).plus(period);
        let seconds = i64::try_from(period.as_secs()).ok()?;
        let limit = Timestamp::from_unix(now.unix().checked_sub(seconds)?, now.nanos());
        (now >= complete).then_some(Self { now, limit })
    }

    /// Decides about a Secret that is listed by its account and not mounted.
    fn plan(&self, secret: &ObjectMeta) -> Plan {
        let is_old = secret.creation_timestamp.is_some_and(|created| created < self.limit);
        if !is_old || secret.terminating() {
            return Plan::Keep;
        }
        let day = |label: &str| secret.labels.get(label).map(|text| parse(text).map(date));
        let limit = date(self.limit);
        match day(LAST_USED) {
            // A value that is no date says nothing about the last use.
            Some(None) => return Plan::Keep,
            Some(Some(used)) if used >= limit => return Plan::Keep,
            _ => {}
        }
        match day(INVALID_SINCE).flatten() {
            None => Plan::Invalidate,
            Some(since) if since >= limit => Plan::Keep,
            Some(_) => Plan::Delete,
        }
    }
}

/// Parses a date like `2026-11-27`.
fn parse(day: &str) -> Option<Timestamp> {
    let is_date = day.len() == "2026-11-27".len();
    is_date.then(|| format!("{day}T00:00:00Z").parse().ok()).flatten()
}

/// The Secrets that a Pod uses.
struct SecretsOfPod(BTreeSet<String>);

impl<'de> Deserialize<'de> for SecretsOfPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|pod| Self(auth::authz::node::secrets_of_pod(&pod)))
    }
}

#[derive(Clone)]
struct Cleaner {
    context: Context,
    secrets: Watched<TokenSecret>,
    accounts: Watched<ServiceAccount>,
}

pub(crate) fn start(context: Context) {
    let cleaner = Cleaner {
        secrets: context.watch(Resource::SECRETS),
        accounts: context.watch(Resource::SERVICE_ACCOUNTS),
        context: context.clone(),
    };
    context.tasks.keep(context.name, move || cleaner.clone().run());
}

impl Cleaner {
    async fn run(self) {
        futures_util::future::join(synced(&self.secrets), synced(&self.accounts)).await;
        loop {
            let done = self.clean().await;
            if let Err(error) = &done {
                tracing::warn!(%error, "look for unused tokens of service accounts");
            }
            tokio::time::sleep(if done.is_ok() { PERIOD } else { RETRY }).await;
        }
    }

    async fn clean(&self) -> Result<(), Error> {
        let Some(dates) = self.dates().await? else { return Ok(()) };
        let unused = |secret: &&std::sync::Arc<TokenSecret>| {
            dates.plan(&secret.metadata) != Plan::Keep && self.is_listed(secret)
        };
        let all = self.secrets.list();
        let unused: Vec<_> = all.iter().filter(unused).collect();
        if unused.is_empty() {
            return Ok(());
        }
        // Most clusters have no such Secrets, and need not know which Secrets their Pods use.
        let pods = self.context.watch::<SecretsOfPod>(Resource::PODS);
        synced(&pods).await;
        for secret in unused {
            let meta = &secret.metadata;
            let is_used = |pod: &std::sync::Arc<SecretsOfPod>| pod.0.contains(&meta.name);
            if pods.in_namespace(&meta.namespace).iter().any(is_used) {
                continue;
            }
            match dates.plan(meta) {
                Plan::Keep => {}
                Plan::Invalidate => self.invalidate(meta, dates.now).await?,
                Plan::Delete => delete(&self.context, meta, "of a token that is not used").await?,
            }
        }
        Ok(())
    }

    /// Reads since when the API server tracks the use of tokens.
    async fn dates(&self) -> Result<Option<Dates>, Error> {
        let client = &self.context.client;
        let map = client.get::<ConfigMap>(&Resource::CONFIG_MAPS, "kube-system", TRACKING).await;
        let Some(map) = map.or_none()? else { return Ok(None) };
        let period = self.context.config.token_clean_up_period;
        Ok(map.data.get("since").and_then(|since| Dates::new(self.context.now(), period, since)))
    }

    /// Reports whether the Secret was made for its account, and not by a user.
    fn is_listed(&self, secret: &TokenSecret) -> bool {
        let key = format!("{}/{}", secret.metadata.namespace, secret.account);
        let account = self.accounts.get(&key).filter(|account| secret.is_of(&account.metadata));
        account.is_some_and(|account| account.lists(&secret.metadata.name))
    }

    async fn invalidate(&self, meta: &ObjectMeta, now: Timestamp) -> Result<(), Error> {
        tracing::info!(
            namespace = meta.namespace,
            name = meta.name,
            "marking an unused token as invalid"
        );
        let labels = json!({INVALID_SINCE: date(now)});
        let patch = json!({"metadata": {"uid": meta.uid, "labels": labels}});
        self.context.merge(&Resource::SECRETS, meta, patch).await.or_none().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: Duration = Duration::from_secs(8760 * 3600);

    fn now() -> Timestamp {
        "2026-11-27T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn waits_until_use_was_tracked_for_period() {
        let since = |day: &str, period| Dates::new(now(), period, day).is_some();
        assert!(since("2025-11-26", YEAR));
        assert!(!since("2025-11-27", YEAR), "the first day is incomplete");
        assert!(since("2026-11-26", Duration::ZERO));
        assert!(!since("2026-11-27", Duration::ZERO));
        for bad in ["", "yesterday", "2025-11-26T00:00:00Z", "2025-13-01", &"2".repeat(1 << 20)] {
            assert!(!since(bad, YEAR), "{bad:.20}");
        }
        assert!(!since("2020-01-01", Duration::MAX));
    }

    #[test]
    fn plans_by_age_use_and_mark() {
        let dates = Dates::new(now(), YEAR, "2020-01-01").unwrap();
        let plan = |created: &str, labels: Value| {
            let metadata = json!({"name": "s", "creationTimestamp": created, "labels": labels});
            dates.plan(&serde_json::from_value(metadata).unwrap())
        };
        let old = "2024-01-01T00:00:00Z";
        assert_eq!(plan(old, json!({})), Plan::Invalidate);
        assert_eq!(plan("2025-11-27T12:00:01Z", json!({})), Plan::Keep);
        assert_eq!(plan(old, json!({LAST_USED: "2025-11-26"})), Plan::Invalidate);
        assert_eq!(plan(old, json!({LAST_USED: "2025-11-27"})), Plan::Keep);
        assert_eq!(plan(old, json!({LAST_USED: "nonsense"})), Plan::Keep);
        assert_eq!(plan(old, json!({INVALID_SINCE: "2025-11-27"})), Plan::Keep);
        assert_eq!(plan(old, json!({INVALID_SINCE: "2025-11-26"})), Plan::Delete);
        assert_eq!(plan(old, json!({INVALID_SINCE: "nonsense"})), Plan::Invalidate);
        let used = json!({INVALID_SINCE: "2024-06-01", LAST_USED: "2026-11-01"});
        assert_eq!(plan(old, used), Plan::Keep, "somebody still tries it");
    }
}
