//! The syntax of flags' values.

use std::collections::BTreeMap;

use api_meta::go_bool;
use serde_json::{Value, json};

/// The syntax of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A boolean as in Go's `strconv.ParseBool`; `true` if the flag has no value.
    Bool,
    Number,
    Text,
    /// A list separated by commas.
    List,
    /// Pairs `key=value`, or with another separator than `=`, separated by commas.
    Map(char),
    /// Pairs `gate=true` or `gate=false` separated by commas.
    Gates,
    /// Pairs `name:value` separated by commas. A name may occur more than once.
    Headers,
    /// Entries `node:memory=1Gi,hugepages-1M=2Gi` separated by semicolons.
    Reservations,
    /// Entries `key=value:effect` separated by commas.
    Taints,
}

impl Form {
    /// Parses a flag's values into the field's value. The error describes the expected syntax.
    pub(super) fn read(self, values: &[String]) -> Result<Value, &'static str> {
        let last = values.last().map(String::as_str).unwrap_or_default();
        let parts = || values.iter().flat_map(|v| v.split(',')).filter(|part| !part.is_empty());
        let pair = |text: &str, sign: char, expected| {
            let (key, value) = text.split_once(sign).ok_or(expected)?;
            Ok::<_, &'static str>((key.trim().to_owned(), value.trim().to_owned()))
        };
        Ok(match self {
            Self::Bool => go_bool(last).ok_or("true or false")?.into(),
            Self::Number => last.parse::<i64>().map_err(|_| "a whole number")?.into(),
            Self::Text => last.into(),
            Self::List => parts().collect(),
            Self::Map(sign) => {
                let expected = if sign == '<' { "signal<amount,..." } else { "key=value,..." };
                let pairs = parts().map(|part| pair(part, sign, expected));
                json!(pairs.collect::<Result<BTreeMap<_, _>, _>>()?)
            }
            Self::Gates => {
                let expected = "gate=true|false,...";
                let gate = |part| {
                    let (name, value) = pair(part, '=', expected)?;
                    Ok::<_, &'static str>((name, go_bool(&value).ok_or(expected)?))
                };
                json!(parts().map(gate).collect::<Result<BTreeMap<_, _>, _>>()?)
            }
            Self::Headers => {
                let mut headers = BTreeMap::<_, Vec<_>>::new();
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
    let limits = limits.collect::<Option<BTreeMap<_, _>>>()?;
    Some(json!({ "numaNode": node.trim().parse::<i32>().ok()?, "limits": limits }))
}

/// Parses a taint. A taint without `=` has no value.
fn taint(text: &str) -> Option<Value> {
    let (key, effect) = text.rsplit_once(':')?;
    let (key, value) = key.split_once('=').unwrap_or((key, ""));
    let is_effect = ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
    (is_effect && !key.is_empty()).then(|| match value {
        "" => json!({ "key": key, "effect": effect }),
        value => json!({ "key": key, "value": value, "effect": effect }),
    })
}
