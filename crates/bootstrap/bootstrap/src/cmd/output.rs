//! `--output`: prints results for programs, as objects of upstream's group `output.kubeadm.k8s.io`.

mod kyaml;

use std::{fs, str::FromStr};

use api_config::{GoFlag as _, yaml};
use gotmpl::{MissingKey, Template, jsonpath};
use serde::Serialize;
use serde_json::{Value, json, ser::PrettyFormatter};

use crate::{Error, error::io};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    #[default]
    Text,
    Json,
    Yaml,
    Kyaml,
    /// Prints with a Go template, given inline or as a file.
    GoTemplate(Source),
    JsonPath(Source),
    /// Prints the values that the paths select, as JSON.
    JsonPathAsJson(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Given(String),
    File(String),
}

impl Source {
    fn text(&self) -> Result<String, Error> {
        match self {
            Self::Given(text) => Ok(text.clone()),
            Self::File(path) => fs::read_to_string(path).map_err(io("read", path.as_ref())),
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const FORMATS: &str = "text|json|yaml|kyaml|go-template|go-template-file|template|templatefile|jsonpath|\
    jsonpath-as-json|jsonpath-file";

/// The error of an unknown or incomplete output format.
#[derive(Debug, thiserror::Error)]
pub(super) enum FormatError {
    #[error("allowed formats are: {FORMATS}")]
    Unknown,
    #[error("{0} requires a template: {0}=...")]
    NoTemplate(String),
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let (name, rest) = text.split_once('=').unwrap_or((text, ""));
        let format = match name {
            "text" => Self::Text,
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            "kyaml" => Self::Kyaml,
            "go-template" | "template" => Self::GoTemplate(Source::Given(rest.to_owned())),
            "go-template-file" | "templatefile" => Self::GoTemplate(Source::File(rest.to_owned())),
            "jsonpath" => Self::JsonPath(Source::Given(rest.to_owned())),
            "jsonpath-file" => Self::JsonPath(Source::File(rest.to_owned())),
            "jsonpath-as-json" => Self::JsonPathAsJson(rest.to_owned()),
            _ => return Err(FormatError::Unknown),
        };
        let has_template =
            matches!(format, Self::GoTemplate(_) | Self::JsonPath(_) | Self::JsonPathAsJson(_));
        if has_template && rest.is_empty() {
            return Err(FormatError::NoTemplate(name.to_owned()));
        }
        Ok(format)
    }
}

#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Output {
    /// The format, as upstream describes it.
    #[arg(
        short,
        long,
        default_value = "text",
        help = "Output format. One of: text|json|yaml|kyaml|go-template|go-template-file|template|\
                templatefile|jsonpath|jsonpath-as-json|jsonpath-file"
    )]
    pub output: Format,
    /// If true, ignore any errors in templates when a field or map key is missing in the template
    #[arg(long, go_bool(), default_value = "true")]
    allow_missing_template_keys: bool,
    /// Accepted for compatibility; these objects have no managed fields
    #[arg(long)]
    show_managed_fields: bool,
}

impl Output {
    /// Prints the objects in the selected format; `None` for text, which each command prints itself.
    pub(super) fn of(&self, kind: &str, objects: Vec<Value>) -> Result<Option<String>, Error> {
        let named = objects.into_iter().map(|mut object| {
            object["apiVersion"] = json!("output.kubeadm.k8s.io/v1alpha3");
            object["kind"] = json!(kind);
            object
        });
        let objects: Vec<Value> = named.collect();
        let each = |print: &dyn Fn(&Value) -> Result<String, BoxError>| {
            let printed: Result<String, BoxError> = objects.iter().map(print).collect();
            printed.map(Some).map_err(|source| Error::Print { kind: kind.to_owned(), source })
        };
        match &self.output {
            Format::Kyaml => each(&|object| Ok(kyaml::print(object))),
            Format::GoTemplate(source) => {
                let missing = if self.allow_missing_template_keys {
                    MissingKey::Default
                } else {
                    MissingKey::Error
                };
                let template = Template::parse("output", &source.text()?);
                let template = template.map(|template| template.missing_key(missing));
                each(&|object| Ok(template.clone()?.execute(object)?))
            }
            Format::JsonPath(source) => {
                let text = source.text()?;
                each(&|object| {
                    let template = jsonpath::Template::parse(&text)?;
                    Ok(template.print(object, self.allow_missing_template_keys)?)
                })
            }
            Format::JsonPathAsJson(text) => {
                each(&|object| Ok(pretty(&json!(jsonpath::Template::parse(text)?.values(object)))))
            }
            plain => print_values(plain, &objects),
        }
    }
}

/// Prints plain values as JSON or YAML; `None` for other formats.
pub(super) fn print_values(format: &Format, values: &[Value]) -> Result<Option<String>, Error> {
    match format {
        Format::Json => Ok(Some(values.iter().map(pretty).collect())),
        Format::Yaml => Ok(Some(yaml::to_string_all(values)?)),
        _ => Ok(None),
    }
}

/// Formats JSON with upstream's indentation.
fn pretty(value: &Value) -> String {
    let mut bytes = Vec::new();
    let mut to =
        serde_json::Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b"    "));
    // Serializing a JSON value to memory cannot fail.
    let _ = value.serialize(&mut to);
    bytes.push(b'\n');
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(format: &str, allow_missing_template_keys: bool) -> Result<Option<String>, String> {
        let output = Output {
            output: format.parse().map_err(|e: FormatError| e.to_string())?,
            allow_missing_template_keys,
            show_managed_fields: false,
        };
        let images = vec![json!({"images": ["a:1"], "more": [{"b": true}]})];
        output.of("Images", images).map_err(|e| e.to_string())
    }

    #[test]
    fn prints_objects_in_every_format() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("template");
        std::fs::write(&file, "{{index .images 0}}").unwrap();
        let from_file = format!("go-template-file={}", file.display());
        assert_eq!(printed("text", true).unwrap(), None);
        for (format, expected) in [
            (
                "yaml",
                "apiVersion: output.kubeadm.k8s.io/v1alpha3\nimages:\n- a:1\nkind: Images\nmore:\n- b: true\n",
            ),
            (
                "kyaml",
                "---\n{\n  apiVersion: \"output.kubeadm.k8s.io/v1alpha3\",\n  images: [\n    \"a:1\",\n  ],\n  kind: \"Images\",\n  \
                 more: [{\n    b: true,\n  }],\n}\n",
            ),
            ("go-template={{.kind}} {{.nope}}", "Images <no value>"),
            ("template={{index .images 0}}", "a:1"),
            (&from_file, "a:1"),
            ("jsonpath={.images[0]}{.nope}", "a:1"),
            ("jsonpath-as-json={.images}", "[\n    [\n        \"a:1\"\n    ]\n]\n"),
        ] {
            assert_eq!(printed(format, true).unwrap().unwrap(), expected, "{format}");
        }
        let json = printed("json", true).unwrap().unwrap();
        let read: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&read["kind"], &read["images"][0]), (&json!("Images"), &json!("a:1")));
        assert!(json.contains("\n    \"kind\""));
    }

    #[test]
    fn rejects_invalid_output_formats_and_templates() {
        for (format, words) in [
            ("nonsense", "allowed formats are: text|json|yaml|kyaml"),
            ("jsonpath", "requires a template"),
            ("go-template={{.nope}}", "nope"),
            ("go-template={{", "unable to print Images"),
            ("jsonpath={.nope}", "nope is not found"),
            ("jsonpath={", "unclosed action"),
            ("jsonpath-file=/nonexistent", "/nonexistent"),
        ] {
            let error = printed(format, false).unwrap_err();
            assert!(error.contains(words), "{format}: {error}");
        }
    }
}
