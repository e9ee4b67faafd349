//! Settings of a Corefile that are accepted without effect, by plugin and option, with the reason.

use crate::directive::Directive;

/// Plugin, option (empty for the plugin itself), and reason. `()` stands for the arguments after the first.
const IGNORED: [(&str, &str, &str); 5] = [
    ("debug", "", "a panic ends one answer and is logged"),
    ("errors", "consolidate", "errors are logged one by one"),
    ("errors", "stacktrace", "errors have no stack traces"),
    ("ready", "monitor", "readiness is always reported as it is"),
    ("reload", "()", "the Corefile is read at even intervals"),
];

/// Returns the reason why an option has no effect; `None` if it has one or does not exist.
pub(super) fn reason(plugin: &str, option: &str) -> Option<&'static str> {
    let row = IGNORED.iter().find(|(of, name, _)| *of == plugin && *name == option);
    row.map(|(_, _, why)| *why)
}

/// Returns the warnings about a block.
pub(super) fn of(block: &Directive) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |line: usize, what: String, why: &str| {
        warnings.push(format!("Corefile line {line}: {what} is accepted and has no effect: {why}"));
    };
    for directive in &block.body {
        let plugin = directive.name();
        if let Some(why) = reason(plugin, "") {
            warn(directive.line, plugin.to_owned(), why);
        }
        if let (Some(argument), Some(why)) = (directive.arguments().get(1), reason(plugin, "()")) {
            warn(directive.line, format!("{plugin}: the argument {argument:?}"), why);
        }
        for option in &directive.body {
            if let Some(why) = reason(plugin, option.name()) {
                warn(option.line, format!("{plugin}: {}", option.name()), why);
            }
        }
    }
    warnings
}
