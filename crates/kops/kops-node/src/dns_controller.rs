//! dns-controller: publishes the names of Pods, Services, Ingresses and Nodes in DNS. The records are decided by
//! [`kops_core::dns`]; this module watches the API and calls the provider.
//!
//! Invariants:
//! - Nothing is written before all watched objects are listed.
//! - A name that fails is retried after a pause, and does not delay others.

mod provider;
mod rfc2136;
mod route53;
#[cfg(test)]
mod tests;
mod tsig;
mod watch;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use api_config::{
    GoFlag as _,
    known::{self, Flag, KnownFlags},
};
use api_meta::Timestamp;
use client::Client;
use kops_core::dns::{
    AddressOptions, Change, DesiredRecords, Published, Zone, ZoneRules, Zones, batches,
};

use self::{
    provider::{Effect, Provider},
    rfc2136::{PORT, Rfc2136, TimeLimits},
    route53::Route53,
    watch::Watch,
};

/// The region of the client if the environment names none. Route 53 serves all regions.
const REGION: &str = "us-east-1";

/// Publishes names of Pods, Services, Ingresses and Nodes in DNS, as kOps' dns-controller does
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The DNS provider: aws-route53 or rfc2136
    #[arg(long, default_value = "aws-route53")]
    dns: String,
    /// The zones that may be changed: NAME, NAME/ID, */ID or * [default: all]
    #[arg(long, short, value_delimiter = ',')]
    zone: Vec<String>,
    /// Publish the hosts of Ingresses, too
    #[arg(long, go_bool(), default_value_t = true)]
    watch_ingress: bool,
    /// Watch Pods, Services and Ingresses of this namespace only
    #[arg(long, default_value = "", hide_default_value = true)]
    watch_namespace: String,
    /// The pause between updates in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    update_interval: u64,
    /// Internal names have IPv4 addresses [default: true, unless --internal-ipv6 is given]
    #[arg(long, go_bool())]
    internal_ipv4: Option<bool>,
    /// Internal names have IPv6 addresses [default: true, unless --internal-ipv4 is given]
    #[arg(long, go_bool())]
    internal_ipv6: Option<bool>,
    /// Nodes without an external address have their internal ones for external names
    #[arg(long, go_bool(), default_value_t = false)]
    internal_as_external: bool,
    /// The DNS server of rfc2136, as HOST or HOST:PORT
    #[arg(long)]
    rfc2136_server: Option<String>,
    /// The file with the TSIG key of rfc2136, as tsig-keygen prints it
    #[arg(long)]
    rfc2136_tsig_key_file: Option<PathBuf>,
    /// Send unsigned updates to the server of rfc2136
    #[arg(long, go_bool(), default_value_t = false)]
    rfc2136_insecure: bool,
    /// The kubeconfig outside of a Pod
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    refused: KnownFlags<Refused>,
    #[command(flatten)]
    ignored: KnownFlags<Ignored>,
}

/// The flags of upstream that prevent the start.
#[derive(Clone, Debug, Default)]
pub struct Refused;

impl known::Tables for Refused {
    const TABLES: &'static [&'static [Flag]] = &[&[
        ("dns-server", true, NO_GOSSIP),
        ("gossip-listen", true, NO_GOSSIP),
        ("gossip-listen-secondary", true, NO_GOSSIP),
        ("gossip-protocol", true, NO_GOSSIP),
        ("gossip-protocol-secondary", true, NO_GOSSIP),
        ("gossip-secret", true, NO_GOSSIP),
        ("gossip-secret-secondary", true, NO_GOSSIP),
        ("gossip-seed", true, NO_GOSSIP),
        ("gossip-seed-secondary", true, NO_GOSSIP),
    ]];
}

const NO_GOSSIP: &str = "the providers are aws-route53 and rfc2136";

/// The flags of upstream that have no effect.
#[derive(Clone, Debug, Default)]
pub struct Ignored;

impl known::Tables for Ignored {
    const TABLES: &'static [&'static [Flag]] = &[
        &[
            ("metrics-listen", true, "there are no metrics"),
            ("route53-batch-size", true, "requests have a fixed bound"),
        ],
        known::COMMON,
    ];
}

/// The error of dns-controller's start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag of upstream that is not supported.
    #[error("--{flag} is not supported: {reason}; start without it")]
    Unsupported { flag: &'static str, reason: &'static str },
    /// A provider that is not supported.
    #[error("--dns {provider:?} is not supported; use aws-route53 or rfc2136")]
    Provider { provider: String },
    /// A rule for zones that cannot be parsed.
    #[error(transparent)]
    Zone(#[from] kops_core::dns::ZoneRuleError),
    /// A flag that is missing.
    #[error("--dns rfc2136 needs {0}")]
    Missing(&'static str),
    /// A flag of another provider.
    #[error("{0} belongs to --dns rfc2136")]
    OtherProvider(&'static str),
    /// The client of AWS cannot be created.
    #[error(transparent)]
    Aws(#[from] aws::Error),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] client::KubeconfigError),
    /// The service account cannot be used.
    #[error(transparent)]
    ServiceAccount(#[from] client::ServiceAccountError),
}

impl Args {
    fn address_options(&self) -> AddressOptions {
        let (ipv4, ipv6) = (self.internal_ipv4, self.internal_ipv6);
        AddressOptions {
            internal_ipv4: ipv4.unwrap_or(ipv6 != Some(true)),
            internal_ipv6: ipv6.unwrap_or(ipv4 != Some(true)),
            internal_as_external: self.internal_as_external,
        }
    }

    fn check(&self) -> Result<(), Error> {
        if let Some((flag, reason)) = self.refused.given().next() {
            return Err(Error::Unsupported { flag, reason });
        }
        if self.dns == "rfc2136" {
            return Ok(());
        }
        for (flag, is_given) in [
            ("--rfc2136-server", self.rfc2136_server.is_some()),
            ("--rfc2136-tsig-key-file", self.rfc2136_tsig_key_file.is_some()),
            ("--rfc2136-insecure", self.rfc2136_insecure),
        ] {
            if is_given {
                return Err(Error::OtherProvider(flag));
            }
        }
        Ok(())
    }

    /// Opens the provider.
    fn provider(&self, rules: &ZoneRules) -> Result<Box<dyn Provider>, Error> {
        self.check()?;
        match self.dns.as_str() {
            "aws-route53" => {
                let environment = |name: &str| std::env::var(name).ok();
                let region = ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(environment);
                let region = region.filter(|region| !region.is_empty());
                let region = region.as_deref().unwrap_or(REGION);
                Ok(Box::new(Route53 { client: aws::Client::open(region, &environment)? }))
            }
            "rfc2136" => Ok(Box::new(self.rfc2136(rules)?)),
            _ => Err(Error::Provider { provider: self.dns.clone() }),
        }
    }

    fn rfc2136(&self, rules: &ZoneRules) -> Result<Rfc2136, Error> {
        let server = self.rfc2136_server.clone();
        let server = server.ok_or(Error::Missing("--rfc2136-server"))?;
        if self.rfc2136_tsig_key_file.is_none() && !self.rfc2136_insecure {
            return Err(Error::Missing("--rfc2136-tsig-key-file, or --rfc2136-insecure"));
        }
        // The protocol cannot list zones.
        let names: BTreeSet<_> = rules.names().collect();
        let zones: Vec<_> = names.into_iter().filter_map(|name| Zone::new(name, name)).collect();
        if zones.is_empty() {
            return Err(Error::Missing("--zone NAME"));
        }
        Ok(Rfc2136 {
            server: with_port(&server),
            key_file: self.rfc2136_tsig_key_file.clone(),
            zones,
            limits: TimeLimits::default(),
        })
    }
}

/// Returns a server with its port, which is 53 by default.
fn with_port(server: &str) -> String {
    let bracketed = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Ok(address) = bracketed.unwrap_or(server).parse::<std::net::IpAddr>() {
        return std::net::SocketAddr::new(address, PORT).to_string();
    }
    if server.contains(':') { server.to_owned() } else { format!("{server}:{PORT}") }
}

/// Runs dns-controller until shutdown.
pub async fn run(args: &Args, tasks: &rt::Tasks) -> Result<(), Error> {
    args.ignored.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let rules = ZoneRules::parse(&args.zone)?;
    let provider = args.provider(&rules)?;
    let agent = version::user_agent("dns-controller");
    let client = match &args.kubeconfig {
        Some(path) => Client::from_kubeconfig_file(path, &agent)?,
        None => Client::from_service_account(&agent)?,
    };
    let watch = Watch::start(&client, &args.watch_namespace, args.watch_ingress, tasks);
    let mut controller = Controller::new(provider, rules);
    if tasks.shutdown().unless_stopping(watch.synced()).await.is_none() {
        return Ok(());
    }
    let interval = Duration::from_secs(args.update_interval);
    loop {
        if let Some(wanted) = watch.wanted(args.address_options()) {
            controller.set_wanted(wanted);
        }
        let update = async {
            controller.update(Timestamp::from(rt::now())).await;
            tokio::time::sleep(interval).await;
        };
        if tasks.shutdown().unless_stopping(update).await.is_none() {
            return Ok(());
        }
    }
}

/// Writes the records that names need.
struct Controller {
    provider: Box<dyn Provider>,
    rules: ZoneRules,
    wanted: DesiredRecords,
    published: Published,
    /// The problems that were logged, so that each is logged once.
    logged: BTreeSet<String>,
}

/// The changes of one zone.
struct ZoneChanges {
    zone: Zone,
    changes: Vec<Change>,
}

impl Controller {
    fn new(provider: Box<dyn Provider>, rules: ZoneRules) -> Self {
        Self {
            provider,
            rules,
            wanted: DesiredRecords::default(),
            published: Published::default(),
            logged: BTreeSet::new(),
        }
    }

    /// Sets the records that names need, and logs the claims that are ignored.
    fn set_wanted(&mut self, wanted: DesiredRecords) {
        let problems: BTreeSet<_> = wanted.problems.iter().cloned().collect();
        for problem in problems.difference(&self.logged) {
            tracing::warn!("ignored: {problem}");
        }
        self.logged = problems;
        self.wanted = wanted;
    }

    /// Makes the changes that are due.
    async fn update(&mut self, now: Timestamp) {
        let changes = self.published.changes(&self.wanted.names, now);
        if changes.is_empty() {
            return;
        }
        let zones = match self.provider.zones().await {
            Ok(zones) => self.rules.select(zones),
            Err(error) => {
                tracing::warn!(%error, names = changes.len(), "could not list the DNS zones");
                return self.fail(&changes, Effect::Refused, now);
            }
        };
        for group in self.by_zone(changes, &zones, now) {
            self.update_zone(&group, now).await;
        }
    }

    /// Groups changes by zone. Names without a zone are retried later.
    fn by_zone(&mut self, changes: Vec<Change>, zones: &Zones, now: Timestamp) -> Vec<ZoneChanges> {
        let mut groups: Vec<ZoneChanges> = Vec::new();
        for change in changes {
            let name = &change.name;
            let zone = match zones.find(name) {
                Ok(zone) if zone.name == *name && change.records.host.is_some() => {
                    tracing::warn!(name, "the name of a zone cannot have a CNAME record");
                    self.published.failed(&change, true, now);
                    continue;
                }
                Ok(zone) => zone,
                Err(reason) => {
                    tracing::warn!(name, %reason, "the name has no zone");
                    self.published.failed(&change, true, now);
                    continue;
                }
            };
            match groups.iter_mut().find(|group| group.zone == *zone) {
                Some(group) => group.changes.push(change),
                None => groups.push(ZoneChanges { zone: zone.clone(), changes: vec![change] }),
            }
        }
        groups
    }

    /// Makes the changes of a zone. If the provider rejects several changes at once, each is tried alone. If it does
    /// not answer or refuses everything, the rest is not tried.
    async fn update_zone(&mut self, group: &ZoneChanges, now: Timestamp) {
        let mut all = batches(&group.changes).into_iter();
        while let Some(batch) = all.next() {
            let effect = self.apply(&group.zone, batch).await;
            let failed = match effect {
                None => continue,
                Some(Effect::Rejected) if batch.len() > 1 => {
                    self.apply_each(&group.zone, batch, now).await
                }
                Some(effect) => {
                    self.fail(batch, effect, now);
                    effect != Effect::Rejected
                }
            };
            if failed {
                // These were not sent.
                return all.for_each(|rest| self.fail(rest, Effect::Refused, now));
            }
        }
    }

    /// Makes changes one by one. Returns `true` if the provider failed.
    async fn apply_each(&mut self, zone: &Zone, batch: &[Change], now: Timestamp) -> bool {
        for (number, change) in batch.iter().enumerate() {
            let one = std::slice::from_ref(change);
            let Some(effect) = self.apply(zone, one).await else { continue };
            self.fail(one, effect, now);
            if effect != Effect::Rejected {
                let rest = batch.get(number + 1..).unwrap_or_default();
                self.fail(rest, Effect::Refused, now);
                return true;
            }
        }
        false
    }

    /// Makes changes at once. Returns the effect of a failure.
    async fn apply(&mut self, zone: &Zone, batch: &[Change]) -> Option<Effect> {
        match self.provider.apply(zone, batch).await {
            Ok(()) => {
                for change in batch {
                    let records = change.records.by_type();
                    tracing::info!(name = change.name, ?records, zone = zone.name, "updated DNS");
                    self.published.succeeded(change);
                }
                None
            }
            Err(error) => {
                let first = batch.first().map(|change| change.name.as_str()).unwrap_or_default();
                tracing::warn!(%error, name = first, names = batch.len(), "could not update DNS");
                Some(error.effect)
            }
        }
    }

    fn fail(&mut self, changes: &[Change], effect: Effect, now: Timestamp) {
        for change in changes {
            self.published.failed(change, effect != Effect::Unknown, now);
        }
    }
}
