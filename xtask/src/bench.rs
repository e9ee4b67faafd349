//! `cargo xtask bench`: measures a cluster, and runs the crates' own benchmarks.

use std::path::{Path, PathBuf};

use self::table::Table;
use crate::{
    build::{self, Profile},
    error::Result,
    file::write,
    machine,
    run::{cargo, pass, step, workspace_root},
    tools,
};

mod api;
mod curve;
mod dashboard;
mod h2load;
mod hostile;
mod kinds;
pub(crate) mod results;
mod table;
mod tenants;
mod usage;
mod watch;

/// The crates with a benchmark of their own, and its name.
const BENCHES: &[(&str, &str)] = &[("store", "store"), ("sched-core", "schedule")];

/// A measurement of an API server: its command-line name, its title and its function.
type ServerPart = (&'static str, &'static str, &'static api::Measure);
const SERVER_PARTS: &[ServerPart] = &[
    ("api", "an API server", &api::Bench::requests_alone),
    ("curve", "an API server with more and more objects", &curve::measure),
    ("kinds", "an API server with many custom kinds", &kinds::measure),
    ("watch", "an API server with many watchers", &watch::measure),
    ("dashboard", "the pages of a dashboard of a large cluster", &dashboard::measure),
    ("tenants", "an API server with a tenant who misbehaves", &tenants::measure),
];

const USAGE: &str = "usage: cargo xtask bench [PART ...] [--peer DIR [--record]]

  crates      the benchmarks of crates: store and scheduler
  cluster     a cluster by `windlass up`: startup time, and CPU and memory when idle
  bootstrap   machines by `windlass init` and `join`: time until they are Ready
  kops        clusters by `windlass kops`: time to create, replace and roll machines
  nodes       five nodes by `windlass up --nodes 5`: startup time, and the usage of a node
  api         an API server under load, with the objects of a large cluster
  curve       an API server while its objects grow from a thousand to a million
  kinds       an API server with 500 custom kinds: memory, also after reading OpenAPI and after deletion
  watch       an API server with a thousand watchers
  dashboard   the pages of `windlass dashboard` for a cluster of 5,000 nodes and 50,000 Pods
  tenants     an API server with 10,000 idle connections and 50,000 watches of one tenant: effects on other tenants
  tenants --hostile [--seconds N]
              an API server with a tenant that sends expensive requests: health, leases, other tenants and memory
              must stay within limits [default: 600 seconds]
  metal       500 machines that boot from the network at once, compared with dnsmasq for DHCP and TFTP

  --peer DIR  the directory of upstream's etcd, kube-apiserver, kube-controller-manager and kube-scheduler, which are
              measured too
  --record    write what was compared with upstream to xtask/facts/benchmarks.tsv, from which `cargo xtask docs` makes
              the comparisons of README.md and docs/benchmarks.md; needs the part api

Without PART, all parts run. The measurements of API servers are printed as one table at the end. The environment
variable WINDLASS is the path of a binary to use instead of a new build.";

pub(crate) fn run(args: &[String]) -> Result<()> {
    let (mut parts, mut peer) = (Vec::new(), None);
    let (mut hostile, mut record, mut seconds) = (false, false, hostile::SECONDS);
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--peer" => peer = Some(PathBuf::from(rest.next().ok_or(USAGE)?)),
            "--hostile" => hostile = true,
            "--record" => record = true,
            "--seconds" => {
                let count = rest.next().and_then(|count| count.parse().ok());
                seconds = count.filter(|seconds| *seconds > 0).ok_or(USAGE)?;
            }
            "crates" | "cluster" | "bootstrap" | "kops" | "nodes" | "api" | "curve" | "kinds"
            | "watch" | "dashboard" | "tenants" | "metal" => parts.push(arg.as_str()),
            _ => return Err(USAGE.into()),
        }
    }
    let selected = |part| parts.is_empty() || parts.contains(&part);
    if hostile && parts != ["tenants"] || record && (peer.is_none() || !selected("api")) {
        return Err(USAGE.into());
    }
    let tools = step("prepare the machine", || {
        machine::install_to_bench()?;
        machine::forward_packets()?;
        tools::directory()
    })?;
    if selected("crates") {
        for (package, bench) in BENCHES {
            step(&format!("{package}: {bench}"), || {
                pass(&mut cargo(["bench", "--locked", "--package", package, "--bench", bench]))
            })?;
        }
    }
    let binary = build::given_or_built(Profile::Release)?;
    if hostile {
        let measure = move |bench| hostile::measure(bench, seconds);
        let measured = step("an API server with a hostile tenant", || {
            api::run(&binary, peer.as_deref(), &measure)
        })?;
        let verdict = hostile::judge(&measured.ours);
        let mut table = Table::default();
        table.add(measured.ours, measured.theirs.as_ref());
        table.print();
        return verdict;
    }
    if selected("cluster") {
        step("a cluster", || cluster("cluster", &binary, &tools))?;
    }
    if selected("bootstrap") {
        step("machines form a cluster", || cluster("bootstrap", &binary, &tools))?;
    }
    if selected("kops") {
        step("machines by kops", || cluster("kops", &binary, &tools))?;
    }
    if selected("nodes") {
        step("five nodes", || cluster("nodes", &binary, &tools))?;
    }
    let chosen = SERVER_PARTS.iter().filter(|(part, ..)| selected(part));
    let table = servers(chosen, &binary, peer.as_deref())?;
    if record {
        let recorded = results::recorded(&table.measurements())?;
        write(&workspace_root().join(results::PATH), recorded)?;
    }
    if selected("metal") {
        let mut rack = cargo(["bench", "--locked", "--package", "netboot", "--bench", "rack"]);
        step("a rack powers on", || pass(rack.env("WINDLASS", &binary)))?;
    }
    Ok(())
}

/// Measures API servers and prints one table, also if a part fails.
fn servers<'a>(
    mut parts: impl Iterator<Item = &'a ServerPart>,
    binary: &Path,
    peer: Option<&Path>,
) -> Result<Table> {
    let mut table = Table::default();
    let measured = parts.try_for_each(|(_, what, measure)| {
        let part = step(what, || api::run(binary, peer, *measure))?;
        table.add(part.ours, part.theirs.as_ref());
        Ok(())
    });
    table.print();
    measured.map(|()| table)
}

fn cluster(bench: &str, binary: &Path, tools: &Path) -> Result<()> {
    let mut cluster = cargo(["bench", "--locked", "--package", "e2e", "--bench", bench]);
    pass(cluster.env("WINDLASS", binary).env("WINDLASS_TOOLS", tools))
}
