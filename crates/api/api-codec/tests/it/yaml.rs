//! Compares YAML with Go: `yaml.tsv` contains texts, most of them random, with the results of sigs.k8s.io/yaml.

use api_codec::yaml_document;
use serde_json::Value;

struct Row<'a> {
    text: String,
    verdict: &'a str,
    duplicates: String,
}

fn rows() -> impl Iterator<Item = Row<'static>> {
    let lines = include_str!("yaml.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let mut cells = line.split('\t');
        let mut cell = || cells.next().unwrap_or_default();
        let json = |text: &str| serde_json::from_str::<String>(text).unwrap_or_default();
        Row { text: json(cell()), verdict: cell(), duplicates: json(cell()) }
    })
}

#[test]
fn parses_yaml_like_go() {
    let mut wrong = Vec::new();
    for Row { text, verdict, duplicates } in rows() {
        let (read, found) = match yaml_document(text.as_bytes()) {
            Ok(document) => (Ok(document.value), document.duplicates),
            Err(error) => (Err(error), Vec::new()),
        };
        let (same, shown) = match (verdict.strip_prefix('!'), &read) {
            (None, Ok(value)) => {
                let expected: Value = serde_json::from_str(verdict).unwrap();
                (expected == *value, value.to_string())
            }
            // Go shows a rejected key in its internal form.
            (Some(problem), Err(error)) if problem.contains("map key") => {
                (error.to_string().contains(problem), error.to_string())
            }
            (Some(problem), Err(error)) => {
                (error.to_string().replace('\n', "\\n").ends_with(problem), error.to_string())
            }
            (_, Ok(value)) => (false, value.to_string()),
            (_, Err(error)) => (false, error.to_string()),
        };
        if !same {
            wrong.push(format!("{text:?}\n  Go: {verdict}\n  here: {shown}"));
        } else if found.join("\n  ") != duplicates {
            wrong.push(format!("{text:?}\n  duplicates in Go: {duplicates}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
