//! Command lines of the programs, from the fields of a node configuration and the table `facts/flags.tsv`.

use api_meta::{GoDuration, Quantity, Tree as _};
use serde_json::Value;

use crate::error::Error;

const FACTS: &str = include_str!("../../facts/flags.tsv");

/// Returns the flags that the fields of a program's configuration set, sorted.
pub(super) fn flags(program: &str, config: &Value) -> Vec<String> {
    let rows = FACTS.lines().filter(|line| !line.starts_with('#'));
    let mut all = Vec::new();
    for row in rows {
        let mut columns = row.split('\t');
        let mut next = || columns.next().unwrap_or_default();
        let (of, field, flag, kind, empty) = (next(), next(), next(), next(), next());
        if of != program {
            continue;
        }
        let values = values(config.at(field), kind);
        let is_set = |value: &&String| !value.is_empty() && *value != empty;
        all.extend(values.iter().filter(is_set).map(|value| format!("--{flag}={value}")));
    }
    all.sort();
    all
}

/// Returns the values of one field: one for each time that the flag is written.
fn values(value: &Value, kind: &str) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        Value::Null if kind == "always" => vec!["0".to_owned()],
        Value::Null => Vec::new(),
        Value::Array(items) if kind == "repeat" => items.iter().map(text).collect(),
        Value::Array(items) => vec![items.iter().map(text).collect::<Vec<_>>().join(",")],
        Value::Object(members) => {
            let mut pairs: Vec<_> =
                members.iter().map(|(name, value)| format!("{name}={}", text(value))).collect();
            pairs.sort();
            vec![pairs.join(",")]
        }
        value => vec![scalar(text(value), kind)],
    }
}

/// Returns a duration in Go's form and a quantity as a decimal number; other values are unchanged.
fn scalar(text: String, kind: &str) -> String {
    match kind {
        "duration" => text.parse::<GoDuration>().map_or(text, |duration| duration.to_string()),
        "quantity" => text.parse::<Quantity>().map_or(text, |found| found.as_f64().to_string()),
        _ => text,
    }
}

/// Joins flags to the value of a variable in an environment file. systemd splits the value at white space, so a flag
/// with a space or a quote is rejected.
pub(super) fn joined(program: &str, flags: &[String]) -> Result<String, Error> {
    let is_bad = |c: char| c.is_whitespace() || c.is_control() || "\"'\\$".contains(c);
    if let Some(flag) = flags.iter().find(|flag| flag.contains(is_bad)) {
        let reason = "has white space, a quote, a backslash or a dollar sign, which an environment file cannot hold";
        return Err(Error::value(&format!("flags of {program}"), flag.clone(), reason));
    }
    Ok(flags.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_flags_as_upstream() {
        let config = json!({
            "auditDynamicConfiguration": true, "serviceAccountKeyFile": ["/a", "/b"], "watchCacheSizes": ["x#0", "y#0"],
            "deleteCollectionWorkers": 0, "enableProfiling": false, "runtimeConfig": {"b": "1", "a": "2"},
            "requestTimeout": "90s", "logFormat": "text", "securePort": 443,
        });
        assert_eq!(
            flags("kube-apiserver", &config),
            [
                "--audit-dynamic-configuration=true",
                "--profiling=false",
                "--request-timeout=1m30s",
                "--runtime-config=a=2,b=1",
                "--secure-port=443",
                "--service-account-key-file=/a",
                "--service-account-key-file=/b",
                "--watch-cache-sizes=x#0,y#0",
            ]
            .map(str::to_owned)
        );
        assert_eq!(flags("kube-apiserver", &json!({})), ["--secure-port=0"]);
        assert_eq!(
            flags(
                "kube-scheduler",
                &json!({"leaderElection": {"leaderElect": true}, "qps": "3100m"})
            ),
            ["--leader-elect=true", "--v=0"]
        );
        assert_eq!(
            flags("containerd", &json!({"logLevel": "info", "version": "1", "root": "/r"})),
            ["--log-level=info", "--root=/r"]
        );
        assert_eq!(
            joined("kubelet", &["--a=b", "--d=e"].map(str::to_owned)).unwrap(),
            "--a=b --d=e"
        );
        for hostile in ["--a=b c", "--a=\"", "--a=b\nExecStart=/bin/sh", "--a=$(id)"] {
            assert!(joined("kubelet", &[hostile.to_owned()]).is_err(), "{hostile}");
        }
    }

    #[test]
    fn table_has_five_columns_in_every_row() {
        for row in FACTS.lines().filter(|line| !line.starts_with('#')) {
            assert_eq!(row.split('\t').count(), 5, "{row}");
        }
    }
}
