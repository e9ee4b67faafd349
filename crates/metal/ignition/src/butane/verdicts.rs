//! Compares our results with those of upstream's butane 0.29.0 on the same configs.

use std::collections::BTreeSet;

use super::{tests::Local, translate};

/// Variant and version, body, and the output of `butane --raw-errors -d DIR`.
const TABLE: &str = include_str!("verdicts.tsv");

#[test]
fn agrees_with_upstream_butane() {
    let mut missed = Vec::new();
    for row in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let [spec, body, expected] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let (variant, version) = spec.split_once(' ').unwrap();
        let body = body.replace("\\n", "\n").replace("\\\n", "\\n");
        let text = format!("variant: {variant}\nversion: {version}\n{body}\n");
        let expected: BTreeSet<_> = expected.split(" | ").filter(|line| *line != "-").collect();
        let (output, agrees) = match translate(&text, Some(&Local)) {
            Ok(translation) => {
                let warnings =
                    translation.warnings.iter().map(|notice| format!("warning at {notice}"));
                let output: BTreeSet<_> = warnings.collect();
                let agrees = output.iter().map(String::as_str).collect::<BTreeSet<_>>() == expected;
                (output.into_iter().collect::<Vec<_>>().join(" | "), agrees)
            }
            // We stop at the first error; upstream reports all.
            Err(error) => {
                let output = error.to_string();
                let agrees = expected.contains(output.as_str());
                (output, agrees)
            }
        };
        if !agrees {
            missed.push(format!("{row}\n  said: {output}"));
        }
    }
    assert!(missed.is_empty(), "{}:\n{}", missed.len(), missed.join("\n"));
}
