//! `cargo xtask conformance`: runs upstream's test suite against a new Windlass control plane, and against upstream's.
//!
//! The suite (`e2e.test`) and upstream's components are prebuilt in a directory. A list selects the tests, because most
//! of upstream's tests need a kubelet and a registry, and a full run takes hours.

use std::{path::PathBuf, time::Instant};

use crate::{
    build::{self, Profile},
    control_plane::{ControlPlane, Side, has_upstream_binaries},
    error::{During, Result, fail},
    run::{step, target_directory},
    tools,
};

mod list;
mod nodes;
mod report;
mod suite;

use list::Test;
use suite::Phase;

const USAGE: &str = "usage: cargo xtask conformance --peer DIR [OPTIONS]

  --peer DIR     the directory of upstream's e2e.test; if it also has etcd, kube-apiserver, kube-controller-manager and
                 kube-scheduler, upstream runs the same tests
  --list FILE    the tests, one per line: the class in the first column, the name in the fourth, separated by tabs
                 [default: all tests that the suite marks as conformance tests]
  --class NAME   only this class of the list: api, api+kcm or api+node; repeatable
  --only TEXT    only tests with TEXT in their names; repeatable
  --except TEXT  no tests with TEXT in their names; repeatable
  --jobs N       parallel processes of the suite [default: 4]
  --ours         do not run the tests against upstream

The environment variable WINDLASS is the path of a binary to use instead of a new build. The result is written to
target/conformance/result.json.";

struct Args {
    peer: PathBuf,
    list: Option<PathBuf>,
    selection: list::Selection,
    jobs: usize,
    ours: bool,
}

impl Args {
    fn parse(args: &[String]) -> Result<Self> {
        let (mut peer, mut list, mut jobs, mut ours) = (None, None, 4, false);
        let mut selection = list::Selection::default();
        let mut rest = args.iter();
        while let Some(flag) = rest.next() {
            if flag == "--ours" {
                ours = true;
                continue;
            }
            let value = rest.next().ok_or(USAGE)?.clone();
            match flag.as_str() {
                "--peer" => peer = Some(PathBuf::from(value)),
                "--list" => list = Some(PathBuf::from(value)),
                "--class" => selection.classes.push(value),
                "--only" => selection.only.push(value),
                "--except" => selection.except.push(value),
                "--jobs" => jobs = value.parse().during("parsing --jobs", &value)?,
                _ => return Err(USAGE.into()),
            }
        }
        let peer: PathBuf = peer.ok_or(USAGE)?;
        let peer = std::path::absolute(&peer).during("finding", peer.display())?;
        Ok(Self { peer, list, selection, jobs: jobs.max(1), ours })
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let args = Args::parse(args)?;
    // The user's kubectl may be too old for tests of newer commands.
    let kubectl = tools::directory()?.join("kubectl").display().to_string();
    let suite = suite::Suite::new(&args.peer, kubectl)?;
    let tests = match &args.list {
        Some(file) => list::read(file, &args.selection)?,
        None => suite.conformance_tests(&args.selection)?,
    };
    let windlass = match std::env::var_os("WINDLASS") {
        Some(binary) => PathBuf::from(binary),
        None => step("build windlass", || build::windlass(Profile::Release))?,
    };
    let mut sides = vec![Side::Windlass(windlass.clone())];
    if !args.ours && has_upstream_binaries(&args.peer) {
        sides.push(Side::Upstream(args.peer.clone()));
    }
    let directory = target_directory().join("conformance");
    let mut columns = Vec::new();
    for side in sides {
        let place = directory.join(side.name());
        columns.push(step(&format!("{} tests on {}", tests.len(), side.name()), || {
            let mut control_plane = ControlPlane::start(side, &windlass, &place)?;
            measure(&mut control_plane, &suite, &tests, args.jobs)
        })?);
    }
    let result = report::Report { tests: &tests, columns: &columns, suite: suite.program() };
    let file = directory.join("result.json");
    result.write(&file)?;
    result.print();
    println!("\nresult: {}", file.display());
    let ours = columns.first().map_or(0, |column| column.count(&tests, suite::State::Passed));
    if ours == tests.len() {
        return Ok(());
    }
    fail(format!("{} of {} tests did not pass on Windlass", tests.len() - ours, tests.len()))
}

/// Runs all tests on one control plane, phase by phase.
fn measure(
    control_plane: &mut ControlPlane,
    suite: &suite::Suite,
    tests: &[Test],
    jobs: usize,
) -> Result<report::Column> {
    let started = Instant::now();
    let mut outcomes = suite::Outcomes::new();
    let (with_nodes, without): (Vec<&Test>, _) = tests.iter().partition(|test| test.wants_nodes());
    let (alone, together): (Vec<&Test>, _) = without.into_iter().partition(|test| test.is_serial());
    outcomes.extend(suite.run(control_plane, &together, jobs, Phase::Parallel)?);
    outcomes.extend(suite.run(control_plane, &alone, 1, Phase::Serial)?);
    if !with_nodes.is_empty() {
        let nodes = nodes::Nodes::start(control_plane)?;
        outcomes.extend(suite.run(control_plane, &with_nodes, 1, Phase::Nodes)?);
        nodes.stop()?;
    }
    control_plane.check()?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(report::Column { side: control_plane.side().clone(), outcomes, seconds })
}
