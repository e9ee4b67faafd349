//! `cargo xtask conformance`: upstream's own suite against a fresh Windlass, and against upstream beside it.
//!
//! The suite (`e2e.test`) and upstream's components are given in a directory; this program builds neither. Tests are
//! named by a list, because most of upstream's want a kubelet and a registry, and a whole run takes hours.

use std::{path::PathBuf, time::Instant};

use crate::{
    build::{self, Profile},
    control_plane::{ControlPlane, Side, upstream_is_whole},
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

  --peer DIR     holds upstream's e2e.test; with etcd, kube-apiserver, kube-controller-manager and kube-scheduler in
                 it as well, upstream runs the same tests
  --list FILE    the tests, one a line: class, then the name in the fourth column, divided by tabs
                 [default: every test that the suite calls conformance]
  --class NAME   only this class of the list: api, api+kcm or api+node; may be given several times
  --only TEXT    only tests with this in their names; may be given several times
  --except TEXT  without tests that have this in their names; may be given several times
  --jobs N       processes of the suite at a time [default: 4]
  --ours         leave upstream's own run out

WINDLASS names a binary to use instead of building one. The result goes to target/conformance/result.json.";

struct Args {
    peer: PathBuf,
    list: Option<PathBuf>,
    selection: list::Selection,
    jobs: usize,
    ours: bool,
}

impl Args {
    fn parse(args: &[String]) -> Result<Self, String> {
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
                "--jobs" => jobs = value.parse().map_err(|e| format!("--jobs {value}: {e}"))?,
                _ => return Err(USAGE.into()),
            }
        }
        let peer: PathBuf = peer.ok_or(USAGE)?;
        let peer = std::path::absolute(&peer).map_err(|e| format!("{}: {e}", peer.display()))?;
        Ok(Self { peer, list, selection, jobs: jobs.max(1), ours })
    }
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let args = Args::parse(args)?;
    // The user's own may be too old for tests of kubectl's newer commands.
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
    if !args.ours && upstream_is_whole(&args.peer) {
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
    Err(format!("{} of {} tests did not pass on Windlass", tests.len() - ours, tests.len()))
}

/// All tests on one control plane, phase by phase.
fn measure(
    control_plane: &mut ControlPlane,
    suite: &suite::Suite,
    tests: &[Test],
    jobs: usize,
) -> Result<report::Column, String> {
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
