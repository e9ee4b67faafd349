use std::{collections::BTreeSet, path::Path};

use super::{
    check, documents,
    file::File,
    layers,
    metadata::{Crate, Use},
    report::Report,
    sources, words,
};
use crate::run::workspace_root;

#[test]
fn tree_is_tidy() {
    let problems = check(&workspace_root()).unwrap().problems;
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// A crate without dependencies, as its Cargo.toml describes it.
fn member(name: &str, layer: &str, is_pure: bool) -> Crate {
    Crate { name: name.to_owned(), layer: layer.to_owned(), is_pure, ..Crate::default() }
}

/// A few crates, one of which uses `used`.
fn tree_with(user: &str, used: &str, in_tests: bool) -> Vec<Crate> {
    let mut crates = vec![
        member("rt", "base", false),
        member("pki", "base", true),
        member("api-meta", "api", true),
        member("api-schema", "api", true),
        member("sched-core", "core", true),
        member("pod-core", "core", true),
        member("store", "adapter", false),
        member("client", "adapter", false),
        member("auth", "component", true),
        member("apiserver", "component", false),
        member("kubelet", "component", false),
        member("proxy", "component", false),
        member("scheduler", "component", false),
        member("testkit", "assembly", false),
    ];
    let uses = |member: &mut Crate| member.uses = vec![Use { name: used.to_owned(), in_tests }];
    crates.iter_mut().filter(|member| member.name == user).for_each(uses);
    crates
}

#[test]
fn allows_edges_to_lower_layers_only() {
    let cases = [
        ("kubelet", "client", false, true),
        ("client", "kubelet", false, false),
        ("kubelet", "proxy", false, false),
        ("apiserver", "auth", false, true),
        ("auth", "apiserver", false, false),
        ("api-schema", "api-meta", false, true),
        ("pki", "api-meta", false, false),
        ("sched-core", "pod-core", false, false),
        ("client", "store", false, true),
        ("scheduler", "testkit", true, true),
        ("scheduler", "testkit", false, false),
        ("sched-core", "tokio", false, false),
        ("sched-core", "tokio", true, true),
        ("scheduler", "tokio", false, true),
    ];
    for (user, used, in_tests, allowed) in cases {
        let problems = layers::problems(&tree_with(user, used, in_tests));
        assert_eq!(
            problems.is_empty(),
            allowed,
            "{user} uses {used} (in tests: {in_tests}): {problems:?}"
        );
    }
}

#[test]
fn rejects_crate_without_layer() {
    let mut crates = tree_with("rt", "none", false);
    crates.push(member("stray", "", false));
    let problems = layers::problems(&crates);
    assert_eq!(problems.len(), 1, "{problems:?}");
}

#[test]
fn wants_one_paragraph_for_each_crate_of_folder() {
    let problems = |text: &str| {
        documents::differences(Path::new("crates/base/README.md"), text, BTreeSet::from(["rt"]))
    };
    assert!(problems("**`rt`** owns tasks; `auth` is only mentioned.").is_empty());
    assert_eq!(problems("- **`rt`** owns tasks.\n- **`gone`** is gone.").len(), 1);
    assert_eq!(problems("nothing").len(), 1);
}

#[test]
fn reports_dead_paths_of_documents() {
    let file = |text: &str| File { path: "docs/a.md".into(), text: text.to_owned() };
    let dead = |text: &str| documents::dead_paths(&workspace_root(), &file(text)).len();
    assert_eq!(
        dead("see `xtask/src/tidy.rs` and `xtask/src/tidy.rs:3`, not `cargo xtask tidy`"),
        0
    );
    assert_eq!(dead("see `xtask/src/gone.rs`, `crates/gone`"), 2);
}

#[test]
fn rejects_riddles_and_long_lines() {
    let long = "x".repeat(121);
    let cases = [
        ("/// Whether it is so.\nfn f() {}\n".to_owned(), 1),
        ("//! What this is.\n".to_owned(), 1),
        ("/// Returns it.\n/// What else.\nfn f() {}\n".to_owned(), 0),
        ("/// Returns it.\n///\n/// What else.\nfn f() {}\n".to_owned(), 1),
        ("// Whether a plain comment may.\n".to_owned(), 0),
        ("/// One-shot tasks.\n".to_owned(), 1),
        (format!("// {long}\n"), 1),
        (format!("let x = \"{long}\";\n"), 1),
        (format!("let x = r\"{long}\";\n"), 0),
        (format!("#[cfg(test)]\nmod tests {{\n    let x = \"{long}\";\n    // {long}\n}}\n"), 1),
    ];
    for (text, problems) in cases {
        let file = File { path: "crates/rt/src/x.rs".into(), text: text.clone() };
        assert_eq!(words::problems(&file).len(), problems, "{text}");
    }
}

fn report(path: &str, text: &str) -> Report {
    let mut report = Report::default();
    let file = File { path: path.into(), text: text.to_owned() };
    sources::check(&file, Path::new("/somewhere/of/mine"), &["pod-core"], &mut report);
    report
}

#[test]
fn applies_rules_to_files() {
    let clock = "fn f() { std::time::Instant::now(); }\n";
    let marked = "fn f() { unsafe { g() } }\n";
    let tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{clock}}}\n");
    let cases = [
        ("crates/node/pod-core/src/plan.rs", clock, 1),
        ("crates/node/pod-core/src/plan.rs", tests.as_str(), 0),
        ("crates/node/pod-core/src/plan.rs", "// Instant::now is for others.\n", 0),
        ("crates/node/pod-core/src/plan/tests.rs", clock, 0),
        ("crates/node/kubelet/src/worker.rs", clock, 1),
        ("crates/base/rt/src/clock.rs", clock, 0),
        ("crates/node/kubelet/src/worker.rs", marked, 1),
        ("crates/base/sys/src/mount.rs", marked, 0),
        ("crates/node/kubelet/src/worker.rs", "#![allow(unsafe_code)]\n", 1),
        ("crates/node/kubelet/src/worker.rs", "say(\"unsafe sysctls\");\n", 0),
        ("crates/server/apiserver/src/x.rs", "tree[\"a\"][\"b\"] = x;\n", 1),
        ("crates/server/apiserver/src/tests.rs", "tree[\"a\"][\"b\"] = x;\n", 0),
        ("crates/server/apiserver/src/x.rs", "if definition.is(\"\", \"pods\") {}\n", 1),
        (
            "crates/server/apiserver/src/reconcilers/x.rs",
            "if definition.is(\"\", \"pods\") {}\n",
            0,
        ),
        ("crates/node/oci/src/image.rs", "http1::handshake(hyper::client::conn::http1);\n", 1),
        ("crates/base/client/src/http.rs", "use hyper::client::conn::http1;\n", 0),
        ("crates/node/oci/src/image.rs", "config[\"Cmd\"] = x;\n", 0),
        ("README.md", "see /somewhere/of/mine/target", 1),
        ("README.md", "see /somewhere/else", 0),
    ];
    for (path, text, problems) in cases {
        let found = report(path, text).problems;
        assert_eq!(found.len(), problems, "{path}: {text}: {found:?}");
    }
}

#[test]
fn notes_long_files_and_rejects_longer_ones() {
    let lines = |count: usize| report("crates/base/rt/src/tasks.rs", &"f();\n".repeat(count));
    assert_eq!((lines(500).notes.len(), lines(500).problems.len()), (0, 0));
    assert_eq!((lines(501).notes.len(), lines(501).problems.len()), (1, 0));
    assert_eq!((lines(1001).notes.len(), lines(1001).problems.len()), (0, 1));
}
