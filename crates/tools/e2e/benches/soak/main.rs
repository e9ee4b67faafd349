//! Runs a cluster for hours while objects come and go and processes die: `cargo xtask soak`. Each quantity must stay
//! flat, and no certificate may expire: they live ten minutes. Prints a verdict for each and draws them.
//!
//! The first half kills processes, which also takes their memory. In the second half they live on, so that their growth
//! shows. The environment variables `WINDLASS_SOAK_HOURS` and `WINDLASS_SOAK_PLOT` are set by `cargo xtask soak`.

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

/// Certificates are renewed several times an hour, and the store keeps the history of two minutes.
const DOCUMENT: &str = "apiVersion: windlass.io/v1alpha1
kind: Cluster
certificateValidityPeriod: 10m
apiServer: {extraArgs: [{name: etcd-compaction-interval, value: 1m}]}
";

const ROLES: [&str; 4] = ["control-plane", "agent", "containerd", "supervisor"];

fn main() {
    let hours: f64 = std::env::var("WINDLASS_SOAK_HOURS")
        .ok()
        .and_then(|hours| hours.parse().ok())
        .unwrap_or(1.0);
    let plot = std::env::var_os("WINDLASS_SOAK_PLOT").map_or("soak.svg".into(), PathBuf::from);
    let whole = Duration::from_secs_f64(hours * 3600.0);
    let _turn = lock_machine();
    let cluster = Arc::new(Cluster::new("soak"));
    let document = cluster.directory.join("cluster.yaml");
    std::fs::write(&document, DOCUMENT).expect("the cluster's directory can be written");
    cluster.up_with(&["--config", &document.display().to_string()]).ok();
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
    }
    let samples = sampler.stop();
    let verdicts = verdict::judge(&samples, whole / 2);
    if let Err(error) = std::fs::write(&plot, plot::draw(&samples, &verdicts)) {
        eprintln!("writing {}: {error}", plot.display());
    }
    println!("{rounds} rounds in {hours:.2} h; the plot is {}", plot.display());
    verdict::print(&verdicts);
    let is_flat = verdicts.iter().all(|verdict| verdict.growth == Growth::Flat);
    drop(cluster);
    std::process::exit(i32::from(!is_flat));
}
