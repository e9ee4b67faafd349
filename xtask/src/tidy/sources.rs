//! Rules for single files: purity, `unsafe`, length, and no paths of the machine that they were written on.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Report, asked, indexing, layers, readers};

/// A source file of a crate, or a document.
pub(super) struct File {
    /// Its path below the workspace's root.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// The crates that may hold `unsafe`: two put the kernel behind a trait, and one counts steps in builds of tests.
const UNSAFE: &[&str] = &["sys", "netlink", "fuzz"];

/// The crates that hold nothing but tests and what helps them.
const TEST_CRATES: &[&str] = &["e2e", "fuzz", "testkit"];

/// What in a pure crate would be a clock, a socket or a task.
const IMPURE: &[&str] = &[
    "SystemTime::now",
    "Instant::now",
    "UtcDateTime::now",
    "OffsetDateTime::now",
    "tokio::",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "thread::spawn",
    "thread::sleep",
];

/// Who may start tasks by himself: `rt`, whose purpose it is, and those whose task ends with what it serves.
const SPAWNS: &[&str] = &["crates/rt/", "crates/client/src/http.rs", "crates/client/src/http"];

/// Where the API server asks which kind it has before it. A kind is data: what it needs elsewhere is a field of its
/// strategy.
const ASKS_FOR_KINDS: &[&str] = &[
    "crates/apiserver/src/alloc/hints.rs",
    "crates/apiserver/src/handlers/decode.rs",
    "crates/apiserver/src/handlers/subresource/mod.rs",
    "crates/apiserver/src/reconcilers",
    "crates/apiserver/src/watch_cache/snapshot.rs",
];

/// How it would ask.
const ASKING: &[&str] = &["definition.is(", "(&*definition.group, &*definition.plural)"];

/// What is there once: how a second one would begin, where the one may be, and what it is called.
const ONCE: &[(&str, &[&str], &str)] = &[
    ("kernel/hostname", &["crates/rt"], "rt::hostname"),
    (":02x}\")).collect()", &[], "data_encoding::HEXLOWER"),
    (":02X}\")).collect()", &[], "data_encoding::HEXUPPER"),
    ("%{byte:02X}", &["crates/api-meta", "crates/gotmpl"], "api_meta::percent_encode"),
    ("client::conn::", &["crates/client"], "client::HttpTransport, or client::exchange"),
    ("TlsConnector", &["crates/client"], "client::encrypt"),
    ("\"us\"", &["crates/api-meta", "crates/api-schema"], "api_meta::GoDuration"),
    ("# TYPE ", &["crates/telemetry"], "telemetry::metrics::Metrics"),
];

/// What holds as much as comes.
const UNBOUNDED: &[&str] =
    &["unbounded_channel(", "std::sync::mpsc::channel(", "flume::unbounded("];

/// Lines of production code above which a file is said to be long, and above which it is refused.
const LONG: usize = 500;
const TOO_LONG: usize = 1000;

/// Reads every text file that people write: Rust, manifests, documents, scripts.
pub(super) fn files(root: &Path) -> Result<Vec<File>, String> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory)
            .map_err(|e| format!("reading {}: {e}", directory.display()))?;
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            if path.is_dir() {
                // Built files and the repository's own are nobody's writing.
                if !["target", ".git"].contains(&name) && !path.join("CACHEDIR.TAG").exists() {
                    directories.push(path);
                }
            } else if ["rs", "toml", "md", "run", "sh", "proto"]
                .iter()
                .any(|end| name.ends_with(end))
            {
                let text = fs::read_to_string(&path)
                    .map_err(|e| format!("reading {}: {e}", path.display()))?;
                let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
                files.push(File { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

pub(super) fn check(file: &File, root: &Path, report: &mut Report) {
    let shown = file.path.display();
    if let Some(place) = machine_path(&file.text, root) {
        report.problems.push(format!("{shown} names {place}, a path of this machine"));
    }
    if file.path.extension().is_none_or(|e| e != "rs") || is_test(&file.path) {
        return;
    }
    let name = crate_of(&file.path);
    let code: Vec<&str> = production(&file.text).collect();
    if layers::PURE.contains(&name) {
        for word in IMPURE.iter().filter(|word| code.iter().any(|line| line.contains(*word))) {
            report.problems.push(format!("{shown} uses {word}, and {name} is pure"));
        }
    }
    if !UNSAFE.contains(&name) && code.iter().any(|line| holds_unsafe(line)) {
        report
            .problems
            .push(format!("{shown} holds unsafe code, which belongs in {}", UNSAFE.join(" or ")));
    }
    if !indexing::OWN_TREES.contains(&name) && !TEST_CRATES.contains(&name) {
        for line in indexing::writes(before_tests(&file.text)) {
            report.problems.push(format!(
                "{shown}:{line} writes to a tree by indexing it, which panics where the tree has another shape; \
                 write by api_meta::Tree"
            ));
        }
    }
    let holds = |word: &str| code.iter().any(|line| line.contains(word));
    let in_crates = file.path.starts_with("crates");
    if in_crates && holds("tokio::spawn(") && !SPAWNS.iter().any(|at| file.path.starts_with(at)) {
        report.problems.push(format!("{shown} starts a task that nobody owns; rt::Tasks does so"));
    }
    for word in UNBOUNDED.iter().filter(|word| in_crates && holds(word)) {
        report.problems.push(format!("{shown} has a queue without a bound: {word}…)"));
    }
    for (word, places, one) in ONCE {
        if in_crates && holds(word) && !places.iter().any(|at| file.path.starts_with(at)) {
            report.problems.push(format!("{shown} makes a second one of {one} ({word}…)"));
        }
    }
    let of_server = file.path.starts_with("crates/apiserver");
    if of_server && !ASKS_FOR_KINDS.iter().any(|at| file.path.starts_with(at)) {
        for word in ASKING.iter().filter(|word| holds(word)) {
            report.problems.push(format!(
                "{shown} asks which kind it has ({word}…); make what it wants to know a field of api_rules::Strategy"
            ));
        }
    }
    if !TEST_CRATES.contains(&name) && !layers::PURE.contains(&name) {
        report.problems.extend(asked::problems(file, &code));
    }
    if !TEST_CRATES.contains(&name) {
        report.problems.extend(readers::problem(file, &code));
    }
    match code.len() {
        lines if lines > TOO_LONG => {
            report.problems.push(format!("{shown} has {lines} lines of code; split it"))
        }
        lines if lines > LONG => report.notes.push(format!("{shown} has {lines} lines of code")),
        _ => {}
    }
}

/// The first path of this machine that a text names: the workspace's own, or that of the directory it is in.
fn machine_path(text: &str, root: &Path) -> Option<String> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let shared =
        ["/", "/home", "/root", "/tmp", "/var", "/opt", "/srv", "/usr/src", "/usr/local/src"];
    let parent =
        root.parent().filter(|parent| !shared.iter().any(|known| Path::new(known) == *parent));
    let places = [Some(root.as_path()), parent];
    let mut places = places.into_iter().flatten().map(|place| format!("{}/", place.display()));
    places.find(|place| text.contains(place.as_str()))
}

pub(super) fn crate_of(path: &Path) -> &str {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    match parts.next() {
        Some("crates") => parts.next().unwrap_or_default(),
        first => first.unwrap_or_default(),
    }
}

/// Tests, benchmarks and helps for them, by where they lie.
pub(super) fn is_test(path: &Path) -> bool {
    let known = ["tests", "tests.rs", "testing", "testing.rs", "fuzzed.rs", "benches", "examples"];
    let is_one = |part: &str| known.contains(&part) || part.ends_with("_tests.rs");
    path.iter().any(|part| part.to_str().is_some_and(is_one))
}

/// What of a crate's file is tests; none of a benchmark, which measures time.
pub(super) fn tests_of(file: &File) -> Option<&str> {
    let is_bench = file.path.iter().any(|part| part == "benches");
    if file.path.extension().is_none_or(|e| e != "rs")
        || !file.path.starts_with("crates")
        || is_bench
    {
        return None;
    }
    match is_test(&file.path) || TEST_CRATES.contains(&crate_of(&file.path)) {
        true => Some(&file.text),
        false => Some(&file.text[before_tests(&file.text).len()..]),
    }
}

/// A file's lines without comments, blank lines and the tests at its end.
fn production(text: &str) -> impl Iterator<Item = &str> {
    before_tests(text)
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
}

pub(super) fn before_tests(text: &str) -> &str {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    &text[..end]
}

/// Whether a line opens unsafe code, or lets the compiler accept it.
fn holds_unsafe(line: &str) -> bool {
    let opens = ["{", "fn", "impl", "extern"];
    line.starts_with("#") && line.contains("(unsafe_code")
        || line
            .split_once("unsafe ")
            .is_some_and(|(_, rest)| opens.iter().any(|o| rest.starts_with(o)))
}
