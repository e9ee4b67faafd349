//! Every flag of upstream's, and every field of its configurations, is acted on, refused or ignored for a reason: none is
//! forgotten.
//!
//! `facts/upstream-flags.tsv` and `facts/upstream-fields.tsv` have upstream's names. What is acted on is a field of the
//! component's arguments or configuration; the others stand in its tables, with the reason and by their class: what guards
//! something and is not here stops the start, what is harmless is warned of.

use std::path::Path;

use super::sources::File;

const FLAGS: &str = include_str!("../../facts/upstream-flags.tsv");
const FIELDS: &str = include_str!("../../facts/upstream-fields.tsv");

/// The flags that all components share.
const SHARED: &str = "crates/api-config/src/known.rs";

/// Where a component says which flags it knows.
const COMPONENTS: &[(&str, &[&str])] = &[
    (
        "kube-apiserver",
        &[
            "crates/apiserver/src/flags.rs",
            "crates/apiserver/src/flags/access.rs",
            "crates/apiserver/src/flags/audit.rs",
        ],
    ),
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
    (
        "kubelet",
        &[
            "crates/kubelet/src/args.rs",
            "crates/kubelet/src/flags/fields.rs",
            "crates/kubelet/src/flags/ignored.rs",
        ],
    ),
];

/// Where a kind of configuration says which fields it knows.
const KINDS: &[(&str, &[&str])] = &[
    (
        "KubeletConfiguration",
        &[
            "crates/kubelet/src/config.rs",
            "crates/kubelet/src/config/eviction.rs",
            "crates/kubelet/src/config/placement.rs",
            "crates/kubelet/src/config/ignored.rs",
        ],
    ),
    // Its struct is also what `init` writes, so that a field in it does not say that a proxy reads it.
    (
        "KubeProxyConfiguration",
        &[
            "crates/proxy/src/config.rs",
            "crates/proxy/src/flags.rs",
            "crates/windlass/src/components.rs",
        ],
    ),
    (
        "KubeSchedulerConfiguration",
        &[
            "crates/scheduler/src/config.rs",
            "crates/scheduler/src/profiles.rs",
            "crates/api-config/src/scheduler.rs",
        ],
    ),
    // Its struct is also what is written, so that only readers count.
    (
        "Config",
        &[
            "crates/client/src/kubeconfig.rs",
            "crates/client/src/credentials.rs",
            "crates/client/src/plugin.rs",
            "crates/api-config/src/kubeconfig/check.rs",
            "crates/api-config/src/kubeconfig/exec.rs",
        ],
    ),
];

/// The names that are words of Rust's, and the fields that they have here.
const RENAMED: &[(&str, &str)] = &[("as", "impersonate")];

/// What fields are read of, by the names that readers give it.
const OWNERS: [&str; 5] = ["config", "cluster", "user", "exec", "self"];

pub(super) fn problems(files: &[File]) -> Vec<String> {
    let flags = COMPONENTS.iter().flat_map(|(component, places)| {
        unknown(files, FLAGS, component, places)
            .into_iter()
            .map(move |flag| told(&format!("{component}'s flag --{flag}"), places))
    });
    let fields = KINDS.iter().flat_map(|(kind, places)| {
        unknown(files, FIELDS, kind, places)
            .into_iter()
            .map(move |field| told(&format!("{kind}'s field {field}"), places))
    });
    flags.chain(fields).collect()
}

fn told(what: &str, places: &[&str]) -> String {
    format!(
        "{what} is neither acted on nor in a table of what is refused or ignored ({})",
        places[0]
    )
}

/// The names of a component's or kind's that none of its places knows.
fn unknown(files: &[File], facts: &'static str, of: &str, places: &[&str]) -> Vec<&'static str> {
    let text = |place: &&str| files.iter().find(|file| file.path == Path::new(place));
    let texts: Vec<&str> =
        places.iter().chain([&SHARED]).filter_map(text).map(|f| &*f.text).collect();
    let names = facts.lines().filter_map(|line| line.split_once('\t'));
    let names = names.filter(|(whose, _)| *whose == of).map(|(_, name)| name);
    names.filter(|name| !texts.iter().any(|text| knows(text, name))).collect()
}

/// Whether a text has the name as a table's entry, as a field that is declared or read, or as what a field is called
/// outside.
fn knows(text: &str, name: &str) -> bool {
    let rust_name = snake(name);
    let (entry, field) = (format!("\"{name}\","), format!("{rust_name}:"));
    let renamed = format!("rename = \"{name}\")");
    let reads = OWNERS.map(|owner| format!("{owner}.{rust_name}"));
    text.lines().map(str::trim).any(|line| {
        line.trim_start_matches(['&', '[', '(']).starts_with(&entry)
            || line.contains(&renamed)
            || reads.iter().any(|read| has_word(line, read))
            || line.trim_start_matches("pub(crate) ").trim_start_matches("pub ").starts_with(&field)
    })
}

/// Reports whether a line has a text that no longer name begins with.
fn has_word(line: &str, text: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(text).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + text.len()..]);
        !before.ends_with(part_of_name) && !after.starts_with(part_of_name)
    })
}

/// A flag's or field's name as Rust has it.
fn snake(name: &str) -> String {
    if let Some((_, field)) = RENAMED.iter().find(|(outside, _)| *outside == name) {
        return (*field).to_owned();
    }
    let mut out = String::new();
    let mut in_word = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && in_word {
            out.push('_');
        }
        in_word = !c.is_ascii_uppercase();
        out.push(if c == '-' { '_' } else { c.to_ascii_lowercase() });
    }
    out
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
        let unknown = unknown(&file("pub config: PathBuf,"), FLAGS, "kube-proxy", place);
        assert!(unknown.contains(&"init-only") && !unknown.contains(&"config"), "{unknown:?}");
    }

    #[test]
    fn knows_field_that_a_reader_takes_of_its_owner() {
        let text = "let exec = &self.exec.command;\nif user.token_file.is_empty() {\nadd(&user.impersonate)?;\n";
        for (name, known) in [
            ("command", true),
            ("tokenFile", true),
            ("token", false),
            ("as", true),
            ("args", false),
        ] {
            assert_eq!(knows(text, name), known, "{name}");
        }
    }

    #[test]
    fn a_field_is_known_by_rusts_name_or_its_own() {
        let text = "    pub max_pods: i64,\n    #[serde(rename = \"clusterDNS\")]\n    pub cluster_dns: Vec<String>,\n\
                    (\"qosReserved\", \"why\"),\n    if config.strict {\n";
        for (name, known) in [
            ("maxPods", true),
            ("clusterDNS", true),
            ("qosReserved", true),
            ("strict", true),
            ("podCIDR", false),
        ] {
            assert_eq!(knows(text, name), known, "{name}");
        }
    }
}
