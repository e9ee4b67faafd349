//! Flags for clap that are known and do nothing, or are refused: upstream's that a component lists in tables, with reasons.

use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};

/// A flag's name, whether it takes a value, and why it does nothing.
pub type Flag = (&'static str, bool, &'static str);

/// Names the tables that a component's [`Known`] flags are in.
pub trait Tables: Clone + Default + std::fmt::Debug + Send + Sync + 'static {
    const TABLES: &'static [&'static [Flag]];
}

const METRICS: &str = "all metrics are shown, with all labels";
const ONE_VERSION: &str = "this binary behaves as one version of Kubernetes";

/// What every component takes for its logs and diagnostics.
pub const COMMON: &[Flag] = &[
    ("allow-metric-labels", true, METRICS),
    ("allow-metric-labels-manifest", true, METRICS),
    ("contention-profiling", false, "there is no Go profiler here"),
    ("disabled-metrics", true, METRICS),
    ("emulated-version", true, ONE_VERSION),
    ("feature-gates", true, "there are no gated features here"),
    ("log-flush-frequency", true, "logs are not buffered"),
    ("log-json-info-buffer-size", true, "logs are not buffered"),
    ("log-json-split-stream", false, "logs go to standard error"),
    ("log-text-info-buffer-size", true, "logs are not buffered"),
    ("log-text-split-stream", false, "logs go to standard error"),
    ("logging-format", true, "logs are text"),
    ("min-compatibility-version", true, ONE_VERSION),
    ("profiling", false, "there is no Go profiler here"),
    ("show-hidden-metrics-for-version", true, "there are no hidden metrics"),
    ("v", true, "set WINDLASS_LOG for levels"),
    ("vmodule", true, "set WINDLASS_LOG for levels by module"),
];

/// What every component takes for its connection to the API server.
pub const CLIENT: &[Flag] = &[
    ("kube-api-burst", true, "the API server protects itself"),
    ("kube-api-content-type", true, "JSON is what the informers decode"),
    ("kube-api-qps", true, "the API server protects itself"),
];

/// What those that work one at a time take for their election.
pub const LEADER_ELECTION: &[Flag] = &[
    ("leader-elect-lease-duration", true, "upstream's default is kept"),
    ("leader-elect-renew-deadline", true, "upstream's default is kept"),
    ("leader-elect-resource-lock", true, "leases are the only lock"),
    ("leader-elect-resource-name", true, "upstream's default is kept"),
    ("leader-elect-resource-namespace", true, "upstream's default is kept"),
    ("leader-elect-retry-period", true, "upstream's default is kept"),
];

/// The flags of some tables that were given on a command line.
#[derive(Clone, Debug, Default)]
pub struct Known<T> {
    given: Vec<&'static str>,
    tables: PhantomData<T>,
}

impl<T: Tables> Known<T> {
    fn table() -> impl Iterator<Item = &'static Flag> {
        T::TABLES.iter().copied().flatten()
    }

    /// The names and reasons of the flags that were given.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let known = Self::table().filter(|(name, ..)| self.given.contains(name));
        known.map(|(name, _, reason)| (*name, *reason))
    }

    /// One line for each flag that was given, with the reason why it does nothing; the component logs them.
    pub fn warnings(&self) -> Vec<String> {
        self.given().map(|(name, reason)| format!("--{name} has no effect: {reason}")).collect()
    }
}

impl<T: Tables> clap::Args for Known<T> {
    fn augment_args(command: Command) -> Command {
        Self::table().fold(command, |command, (name, takes_value, reason)| {
            let arg =
                Arg::new(*name).long(*name).help(*reason).hide(true).action(ArgAction::Append);
            // A flag of one letter may have one dash or two.
            let arg = match name.as_bytes() {
                [letter] => arg.short(char::from(*letter)),
                _ => arg,
            };
            // Go's boolean flags may be written bare or with =true.
            command.arg(if *takes_value { arg } else { arg.num_args(0..=1).require_equals(true) })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Tables> clap::FromArgMatches for Known<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = Self::table().map(|(name, ..)| *name);
        let given = names.filter(|name| matches.contains_id(name)).collect();
        Ok(Self { given, tables: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A field of a kind of configuration that is accepted without effect, and why that is harmless.
pub type Field = (&'static str, &'static str);

/// Takes such fields out of a configuration; returns what is to be said of those that say something.
pub fn take_ignored(whole: &mut Map<String, Value>, fields: &[Field]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (field, reason) in fields {
        // Zero values are how tools print what they leave to the component: no reason to warn.
        if whole.remove(*field).is_some_and(|given| !is_zero(&given)) {
            warnings.push(format!("{field} has no effect: {reason}"));
        }
    }
    warnings
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        // An address that stands for all of them is no choice either.
        Value::String(s) => ["", "0", "0s", "0.0.0.0", "::"].contains(&&**s),
        Value::Array(a) => a.iter().all(is_zero),
        Value::Object(o) => o.values().all(is_zero),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Own;

    impl Tables for Own {
        const TABLES: &'static [&'static [Flag]] =
            &[&[("old-port", true, "nobody uses it")], COMMON];
    }

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        known: Known<Own>,
    }

    #[test]
    fn known_flags_are_told_from_unknown_ones() {
        let cli = Cli::try_parse_from(["x", "-v=2", "--profiling", "--old-port", "7"]).unwrap();
        let names: Vec<_> = cli.known.given().map(|(name, _)| name).collect();
        assert_eq!(names, ["old-port", "profiling", "v"]);
        assert_eq!(cli.known.warnings()[0], "--old-port has no effect: nobody uses it");
        assert!(Cli::try_parse_from(["x", "--profiling=false", "--v=4"]).is_ok());
        assert!(Cli::try_parse_from(["x", "--new-port=1"]).is_err());
    }

    #[test]
    fn ignored_fields_are_told_where_they_say_something() {
        let given = serde_json::json!({"a": 1, "b": {"c": [null, "0s"]}, "d": true, "e": "x"});
        let mut whole = given.as_object().cloned().unwrap();
        let warnings = take_ignored(&mut whole, &[("a", "why"), ("b", "why"), ("d", "so")]);
        assert_eq!(warnings, ["a has no effect: why", "d has no effect: so"]);
        assert_eq!(whole.keys().collect::<Vec<_>>(), ["e"]);
    }
}
