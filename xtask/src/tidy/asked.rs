//! Nobody but `rt` asks the machine for time, random values and identifiers: else no simulation could give them.

use std::path::Path;

use super::sources::File;

/// What asks the machine by itself.
const ASKS: &[&str] = &[
    "SystemTime::now",
    "UtcDateTime::now",
    "OffsetDateTime::now",
    "std::time::Instant::now",
    "rand::random",
    "rand::rng",
    "Uuid::new_v4",
];

/// How often a file may ask still. The list only shrinks; keys and nonces of cryptography are its own library's.
const STILL: &[(&str, usize)] = &[
    ("crates/cni/src/bridge.rs", 1),
    ("crates/firstboot/src/disks/partitions.rs", 1),
    ("crates/telemetry/src/timeline/record.rs", 1),
];

pub(super) fn problems(file: &File, code: &[&str]) -> Option<String> {
    if !file.path.starts_with("crates") || file.path.starts_with("crates/rt") {
        return None;
    }
    // `Instant` is std's where it is imported from there; tokio's stands still when a test stops the time.
    let from_std = code.join(" ").split(';').any(|one| {
        one.contains("use std::") && one.rsplit("use std::").next().is_some_and(is_instant_named)
    });
    let asks = |line: &&&str| {
        ASKS.iter().any(|word| line.contains(word)) || from_std && line.contains("Instant::now")
    };
    let asked = code.iter().filter(asks).count();
    let still = STILL.iter().find(|(path, _)| file.path == Path::new(path)).map_or(0, |(_, n)| *n);
    let shown = file.path.display();
    match asked.cmp(&still) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!(
            "{shown} asks the machine {asked} times and may {still} times; rt::now, rt::random, rt::id and tokio's Instant \
             can be simulated"
        )),
        std::cmp::Ordering::Less => {
            Some(format!("{shown} asks the machine {asked} times only; say so in tidy/asked.rs"))
        }
    }
}

fn is_instant_named(imports: &str) -> bool {
    imports.split(|c: char| !c.is_alphanumeric()).any(|word| word == "Instant")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_the_machine_is_told_and_who_asks_less_than_before_too() {
        let told = |path: &str, text: &str| {
            let file = File { path: path.into(), text: text.to_owned() };
            problems(&file, &text.lines().collect::<Vec<_>>()).is_some()
        };
        for text in [
            "let now = SystemTime::now();",
            "rand::random()",
            "use std::{\n    time::{Duration, Instant},\n};\nlet at = Instant::now();",
        ] {
            assert!(told("crates/dns/src/zone.rs", text), "{text}");
            assert!(!told("crates/rt/src/clock.rs", text), "{text}");
        }
        for text in [
            "rt::now()",
            "use std::time::Duration;\nuse tokio::time::Instant;\nlet at = Instant::now();",
        ] {
            assert!(!told("crates/dns/src/zone.rs", text), "{text}");
        }
        let (path, times) = STILL[0];
        assert!(!told(path, &"rand::random()\n".repeat(times)) && told(path, ""));
    }
}
