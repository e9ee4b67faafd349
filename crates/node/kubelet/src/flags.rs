//! Command-line flags that override fields of the configuration file. A flag's value is merged into the file's object
//! before that is decoded, so flag and field share one parser.

mod fields;
mod ignored;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use crate::config::ConfigError;
use fields::FIELDS;
pub(crate) use ignored::Ignored;

/// The syntax of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A boolean as in Go's `strconv.ParseBool`; `true` if the flag has no value.
    Bool,
    Number,
    Text,
    /// A list separated by commas.
    List,
    /// Pairs `key=value`, or with another separator than `=`, separated by commas.
    Map(char),
    /// Pairs `name:value` separated by commas. A name may occur more than once.
    Headers,
    /// Entries `node:memory=1Gi,hugepages-1M=2Gi` separated by semicolons.
    Reservations,
    /// Entries `key=value:effect` separated by commas.
    Taints,
}

/// The flags of a command line in the table's order, each with all its values, because a flag may be repeated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    given: Vec<(&'static str, Vec<String>)>,
}

impl Overlay {
    /// Overrides fields of the configuration with the values of the flags.
    pub(crate) fn apply(&self, config: &mut Map<String, Value>) -> Result<(), ConfigError> {
        for (flag, path, form) in FIELDS {
            let Some((_, values)) = self.given.iter().find(|(name, _)| name == flag) else {
                continue;
            };
            let value = form.read(values).map_err(|wanted| ConfigError::Flag {
                flag,
                value: values.join(","),
                wanted,
            })?;
            set_field(config, path, value);
        }
        Ok(())
    }
}

/// Sets the field at the end of a dotted path.
fn set_field(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            object.insert(path.to_owned(), value);
        }
        Some((first, rest)) => {
            let inner = object.entry(first).or_insert(Value::Null);
            if !inner.is_object() {
                *inner = json!({});
            }
            if let Value::Object(inner) = inner {
                set_field(inner, rest, value);
            }
        }
    }
}

/// Parses a boolean like Go's `strconv.ParseBool`.
pub(crate) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl Form {
    /// Parses a flag's values into the field's value. The error describes the expected syntax.
    fn read(self, values: &[String]) -> Result<Value, &'static str> {
        let last = values.last().map(String::as_str).unwrap_or_default();
        let parts = || values.iter().flat_map(|v| v.split(',')).filter(|part| !part.is_empty());
        let pair = |text: &str, sign: char, wanted| {
            let (key, value) = text.split_once(sign).ok_or(wanted)?;
            Ok::<_, &'static str>((key.trim().to_owned(), value.trim().to_owned()))
        };
        Ok(match self {
            Self::Bool => parse_bool(last).ok_or("true or false")?.into(),
            Self::Number => last.parse::<i64>().map_err(|_| "a whole number")?.into(),
            Self::Text => last.into(),
            Self::List => parts().collect(),
            Self::Map(sign) => {
                let wanted = if sign == '<' { "signal<amount,..." } else { "key=value,..." };
                let pairs = parts().map(|part| pair(part, sign, wanted));
                json!(pairs.collect::<Result<std::collections::BTreeMap<_, _>, _>>()?)
            }
            Self::Headers => {
                let mut headers = std::collections::BTreeMap::<_, Vec<_>>::new();
                for part in parts() {
                    let (name, value) = pair(part, ':', "name:value,...")?;
                    headers.entry(name).or_default().push(value);
                }
                json!(headers)
            }
            Self::Reservations => {
                let nodes = values.iter().flat_map(|v| v.split(';'));
                nodes.map(reservation).collect::<Option<_>>().ok_or("node:memory=amount,...")?
            }
            Self::Taints => parts().map(taint).collect::<Option<_>>().ok_or(
                "key=value:effect,... with the effect NoSchedule, PreferNoSchedule or NoExecute",
            )?,
        })
    }
}

fn reservation(text: &str) -> Option<Value> {
    let (node, limits) = text.split_once(':')?;
    let limits = limits.split(',').map(|limit| limit.split_once('='));
    let limits = limits.collect::<Option<std::collections::BTreeMap<_, _>>>()?;
    Some(json!({ "numaNode": node.trim().parse::<i32>().ok()?, "limits": limits }))
}

/// Parses a taint. A taint without `=` has no value.
fn taint(text: &str) -> Option<Value> {
    let (key, effect) = text.rsplit_once(':')?;
    let (key, value) = key.split_once('=').unwrap_or((key, ""));
    let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
    (known && !key.is_empty()).then(|| match value {
        "" => json!({ "key": key, "effect": effect }),
        value => json!({ "key": key, "value": value, "effect": effect }),
    })
}

impl clap::Args for Overlay {
    fn augment_args(command: Command) -> Command {
        FIELDS.iter().fold(command, |command, (flag, path, form)| {
            let help = format!("The configuration's {path}");
            let arg = Arg::new(*flag).long(*flag).help(help).hide(true).action(ArgAction::Append);
            command.arg(match form {
                Form::Bool => {
                    arg.num_args(0..=1).require_equals(true).default_missing_value("true")
                }
                // Numbers may be negative.
                _ => arg.allow_hyphen_values(true),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Overlay {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let values = |(flag, ..): &(&'static str, &str, Form)| {
            Some((*flag, matches.get_many::<String>(flag)?.cloned().collect()))
        };
        Ok(Self { given: FIELDS.iter().filter_map(values).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::Args;

    fn over(file: Value, flags: &[&str]) -> Result<Value, ConfigError> {
        let args = Args::try_parse_from(["kubelet"].iter().chain(flags)).unwrap();
        let Value::Object(mut config) = file else { panic!("no object") };
        args.overlay.apply(&mut config)?;
        Ok(Value::Object(config))
    }

    #[test]
    fn flags_of_every_form_override_the_file() {
        let file = json!({
            "maxPods": 5, "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": true}},
            "evictionHard": {"nodefs.available": "10%"}, "clusterDomain": "old",
        });
        let flags = [
            "--max-pods=7",
            "--pod-max-pids",
            "-1",
            "--anonymous-auth=F",
            "--protect-kernel-defaults",
            "--cluster-dns=10.0.0.10,10.0.0.11",
            "--cluster-dns",
            "fd00::a",
            "--eviction-hard=memory.available<100Mi,imagefs.available<5%",
            "--system-reserved=cpu=100m",
            "--manifest-url-header=a:x,b:y,a:z",
            "--reserved-memory=0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi",
            "--register-with-taints=key=value:NoSchedule,bare:NoExecute",
        ];
        assert_eq!(
            over(file, &flags).unwrap(),
            json!({
                "maxPods": 7, "podPidsLimit": -1, "clusterDomain": "old", "protectKernelDefaults": true,
                "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true}},
                "clusterDNS": ["10.0.0.10", "10.0.0.11", "fd00::a"],
                "evictionHard": {"memory.available": "100Mi", "imagefs.available": "5%"},
                "systemReserved": {"cpu": "100m"},
                "staticPodURLHeader": {"a": ["x", "z"], "b": ["y"]},
                "reservedMemory": [
                    {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-1M": "2Gi"}},
                    {"numaNode": 1, "limits": {"memory": "2Gi"}},
                ],
                "registerWithTaints": [
                    {"key": "key", "value": "value", "effect": "NoSchedule"}, {"key": "bare", "effect": "NoExecute"},
                ],
            })
        );
    }

    #[test]
    fn names_the_flag_whose_value_is_malformed() {
        for (flag, wanted) in [
            ("--max-pods=many", "a whole number"),
            ("--anonymous-auth=perhaps", "true or false"),
            ("--eviction-hard=memory.available=1", "signal<amount"),
            ("--kube-reserved=cpu", "key=value"),
            ("--register-with-taints=a=b:Never", "NoExecute"),
        ] {
            let error = over(json!({}), &[flag]).unwrap_err().to_string();
            let name = flag.split('=').next().unwrap();
            assert!(error.contains(wanted) && error.contains(name), "{error}");
        }
    }

    /// Every flag maps to a field of the configuration, so that no flag is silently ignored.
    #[test]
    fn maps_every_flag_to_a_field_of_upstream() {
        for (flag, path, form) in FIELDS {
            let value = match form {
                Form::Bool => json!(true),
                Form::Number => json!(1),
                Form::Text if path.ends_with("TTL") || path.ends_with("Frequency") => json!("1s"),
                Form::Text => json!(""),
                Form::List | Form::Reservations | Form::Taints => json!([]),
                Form::Map(_) | Form::Headers => json!({}),
            };
            let mut config = Map::new();
            set_field(&mut config, path, value);
            let text = Value::Object(config).to_string();
            let decoded = api_config::decode::<api_config::KubeletConfiguration>(
                "KubeletConfiguration",
                serde_json::from_str(&text).unwrap(),
            );
            match decoded {
                Ok(decoded) => assert!(decoded.unknown.is_empty(), "--{flag}: {text}"),
                // Fields with a duration reject an empty string.
                Err(error) => assert!(error.to_string().contains("duration"), "--{flag}: {error}"),
            }
        }
    }

    #[test]
    fn warns_of_flags_without_effect() {
        let flags = ["kubelet", "--cloud-provider=external", "--v=2", "--storage-driver-db=x"];
        let args = Args::try_parse_from(flags).unwrap();
        assert_eq!(args.ignored.warnings().len(), 3);
        assert!(Args::try_parse_from(["kubelet", "--no-such-flag"]).is_err());
    }
}
