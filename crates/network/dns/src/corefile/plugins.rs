//! Parses server blocks and the options of their plugins.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use api_meta::GoDuration;
use hickory_proto::rr::Name;

use super::{
    block::{
        Block, CacheOptions, ForwardOptions, Health, HostsOptions, KubernetesOptions, PodMode,
    },
    error::CorefileError,
    ignored,
    tokens::{Directive, fail},
};

/// Parses a server block, and returns one block for each port in the labels.
pub(super) fn block(block: &Directive, default_port: u16) -> Result<Vec<Block>, CorefileError> {
    let mut zones: BTreeMap<u16, Vec<Name>> = BTreeMap::new();
    let labels = block.words.iter().flat_map(|word| word.split(','));
    for label in labels.filter(|label| !label.is_empty()) {
        let (zone, port) = label_of(block, label, default_port)?;
        zones.entry(port).or_default().push(zone);
    }
    if zones.is_empty() {
        return fail(block, "a server block begins with its zones, as in \".:53\"");
    }
    let mut parsed = Vec::new();
    for (port, zones) in zones {
        let mut one = Block { zones, port, ..Block::default() };
        for directive in &block.body {
            ignored::check(directive)?;
            plugin(&mut one, directive)?;
        }
        one.ignored = ignored::of(block, &one);
        parsed.push(one);
    }
    Ok(parsed)
}

fn label_of(
    block: &Directive,
    label: &str,
    default_port: u16,
) -> Result<(Name, u16), CorefileError> {
    let label = label.strip_prefix("dns://").unwrap_or(label);
    let (zone, port) = match label.rsplit_once(':') {
        None => (label, default_port),
        Some((zone, port)) => match port.parse() {
            Ok(port) => (zone, port),
            Err(_) => return fail(block, format!("{port:?} is not a port")),
        },
    };
    Ok((name(block, if zone.is_empty() { "." } else { zone })?, port))
}

fn plugin(block: &mut Block, directive: &Directive) -> Result<(), CorefileError> {
    match directive.name() {
        "errors" => block.errors = true,
        "log" => block.log = true,
        "loop" => block.loops = true,
        "loadbalance" => block.shuffle = true,
        "reload" => {
            let interval =
                directive.arguments().first().map(|text| duration(directive, text)).transpose()?;
            block.reload = Some(interval.unwrap_or(Duration::from_secs(30)));
        }
        "health" => block.health = Some(health(directive)?),
        "ready" => block.ready = Some(address(directive, 8181)?),
        "prometheus" => block.prometheus = Some(address(directive, 9153)?),
        "bind" => {
            for text in directive.arguments() {
                match text.parse() {
                    Ok(ip) => block.bind.push(ip),
                    Err(_) => return fail(directive, format!("{text:?} is not an IP address")),
                }
            }
        }
        "kubernetes" => block.kubernetes = Some(kubernetes(directive, &block.zones)?),
        "forward" => block.forward.push(forward(directive)?),
        "cache" => block.cache = Some(cache(directive)?),
        "hosts" => block.hosts = Some(hosts(directive)?),
        other if ignored::reason(other, "").is_some() => {}
        other => {
            let reason = format!(
                "unknown plugin {other:?}; this server has errors, log, health, ready, kubernetes, hosts, forward, \
                 cache, loop, reload, loadbalance, prometheus and bind"
            );
            return Err(CorefileError { line: directive.line, reason });
        }
    }
    Ok(())
}

fn health(directive: &Directive) -> Result<Health, CorefileError> {
    let mut lameduck = Duration::ZERO;
    for option in &directive.body {
        match (option.name(), option.arguments()) {
            ("lameduck", [text]) => lameduck = duration(option, text)?,
            _ => return fail(option, "unknown option of health; it has lameduck DURATION"),
        }
    }
    Ok(Health { address: address(directive, 8080)?, lameduck })
}

fn kubernetes(directive: &Directive, zones: &[Name]) -> Result<KubernetesOptions, CorefileError> {
    let mut parsed = KubernetesOptions { ttl: 5, ..KubernetesOptions::default() };
    parsed.zones = names(directive, directive.arguments())?;
    if parsed.zones.is_empty() {
        parsed.zones = zones.to_vec();
    }
    for option in &directive.body {
        match (option.name(), option.arguments()) {
            ("pods", [mode]) => {
                parsed.pods = match mode.as_str() {
                    "disabled" => PodMode::Disabled,
                    "insecure" => PodMode::Insecure,
                    "verified" => PodMode::Verified,
                    _ => return fail(option, "it is disabled, insecure or verified"),
                }
            }
            ("ttl", [text]) => {
                parsed.ttl = number(option, text)?;
                if parsed.ttl > 3600 {
                    return fail(option, "it is at most 3600");
                }
            }
            ("fallthrough", zones) => parsed.fallthrough = Some(names(option, zones)?),
            ("endpoint_pod_names", []) => parsed.endpoint_pod_names = true,
            ("kubeconfig", [_, _, ..]) => {
                return fail(option, "the context is the file's current one and cannot be named");
            }
            ("kubeconfig", [path]) => parsed.kubeconfig = Some(path.into()),
            _ => {
                return fail(
                    option,
                    "unknown option of kubernetes; it has pods, ttl, fallthrough, endpoint_pod_names and kubeconfig",
                );
            }
        }
    }
    Ok(parsed)
}

fn forward(directive: &Directive) -> Result<ForwardOptions, CorefileError> {
    let Some((from, to)) = directive.arguments().split_first().filter(|(_, to)| !to.is_empty())
    else {
        return fail(
            directive,
            "it needs a zone and at least one server, as in \"forward . 192.0.2.1\"",
        );
    };
    let mut parsed = ForwardOptions {
        from: name(directive, from)?,
        to: to.to_vec(),
        max_fails: 2,
        ..ForwardOptions::default()
    };
    if to.iter().any(|server| server.starts_with("tls://") || server.starts_with("https://")) {
        return fail(directive, "servers over TLS are not supported; name them by address");
    }
    for option in &directive.body {
        match (option.name(), option.arguments()) {
            ("except", zones) => parsed.except = names(option, zones)?,
            ("max_concurrent", [text]) => parsed.max_concurrent = number(option, text)?,
            ("max_fails", [text]) => parsed.max_fails = number(option, text)?,
            ("policy", [policy]) => match policy.as_str() {
                "random" | "round_robin" => {}
                "sequential" => parsed.sequential = true,
                _ => return fail(option, "it is random, round_robin or sequential"),
            },
            ("force_tcp", []) => parsed.force_tcp = true,
            (other, _) if ignored::reason("forward", other).is_some() => {}
            _ => return fail(option, "unknown option of forward"),
        }
    }
    Ok(parsed)
}

fn cache(directive: &Directive) -> Result<CacheOptions, CorefileError> {
    let mut parsed = CacheOptions { success: 3600, denial: 1800, capacity: 9984 };
    if let Some(text) = directive.arguments().first() {
        parsed.success = number(directive, text)?;
        parsed.denial = parsed.success.min(1800);
    }
    for option in &directive.body {
        match (option.name(), option.arguments()) {
            ("success", [capacity, more @ ..]) => {
                parsed.capacity = number(option, capacity)?;
                if let Some(ttl) = more.first() {
                    parsed.success = number(option, ttl)?;
                }
            }
            ("denial", [_, more @ ..]) => {
                if let Some(ttl) = more.first() {
                    parsed.denial = number(option, ttl)?;
                }
            }
            (other, _) if ignored::reason("cache", other).is_some() => {}
            _ => return fail(option, "unknown option of cache"),
        }
    }
    Ok(parsed)
}

fn hosts(directive: &Directive) -> Result<HostsOptions, CorefileError> {
    let file = directive.arguments().first().map(PathBuf::from);
    let mut parsed = HostsOptions { file, ttl: 3600, ..HostsOptions::default() };
    for option in &directive.body {
        match (option.name(), option.arguments()) {
            ("fallthrough", _) => parsed.fallthrough = true,
            ("ttl", [text]) => parsed.ttl = number(option, text)?,
            (other, _) if ignored::reason("hosts", other).is_some() => {}
            (ip, hosts) => {
                let Ok(ip) = ip.parse() else {
                    return fail(option, "it is neither an option of hosts nor an address");
                };
                parsed.entries.extend(names(option, hosts)?.into_iter().map(|name| (name, ip)));
            }
        }
    }
    if parsed.file.is_none() && parsed.entries.is_empty() {
        parsed.file = Some("/etc/hosts".into());
    }
    Ok(parsed)
}

/// Parses `:8080`, `192.0.2.1:8080`, or nothing for the default port.
fn address(directive: &Directive, default: u16) -> Result<SocketAddr, CorefileError> {
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let Some(text) = directive.arguments().first() else {
        return Ok(SocketAddr::new(any, default));
    };
    let port_only = text
        .strip_prefix(':')
        .and_then(|port| port.parse().ok())
        .map(|port| SocketAddr::new(any, port));
    match port_only.or_else(|| text.parse().ok()) {
        Some(address) => Ok(address),
        None => fail(directive, format!("{text:?} is not an address to listen on")),
    }
}

fn name(directive: &Directive, text: &str) -> Result<Name, CorefileError> {
    match Name::from_ascii(text) {
        Ok(mut name) => {
            name.set_fqdn(true);
            Ok(name.to_lowercase())
        }
        Err(error) => fail(directive, format!("{text:?} is not a name: {error}")),
    }
}

fn names(directive: &Directive, texts: &[String]) -> Result<Vec<Name>, CorefileError> {
    texts.iter().map(|text| name(directive, text)).collect()
}

fn number<T: std::str::FromStr>(directive: &Directive, text: &str) -> Result<T, CorefileError> {
    text.parse().or_else(|_| fail(directive, format!("{text:?} is not a number in range")))
}

fn duration(directive: &Directive, text: &str) -> Result<Duration, CorefileError> {
    match text.parse::<GoDuration>() {
        Ok(duration) if duration >= GoDuration::ZERO => Ok(duration.to_std()),
        _ => fail(directive, format!("{text:?} is not a duration; write it as 5s")),
    }
}
