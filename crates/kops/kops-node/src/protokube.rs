//! `protokube`: runs on each control plane. The instance whose etcd member leads backs up etcd and deletes expired
//! backups. A store without Kubernetes' objects is not backed up. A backup is restored to a temporary file before it is
//! stored.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use api_config::GoDuration;
use api_meta::{Timestamp, Tree as _};
use bootstrap::etcd::Etcd;
use client::TlsMaterial;
use kops_api::Object;
use kops_core::{
    backup::{self, Info, Retention},
    snapshot::OBJECTS,
};
use kops_store::{Backups, ETCD, parse_yaml};
use serde_json::Value;
use vfs::Store;

use crate::{error::Error, store_access::open};

pub(crate) const DIRECTORY: &str = "/etc/kubernetes/protokube";
pub(crate) const CONFIG: &str = "/etc/kubernetes/protokube/config.json";
/// The default interval of backups, as upstream's.
const INTERVAL: Duration = Duration::from_secs(15 * 60);
const POLL: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_secs(86_400);

/// Backs up etcd to the state store
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file with settings
    #[arg(long)]
    conf: PathBuf,
}

/// The interval and retention of backups.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    interval: Duration,
    retention: Retention,
}

impl Plan {
    /// Reads the plan from a cluster's complete spec; unset values are etcd-manager's defaults.
    fn of(spec: &Value) -> Result<Self, Error> {
        let etcd = spec.items("etcdClusters").iter().find(|etcd| etcd.text("name") == ETCD);
        let manager = etcd.map(|etcd| etcd.at("manager").clone()).unwrap_or_default();
        let mut plan = Self { interval: INTERVAL, retention: Retention::default() };
        if !manager.text("backupInterval").is_empty() {
            plan.interval = period("backupInterval", manager.text("backupInterval"))?;
        }
        for variable in manager.items("env") {
            let at = match variable.text("name") {
                "ETCD_MANAGER_HOURLY_BACKUPS_RETENTION" => &mut plan.retention.hourly,
                "ETCD_MANAGER_DAILY_BACKUPS_RETENTION" => &mut plan.retention.daily,
                _ => continue,
            };
            *at = period(variable.text("name"), variable.text("value"))?;
        }
        if let Some(days) =
            manager.opt_int("backupRetentionDays").and_then(|days| u32::try_from(days).ok())
        {
            plan.retention.daily = DAY * days;
        }
        Ok(plan)
    }
}

/// Parses a period in etcd-manager's form: a Go duration, days or years.
fn period(field: &str, text: &str) -> Result<Duration, Error> {
    let whole = |unit: char, days: u32| {
        let count = text.strip_suffix(unit)?.parse::<u32>().ok()?;
        Some(DAY.saturating_mul(count.saturating_mul(days)))
    };
    if let Some(period) = whole('y', 365).or_else(|| whole('d', 1)) {
        return Ok(period);
    }
    let parsed = text.parse::<GoDuration>().map_err(|source| Error::Period {
        field: field.to_owned(),
        value: text.to_owned(),
        source,
    })?;
    Ok(parsed.to_std())
}

/// Reports whether another backup is due.
fn is_due(newest: Option<Timestamp>, now: Timestamp, interval: Duration) -> bool {
    newest.is_none_or(|newest| now.since(newest) >= interval)
}

/// The etcd cluster to back up, and the target.
struct Protokube {
    cluster: String,
    store: Store,
    backups: Backups,
    etcd: Etcd,
    sequence: u32,
}

/// Runs `protokube` until shutdown.
pub async fn run(args: &Args, tasks: &rt::Tasks) -> Result<(), Error> {
    let path = args.conf.display().to_string();
    let text = std::fs::read(&args.conf).map_err(kops_store::Error::file("reading", &path))?;
    let settings = parse_yaml(&path, &text)?;
    let file = |name: &str| {
        let path = Path::new(DIRECTORY).join(name);
        std::fs::read(&path)
            .map_err(kops_store::Error::file("reading", &path.display().to_string()))
    };
    let tls = TlsMaterial {
        ca: Some(file("etcd-ca.crt")?),
        certificate: Some(file("protokube.crt")?),
        key: Some(file("protokube.key")?),
        insecure: false,
    };
    let backups = open(settings.text("backups"))?;
    let mut protokube = Protokube {
        cluster: settings.text("cluster").to_owned(),
        store: open(settings.text("store"))?,
        backups: Backups { store: backups, directory: String::new() },
        etcd: Etcd::with(&[settings.text("etcd").to_owned()], &tls)?,
        sequence: 0,
    };
    let mut last_error = String::new();
    loop {
        match protokube.back_up_if_due().await {
            Ok(()) => last_error.clear(),
            Err(error) => {
                let error = error.to_string();
                if last_error != error {
                    tracing::warn!(error, "could not back up etcd");
                }
                last_error = error;
            }
        }
        if tasks.shutdown().unless_stopping(tokio::time::sleep(POLL)).await.is_none() {
            return Ok(());
        }
    }
}

impl Protokube {
    fn plan(&self) -> Result<Plan, Error> {
        const NAME: &str = "cluster-completed.spec";
        let read = self.store.read(NAME)?;
        let (text, _) =
            read.ok_or_else(|| Error::Missing { name: format!("{NAME} of the state store") })?;
        Plan::of(&Object::read(NAME, &text)?.spec)
    }

    /// Takes a backup if one is due and this instance's member leads.
    async fn back_up_if_due(&mut self) -> Result<(), Error> {
        let status = self.etcd.status().await?;
        if !status.leads() {
            return Ok(());
        }
        let plan = self.plan()?;
        let newest = self.backups.list()?.iter().filter_map(|name| backup::moment(name)).max();
        let now = Timestamp::from(rt::now());
        // The API server of a new cluster has not written anything yet.
        if !is_due(newest, now, plan.interval) || !self.etcd.has_keys(OBJECTS).await? {
            return Ok(());
        }
        let members = i64::try_from(self.etcd.members().await?.len()).unwrap_or(0);
        let info = Info { etcd_version: status.version, members, timestamp: now.unix() };
        self.sequence += 1;
        let name =
            back_up(&self.etcd, &self.backups, &self.cluster, &info, self.sequence - 1).await?;
        tracing::info!(name, "backed up etcd");
        for name in self.backups.expire(now, plan.retention)? {
            tracing::info!(name, "deleted an expired backup");
        }
        Ok(())
    }
}

/// Stores a snapshot of etcd as a backup, if it can be restored.
pub(crate) async fn back_up(
    etcd: &Etcd,
    backups: &Backups,
    cluster: &str,
    info: &Info,
    sequence: u32,
) -> Result<String, Error> {
    let directory = std::env::temp_dir();
    let shown = directory.display().to_string();
    std::fs::create_dir_all(&directory)
        .map_err(kops_store::Error::file("making the directory", &shown))?;
    let directory =
        tempfile::tempdir().map_err(kops_store::Error::file("making a directory in", &shown))?;
    let path = directory.path().join(backup::DATA);
    let failed = || kops_store::Error::file("writing", &path.display().to_string());
    let file = File::create(&path).map_err(failed())?;
    let mut archive = Backups::create_archive(std::io::BufWriter::new(file), cluster);
    etcd.snapshot(&mut archive).await?;
    archive.finish().and_then(|mut file| file.flush()).map_err(failed())?;
    Backups::verify_archive(&path, cluster)?;
    Ok(backups.store_archive(&path, info, sequence)?)
}

#[cfg(test)]
mod etcd_tests;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_interval_and_retention_from_spec() {
        let of = |manager: Value| {
            Plan::of(&json!({"etcdClusters": [{"name": "main", "manager": manager}]}))
        };
        let plan = of(json!({})).unwrap();
        assert_eq!(plan, Plan { interval: INTERVAL, retention: Retention::default() });
        let env = |name: &str, value: &str| json!({"name": name, "value": value});
        let plan = of(json!({
            "backupInterval": "1h30m", "backupRetentionDays": 90,
            "env": [env("ETCD_MANAGER_HOURLY_BACKUPS_RETENTION", "2d"), env("ETCD_MANAGER_DAILY_BACKUPS_RETENTION", "1y")],
        }));
        let plan = plan.unwrap();
        assert_eq!(plan.interval, Duration::from_secs(5400));
        assert_eq!(plan.retention, Retention { hourly: DAY * 2, daily: DAY * 90 });
        let error = of(json!({"backupInterval": "often"})).unwrap_err().to_string();
        assert!(error.contains("backupInterval of etcd cluster main"), "{error}");
    }

    #[test]
    fn next_backup_follows_the_newest() {
        let at = |seconds| Timestamp::from_unix(seconds, 0);
        assert!(is_due(None, at(0), INTERVAL));
        assert!(
            !is_due(Some(at(100)), at(999), INTERVAL) && is_due(Some(at(100)), at(1000), INTERVAL)
        );
        // The clock of the newest backup's creator is ahead.
        assert!(!is_due(Some(at(2000)), at(1000), INTERVAL));
    }
}
