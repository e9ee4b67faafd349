//! Only `rt` reads the machine's clock and random source, and generates identifiers. Otherwise a simulation could not
//! replace them.

use std::path::Path;

use super::file::File;

/// The functions that read the clock or the random source.
const FORBIDDEN: &[&str] = &[
    "SystemTime::now",
    "UtcDateTime::now",
    "OffsetDateTime::now",
    "std::time::Instant::now",
    "rand::random",
    "rand::rng",
    "Uuid::new_v4",
];

/// The numbers of remaining calls by file. The list must only shrink. Keys and nonces come from the cryptography
/// library.
const REMAINING: &[(&str, usize)] = &[
    ("crates/network/cni/src/bridge.rs", 1),
    ("crates/metal/firstboot/src/disks/partitions.rs", 1),
    ("crates/base/telemetry/src/timeline/record.rs", 1),
];

pub(super) fn problem(file: &File, code: &[&str]) -> Option<String> {
    if !file.path.starts_with("crates") || file.path.starts_with("crates/base/rt") {
        return None;
    }
    // `Instant` may be the standard library's; tokio's is allowed, because it stops when a test pauses the time.
    let from_std = code.join(" ").split(';').any(|one| {
        one.contains("use std::") && one.rsplit("use std::").next().is_some_and(is_instant_named)
    });
    let is_call = |line: &&&str| {
        FORBIDDEN.iter().any(|word| line.contains(word))
            || from_std && line.contains("Instant::now")
    };
    let calls = code.iter().filter(is_call).count();
    let allowed =
        REMAINING.iter().find(|(path, _)| file.path == Path::new(path)).map_or(0, |(_, n)| *n);
    let path = file.path.display();
    match calls.cmp(&allowed) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!(
            "{path} uses the machine's clock or random source {calls} times, {allowed} are allowed; rt::now, \
             rt::random, \
             rt::id and tokio's Instant can be simulated"
        )),
        std::cmp::Ordering::Less => Some(format!(
            "{path} uses the machine's clock or random source only {calls} times; \
             lower its number in tidy/nondeterminism.rs"
        )),
    }
}

fn is_instant_named(imports: &str) -> bool {
    imports.split(|c: char| !c.is_alphanumeric()).any(|word| word == "Instant")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_new_calls_and_outdated_numbers() {
        let is_reported = |path: &str, text: &str| {
            let file = File { path: path.into(), text: text.to_owned() };
            problem(&file, &text.lines().collect::<Vec<_>>()).is_some()
        };
        for text in [
            "let now = SystemTime::now();",
            "rand::random()",
            "use std::{\n    time::{Duration, Instant},\n};\nlet at = Instant::now();",
        ] {
            assert!(is_reported("crates/network/dns/src/zone.rs", text), "{text}");
            assert!(!is_reported("crates/base/rt/src/clock.rs", text), "{text}");
        }
        for text in [
            "rt::now()",
            "use std::time::Duration;\nuse tokio::time::Instant;\nlet at = Instant::now();",
        ] {
            assert!(!is_reported("crates/network/dns/src/zone.rs", text), "{text}");
        }
        let (path, times) = REMAINING[0];
        assert!(!is_reported(path, &"rand::random()\n".repeat(times)) && is_reported(path, ""));
    }
}
