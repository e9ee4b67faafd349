use std::path::Path;

use super::{
    Report, check, documents, layers,
    metadata::{Crate, Use},
    sources::{self, File},
};
use crate::run::workspace_root;

#[test]
fn finds_no_problems_in_the_tree() {
    let problems = check(&workspace_root()).unwrap().problems;
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

/// Returns all crates of the table. One of them uses `used`.
fn tree_with(user: &str, used: &str, in_tests: bool) -> Vec<Crate> {
    let names = layers::LAYERS.iter().flat_map(|l| l.crates);
    names
        .map(|name| {
            let uses = if *name == user {
                vec![Use { name: used.to_owned(), in_tests }]
            } else {
                Vec::new()
            };
            Crate { name: (*name).to_owned(), uses }
        })
        .collect()
}

#[test]
fn rejects_dependencies_that_point_up() {
    let cases = [
        ("kubelet", "client", false, true),
        ("client", "kubelet", false, false),
        ("kubelet", "proxy", false, false),
        ("apiserver", "auth", false, true),
        ("auth", "apiserver", false, false),
        ("api-schema", "api-meta", false, true),
        ("api-meta", "api-schema", false, false),
        ("store-etcd", "store", false, true),
        ("store", "store-etcd", false, false),
        ("rt", "pki", false, false),
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
fn requires_a_layer_for_every_crate() {
    let mut crates = tree_with("rt", "none", false);
    crates.push(Crate { name: "stray".to_owned(), uses: Vec::new() });
    crates.remove(0);
    let problems = layers::problems(&crates);
    assert_eq!(problems.len(), 2, "{problems:?}");
}

#[test]
fn requires_a_paragraph_for_every_crate() {
    let crates = [Crate { name: "rt".to_owned(), uses: Vec::new() }];
    assert!(
        documents::problems("**`rt`** owns tasks; `auth` is only mentioned.", &crates).is_empty()
    );
    assert_eq!(
        documents::problems("- **`rt`** owns tasks.\n- **`gone`** is gone.", &crates).len(),
        1
    );
    assert_eq!(documents::problems("nothing", &crates).len(), 1);
}

fn report(path: &str, text: &str) -> Report {
    let mut report = Report::default();
    let file = File { path: path.into(), text: text.to_owned() };
    sources::check(&file, Path::new("/somewhere/of/mine"), &mut report);
    report
}

#[test]
fn applies_rules_to_files() {
    let clock = "fn f() { std::time::Instant::now(); }\n";
    let marked = "fn f() { unsafe { g() } }\n";
    let tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{clock}}}\n");
    let cases = [
        ("crates/pod-core/src/plan.rs", clock, 1),
        ("crates/pod-core/src/plan.rs", tests.as_str(), 0),
        ("crates/pod-core/src/plan.rs", "// Instant::now is for others.\n", 0),
        ("crates/pod-core/src/plan/tests.rs", clock, 0),
        ("crates/kubelet/src/worker.rs", clock, 1),
        ("crates/rt/src/clock.rs", clock, 0),
        ("crates/kubelet/src/worker.rs", marked, 1),
        ("crates/sys/src/mount.rs", marked, 0),
        ("crates/kubelet/src/worker.rs", "#![allow(unsafe_code)]\n", 1),
        ("crates/kubelet/src/worker.rs", "say(\"unsafe sysctls\");\n", 0),
        ("crates/apiserver/src/x.rs", "tree[\"a\"][\"b\"] = x;\n", 1),
        ("crates/apiserver/src/tests.rs", "tree[\"a\"][\"b\"] = x;\n", 0),
        ("crates/apiserver/src/x.rs", "if definition.is(\"\", \"pods\") {}\n", 1),
        ("crates/apiserver/src/reconcilers/x.rs", "if definition.is(\"\", \"pods\") {}\n", 0),
        ("crates/oci/src/image.rs", "http1::handshake(hyper::client::conn::http1);\n", 1),
        ("crates/client/src/http.rs", "use hyper::client::conn::http1;\n", 0),
        ("crates/oci/src/image.rs", "config[\"Cmd\"] = x;\n", 0),
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
    let lines = |count: usize| report("crates/rt/src/tasks.rs", &"f();\n".repeat(count));
    assert_eq!((lines(500).notes.len(), lines(500).problems.len()), (0, 0));
    assert_eq!((lines(501).notes.len(), lines(501).problems.len()), (1, 0));
    assert_eq!((lines(1001).notes.len(), lines(1001).problems.len()), (0, 1));
}
