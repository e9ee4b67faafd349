//! `--output`: what a command tells, for programs to read, as objects of upstream's group `output.kubeadm.k8s.io`.

use api_config::yaml;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json, ser::PrettyFormatter};

use crate::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    #[default]
    Text,
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct Output {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

impl Output {
    /// The objects as they are asked for; nothing where text is, which is each command's own.
    pub(super) fn of(self, kind: &str, objects: Vec<Value>) -> Result<Option<String>, Error> {
        let named = objects.into_iter().map(|mut object| {
            object["apiVersion"] = json!("output.kubeadm.k8s.io/v1alpha3");
            object["kind"] = json!(kind);
            object
        });
        self.plain(named.collect())
    }

    /// The same for what is no object of an API.
    pub(super) fn plain(self, values: Vec<Value>) -> Result<Option<String>, Error> {
        match self.output {
            Format::Text => Ok(None),
            Format::Json => Ok(Some(values.iter().map(pretty).collect())),
            Format::Yaml => Ok(Some(yaml::to_string_all(&values)?)),
        }
    }
}

/// As upstream indents.
fn pretty(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut to =
        serde_json::Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b"    "));
    // A tree of values in memory can always be written.
    let _ = value.serialize(&mut to);
    bytes.push(b'\n');
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_upstreams() {
        let images = || vec![json!({"images": ["a:1"]})];
        let text = |output| Output { output }.of("Images", images()).unwrap();
        assert_eq!(text(Format::Text), None);
        assert_eq!(
            text(Format::Yaml).unwrap(),
            "apiVersion: output.kubeadm.k8s.io/v1alpha3\nimages:\n- a:1\nkind: Images\n"
        );
        let read: Value = serde_json::from_str(&text(Format::Json).unwrap()).unwrap();
        assert_eq!((&read["kind"], &read["images"][0]), (&json!("Images"), &json!("a:1")));
        assert!(text(Format::Json).unwrap().contains("\n    \"kind\""));
    }
}
