//! Settings of a Corefile that are accepted without effect, by plugin and option, with the reason.

use hickory_proto::rr::Name;

use super::{
    block::Block,
    error::CorefileError,
    tokens::{Directive, fail},
};

/// Plugin, option (empty for the plugin itself), and reason. `()` stands for surplus arguments.
const IGNORED: &[(&str, &str, &str)] = &[
    ("bufsize", "", "answers over UDP have 1232 bytes at most, or as many as the client takes"),
    ("debug", "", "a panic ends one answer and is logged"),
    ("minimal", "", "answers hold nothing besides what was asked and its referral"),
    ("root", "", "files are named by their whole path"),
    ("errors", "consolidate", "errors are logged one by one"),
    ("errors", "stacktrace", "errors have no stack traces"),
    ("log", "()", "questions are logged for all names and in one format"),
    ("log", "class", "questions are logged whatever the answer is"),
    ("ready", "monitor", "readiness is always reported as it is"),
    ("reload", "()", "the Corefile is read at even intervals"),
    ("forward", "prefer_udp", "a question is forwarded as it came"),
    ("forward", "expire", "connections to servers are not kept"),
    ("forward", "health_check", "a server that failed is tried again by a question"),
    ("cache", "()", "what was forwarded is cached for all zones"),
    ("cache", "disable", "what was forwarded is cached for all zones"),
    ("cache", "prefetch", "nothing is asked before it expires"),
    ("cache", "serve_stale", "nothing is served after it has expired"),
    ("cache", "servfail", "failures are not cached"),
    ("cache", "keepttl", "answers from the cache have the time that is left"),
    ("hosts", "reload", "the file is read when the Corefile is"),
    ("hosts", "no_reverse", "addresses resolve to their names"),
];

/// The number of arguments with an effect. Plugins that are not listed check their arguments themselves.
const SHAPES: &[(&str, usize)] = &[
    ("errors", 0),
    ("log", 0),
    ("loop", 0),
    ("loadbalance", 1),
    ("reload", 1),
    ("health", 1),
    ("ready", 1),
    ("prometheus", 1),
    ("hosts", 1),
    ("cache", 1),
];
/// The plugins that parse their options themselves.
const WITH_OPTIONS: [&str; 5] = ["health", "kubernetes", "forward", "cache", "hosts"];

/// Returns the reason why an option has no effect; `None` if it has one or does not exist.
pub(super) fn reason(plugin: &str, option: &str) -> Option<&'static str> {
    let row = IGNORED.iter().find(|(of, name, _)| *of == plugin && *name == option);
    row.map(|(_, _, why)| *why)
}

/// Rejects surplus arguments and unknown options of a plugin, unless the table lists them.
pub(super) fn check(directive: &Directive) -> Result<(), CorefileError> {
    let plugin = directive.name();
    if reason(plugin, "").is_some() {
        return Ok(());
    }
    if plugin == "loadbalance"
        && let Some(policy) =
            directive.arguments().first().filter(|policy| *policy != "round_robin")
    {
        return fail(directive, format!("the argument {policy:?} is not supported"));
    }
    let most = SHAPES.iter().find(|(name, _)| *name == plugin).map(|(_, most)| *most);
    let unread = most.and_then(|most| directive.arguments().get(most));
    if let Some(argument) = unread.filter(|_| reason(plugin, "()").is_none()) {
        return fail(directive, format!("the argument {argument:?} is not supported"));
    }
    if WITH_OPTIONS.contains(&plugin) {
        return Ok(());
    }
    let unknown = directive.body.iter().find(|option| reason(plugin, option.name()).is_none());
    match unknown {
        Some(option) => fail(option, format!("unknown option of {plugin}")),
        None => Ok(()),
    }
}

/// Returns the warnings about a block.
pub(super) fn of(block: &Directive, parsed: &Block) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |line: usize, what: String, why: &str| {
        warnings.push(format!("Corefile line {line}: {what} is accepted and has no effect: {why}"));
    };
    for directive in &block.body {
        let plugin = directive.name();
        if let Some(why) = reason(plugin, "") {
            warn(directive.line, plugin.to_owned(), why);
            continue;
        }
        let acting = SHAPES.iter().find(|(name, _)| *name == plugin).map(|(_, most)| *most);
        if let Some(argument) = acting.and_then(|most| directive.arguments().get(most))
            && let Some(why) = reason(plugin, "()")
        {
            warn(directive.line, format!("{plugin}: the argument {argument:?}"), why);
        }
        for option in &directive.body {
            if let Some(why) = reason(plugin, option.name())
                && !is_of_the_cluster(option, parsed)
            {
                warn(option.line, format!("{plugin}: {}", option.name()), why);
            }
        }
    }
    warnings
}

/// Reports whether an option disables the cache only for names of the cluster, which are never cached.
fn is_of_the_cluster(option: &Directive, parsed: &Block) -> bool {
    let (Some(kubernetes), [_, zones @ ..]) = (&parsed.kubernetes, option.arguments()) else {
        return false;
    };
    let is_served = |zone: &String| {
        Name::from_ascii(zone).is_ok_and(|mut zone| {
            zone.set_fqdn(true);
            kubernetes.zones.iter().any(|served| served.zone_of(&zone))
        })
    };
    option.name() == "disable" && !zones.is_empty() && zones.iter().all(is_served)
}
