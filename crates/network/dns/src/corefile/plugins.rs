//! Parses server blocks, and puts their plugins in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hickory_proto::rr::Name;

use super::{
    block::{Block, Health, Timeouts},
    ignored,
};
use crate::{
    chain::Plugin,
    directive::{CorefileError, Directive},
    options::PodMode,
    plugin::{
        Acl, Any, AutoPath, BufSize, Cache, Chaos, Dns64, Erratic, Errors, File, Forward, Header,
        Hosts, Kubernetes, LoadBalance, Local, Log, Minimal, Rewrite, TemplatePlugin, Transfer,
        Whoami, parse_kubernetes,
    },
};

/// The plugins with a place in the chain, in CoreDNS's compiled order.
const ORDER: [&str; 22] = [
    "bufsize",
    "errors",
    "log",
    "local",
    "dns64",
    "any",
    "chaos",
    "loadbalance",
    "rewrite",
    "autopath",
    "acl",
    "cache",
    "header",
    "minimal",
    "template",
    "transfer",
    "hosts",
    "kubernetes",
    "file",
    "forward",
    "erratic",
    "whoami",
];
/// The other plugins that act.
const SETTINGS: [&str; 10] = [
    "bind",
    "debug",
    "health",
    "loop",
    "metadata",
    "prometheus",
    "ready",
    "reload",
    "root",
    "timeouts",
];
/// The plugins that may be written several times in a block.
const REPEATABLE: [&str; 9] =
    ["acl", "bind", "file", "forward", "log", "rewrite", "template", "transfer", "debug"];

/// Builds the server blocks of a Corefile. `port` is the default for labels without a port.
pub(crate) fn build(lines: &[Directive], port: u16) -> Result<Vec<Block>, CorefileError> {
    let mut built = Vec::new();
    for block in lines {
        built.extend(self::block(block, port)?);
    }
    if built.is_empty() {
        let reason = "there is no server block; write one like \".:53 { … }\"".into();
        return Err(CorefileError { file: None, line: 1, reason });
    }
    Ok(built)
}

/// Parses a server block, and returns one block for each port in the labels.
fn block(block: &Directive, default_port: u16) -> Result<Vec<Block>, CorefileError> {
    let mut zones: BTreeMap<u16, Vec<Name>> = BTreeMap::new();
    let labels = block.words.iter().flat_map(|word| word.split(','));
    for label in labels.filter(|label| !label.is_empty()) {
        let (port, served) = label_of(block, label, default_port)?;
        zones.entry(port).or_default().extend(served);
    }
    if zones.is_empty() {
        return block.fail("a server block begins with its zones, as in \".:53\"");
    }
    let mut seen = BTreeSet::new();
    for directive in &block.body {
        if !seen.insert(directive.name()) && !REPEATABLE.contains(&directive.name()) {
            return directive.fail("the plugin can only be used once in a server block");
        }
    }
    let mut parsed = Vec::new();
    for (port, zones) in zones {
        let block_of_port = Block { zones, port, ignored: ignored::of(block), ..Block::default() };
        let mut builder = Builder { block: block_of_port, ..Builder::default() };
        // Files are relative to the root, wherever the block names it.
        let (roots, others): (Vec<_>, Vec<_>) =
            block.body.iter().partition(|directive| directive.name() == "root");
        roots.into_iter().chain(others).try_for_each(|directive| builder.add(directive))?;
        parsed.push(builder.build());
    }
    Ok(parsed)
}

fn label_of(
    block: &Directive,
    label: &str,
    default_port: u16,
) -> Result<(u16, Vec<Name>), CorefileError> {
    let label = label.strip_prefix("dns://").unwrap_or(label);
    if let Some((protocol, _)) = label.split_once("://") {
        return block.fail(format!("the protocol {protocol:?} is not supported"));
    }
    let (zone, port) = match label.rsplit_once(':') {
        None => (label, default_port),
        Some((zone, port)) => match port.parse() {
            Ok(port) => (zone, port),
            Err(_) => return block.fail(format!("{port:?} is not a port")),
        },
    };
    let zone = if zone.is_empty() { "." } else { zone };
    Ok((port, block.zones(&[zone.to_owned()])?))
}

#[derive(Default)]
struct Builder {
    block: Block,
    root: Option<PathBuf>,
    log: Log,
    rewrite: Rewrite,
    transfer: Transfer,
    forwards: Vec<Forward>,
    /// The plugins with their places in the order.
    plugins: Vec<(usize, Arc<dyn Plugin>)>,
}

impl Builder {
    fn add(&mut self, directive: &Directive) -> Result<(), CorefileError> {
        if ORDER.contains(&directive.name()) {
            let plugin = self.plugin(directive)?;
            self.plugins.extend(plugin.map(|plugin| (place(directive.name()), plugin)));
            return Ok(());
        }
        self.setting(directive)
    }

    /// Returns the plugin of a directive; `None` if one plugin collects all directives of its name.
    fn plugin(&mut self, directive: &Directive) -> Result<Option<Arc<dyn Plugin>>, CorefileError> {
        let zones = &self.block.zones;
        let plain = |plugin: Arc<dyn Plugin>| directive.limit(0, false).map(|()| plugin);
        let plugin: Arc<dyn Plugin> = match directive.name() {
            "acl" => Arc::new(Acl::parse(directive, zones)?),
            "any" => plain(Arc::new(Any))?,
            "autopath" => {
                let plugin = AutoPath::parse(directive, zones)?;
                self.block.needs_pods |= plugin.needs_pods();
                Arc::new(plugin)
            }
            "bufsize" => Arc::new(BufSize::parse(directive)?),
            "cache" => Arc::new(Cache::parse(directive, zones)?),
            "chaos" => {
                self.block.any_class = true;
                Arc::new(Chaos::parse(directive)?)
            }
            "dns64" => Arc::new(Dns64::parse(directive)?),
            "erratic" => Arc::new(Erratic::parse(directive)?),
            "errors" => {
                directive.limit(0, true)?;
                without_effect(directive)?;
                Arc::new(Errors)
            }
            "file" => Arc::new(File::parse(directive, zones, self.root.as_deref())?),
            "header" => Arc::new(Header::parse(directive)?),
            "hosts" => Arc::new(Hosts::parse(directive, zones)?),
            "kubernetes" => {
                let options = Arc::new(parse_kubernetes(directive, zones)?);
                self.block.needs_pods |= options.pods == PodMode::Verified;
                self.block.kubernetes = Some(options.clone());
                Arc::new(Kubernetes(options))
            }
            "loadbalance" => Arc::new(LoadBalance::parse(directive)?),
            "local" => Arc::new(Local::parse(directive)?),
            "minimal" => plain(Arc::new(Minimal))?,
            "template" => {
                self.block.any_class = true;
                Arc::new(TemplatePlugin::parse(directive, zones)?)
            }
            "whoami" => plain(Arc::new(Whoami))?,
            "log" => return self.log.add(directive, zones).map(|()| None),
            "rewrite" => return self.rewrite.add(directive).map(|()| None),
            "transfer" => return self.transfer.add(directive, zones).map(|()| None),
            _ => {
                self.block.any_class = true;
                self.forwards.push(Forward::parse(directive)?);
                return Ok(None);
            }
        };
        Ok(Some(plugin))
    }

    fn setting(&mut self, directive: &Directive) -> Result<(), CorefileError> {
        let block = &mut self.block;
        match directive.name() {
            "bind" => {
                for text in directive.arguments() {
                    match text.parse() {
                        Ok(ip) => block.bind.push(ip),
                        Err(_) => return directive.fail(format!("{text:?} is not an IP address")),
                    }
                }
                directive.limit(usize::MAX, false)?;
            }
            "debug" => directive.limit(0, false)?,
            "health" => block.health = Some(health(directive)?),
            "loop" => {
                directive.limit(0, false)?;
                block.loops = true;
            }
            // The values are computed where another plugin uses them.
            "metadata" => drop(directive.zones(directive.arguments())?),
            "prometheus" => {
                directive.limit(1, false)?;
                block.prometheus = Some(directive.address(9153)?);
            }
            "ready" => {
                directive.limit(1, true)?;
                without_effect(directive)?;
                block.ready = Some(directive.address(8181)?);
            }
            "reload" => {
                directive.limit(2, false)?;
                let intervals = directive.arguments().iter().map(|text| directive.duration(text));
                let intervals = intervals.collect::<Result<Vec<_>, _>>()?;
                block.reload = Some(intervals.first().copied().unwrap_or(Duration::from_secs(30)));
            }
            "root" => match directive.arguments() {
                [path] => self.root = Some(Path::new(path).to_owned()),
                _ => return directive.fail("it needs one path"),
            },
            "timeouts" => block.timeouts = timeouts(directive)?,
            other => {
                let known = ORDER.iter().chain(&SETTINGS);
                let known = known.copied().collect::<Vec<_>>().join(", ");
                return directive
                    .fail(format!("unknown plugin {other:?}; this server has {known}"));
            }
        }
        Ok(())
    }

    fn build(self) -> Block {
        let Self { mut block, log, rewrite, transfer, mut forwards, mut plugins, root: _ } = self;
        let last = forwards.len().saturating_sub(1);
        forwards.iter_mut().take(last).for_each(|forward| forward.has_next = true);
        block.forwards = forwards.into_iter().map(Arc::new).collect();
        plugins.extend(
            block
                .forwards
                .iter()
                .map(|forward| (place("forward"), forward.clone() as Arc<dyn Plugin>)),
        );
        if !log.is_empty() {
            plugins.push((place("log"), Arc::new(log)));
        }
        if !rewrite.is_empty() {
            plugins.push((place("rewrite"), Arc::new(rewrite)));
        }
        block.transfers = !transfer.is_empty();
        if block.transfers {
            plugins.push((place("transfer"), Arc::new(transfer)));
        }
        // Plugins of one name keep the order of the Corefile.
        plugins.sort_by_key(|(place, _)| *place);
        block.chain = plugins.into_iter().map(|(_, plugin)| plugin).collect();
        block
    }
}

/// Returns the place of a plugin in the chain.
fn place(name: &str) -> usize {
    ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len())
}

/// Rejects options of a plugin that the table of ignored ones does not list.
fn without_effect(directive: &Directive) -> Result<(), CorefileError> {
    let plugin = directive.name();
    match directive.body.iter().find(|option| ignored::reason(plugin, option.name()).is_none()) {
        Some(option) => option.fail(format!("unknown option of {plugin}")),
        None => Ok(()),
    }
}

fn health(directive: &Directive) -> Result<Health, CorefileError> {
    directive.limit(1, true)?;
    let mut lameduck = Duration::ZERO;
    for option in &directive.body {
        match (option.name(), option.arguments()) {
            ("lameduck", [text]) => lameduck = option.duration(text)?,
            _ => return option.unknown("health", "lameduck DURATION"),
        }
    }
    Ok(Health { address: directive.address(8080)?, lameduck })
}

fn timeouts(directive: &Directive) -> Result<Timeouts, CorefileError> {
    directive.limit(0, true)?;
    let mut parsed = Timeouts::default();
    for option in &directive.body {
        let ([text], name) = (option.arguments(), option.name()) else {
            return option.unknown("timeouts", "read, write, idle and maxtcpqueries");
        };
        if name == "maxtcpqueries" {
            parsed.queries = match option.number::<i64>(text)? {
                -1 => usize::MAX,
                most if most > 0 => most as usize,
                _ => return option.fail("it is a positive number, or -1"),
            };
            continue;
        }
        let limit = match name {
            "read" => &mut parsed.read,
            "write" => &mut parsed.write,
            "idle" => &mut parsed.idle,
            _ => return option.unknown("timeouts", "read, write, idle and maxtcpqueries"),
        };
        *limit = option.duration(text)?;
        // As in CoreDNS, which accepts a second to a day.
        if !(Duration::from_secs(1)..=Duration::from_secs(86_400)).contains(limit) {
            return option.fail("the duration is within 1s and 24h");
        }
    }
    if directive.body.is_empty() {
        return directive.fail("it needs at least one option");
    }
    Ok(parsed)
}
