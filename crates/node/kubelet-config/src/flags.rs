//! Command-line flags that override fields of the configuration file. A flag's value is merged into the file's object
//! before that is decoded, so flag and field share one parser.

mod fields;
mod form;
mod ignored;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value, json};

use crate::error::ConfigError;
use fields::FIELDS;
use form::Form;

pub(crate) use ignored::Ignored;

/// The flags of a command line in the table's order, each with all its values, because a flag may be repeated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    values: Vec<(&'static str, Vec<String>)>,
}

impl Overlay {
    /// Overrides fields of the configuration with the values of the flags.
    pub(crate) fn apply(&self, config: &mut Map<String, Value>) -> Result<(), ConfigError> {
        for (flag, path, form) in FIELDS {
            let Some((_, values)) = self.values.iter().find(|(name, _)| name == flag) else {
                continue;
            };
            let value = form.read(values).map_err(|expected| ConfigError::Flag {
                flag,
                value: values.join(","),
                expected,
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
        Ok(Self { values: FIELDS.iter().filter_map(values).collect() })
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
            "--feature-gates=MemoryQoS=true,GracefulNodeShutdown=false",
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
                "featureGates": {"MemoryQoS": true, "GracefulNodeShutdown": false},
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
        for (flag, expected) in [
            ("--max-pods=many", "a whole number"),
            ("--anonymous-auth=perhaps", "true or false"),
            ("--eviction-hard=memory.available=1", "signal<amount"),
            ("--kube-reserved=cpu", "key=value"),
            ("--feature-gates=MemoryQoS=perhaps", "gate=true|false"),
            ("--register-with-taints=a=b:Never", "NoExecute"),
        ] {
            let error = over(json!({}), &[flag]).unwrap_err().to_string();
            let name = flag.split('=').next().unwrap();
            assert!(error.contains(expected) && error.contains(name), "{error}");
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
                Form::Map(_) | Form::Headers | Form::Gates => json!({}),
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
        let flags = ["kubelet", "--container-hints=x", "--v=2", "--storage-driver-db=x"];
        let args = Args::try_parse_from(flags).unwrap();
        assert_eq!(args.ignored.warnings().len(), 3);
        assert!(Args::try_parse_from(["kubelet", "--no-such-flag"]).is_err());
    }
}
