//! Command-line flags of upstream's components, read as their own parser reads them.
//!
//! A component lists every flag that its upstream peer has in one table and says of each how it is treated: acted
//! on; accepted with a warning, and why; or refused, where ignoring it would weaken the cluster. A flag that stands
//! in no table is an error.

use std::{collections::BTreeMap, fmt::Write, str::FromStr};

/// What a flag's argument looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Alone it means true; a value needs the equals sign.
    Bool,
    Text,
    /// Commas separate, and each occurrence adds.
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    Used,
    /// Accepted with a warning, for this reason.
    Ignored(&'static str),
    /// An error, for this reason: it guards something that would be unguarded.
    Refused(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: Kind,
    pub treatment: Treatment,
    pub about: &'static str,
}

impl Flag {
    const fn new(
        name: &'static str,
        kind: Kind,
        treatment: Treatment,
        about: &'static str,
    ) -> Self {
        Self { name, short: None, kind, treatment, about }
    }

    pub const fn text(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::Text, Treatment::Used, about)
    }

    pub const fn bool(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::Bool, Treatment::Used, about)
    }

    pub const fn list(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::List, Treatment::Used, about)
    }

    pub const fn ignored(name: &'static str, kind: Kind, reason: &'static str) -> Self {
        Self::new(name, kind, Treatment::Ignored(reason), "")
    }

    pub const fn refused(name: &'static str, kind: Kind, reason: &'static str) -> Self {
        Self::new(name, kind, Treatment::Refused(reason), "")
    }

    pub const fn short(mut self, short: char) -> Self {
        self.short = Some(short);
        self
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FlagError {
    #[error("unknown flag: --{0}")]
    Unknown(String),
    #[error("unknown shorthand flag: {0:?} in -{1}")]
    UnknownShort(char, String),
    #[error("flag needs an argument: --{0}")]
    NoArgument(&'static str),
    #[error("invalid argument {value:?} for \"--{name}\" flag: {reason}")]
    Invalid { name: &'static str, value: String, reason: String },
    #[error("the flag --{name} cannot be honoured: {reason}; leave it out")]
    Refused { name: &'static str, reason: &'static str },
}

/// What was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    values: BTreeMap<&'static str, Vec<String>>,
    /// What is no flag, in order.
    pub rest: Vec<String>,
    /// The flags that have no effect, each with its reason.
    pub warnings: Vec<String>,
    /// `--help` or `-h` was given.
    pub help: bool,
}

/// Reads `args`, the program's name not among them.
pub fn parse(table: &[Flag], args: impl IntoIterator<Item = String>) -> Result<Parsed, FlagError> {
    let mut parsed = Parsed::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            parsed.rest.extend(args);
            break;
        }
        if let Some(long) = arg.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            // Underscores are accepted for dashes, as upstream's components do.
            let name = name.replace('_', "-");
            match table.iter().find(|flag| flag.name == name) {
                Some(flag) => parsed.take(flag, value, &mut args)?,
                None if name == "help" => parsed.help = true,
                None => return Err(FlagError::Unknown(name)),
            }
        } else if let Some(short) = arg.strip_prefix('-').filter(|s| !s.is_empty()) {
            parsed.take_short(table, short, &mut args)?;
        } else {
            parsed.rest.push(arg);
        }
    }
    Ok(parsed)
}

impl Parsed {
    fn take_short(
        &mut self,
        table: &[Flag],
        text: &str,
        args: &mut impl Iterator<Item = String>,
    ) -> Result<(), FlagError> {
        let mut letters = text.chars();
        let Some(letter) = letters.next() else { return Ok(()) };
        let Some(flag) = table.iter().find(|flag| flag.short == Some(letter)) else {
            if letter == 'h' {
                self.help = true;
                return Ok(());
            }
            return Err(FlagError::UnknownShort(letter, text.to_owned()));
        };
        let attached = letters.as_str();
        let value = attached.strip_prefix('=').unwrap_or(attached);
        self.take(flag, (!attached.is_empty()).then(|| value.to_owned()), args)
    }

    fn take(
        &mut self,
        flag: &Flag,
        value: Option<String>,
        args: &mut impl Iterator<Item = String>,
    ) -> Result<(), FlagError> {
        let value = match (value, flag.kind) {
            (Some(value), _) => value,
            (None, Kind::Bool) => "true".to_owned(),
            (None, _) => args.next().ok_or(FlagError::NoArgument(flag.name))?,
        };
        match flag.treatment {
            Treatment::Refused(reason) => {
                return Err(FlagError::Refused { name: flag.name, reason });
            }
            Treatment::Ignored(reason) => {
                self.warnings.push(format!("the flag --{} has no effect: {reason}", flag.name))
            }
            Treatment::Used => {}
        }
        if flag.kind == Kind::Bool && parse_bool(&value).is_none() {
            let reason = format!("strconv.ParseBool: parsing {value:?}: invalid syntax");
            return Err(FlagError::Invalid { name: flag.name, value, reason });
        }
        self.values.entry(flag.name).or_default().push(value);
        Ok(())
    }

    /// The last value given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.last().map(String::as_str)
    }

    pub fn bool(&self, name: &str) -> Option<bool> {
        parse_bool(self.text(name)?)
    }

    /// The values of every occurrence; `None` where there is none, as an empty list may mean something.
    pub fn list(&self, name: &str) -> Option<Vec<&str>> {
        let values = self.values.get(name)?;
        Some(
            values
                .iter()
                .flat_map(|v| v.split(','))
                .map(str::trim)
                .filter(|v| !v.is_empty())
                .collect(),
        )
    }

    /// `a=b,c=d` as pairs.
    pub fn map(&self, name: &'static str) -> Result<Option<BTreeMap<&str, &str>>, FlagError> {
        let Some(list) = self.list(name) else { return Ok(None) };
        list.into_iter()
            .map(|pair| {
                pair.split_once('=').ok_or_else(|| FlagError::Invalid {
                    name,
                    value: pair.to_owned(),
                    reason: "it is not of the form key=value".to_owned(),
                })
            })
            .collect::<Result<_, _>>()
            .map(Some)
    }

    pub fn get<T: FromStr<Err: std::fmt::Display>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, FlagError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|e: T::Err| FlagError::Invalid {
            name,
            value: text.to_owned(),
            reason: e.to_string(),
        })
    }
}

/// As Go's strconv.ParseBool.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The flags that are acted on, for `--help`, and then those that are accepted without effect.
pub fn help(table: &[Flag]) -> String {
    let mut out = String::new();
    for flag in table.iter().filter(|f| f.treatment == Treatment::Used) {
        let short = flag.short.map_or("    ".to_owned(), |s| format!("-{s}, "));
        let argument = match flag.kind {
            Kind::Bool => "",
            Kind::Text => " string",
            Kind::List => " strings",
        };
        let _ =
            writeln!(out, "  {short}{:<48}{}", format!("--{}{argument}", flag.name), flag.about);
    }
    let ignored: Vec<_> = table
        .iter()
        .filter_map(|f| match f.treatment {
            Treatment::Ignored(reason) => Some(format!("      --{:<46}{reason}", f.name)),
            _ => None,
        })
        .collect();
    if !ignored.is_empty() {
        let _ = writeln!(out, "\nAccepted without effect:\n{}", ignored.join("\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GoDuration;

    const TABLE: &[Flag] = &[
        Flag::text("secure-port", "The port"),
        Flag::bool("leader-elect", "Whether to elect"),
        Flag::list("controllers", "Which to run"),
        Flag::text("v", "Verbosity").short('v'),
        Flag::ignored("profiling", Kind::Bool, "there is no profiler"),
        Flag::refused(
            "audit-webhook-config-file",
            Kind::Text,
            "audit events are not sent to webhooks yet",
        ),
    ];

    fn given(args: &[&str]) -> Result<Parsed, FlagError> {
        parse(TABLE, args.iter().map(|a| (*a).to_owned()))
    }

    #[test]
    fn every_spelling_is_understood() {
        let parsed = given(&[
            "--secure-port=1",
            "--secure_port",
            "2",
            "--leader-elect",
            "--controllers=a,b",
            "--controllers",
            "c",
            "-v=4",
            "rest",
            "--",
            "--more",
        ])
        .unwrap();
        assert_eq!(parsed.get::<u16>("secure-port"), Ok(Some(2)));
        assert_eq!(parsed.bool("leader-elect"), Some(true));
        assert_eq!(parsed.list("controllers"), Some(vec!["a", "b", "c"]));
        assert_eq!(
            (parsed.text("v"), parsed.rest.as_slice()),
            (Some("4"), &["rest".to_owned(), "--more".to_owned()][..])
        );
        for (args, wanted) in [(&["-v4"][..], "4"), (&["-v", "5"], "5"), (&["--v=6"], "6")] {
            assert_eq!(given(args).unwrap().text("v"), Some(wanted));
        }
        let parsed = given(&["--leader-elect=false", "x"]).unwrap();
        assert_eq!((parsed.bool("leader-elect"), parsed.rest), (Some(false), vec!["x".to_owned()]));
        assert!(given(&["--help"]).unwrap().help && given(&["-h"]).unwrap().help);
    }

    #[test]
    fn mistakes_read_as_upstreams() {
        let cases: &[(&[&str], &str)] = &[
            (&["--nonsense=1"], "unknown flag: --nonsense"),
            (&["-x"], "unknown shorthand flag: 'x' in -x"),
            (&["--secure-port"], "flag needs an argument: --secure-port"),
            (
                &["--leader-elect=maybe"],
                "invalid argument \"maybe\" for \"--leader-elect\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                &["--audit-webhook-config-file=x"],
                "the flag --audit-webhook-config-file cannot be honoured: audit events are not sent to webhooks yet; leave it out",
            ),
        ];
        for (args, wanted) in cases {
            assert_eq!(given(args).unwrap_err().to_string(), *wanted);
        }
        let parsed = given(&["--secure-port=x", "--controllers=a=b,c"]).unwrap();
        assert!(parsed.get::<u16>("secure-port").is_err() && parsed.map("controllers").is_err());
    }

    #[test]
    fn flags_without_effect_are_told() {
        let parsed = given(&["--profiling=true"]).unwrap();
        assert_eq!(parsed.warnings, ["the flag --profiling has no effect: there is no profiler"]);
        let text = help(TABLE);
        assert!(
            text.contains("-v, --v string")
                && text.contains("Accepted without effect:\n      --profiling"),
            "{text}"
        );
        assert!(!text.contains("audit-webhook"), "{text}");
    }

    #[test]
    fn values_of_other_types_parse() {
        let parsed = given(&["--secure-port", "90s", "--controllers=a=true,b=false"]).unwrap();
        assert_eq!(parsed.get::<GoDuration>("secure-port"), Ok(Some(GoDuration::from_secs(90))));
        let gates = parsed.map("controllers").unwrap().unwrap();
        assert_eq!(gates, [("a", "true"), ("b", "false")].into());
    }
}
