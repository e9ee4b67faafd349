//! Benchmark of a rack that powers on.
//!
//! 500 simulated machines boot at once from the binary that `WINDLASS` names, and from dnsmasq for comparison (DHCP and
//! TFTP only). Then 2,000 machines boot, which must cost no more memory than their records.
//!
//! Every machine requests an address as firmware, fetches a boot loader by TFTP, and requests an address again as iPXE.
//! It then fetches two scripts, 50 MB of assets and its Ignition config, and reports. The 2,000 machines share as many
//! bytes as the 500. The benchmark needs root: it runs in network namespaces, with the machines behind a DHCP relay,
//! each with its own address.

// A panic in a helper fails the benchmark.
#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod machine;
mod world;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use machine::Step;
use world::{Memory, World};

const MACHINES: u32 = 500;
/// Four racks instead of one.
const MANY: u32 = 2000;
/// The number of bytes of assets that all machines fetch together.
const TOTAL: u64 = 25_000_000_000;
/// The budget for DHCP answers.
const P99: Duration = Duration::from_millis(50);
/// The maximum growth of the server's memory in kilobytes, independent of the number of machines. The allocator keeps a
/// megabyte for each of the four blocking threads.
const GROWTH: u64 = 5 << 10;
/// The maximum memory per recorded machine in kilobytes.
const REMEMBERED: u64 = 4;
/// The delay after the last machine before memory is measured again.
const SETTLED: Duration = Duration::from_secs(2);

/// The results of one server.
struct Run {
    times: BTreeMap<Step, Vec<Duration>>,
    failures: Vec<String>,
    repeated: u32,
    refused: u32,
    took: Duration,
    /// Memory before, at the peak, and after; processor time.
    memory: [Memory; 3],
    processor: Duration,
}

fn run(world: &World, server: world::Server, whole: bool) -> Run {
    let (before, sampler) = (server.memory(), server.sample());
    let start = std::time::Instant::now();
    let outcome = world.boot(whole);
    let took = start.elapsed();
    let (peak, processor) = (sampler.stop(), server.processor());
    std::thread::sleep(SETTLED);
    let after = server.memory();
    drop(server);
    let mut run = Run {
        times: BTreeMap::new(),
        failures: Vec::new(),
        repeated: 0,
        refused: 0,
        took,
        memory: [before, peak, after],
        processor,
    };
    for machine in outcome {
        run.repeated += machine.repeated;
        run.refused += machine.refused;
        run.failures.extend(machine.failure);
        for (step, took) in machine.times {
            run.times.entry(step).or_default().push(took);
        }
    }
    run.times.values_mut().for_each(|times| times.sort());
    run
}

fn at(times: &[Duration], percent: usize) -> Duration {
    times
        .get((times.len() * percent / 100).min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn print(ours: &Run, peer: Option<&Run>, many: &Run) {
    let line = |name: &str, of: &dyn Fn(&Run) -> String| {
        println!(
            "{name:<34} {:>22} {:>22} {:>22}",
            of(ours),
            peer.map_or("–".into(), of),
            of(many)
        );
    };
    let heads =
        [format!("{MACHINES} windlass"), format!("{MACHINES} dnsmasq"), format!("{MANY} windlass")];
    println!("{:<34} {:>22} {:>22} {:>22}", "machines at once", heads[0], heads[1], heads[2]);
    line("failed", &|run| run.failures.len().to_string());
    line("DHCP packets sent again", &|run| run.repeated.to_string());
    line("offered addresses refused", &|run| run.refused.to_string());
    for (step, name) in Step::NAMES {
        line(&format!("{name}: p50 / p99"), &|run| match run.times.get(&step) {
            None => "–".into(),
            Some(times) => format!("{:.1?} / {:.1?}", at(times, 50), at(times, 99)),
        });
    }
    line("all done after", &|run| format!("{:.1?}", run.took));
    line("processor time", &|run| format!("{:.1?}", run.processor));
    line("memory before / most / after", &|run| {
        let [before, peak, after] = run.memory.map(|memory| memory.all as f64 / 1024.0);
        format!("{before:.0} / {peak:.0} / {after:.0} MB")
    });
    line("… without the program itself", &|run| {
        let [before, peak, after] = run.memory.map(|memory| memory.own as f64 / 1024.0);
        format!("{before:.1} / {peak:.1} / {after:.1} MB")
    });
}

fn main() -> ExitCode {
    let Some(binary) = std::env::var_os("WINDLASS") else {
        eprintln!("skipped: WINDLASS names no binary");
        return ExitCode::SUCCESS;
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return ExitCode::SUCCESS;
    }
    if let Some(code) = world::enter() {
        return code;
    }
    let (ours, peer) = {
        let world = World::new(MACHINES, TOTAL);
        let ours = run(&world, world.windlass(&binary), true);
        (ours, world.dnsmasq().map(|server| run(&world, server, false)))
    };
    let world = World::new(MANY, TOTAL);
    let many = run(&world, world.windlass(&binary), true);
    print(&ours, peer.as_ref(), &many);
    let mut code = ExitCode::SUCCESS;
    for failure in ours.failures.iter().take(5).chain(many.failures.iter().take(5)) {
        println!("failed: {failure}");
        code = ExitCode::FAILURE;
    }
    let offer = ours.times.get(&Step::Answer).map_or(Duration::ZERO, |times| at(times, 99));
    if offer > P99 {
        println!("over budget: p99 of DHCP answers {offer:.1?}, to be {P99:?}");
    }
    for (machines, [before, most, _]) in [(MACHINES, ours.memory), (MANY, many.memory)] {
        let (grown, budget) =
            (most.own.saturating_sub(before.own), GROWTH + REMEMBERED * u64::from(machines));
        if grown > budget {
            println!(
                "over budget: memory grew by {grown} kB with {machines} machines, to be {budget} kB"
            );
        }
    }
    code
}
