//! Every flag of upstream's is acted on, refused or ignored for a reason: none is forgotten.
//!
//! `facts/upstream-flags.tsv` has upstream's names. A flag that is acted on is a field of the component's arguments; the
//! others stand in its tables, with the reason and by their class: what guards something and is not here stops the start,
//! what is harmless is warned of.

use std::path::Path;

use super::sources::File;

const FACTS: &str = include_str!("../../facts/upstream-flags.tsv");

/// The flags that all components share.
const SHARED: &str = "crates/api-config/src/known.rs";

/// Where a component says which flags it knows.
const COMPONENTS: &[(&str, &[&str])] = &[
    ("kube-apiserver", &["crates/apiserver/src/flags.rs"]),
    (
        "kube-controller-manager",
        &["crates/controllers/src/flags.rs", "crates/windlass/src/diagnostics.rs"],
    ),
    (
        "kube-scheduler",
        &[
            "crates/scheduler/src/config.rs",
            "crates/windlass/src/components.rs",
            "crates/windlass/src/diagnostics.rs",
        ],
    ),
    ("kube-proxy", &["crates/proxy/src/flags.rs"]),
];

pub(super) fn problems(files: &[File]) -> Vec<String> {
    COMPONENTS
        .iter()
        .flat_map(|(component, places)| of_component(files, component, places))
        .collect()
}

fn of_component(files: &[File], component: &str, places: &[&str]) -> Vec<String> {
    let text = |place: &&str| files.iter().find(|file| file.path == Path::new(place));
    let texts: Vec<&str> =
        places.iter().chain([&SHARED]).filter_map(text).map(|f| &*f.text).collect();
    let flags = FACTS.lines().filter_map(|line| line.split_once('\t'));
    let flags = flags.filter(|(of, _)| *of == component).map(|(_, flag)| flag);
    let unknown = flags.filter(|flag| !texts.iter().any(|text| knows(text, flag)));
    let told = |flag| {
        format!(
            "{component}'s flag --{flag} is neither acted on nor in a table of what is refused or ignored ({})",
            places[0]
        )
    };
    unknown.map(told).collect()
}

/// Whether a text has the flag as a table's entry or as a field.
fn knows(text: &str, flag: &str) -> bool {
    let (entry, field) = (format!("\"{flag}\","), format!("{}:", flag.replace('-', "_")));
    text.lines().map(str::trim).any(|line| {
        line.trim_start_matches(['&', '[', '(']).starts_with(&entry)
            || line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").starts_with(&field)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_a_field_or_an_entry() {
        let text = "    pub etcd_servers: Vec<String>,\n    (\"goaway-chance\", true, \"why\"),\n    (\n        \"cloud\",\n";
        for known in ["etcd-servers", "goaway-chance", "cloud"] {
            assert!(knows(text, known), "{known}");
        }
        for unknown in ["etcd", "goaway", "why", "servers"] {
            assert!(!knows(text, unknown), "{unknown}");
        }
        let file = |text: &str| {
            vec![File { path: "crates/proxy/src/flags.rs".into(), text: text.to_owned() }]
        };
        let place = &["crates/proxy/src/flags.rs"];
        let told = of_component(&file("pub config: PathBuf,"), "kube-proxy", place);
        assert!(told.iter().any(|t| t.contains("--init-only")), "{told:?}");
        assert!(!told.iter().any(|t| t.contains("--config ")), "{told:?}");
    }
}
