//! Runs a cluster for hours while objects come and go and processes die: `cargo xtask soak`. Each quantity must stay
//! flat, and no certificate may expire: they live ten minutes. Prints a verdict for each and draws them.
//!
//! The first half kills processes, which also takes their memory. In the second half they live on, so that their growth
//! shows once the store's history is full. `cargo xtask soak` sets the environment variables `WINDLASS_SOAK_HOURS`,
//! `WINDLASS_SOAK_COMPACTION_MINUTES` and `WINDLASS_SOAK_PLOT`.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use e2e::{Cluster, lock_machine};

mod churn;
mod plot;
mod samples;
mod verdict;

use samples::Sampler;
use verdict::Growth;

const ROLES: [&str; 4] = ["control-plane", "agent", "containerd", "supervisor"];

/// The interval between the starts of rounds. At a constant rate, the store's history keeps its size.
const PACE: Duration = Duration::from_secs(20);

/// Returns the cluster's configuration. Certificates are renewed several times an hour.
fn document(compaction_minutes: u32) -> String {
    format!(
        "apiVersion: windlass.io/v1alpha1\nkind: Cluster\ncertificateValidityPeriod: 10m\n\
         apiServer: {{extraArgs: [{{name: etcd-compaction-interval, value: {compaction_minutes}m}}]}}\n"
    )
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn main() {
    let hours = variable("WINDLASS_SOAK_HOURS").unwrap_or(1.0);
    let compaction = variable("WINDLASS_SOAK_COMPACTION_MINUTES").unwrap_or(5_u32);
    let plot = std::env::var_os("WINDLASS_SOAK_PLOT").map_or("soak.svg".into(), PathBuf::from);
    let whole = Duration::from_secs_f64(hours * 3600.0);
    let _turn = lock_machine();
    let cluster = Arc::new(Cluster::new("soak"));
    let file = cluster.directory.join("cluster.yaml");
    std::fs::write(&file, document(compaction)).expect("the cluster's directory can be written");
    cluster.up_with(&["--config", &file.display().to_string()]).ok();
    cluster.build_images();
    let sampler = Sampler::start(cluster.clone());
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < whole {
        let early = begun.elapsed() < whole / 2;
        let killed = (early && rounds % 2 == 1).then(|| ROLES[rounds / 2 % ROLES.len()]);
        churn::round(&cluster, rounds, killed);
        sampler.end_round(killed.is_some());
        rounds += 1;
        std::thread::sleep((PACE * rounds as u32).saturating_sub(begun.elapsed()));
    }
    let samples = sampler.stop();
    // The store keeps the history of two intervals. A kill delays the next compaction.
    let filled = Duration::from_secs(120 * u64::from(compaction));
    let verdicts = verdict::judge(&samples, whole / 2 + filled);
    if let Err(error) = std::fs::write(&plot, plot::draw(&samples, &verdicts)) {
        eprintln!("writing {}: {error}", plot.display());
    }
    println!("{rounds} rounds in {hours:.2} h; the plot is {}", plot.display());
    verdict::print(&verdicts);
    let is_flat = verdicts.iter().all(|verdict| verdict.growth == Growth::Flat);
    drop(cluster);
    std::process::exit(i32::from(!is_flat));
}
