//! `cargo xtask conformance`: runs upstream's test suite on a new cluster of `windlass up`, or on control planes alone.
//!
//! The suite (`e2e.test`) is prebuilt in a directory, with the programs of the test images that Debian does not have.
//! With `--control-plane` a list selects the tests, because most of upstream's tests need a kubelet, and upstream's
//! control plane runs the same tests.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use crate::{
    build::{self, Profile},
    control_plane::{ControlPlane, Side, has_upstream_binaries},
    error::{During, Result, fail},
    file, machine,
    run::{output, program, step, target_directory, workspace_root},
    tools,
};

mod cluster;
mod images;
mod list;
mod namespace;
mod nodes;
mod page;
mod registry;
mod report;
mod results;
mod runtime;
mod set;
mod suite;

use cluster::Cluster;
use list::Test;
use results::Results;
use set::Set;
use suite::{Outcome, Outcomes, State, Suite, Target, outcome_of};

const USAGE: &str = "usage: cargo xtask conformance --peer DIR [OPTIONS]

  --peer DIR       the directory of upstream's e2e.test, agnhost and sample-apiserver, built with CGO_ENABLED=0; a
                   containerd there replaces the machine's
  --beyond         instead of the conformance tests those others that need no cloud, no alpha feature and no storage
                   server; DIR may also hold consume-cpu, csi-attacher, csi-node-driver-registrar, csi-provisioner,
                   csi-resizer, csi-snapshotter, hostpathplugin, livenessprobe, regression-issue-74839 and
                   resource-consumer
  --list FILE      the tests, one per line: the class in the first column, the name in the fourth, separated by tabs
                   [default: all tests that the suite marks as conformance tests]
  --class NAME     only this class of the list, such as api; repeatable
  --only TEXT      only tests with TEXT in their names; repeatable
  --except TEXT    no tests with TEXT in their names; repeatable
  --jobs N         parallel processes of the suite [default: 4]
  --again          only tests that did not pass in the last run, or did not run; keeps the other results
  --control-plane  run the tests on a control plane without nodes, which suits the classes api, api+kcm and api+node; if
                   DIR has etcd, kube-apiserver, kube-controller-manager and kube-scheduler, upstream runs them too
  --ours           with --control-plane: do not run the tests against upstream

The tests run on a cluster of three nodes in a network namespace of its own. An interrupted run leaves the cluster; the
next run removes it. Tests that failed beside others run again alone. The environment variable WINDLASS is the path of
a binary to use instead of a new build. The results are written to target/conformance/cluster.json (beyond.json,
control-plane.json) and, if all tests were selected or with --again, to docs/conformance.md (docs/beyond.md).";

/// The list of the tests of [`run_sample`], below the workspace's root.
const SAMPLE: &str = "xtask/facts/conformance-sample.tsv";

#[derive(Debug)]
struct Args {
    peer: PathBuf,
    set: Set,
    list: Option<PathBuf>,
    selection: list::Selection,
    jobs: usize,
    again: bool,
    control_plane: bool,
    ours: bool,
}

impl Args {
    fn parse(args: &[String]) -> Result<Self> {
        let (mut peer, mut list, mut jobs) = (None, None, 4);
        let (mut again, mut beyond, mut control_plane, mut ours) = (false, false, false, false);
        let mut selection = list::Selection::default();
        let mut rest = args.iter();
        while let Some(flag) = rest.next() {
            let switch = match flag.as_str() {
                "--again" => Some(&mut again),
                "--beyond" => Some(&mut beyond),
                "--control-plane" => Some(&mut control_plane),
                "--ours" => Some(&mut ours),
                _ => None,
            };
            if let Some(switch) = switch {
                *switch = true;
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
        if (ours && !control_plane) || (again && control_plane) || (beyond && list.is_some()) {
            return Err(USAGE.into());
        }
        let peer: PathBuf = peer.ok_or(USAGE)?;
        let peer = std::path::absolute(&peer).during("finding", peer.display())?;
        let set = if beyond { Set::Beyond } else { Set::Conformance };
        Ok(Self { peer, set, list, selection, jobs: jobs.max(1), again, control_plane, ours })
    }

    /// Returns `true` if all tests of the set are selected.
    fn is_everything(&self) -> bool {
        self.list.is_none() && self.selection.is_everything()
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    run_with(&Args::parse(args)?, || build::given_or_built(Profile::Release))
}

/// Returns `true` if a directory has upstream's suite and the programs of its images.
pub(crate) fn can_run(peer: &Path) -> bool {
    peer.join(suite::PROGRAM).is_file() && images::check(peer).is_ok()
}

/// Runs a sample of the conformance tests, which takes a few minutes.
pub(crate) fn run_sample(peer: &Path, windlass: &Path) -> Result<()> {
    let (peer, list) = (peer.display().to_string(), workspace_root().join(SAMPLE));
    let args = ["--peer", &peer, "--list", &list.display().to_string()].map(str::to_owned);
    run_with(&Args::parse(&args)?, || Ok(windlass.to_owned()))
}

fn run_with(args: &Args, windlass: impl FnOnce() -> Result<PathBuf>) -> Result<()> {
    // The user's kubectl may be too old for tests of newer commands.
    let kubectl = tools::directory()?.join("kubectl").display().to_string();
    let suite = Suite::new(&args.peer, kubectl)?;
    let directory = target_directory().join("conformance");
    file::create_directory(&directory)?;
    let tests = match &args.list {
        Some(file) => list::read(file, &args.selection)?,
        None => suite.tests(args.set, &args.selection, &directory)?,
    };
    if tests.is_empty() {
        return fail(
            "no test is selected; check --only, --except, and --class, which needs --list",
        );
    }
    if !args.control_plane {
        images::check(&args.peer)?;
        machine::install_to_run()?;
    }
    let windlass = windlass()?;
    let (suite, tests, windlass, directory) = (&suite, &tests, &windlass, &directory);
    let run = Run { args, suite, tests, windlass, directory };
    if args.control_plane { run.on_control_planes() } else { run.on_cluster() }
}

/// A run of the chosen tests.
struct Run<'a> {
    args: &'a Args,
    suite: &'a Suite,
    tests: &'a [Test],
    windlass: &'a Path,
    /// The directory for results and logs.
    directory: &'a Path,
}

impl Run<'_> {
    /// Runs the tests on a cluster with nodes, and writes the book's page if all tests of the set are selected.
    fn on_cluster(&self) -> Result<()> {
        let Self { args, suite, tests, windlass, directory } = *self;
        let version = cluster::containerd_version(&args.peer)?;
        let file = directory.join(args.set.file());
        let runtime = runtime::name(&version);
        let mut results =
            if args.again { Results::load(&file, runtime)? } else { Results::new(&file, runtime) };
        let (mut possible, mut impossible) = (Vec::new(), Outcomes::new());
        for test in tests {
            if outcome_of(&results.outcomes, test).state == State::Passed {
                continue;
            }
            match runtime::obstacle(&test.name, &version) {
                None => possible.push(test),
                Some(message) => {
                    let skipped = Outcome { message, ..Outcome::new(State::Skipped) };
                    impossible.insert(test.name.clone(), skipped);
                }
            }
        }
        results.add(impossible)?;
        let images = step("make images", || images::make(&suite.images()?, &args.peer, directory))?;
        let place = directory.join("cluster");
        let started = Instant::now();
        let cluster = step("start a cluster", || {
            let _ = std::fs::remove_dir_all(&place);
            file::create_directory(&place)?;
            Cluster::start(windlass, &args.peer, &images, &place)
        })?;
        step(&format!("{} tests", possible.len()), || {
            run_on_target(cluster.target(), suite, &possible, args.jobs, &mut results)
        })?;
        drop(cluster);
        let minutes = started.elapsed().as_secs() / 60;
        if args.is_everything() || args.again {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            let date = output(&mut program("date", ["-u", "+%-d %B %Y"]))?;
            let setting = format!(
                "Run on {} on {cores} cores with {};\nthe last run took {minutes} minutes.",
                date.trim(),
                results.runtimes()
            );
            let all = suite.tests(args.set, &list::Selection::default(), directory)?;
            let page = page::render(args.set, &all, &results.outcomes, &setting)?;
            file::write(&workspace_root().join(args.set.page()), page)?;
        }
        summarize(tests, &results, &file)
    }

    /// Runs the tests on Windlass' control plane and, unless only ours is wanted, on upstream's.
    fn on_control_planes(&self) -> Result<()> {
        let Self { args, suite, tests, windlass, directory } = *self;
        let mut sides = vec![Side::Windlass(windlass.to_owned())];
        if !args.ours && has_upstream_binaries(&args.peer) {
            sides.push(Side::Upstream(args.peer.clone()));
        }
        let mut columns = Vec::new();
        for side in sides {
            let place = directory.join(side.name());
            columns.push(step(&format!("{} tests on {}", tests.len(), side.name()), || {
                let mut control_plane = ControlPlane::start(side, windlass, &place)?;
                measure(&mut control_plane, suite, tests, args.jobs)
            })?);
        }
        let result = report::Report { tests, columns: &columns, suite: suite.program() };
        let file = directory.join("control-plane.json");
        result.write(&file)?;
        result.print();
        println!("\nresult: {}", file.display());
        let ours = columns.first().map_or(0, |column| column.count(tests, State::Passed));
        if ours == tests.len() {
            return Ok(());
        }
        fail(format!("{} of {} tests did not pass on Windlass", tests.len() - ours, tests.len()))
    }
}

/// Runs the tests in parallel, then the serial ones, and repeats those that did not pass.
fn run_on_target(
    target: Target,
    suite: &Suite,
    tests: &[&Test],
    jobs: usize,
    results: &mut Results,
) -> Result<()> {
    let mut ended = 0;
    let mut failed = Vec::new();
    let mut run = |tests: &[&Test], jobs| {
        suite.run(target, tests, jobs, &mut |outcomes: Outcomes| {
            ended += outcomes.len();
            let not_passed = outcomes.iter().filter(|(_, outcome)| outcome.state != State::Passed);
            failed.extend(not_passed.map(|(name, _)| name.clone()));
            eprintln!("    {ended} tests have ended, {} did not pass", failed.len());
            results.add(outcomes)
        })
    };
    let (alone, together): (Vec<&Test>, Vec<&Test>) =
        tests.iter().partition(|test| test.is_serial());
    run(&together, jobs)?;
    run(&alone, 1)?;
    let again: Vec<&Test> =
        tests.iter().copied().filter(|test| failed.contains(&test.name)).collect();
    eprintln!("    {} tests run again, alone", again.len());
    suite.run(target, &again, 1, &mut |outcomes| results.add(outcomes))
}

/// Prints the tests that did not pass. Returns an error if there are any.
fn summarize(tests: &[Test], results: &Results, file: &Path) -> Result<()> {
    let mut passed = 0;
    for test in tests {
        let outcome = outcome_of(&results.outcomes, test);
        if outcome.state == State::Passed {
            passed += 1;
        } else {
            println!("{}: {}", outcome.state.name(), test.name);
            report::print_message(&outcome.message);
        }
    }
    println!("\n{passed} of {} tests passed; results: {}", tests.len(), file.display());
    if passed == tests.len() {
        return Ok(());
    }
    fail(format!("{} of {} tests did not pass", tests.len() - passed, tests.len()))
}

/// Runs all tests on one control plane. Those that need nodes come last, because nodes would attract the Pods of the
/// other tests.
fn measure(
    control_plane: &mut ControlPlane,
    suite: &Suite,
    tests: &[Test],
    jobs: usize,
) -> Result<report::Column> {
    let started = Instant::now();
    let mut outcomes = Outcomes::new();
    let kubeconfig = control_plane.kubeconfig();
    let directory = control_plane.directory.clone();
    let mut run = |tests: &[&Test], jobs, nodes| {
        let (directory, kubeconfig) = (directory.as_path(), kubeconfig.as_path());
        let target = Target { directory, kubeconfig, namespace: None, nodes: Some(nodes) };
        suite.run(target, tests, jobs, &mut |batch| {
            outcomes.extend(batch);
            Ok(())
        })
    };
    let (with_nodes, without): (Vec<&Test>, _) = tests.iter().partition(|test| test.wants_nodes());
    let (alone, together): (Vec<&Test>, Vec<&Test>) =
        without.into_iter().partition(|test| test.is_serial());
    run(&together, jobs, 0)?;
    run(&alone, 1, 0)?;
    control_plane.check()?;
    if !with_nodes.is_empty() {
        let nodes = nodes::Nodes::start(control_plane)?;
        run(&with_nodes, 1, 2)?;
        nodes.stop()?;
    }
    control_plane.check()?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(report::Column { side: control_plane.side().clone(), outcomes, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_switches_and_rejects_those_of_the_other_target() {
        let parse = |line: &str| {
            Args::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let args = parse("--peer /p --again --only a --only b --jobs 0").unwrap();
        assert!(args.again && !args.control_plane);
        assert_eq!((args.selection.only.len(), args.jobs), (2, 1));
        assert!(parse("--peer /p --control-plane --ours").unwrap().ours);
        assert_eq!(parse("--peer /p --beyond").unwrap().set, Set::Beyond);
        for line in [
            "",
            "--peer",
            "--peer /p --ours",
            "--peer /p --control-plane --again",
            "--peer /p --beyond --list l",
            "more",
        ] {
            assert_eq!(parse(line).unwrap_err().to_string(), USAGE, "{line}");
        }
    }
}
