//! Checks that tests wait for conditions instead of sleeping: a sleep is too short on a busy machine and too long on
//! others.
//!
//! A pause in a polling loop counts as a sleep, because polling belongs into one helper. With paused time
//! (`start_paused`), sleeping takes no time.

use std::{cmp::Ordering, path::Path};

use super::file::{File, tests_of};

/// The files of the simulation, which runs in paused time.
const SIMULATION: [&str; 2] = [
    "crates/control/controllers/tests/it/simulation",
    "crates/control/controllers/tests/it/simulation.rs",
];

/// The numbers of remaining sleeps by file. The list must only shrink.
const REMAINING: &[(&str, usize)] = &[
    ("crates/server/apiserver/tests/it/allocation.rs", 1),
    ("crates/server/apiserver/tests/it/conversion.rs", 2),
    ("crates/server/apiserver/tests/it/custom.rs", 6),
    ("crates/server/apiserver/tests/it/records.rs", 1),
    ("crates/server/apiserver/tests/it/slow.rs", 3),
    ("crates/bootstrap/bootstrap/tests/it/etcd.rs", 1),
    // One of them advances the tests' own clock.
    ("crates/control/controllers/src/tests.rs", 2),
    ("crates/control/controllers/src/tests/jobs.rs", 1),
    ("crates/control/controllers/src/tests/upkeep.rs", 1),
    // Waits for the kernel's check of an address, without a runtime.
    ("crates/network/cni/tests/it/cves.rs", 1),
    ("crates/control/controllers/tests/it/api.rs", 1),
    ("crates/network/dns/tests/it/main.rs", 3),
    ("crates/tools/e2e/src/process.rs", 1),
    ("crates/tools/e2e/src/traffic.rs", 1),
    ("crates/tools/e2e/tests/it/ha.rs", 1),
    ("crates/tools/e2e/tests/it/node/server.rs", 1),
    ("crates/metal/firstboot/src/fetch/tests.rs", 1),
    ("crates/node/kubelet/src/sources/adopt.rs", 1),
    ("crates/node/kubelet/tests/it/node.rs", 2),
    ("crates/node/kubelet/tests/it/server.rs", 1),
    ("crates/metal/metal/src/power/ipmi/tests.rs", 1),
    ("crates/metal/netboot/src/lane.rs", 1),
    ("crates/metal/netboot/tests/it/boot.rs", 1),
    ("crates/metal/netboot/tests/it/world.rs", 2),
    ("crates/network/podnet/tests/it/policies.rs", 1),
    ("crates/network/proxy/tests/it/run.rs", 1),
    ("crates/server/store-etcd/tests/it/linear.rs", 4),
    ("crates/server/store-etcd/tests/it/space.rs", 1),
    ("crates/server/store/src/tests/embedded.rs", 1),
    // The tick of a simulation's store.
    ("crates/tools/testkit/src/real_api.rs", 1),
    ("crates/tools/testkit/src/until.rs", 1),
    ("crates/tools/windlass/tests/it/chain.rs", 1),
    ("crates/tools/windlass/tests/it/tpm.rs", 1),
    ("crates/tools/windlass/tests/it/turns.rs", 4),
];

pub(super) fn problem(file: &File) -> Option<String> {
    let tests = tests_of(file)?;
    let is_simulation = SIMULATION.iter().any(|path| file.path.starts_with(path));
    let sleep_count = if is_simulation || tests.contains("start_paused") {
        0
    } else {
        tests.lines().filter(|line| sleeps(line.trim())).count()
    };
    let allowed =
        REMAINING.iter().find(|(path, _)| file.path == Path::new(path)).map_or(0, |(_, n)| *n);
    let path = file.path.display();
    match sleep_count.cmp(&allowed) {
        Ordering::Equal => None,
        Ordering::Greater => Some(format!(
            "{path}'s tests sleep in {sleep_count} places, {allowed} are allowed; \
             wait for a condition, or pause the time"
        )),
        Ordering::Less => Some(format!(
            "{path}'s tests sleep in only {sleep_count} places; lower its number in tidy/sleeps.rs"
        )),
    }
}

fn sleeps(line: &str) -> bool {
    let called = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    !line.starts_with("//") && line.match_indices("sleep(").any(|(at, _)| called(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_sleeping_tests_unless_time_is_paused() {
        let is_reported = |path: &str, text: &str| {
            problem(&File { path: path.into(), text: text.to_owned() }).is_some()
        };
        let nap = "tokio::time::sleep(second).await;";
        assert!(is_reported("crates/network/dns/tests/it/new.rs", nap));
        assert!(!is_reported("crates/control/controllers/tests/it/simulation/node.rs", nap));
        assert!(is_reported("crates/network/dns/tests/it/simulation/node.rs", nap));
        assert!(is_reported(
            "crates/network/dns/src/a.rs",
            &format!("#[cfg(test)]\nmod tests {{\n{nap}\n}}")
        ));
        assert!(!is_reported("crates/network/dns/src/a.rs", nap), "no test");
        assert!(!is_reported("crates/network/dns/tests/it/new.rs", &format!("start_paused {nap}")));
        assert!(!is_reported("crates/network/dns/tests/it/new.rs", "// sleep(1)\n busy_sleep(1);"));
        let (path, times) = REMAINING[0];
        assert!(is_reported(path, "") && !is_reported(path, &format!("{nap}\n").repeat(times)));
    }
}
