//! `AdmissionConfiguration` (apiserver.config.k8s.io): the configurations of admission plugins.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    decode::{Strictness, versioned},
    error::Error,
    yaml,
};

/// The versions that upstream reads.
const SERVED: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];

/// The old files for a single plugin: the only field of such a file, and its plugin.
const SINGLE_PLUGIN_FILES: [(&str, &str); 2] =
    [("imagePolicy", "ImagePolicyWebhook"), ("podNodeSelectorPluginConfig", "PodNodeSelector")];

#[derive(Default, Deserialize)]
#[serde(default)]
struct AdmissionConfiguration {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    plugins: Vec<AdmissionPluginConfiguration>,
}

/// The configuration of a plugin, inline or in the file at `path`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct AdmissionPluginConfiguration {
    name: String,
    path: String,
    configuration: Value,
}

/// Reads the file of `--admission-control-config-file` and the files that it names. Returns the document of each
/// plugin. The first entry of a plugin wins.
pub fn admission_plugins(path: &Path) -> Result<BTreeMap<String, Value>, Error> {
    let tree = document(path)?;
    if let Some((_, plugin)) = SINGLE_PLUGIN_FILES
        .iter()
        .find(|(field, _)| tree.get("kind").is_none() && tree.get(field).is_some())
    {
        return Ok(BTreeMap::from([((*plugin).to_owned(), tree)]));
    }
    let inside = |source: Error| Error::In { path: path.to_owned(), source: Box::new(source) };
    let read: AdmissionConfiguration =
        versioned("AdmissionConfiguration", tree, &SERVED, Strictness::Refuse).map_err(inside)?;
    let mut plugins = BTreeMap::new();
    for plugin in read.plugins {
        let configuration = match (plugin.configuration, plugin.path.as_str()) {
            (Value::Null, "") => Value::Null,
            // A relative path is relative to the file.
            (Value::Null, named) => document(&path.with_file_name(named))?,
            (other, _) => other,
        };
        plugins.entry(plugin.name).or_insert(configuration);
    }
    Ok(plugins)
}

fn document(path: &Path) -> Result<Value, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Io {
        operation: "read",
        path: path.to_owned(),
        source,
    })?;
    yaml::parse(&text)
        .map_err(|source| Error::In { path: path.to_owned(), source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;

    fn written(files: &[(&str, &str)]) -> PathBuf {
        let directory = tempfile::tempdir().unwrap().keep();
        for (name, text) in files {
            fs::write(directory.join(name), text).unwrap();
        }
        directory.join(files[0].0)
    }

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";

    #[test]
    fn reads_plugin_document_inline_or_from_other_file() {
        let text = format!(
            "{HEAD}plugins:\n- {{name: A, configuration: {{a: 1}}}}\n- {{name: B, path: b.yaml}}\n\
             - {{name: A, configuration: {{a: 2}}}}\n- {{name: C}}\n"
        );
        let found = admission_plugins(&written(&[("all.yaml", &text), ("b.yaml", "b: [2]")]));
        let expected = [("A", json!({"a": 1})), ("B", json!({"b": [2]})), ("C", Value::Null)];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(found.unwrap(), BTreeMap::from(expected));
    }

    #[test]
    fn reads_old_files_of_single_plugins() {
        let found = admission_plugins(&written(&[("a", "imagePolicy: {defaultAllow: true}")]));
        assert_eq!(
            found.unwrap()["ImagePolicyWebhook"],
            json!({"imagePolicy": {"defaultAllow": true}})
        );
    }

    #[test]
    fn names_file_in_errors() {
        let error_of = |text: &str| {
            let path = written(&[("all.yaml", text)]);
            let error = admission_plugins(&path).unwrap_err();
            let mut words = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(inner) = source {
                words = format!("{words}: {inner}");
                source = inner.source();
            }
            words
        };
        for (text, part) in [
            ("", "Object 'Kind' is missing"),
            ("kind: Pod\napiVersion: v1\n", "no kind \"Pod\" is registered for version \"v1\""),
            (&format!("{HEAD}plugin: []\n"), "unknown field \"plugin\""),
            (&format!("{HEAD}plugins: 5\n"), "invalid type"),
            (&format!("{HEAD}plugins: [{{name: A, path: nowhere}}]\n"), "nowhere"),
            ("a: [", "not valid YAML"),
        ] {
            let words = error_of(text);
            assert!(words.contains(part), "{text:?}: {words}");
        }
    }
}
