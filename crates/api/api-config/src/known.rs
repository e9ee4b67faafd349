//! Flags of upstream that a component accepts without effect or rejects. The component lists them in tables, with
//! reasons.

use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};

/// A flag: its name, `true` if it takes a value, and the reason why it has no effect.
pub type Flag = (&'static str, bool, &'static str);

/// The tables of a component's [`KnownFlags`] flags.
pub trait Tables: Clone + Default + std::fmt::Debug + Send + Sync + 'static {
    /// The tables.
    const TABLES: &'static [&'static [Flag]];
}

const METRICS: &str = "all metrics are shown, with all labels";
const ONE_VERSION: &str = "this binary behaves as one version of Kubernetes";

const EMULATED_VERSION: &str = "emulated-version";

/// Reports whether a version, such as `kube=1.36`, is the one that this binary behaves as.
fn is_own(version: &str) -> bool {
    let (component, version) = version.split_once('=').unwrap_or(("kube", version));
    let mut own = version::KUBERNETES_VERSION.trim_start_matches('v').splitn(3, '.');
    let (major, minor) = (own.next(), own.next());
    let mut given = version.trim().trim_start_matches('v').splitn(3, '.');
    component.trim() == "kube" && (given.next(), given.next()) == (major, minor)
}

/// The flags of every component for logs and diagnostics.
pub const COMMON: &[Flag] = &[
    ("allow-metric-labels", true, METRICS),
    ("allow-metric-labels-manifest", true, METRICS),
    ("contention-profiling", false, "there is no Go profiler here"),
    ("disabled-metrics", true, METRICS),
    ("emulated-version", true, ONE_VERSION),
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

/// The flags of every component for its connection to the API server.
pub const CLIENT: &[Flag] = &[
    ("kube-api-burst", true, "the API server protects itself"),
    ("kube-api-content-type", true, "the informers decode JSON"),
    ("kube-api-qps", true, "the API server protects itself"),
];

/// The flags of some tables that the command line contains.
#[derive(Clone, Debug, Default)]
pub struct KnownFlags<T> {
    present: Vec<&'static str>,
    tables: PhantomData<T>,
}

impl<T: Tables> KnownFlags<T> {
    fn table() -> impl Iterator<Item = &'static Flag> {
        T::TABLES.iter().copied().flatten()
    }

    /// Returns the names and reasons of the given flags.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let known = Self::table().filter(|(name, ..)| self.present.contains(name));
        known.map(|(name, _, reason)| (*name, *reason))
    }

    /// Returns a warning for each given flag, with the reason why it has no effect. The component logs them.
    pub fn warnings(&self) -> Vec<String> {
        self.given().map(|(name, reason)| format!("--{name} has no effect: {reason}")).collect()
    }
}

impl<T: Tables> clap::Args for KnownFlags<T> {
    fn augment_args(command: Command) -> Command {
        Self::table().fold(command, |command, (name, takes_value, reason)| {
            let arg =
                Arg::new(*name).long(*name).help(*reason).hide(true).action(ArgAction::Append);
            // A flag of one letter may have one dash or two.
            let arg = match name.as_bytes() {
                [letter] => arg.short(char::from(*letter)),
                _ => arg,
            };
            // Go's boolean flags may be written without a value or with `=true`.
            command.arg(if *takes_value { arg } else { arg.num_args(0..=1).require_equals(true) })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Tables> clap::FromArgMatches for KnownFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = Self::table().map(|(name, ..)| *name);
        let present: Vec<_> = names.filter(|name| matches.contains_id(name)).collect();
        if present.contains(&EMULATED_VERSION) {
            let values = matches.get_many::<String>(EMULATED_VERSION).into_iter().flatten();
            let mut versions = values.flat_map(|value| value.split(','));
            if let Some(other) = versions.find(|version| !is_own(version)) {
                let message = format!(
                    "--emulated-version={other} is not supported: {ONE_VERSION}, {}\n",
                    version::KUBERNETES_VERSION
                );
                return Err(clap::Error::raw(clap::error::ErrorKind::ValueValidation, message));
            }
        }
        Ok(Self { present, tables: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A configuration field that is accepted without effect: its name, and the reason why that is harmless.
pub type Field = (&'static str, &'static str);

/// Removes such fields from a configuration. Returns the warnings about those with a value.
pub fn take_ignored(whole: &mut Map<String, Value>, fields: &[Field]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (field, reason) in fields {
        // Tools write zero values for fields that they leave to the component, so these need no warning.
        if whole.remove(*field).is_some_and(|value| !is_zero(&value)) {
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
        // An unspecified address is not a choice either.
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
    struct TestTables;

    impl Tables for TestTables {
        const TABLES: &'static [&'static [Flag]] =
            &[&[("old-port", true, "nobody uses it")], COMMON];
    }

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        known: KnownFlags<TestTables>,
    }

    #[test]
    fn accepts_known_flags_and_rejects_others() {
        let cli = Cli::try_parse_from(["x", "-v=2", "--profiling", "--old-port", "7"]).unwrap();
        let names: Vec<_> = cli.known.given().map(|(name, _)| name).collect();
        assert_eq!(names, ["old-port", "profiling", "v"]);
        assert_eq!(cli.known.warnings()[0], "--old-port has no effect: nobody uses it");
        assert!(Cli::try_parse_from(["x", "--profiling=false", "--v=4"]).is_ok());
        assert!(Cli::try_parse_from(["x", "--new-port=1"]).is_err());
    }

    #[test]
    fn rejects_emulation_of_other_versions() {
        for own in ["1.36", "v1.36", "kube=1.36", "kube=v1.36.0,kube=1.36"] {
            assert!(
                Cli::try_parse_from(["x", &format!("--emulated-version={own}")]).is_ok(),
                "{own}"
            );
        }
        for other in ["1.35", "kube=1.3", "kube=1", "wardle=1.36", "", "kube=1.36,kube=1.35"] {
            let parsed = Cli::try_parse_from(["x", &format!("--emulated-version={other}")]);
            let message = parsed.unwrap_err().to_string();
            assert!(
                message.contains("is not supported: this binary behaves as one version"),
                "{message}"
            );
        }
    }

    #[test]
    fn warns_about_ignored_fields_with_values() {
        let given = serde_json::json!({"a": 1, "b": {"c": [null, "0s"]}, "d": true, "e": "x"});
        let mut whole = given.as_object().cloned().unwrap();
        let warnings = take_ignored(&mut whole, &[("a", "why"), ("b", "why"), ("d", "so")]);
        assert_eq!(warnings, ["a has no effect: why", "d has no effect: so"]);
        assert_eq!(whole.keys().collect::<Vec<_>>(), ["e"]);
    }
}
