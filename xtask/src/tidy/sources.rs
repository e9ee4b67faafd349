//! Rules for single files: purity, `unsafe`, length, and no paths of the machine that they were written on.

use std::path::Path;

use super::{
    file::{File, TEST_CRATES, before_tests, crate_of, is_test, production},
    indexing, nondeterminism, readers,
    report::Report,
};

/// The crates that may hold `unsafe`: two wrap the kernel and the allocator, and one counts steps in builds of tests.
const UNSAFE: &[&str] = &["sys", "netlink", "fuzz"];

/// Paths that a pure crate must not name: clocks, sockets and tasks.
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

/// The files that may start tasks: `rt`, and connections whose task ends with the connection.
const SPAWNS: &[&str] =
    &["crates/base/rt/", "crates/base/client/src/http.rs", "crates/base/client/src/http"];

/// The files of the API server that may compare kinds. Elsewhere a kind is data: what it needs is a field of its
/// strategy.
const ASKS_FOR_KINDS: &[&str] = &[
    "crates/server/apiserver/src/alloc/hints.rs",
    "crates/server/apiserver/src/handlers/decode.rs",
    "crates/server/apiserver/src/handlers/subresource/mod.rs",
    "crates/server/apiserver/src/reconcilers",
    "crates/server/apiserver/src/watch_cache/snapshot.rs",
];

/// The forms of such a comparison.
const ASKING: &[&str] = &["definition.is(", "(&*definition.group, &*definition.plural)"];

/// Functions that exist once: the text that a second one would contain, the crates that may contain it, and the name.
const ONCE: &[(&str, &[&str], &str)] = &[
    ("kernel/hostname", &["crates/base/rt"], "rt::hostname"),
    (":02x}\")).collect()", &[], "data_encoding::HEXLOWER"),
    (":02X}\")).collect()", &[], "data_encoding::HEXUPPER"),
    ("%{byte:02X}", &["crates/api/api-meta", "crates/base/gotmpl"], "api_meta::percent_encode"),
    ("client::conn::", &["crates/base/client"], "client::HttpTransport, or client::exchange"),
    ("TlsConnector", &["crates/base/client"], "client::encrypt"),
    ("\"us\"", &["crates/api/api-meta", "crates/api/api-schema"], "api_meta::GoDuration"),
    (
        "# TYPE ",
        &["crates/base/telemetry", "crates/tools/testkit/src/metrics.rs"],
        "telemetry::metrics::Metrics",
    ),
];

/// Constructors of unbounded queues.
const UNBOUNDED: &[&str] =
    &["unbounded_channel(", "std::sync::mpsc::channel(", "flume::unbounded("];

/// The numbers of lines of production code above which a file is noted, and above which it is rejected.
const LONG: usize = 500;
const TOO_LONG: usize = 1000;

/// Checks one file. `pure` names the crates that hold no clock, socket or task.
pub(super) fn check(file: &File, root: &Path, pure: &[&str], report: &mut Report) {
    let path = file.path.display();
    if let Some(place) = machine_path(&file.text, root) {
        report.problems.push(format!("{path} names {place}, a path of this machine"));
    }
    if file.path.extension().is_none_or(|e| e != "rs") || is_test(&file.path) {
        return;
    }
    let name = crate_of(&file.path);
    let code: Vec<&str> = production(&file.text).collect();
    if pure.contains(&name) {
        for word in IMPURE.iter().filter(|word| code.iter().any(|line| line.contains(*word))) {
            report.problems.push(format!("{path} uses {word}, and {name} is pure"));
        }
    }
    if !UNSAFE.contains(&name) && code.iter().any(|line| holds_unsafe(line)) {
        report
            .problems
            .push(format!("{path} holds unsafe code, which belongs in {}", UNSAFE.join(" or ")));
    }
    if !indexing::OWN_TREES.contains(&name) && !TEST_CRATES.contains(&name) {
        for line in indexing::writes(before_tests(&file.text)) {
            report.problems.push(format!(
                "{path}:{line} writes to a tree by indexing it, which panics where the tree has another shape; \
                 write by api_meta::Tree"
            ));
        }
    }
    let holds = |word: &str| code.iter().any(|line| line.contains(word));
    let in_crates = file.path.starts_with("crates");
    if in_crates && holds("tokio::spawn(") && !SPAWNS.iter().any(|at| file.path.starts_with(at)) {
        report.problems.push(format!("{path} starts a task that nobody owns; rt::Tasks does so"));
    }
    for word in UNBOUNDED.iter().filter(|word| in_crates && holds(word)) {
        report.problems.push(format!("{path} has a queue without a bound: {word}…)"));
    }
    for (word, places, one) in ONCE {
        if in_crates && holds(word) && !places.iter().any(|at| file.path.starts_with(at)) {
            report.problems.push(format!("{path} makes a second one of {one} ({word}…)"));
        }
    }
    let of_server = file.path.starts_with("crates/server/apiserver");
    if of_server && !ASKS_FOR_KINDS.iter().any(|at| file.path.starts_with(at)) {
        for word in ASKING.iter().filter(|word| holds(word)) {
            report.problems.push(format!(
                "{path} asks which kind it has ({word}…); make what it wants to know a field of api_rules::Strategy"
            ));
        }
    }
    if !TEST_CRATES.contains(&name) && !pure.contains(&name) {
        report.problems.extend(nondeterminism::problem(file, &code));
    }
    if !TEST_CRATES.contains(&name) {
        report.problems.extend(readers::problem(file, &code));
    }
    match code.len() {
        lines if lines > TOO_LONG => {
            report.problems.push(format!("{path} has {lines} lines of code; split it"))
        }
        lines if lines > LONG => report.notes.push(format!("{path} has {lines} lines of code")),
        _ => {}
    }
}

/// Returns the first path of this machine that a text names: the workspace's, or its parent directory's.
fn machine_path(text: &str, root: &Path) -> Option<String> {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let shared =
        ["/", "/home", "/root", "/tmp", "/var", "/opt", "/srv", "/usr/src", "/usr/local/src"];
    let parent =
        root.parent().filter(|parent| !shared.iter().any(|other| Path::new(other) == *parent));
    let places = [Some(root.as_path()), parent];
    let mut places = places.into_iter().flatten().map(|place| format!("{}/", place.display()));
    places.find(|place| text.contains(place.as_str()))
}

/// Reports whether a line begins unsafe code, or allows it.
fn holds_unsafe(line: &str) -> bool {
    let opens = ["{", "fn", "impl", "extern"];
    line.starts_with("#") && line.contains("(unsafe_code")
        || line
            .split_once("unsafe ")
            .is_some_and(|(_, rest)| opens.iter().any(|o| rest.starts_with(o)))
}
