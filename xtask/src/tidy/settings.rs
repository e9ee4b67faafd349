//! Checks that each flag and configuration field of upstream is implemented, rejected or ignored for a stated reason.
//!
//! `facts/upstream-flags.tsv` and `facts/upstream-fields.tsv` contain upstream's names. An implemented setting is a
//! field of the component's arguments or configuration. The others are in its tables with a reason: a missing security
//! feature prevents the start, a harmless one causes a warning.

use std::path::Path;

use super::file::File;

const FLAGS: &str = include_str!("../../facts/upstream-flags.tsv");
const FIELDS: &str = include_str!("../../facts/upstream-fields.tsv");

/// The flags that all components share.
const SHARED: &str = "crates/api/api-config/src/known.rs";

/// The flag of feature gates, which several components have.
const GATES: &str = "crates/api/api-config/src/features.rs";

/// The flags of components that elect a leader.
const LEASE: &str = "crates/api/api-config/src/leader_election.rs";
/// The flags of the pages for operators, which the controller manager and the scheduler share.
const PAGES: &str = "crates/api/api-config/src/page_flags.rs";

/// The TLS flags of components that serve.
const TLS: &str = "crates/api/api-config/src/tls.rs";

/// The files that declare the flags of each component.
const COMPONENTS: &[(&str, &[&str])] = &[
    (
        "kube-apiserver",
        &[
            "crates/server/apiserver/src/flags.rs",
            "crates/server/apiserver/src/flags/access.rs",
            "crates/server/apiserver/src/flags/audit.rs",
            "crates/server/apiserver/src/flags/elections.rs",
            "crates/server/apiserver/src/flags/peers.rs",
            "crates/server/apiserver/src/flags/serving.rs",
            "crates/server/apiserver/src/flags/storage.rs",
            "crates/server/apiserver/src/flags/tokens.rs",
            "crates/server/apiserver/src/flags/tracing.rs",
            TLS,
            GATES,
        ],
    ),
    (
        "kube-controller-manager",
        &[
            "crates/control/controllers/src/flags.rs",
            "crates/control/controllers/src/flags/signers.rs",
            "crates/tools/windlass/src/serving_flags.rs",
            LEASE,
            PAGES,
            TLS,
            GATES,
        ],
    ),
    (
        "kube-scheduler",
        &[
            "crates/control/scheduler/src/config.rs",
            "crates/tools/windlass/src/components.rs",
            "crates/tools/windlass/src/serving_flags.rs",
            LEASE,
            PAGES,
            TLS,
            GATES,
        ],
    ),
    ("kube-proxy", &["crates/network/proxy/src/flags.rs"]),
    (
        "kubelet",
        &[
            "crates/node/kubelet-config/src/args.rs",
            "crates/node/kubelet-config/src/flags/fields.rs",
            "crates/node/kubelet-config/src/flags/ignored.rs",
        ],
    ),
];

/// The files that declare or read the fields of each kind of configuration.
const KINDS: &[(&str, &[&str])] = &[
    (
        "KubeletConfiguration",
        &[
            "crates/node/kubelet-config/src/configuration.rs",
            "crates/node/kubelet-config/src/eviction.rs",
            "crates/node/kubelet-config/src/host.rs",
            "crates/node/kubelet-config/src/images.rs",
            "crates/node/kubelet-config/src/rate.rs",
            "crates/node/kubelet-config/src/reservation.rs",
            "crates/node/kubelet-config/src/shutdown.rs",
            "crates/node/kubelet-config/src/static_url.rs",
            "crates/node/kubelet-config/src/placement.rs",
            "crates/node/kubelet-config/src/ignored.rs",
        ],
    ),
    // `init` writes this struct too, so a field in it does not prove that the proxy reads it.
    (
        "KubeProxyConfiguration",
        &[
            "crates/network/proxy/src/config.rs",
            "crates/network/proxy/src/flags.rs",
            "crates/tools/windlass/src/components.rs",
        ],
    ),
    (
        "KubeSchedulerConfiguration",
        &[
            "crates/control/scheduler/src/config.rs",
            "crates/control/scheduler/src/profiles.rs",
            "crates/api/api-config/src/scheduler.rs",
        ],
    ),
    // The struct is also written, so only readers count.
    (
        "Config",
        &[
            "crates/base/client/src/kubeconfig.rs",
            "crates/base/client/src/credentials.rs",
            "crates/base/client/src/plugin.rs",
            "crates/api/api-config/src/kubeconfig/check.rs",
            "crates/api/api-config/src/kubeconfig/exec.rs",
        ],
    ),
];

/// The names that are Rust keywords, and their field names.
const RENAMED: &[(&str, &str)] = &[("as", "impersonate")];

/// The variables whose fields readers use.
const OWNERS: [&str; 5] = ["config", "cluster", "user", "exec", "self"];

pub(super) fn problems(files: &[File]) -> Vec<String> {
    let flags = COMPONENTS.iter().flat_map(|(component, places)| {
        unknown(files, FLAGS, component, places)
            .into_iter()
            .map(move |flag| report(&format!("{component}'s flag --{flag}"), places))
    });
    let fields = KINDS.iter().flat_map(|(kind, places)| {
        unknown(files, FIELDS, kind, places)
            .into_iter()
            .map(move |field| report(&format!("{kind}'s field {field}"), places))
    });
    flags.chain(fields).collect()
}

fn report(what: &str, places: &[&str]) -> String {
    format!(
        "{what} is neither implemented nor in a table of rejected or ignored settings ({})",
        places[0]
    )
}

/// Returns the names of a component or kind that none of its files contains.
fn unknown(files: &[File], facts: &'static str, of: &str, places: &[&str]) -> Vec<&'static str> {
    let text = |place: &&str| files.iter().find(|file| file.path == Path::new(place));
    let texts: Vec<&str> =
        places.iter().chain([&SHARED]).filter_map(text).map(|f| &*f.text).collect();
    let names = facts.lines().filter_map(|line| line.split_once('\t'));
    let names = names.filter(|(whose, _)| *whose == of).map(|(_, name)| name);
    names.filter(|name| !texts.iter().any(|text| knows(text, name))).collect()
}

/// Returns `true` if a text contains the name as an entry of a table, as a declared or read field, or as a serde name.
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

/// Returns `true` if a line contains a text that is not part of a longer name.
fn has_word(line: &str, text: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(text).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + text.len()..]);
        !before.ends_with(part_of_name) && !after.starts_with(part_of_name)
    })
}

/// Converts the name of a flag or field to Rust's convention.
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
    fn recognizes_flag_as_field_or_table_entry() {
        let text = "    pub etcd_servers: Vec<String>,\n    (\"goaway-chance\", true, \"why\"),\n    (\n        \"cloud\",\n";
        for known in ["etcd-servers", "goaway-chance", "cloud"] {
            assert!(knows(text, known), "{known}");
        }
        for unknown in ["etcd", "goaway", "why", "servers"] {
            assert!(!knows(text, unknown), "{unknown}");
        }
        let file = |text: &str| {
            vec![File { path: "crates/network/proxy/src/flags.rs".into(), text: text.to_owned() }]
        };
        let place = &["crates/network/proxy/src/flags.rs"];
        let unknown = unknown(&file("pub config: PathBuf,"), FLAGS, "kube-proxy", place);
        assert!(unknown.contains(&"init-only") && !unknown.contains(&"config"), "{unknown:?}");
    }

    #[test]
    fn recognizes_field_that_a_reader_uses() {
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
    fn recognizes_field_by_rust_name_or_serde_name() {
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
