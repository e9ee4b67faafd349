//! `toolbox template`: renders cluster specs from Go templates, values and snippets.
//!
//! Templates have Go's functions, upstream's three channel functions, `include`, and those of Sprig that return plain
//! values. Sprig's other functions are rejected by name: they make lists and maps, or read the clock, the environment,
//! the network or random numbers. Read [`render`] first.

mod channel;
mod error;
mod sprig;
mod values;

use std::collections::BTreeMap;

use gotmpl::{Limits, MissingKey, Template};
use serde_json::Value;

pub use self::{
    error::TemplateError,
    values::{merge, set_values},
};
use crate::{channel::Channel, version::Version};

/// The name of the main template in messages; no snippet may bear it.
const MAIN: &str = "mainTemplate";
/// The separator of documents.
const SEPARATOR: &str = "---\n";
/// The limits of a template. Snippets nest rarely, and the depth also bounds the stack.
const LIMITS: Limits = Limits { steps: 5_000_000, output: 16 << 20, depth: 100 };

/// The inputs of a template.
#[derive(Clone, Copy, Debug)]
pub struct TemplateInputs<'a> {
    /// The values.
    pub values: &'a Value,
    /// The snippets by file name.
    pub snippets: &'a BTreeMap<String, String>,
    /// The channel of the channel functions.
    pub channel: &'a Channel,
    /// The version of kOps.
    pub kops: &'a Version,
    /// `true` to reject absent values.
    pub fail_on_missing: bool,
}

/// Renders a template.
pub fn render(text: &str, inputs: &TemplateInputs<'_>) -> Result<String, TemplateError> {
    if inputs.snippets.contains_key(MAIN) {
        return Err(TemplateError::SnippetName { name: MAIN });
    }
    let mut functions = sprig::functions();
    functions.extend(channel::functions(inputs.channel, inputs.kops));
    let missing = if inputs.fail_on_missing { MissingKey::Error } else { MissingKey::Default };
    let template = Template::parse_set(MAIN, text, inputs.snippets, functions)?;
    Ok(template.missing_key(missing).limits(LIMITS).execute(inputs.values)?)
}

/// Returns the documents of a rendered text. With `format`, each is parsed and written again, and empty ones are left
/// out.
pub fn split_documents(rendered: &str, format: bool) -> Result<Vec<String>, TemplateError> {
    if rendered.is_empty() {
        return Ok(Vec::new());
    }
    let parts = rendered.split(SEPARATOR);
    if !format {
        return Ok(parts.map(str::to_owned).collect());
    }
    let mut documents = Vec::new();
    for part in parts {
        let tree = api_codec::from_yaml(part.as_bytes())
            .map_err(|error| TemplateError::Yaml { cause: error.to_string() })?;
        match &tree {
            Value::Null => {}
            Value::Object(map) if map.is_empty() => {}
            Value::Object(_) => documents.push(kops_api::yaml::to_string(&tree)),
            _ => return Err(TemplateError::Yaml { cause: "it is not a map".to_owned() }),
        }
    }
    Ok(documents)
}

/// Joins documents.
pub fn join_documents(documents: &[String]) -> String {
    documents.join(SEPARATOR)
}

/// Formats a value as Go's `%v` does.
pub fn format_value(value: &Value) -> Result<String, TemplateError> {
    Ok(sprig::format_value(value)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CHANNEL: &str = "spec:\n  images:\n  - {name: img, providerID: aws, architectureID: amd64}\n  kubernetesVersions:\n  - {range: '>=1.35.0', recommendedVersion: 1.35.7}\n  kopsVersions:\n  - {range: '>=1.36.0', kubernetesVersion: 1.36.3}\n";

    fn rendered(text: &str, values: &Value, snippets: &[(&str, &str)]) -> Result<String, String> {
        let snippets = snippets.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let channel = Channel::read("test", CHANNEL.as_bytes()).map_err(|e| e.to_string())?;
        let inputs = TemplateInputs {
            values,
            snippets: &snippets.collect(),
            channel: &channel,
            kops: &Version::release(1, 36),
            fail_on_missing: true,
        };
        render(text, &inputs).map_err(|e| e.to_string())
    }

    #[test]
    fn renders_upstreams_cases() {
        let etcd = json!({"etcd": [{"name": "main", "members": ["a1", "b1"]}, {"name": "events", "members": ["a1", "b1"]}],
            "line": "this is a line of\ntext", "list": ["a", "b", "c"], "name": "world", "id": 99});
        let cluster = "{{- range .etcd -}}\n- name: {{ .name }}\n  members: {{ .members | join \",\" }}\n{{ end -}}\n";
        let unit = "[Unit]\nName: somename\n\n[Service]\nThis is a service\n";
        for (text, want) in [
            ("hello {{ .name }} {{.id}}", "hello world 99"),
            ("{{ upper \"hello\" }} world its {{ lower \"Me\" }}\n", "HELLO world its me\n"),
            ("{{ .list | join \",\" }}", "a,b,c"),
            ("{{ .line | indent 2 }}", "this is a line of\n  text"),
            ("{{ ChannelRecommendedKopsKubernetesVersion }}", "1.36.3"),
            ("{{ ChannelRecommendedKubernetesUpgradeVersion \"1.35.1\" }}", "1.35.7"),
            ("{{ ChannelRecommendedKubernetesUpgradeVersion \"1.35.9\" }}", "1.35.9"),
            ("{{ ChannelRecommendedImage \"aws\" \"1.36.0\" \"amd64\" }}", "img"),
            (
                "cluster:\n{{ include \"cluster\" . -}}\n",
                "cluster:\n- name: main\n  members: a1,b1\n- name: events\n  members: a1,b1\n",
            ),
            (
                "hooks:\n  manifest: |\n    {{ include \"unit\" . | indent 4 -}}\n",
                "hooks:\n  manifest: |\n    [Unit]\n    Name: somename\n\n    [Service]\n    This is a service\n",
            ),
            (
                "{{- range .etcd }}\nmembers: {{ .members -}}\n{{ end }}\n",
                "\nmembers: [a1 b1]\nmembers: [a1 b1]\n",
            ),
        ] {
            let snippets = [("cluster", cluster), ("unit", unit)];
            assert_eq!(rendered(text, &etcd, &snippets).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn rejects_hostile_templates() {
        let values = json!({"big": "x".repeat(1 << 20), "name": "a"});
        for (text, reason) in [
            ("{{ include \"self\" . }}", "exceeded maximum template depth"),
            ("{{ template \"self\" . }}", "exceeded maximum template depth"),
            ("{{ range 1000000000 }}x{{ end }}", "stopped after"),
            ("{{ range 1000 }}{{ $.big }}{{ end }}", "longer than"),
            ("{{ range 1000000 }}{{ $x := $.big | toJson }}{{ end }}", "stopped after"),
            ("{{ repeat 1000000000 .big }}", "longer than"),
            ("{{ nindent 1000000000 .big }}", "longer than"),
            ("{{ .nope }}", "map has no entry for key \"nope\""),
            ("{{ include \"bad\" . }}", "map has no entry for key \"nope\""),
            ("{{ env \"HOME\" }}", "Sprig's function env is not supported"),
            ("{{ genPrivateKey \"rsa\" }}", "Sprig's function genPrivateKey is not supported"),
            ("{{ dict \"a\" 1 }}", "Sprig's function dict is not supported"),
            ("{{ pwn }}", "function \"pwn\" not defined"),
            (
                "{{ ChannelRecommendedImage \"gce\" \"1.36.0\" \"amd64\" }}",
                "the channel has no image for gce",
            ),
            ("{{ ChannelRecommendedKubernetesUpgradeVersion \"x\" }}", "is not a version"),
            ("{{ div 1 0 }}", "divide by zero"),
            ("{{ substr 3 1 .name }}", "out of range"),
            ("{{", "unclosed action"),
        ] {
            let snippets = [("self", "{{ include \"self\" . }}"), ("bad", "{{ .nope }}")];
            let error = rendered(text, &values, &snippets).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        let error = rendered("", &values, &[(MAIN, "")]).expect_err("rejected");
        assert!(error.contains("the same name as the template"), "{error}");
    }

    #[test]
    fn splits_and_formats_documents() {
        let rendered = "b: 1\na:   {x: [1]}\n---\n\n---\nc: 2\n";
        let plain = split_documents(rendered, false).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((plain.len(), join_documents(&plain).as_str()), (3, rendered));
        let tidy = split_documents(rendered, true).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(join_documents(&tidy), "a:\n  x:\n  - 1\nb: 1\n---\nc: 2\n");
        for wrong in ["a: [", "- 1\n"] {
            assert!(split_documents(wrong, true).is_err(), "{wrong}");
        }
    }
}
