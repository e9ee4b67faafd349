//! `cargo xtask test-cmd`: runs upstream's tests of kubectl (`test/cmd`) against a control plane, and writes a page.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use crate::{
    build::{self, Profile},
    error::{During, Result, fail},
    file::{create_directory, read, write},
    machine,
    run::{program, step, target_directory, workspace_root},
    tools,
};

const USAGE: &str = "usage: cargo xtask test-cmd --kubernetes DIR --peer DIR

  --kubernetes DIR  a checkout of Kubernetes v1.36 with test/cmd, test/fixtures, test/e2e/testing-manifests, hack and
                    third_party
  --peer DIR        the directory of etcd 3.5 or newer; upstream's kube-apiserver and kube-controller-manager there run
                    the cases as well

Each side runs in a network namespace of its own, which has no way out. The environment variable WINDLASS is the path of
a binary to use instead of a new build. The results of both sides are written to docs/test-cmd.md.";

/// The script that runs the cases of upstream's scripts.
const DRIVE: &str = include_str!("test_cmd/drive.sh");

/// The network of a side: loopback, and a default route, which an API server needs to choose its address.
const NETWORK: &str = "ip link set lo up && ip link add br0 type bridge && ip address add 192.0.2.10/24 dev br0 \
    && ip link set br0 up && ip route add default via 192.0.2.1";

const HEAD: &str = "# Upstream's tests of kubectl that were run

`cargo xtask test-cmd --kubernetes DIR --peer DIR` runs the cases of upstream's `test/cmd` with kubectl against an API
server and a controller manager, without nodes, and writes this page.
";

/// The result of each case: `None`, or the last line before the failure.
type Outcomes = BTreeMap<String, Option<String>>;

#[derive(Debug, PartialEq)]
struct Args {
    kubernetes: PathBuf,
    peer: PathBuf,
}

impl Args {
    fn parse(args: &[String]) -> Result<Self> {
        let (mut kubernetes, mut peer) = (None, None);
        for pair in args.chunks(2) {
            match pair {
                [flag, value] if flag == "--kubernetes" => kubernetes = Some(value),
                [flag, value] if flag == "--peer" => peer = Some(value),
                _ => return Err(USAGE.into()),
            }
        }
        let absolute = |path: Option<&String>| {
            let path = path.ok_or(USAGE)?;
            std::path::absolute(path).during("finding", path)
        };
        Ok(Self { kubernetes: absolute(kubernetes)?, peer: absolute(peer)? })
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let args = Args::parse(args)?;
    machine::install(&[("jq", "jq"), ("openssl", "openssl"), ("curl", "curl")])?;
    let kubectl = tools::directory()?.join("kubectl");
    let windlass = build::given_or_built(Profile::Release)?;
    let windlass = std::path::absolute(&windlass).during("finding", windlass.display())?;
    let ours = run_side(&args, "windlass", &kubectl, |_| windlass.clone())?;
    let servers = ["kube-apiserver", "kube-controller-manager"];
    let theirs = if servers.iter().all(|server| args.peer.join(server).is_file()) {
        Some(run_side(&args, "upstream", &kubectl, |server| args.peer.join(server))?)
    } else {
        None
    };
    let page = page(&ours, theirs.as_ref());
    write(&workspace_root().join("docs/test-cmd.md"), &page)?;
    print!("{page}");
    let failed =
        |outcomes: &Outcomes, case: &String| outcomes.get(case).is_none_or(Option::is_some);
    let passes = |case: &&String| theirs.as_ref().is_none_or(|theirs| !failed(theirs, case));
    match ours.keys().filter(|case| failed(&ours, case)).find(passes) {
        None => Ok(()),
        Some(case) => fail(format!("{case} failed; see the page for its cause")),
    }
}

/// Runs the cases against the servers whose programs `server` returns.
fn run_side(
    args: &Args,
    side: &str,
    kubectl: &Path,
    server: impl Fn(&str) -> PathBuf,
) -> Result<Outcomes> {
    let directory = target_directory().join("test-cmd").join(side);
    let _ = std::fs::remove_dir_all(&directory);
    let programs = directory.join("bin");
    create_directory(&programs)?;
    let link =
        |name: &str, to: &Path| symlink(to, programs.join(name)).during("linking to", to.display());
    link("kubectl", kubectl)?;
    link("etcd", &args.peer.join("etcd"))?;
    for name in ["kube-apiserver", "kube-controller-manager"] {
        link(name, &server(name))?;
    }
    let script = directory.join("drive.sh");
    write(&script, DRIVE)?;
    let path = directory.join("cases.log");
    let log = File::create(&path).during("creating", path.display())?;
    let copy = log.try_clone().during("sharing", path.display())?;
    let started = Instant::now();
    step(&format!("test/cmd on {side}, with its output in {}", path.display()), || {
        let line = format!("{NETWORK} && exec bash {}", script.display());
        let mut command = program("unshare", ["--net", "--mount", "--", "bash", "-c", &line]);
        command.env("KUBE_ROOT", &args.kubernetes).env("BIN", &programs).env("OUT", &directory);
        command.stdin(Stdio::null()).stdout(log).stderr(copy);
        // The script fails if a case fails.
        command.status().during("starting", "unshare").map(drop)
    })?;
    let outcomes = outcomes(&read(&path)?);
    if outcomes.is_empty() {
        return fail(format!("no case ran on {side}; see {}", path.display()));
    }
    eprintln!("    {} cases in {:.0} s", outcomes.len(), started.elapsed().as_secs_f64());
    Ok(outcomes)
}

/// Parses the output of the cases. The canary, which must fail, is left out.
fn outcomes(log: &str) -> Outcomes {
    let parts = log.split("+++ Running case: test-cmd.").skip(1);
    let cases = parts.filter_map(|part| {
        let (name, rest) = part.split_once('\n')?;
        let name = name.trim();
        let (output, end) = rest.split_once("+++ exit code: ").unwrap_or((rest, "1"));
        let passed = end.starts_with("0\n");
        let words = |line: &&str| line.chars().any(char::is_alphanumeric);
        let last = output.lines().rev().map(plain).find(|line| words(&line.as_str()));
        let cause = (!passed).then(|| last.unwrap_or_default());
        (name != "record_command_canary").then(|| (name.to_owned(), cause))
    });
    cases.collect()
}

/// Returns a line without the codes of colours.
fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        text.push_str(before);
        rest = after.split_once(['m', 'B']).map_or("", |(_, after)| after);
    }
    text + rest
}

/// Renders the page: the counts, and the cases that a side failed.
fn page(ours: &Outcomes, theirs: Option<&Outcomes>) -> String {
    let mut page = format!("{HEAD}\n| | cases | passed |\n|---|---|---|\n");
    let sides = [("Windlass", Some(ours)), ("upstream", theirs)];
    for (name, outcomes) in sides.iter().filter_map(|(name, side)| Some((name, (*side)?))) {
        let passed = outcomes.values().filter(|cause| cause.is_none()).count();
        let _ = writeln!(page, "| {name} | {} | {passed} |", outcomes.len());
    }
    let cell = |side: Option<&Outcomes>, case: &str| match side.and_then(|side| side.get(case)) {
        None => "did not run".to_owned(),
        Some(None) => "passed".to_owned(),
        Some(Some(cause)) => cause.chars().take(160).collect::<String>().replace('|', "\\|"),
    };
    let failed = |case: &&String| {
        let failed = |side: &Outcomes| side.get(*case).is_some_and(Option::is_some);
        failed(ours) || theirs.is_some_and(failed)
    };
    page.push_str("\n## Failed\n\n| case | Windlass | upstream |\n|---|---|---|\n");
    for case in ours.keys().filter(failed) {
        let _ = writeln!(page, "| {case} | {} | {} |", cell(Some(ours), case), cell(theirs, case));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "+++ Running case: test-cmd.record_command_canary \n+++ exit code: 127\n\
        +++ Running case: test-cmd.run_pods \n+++ command: run_pods\n\u{1b}[32mfine\n\u{1b}(B\u{1b}[m+++ exit code: 0\n\
        +++ Running case: test-cmd.run_jobs \nerror: a | b\n\u{1b}(B\u{1b}[m\n+++ exit code: 1\n+++ error: 1\n\
        +++ Running case: test-cmd.run_last \nhalf a line";

    #[test]
    fn reads_results_and_causes_of_cases() {
        let outcomes = outcomes(LOG);
        let expected = [
            ("run_jobs", Some("error: a | b")),
            ("run_last", Some("half a line")),
            ("run_pods", None),
        ];
        let expected = expected.map(|(name, cause)| (name.to_owned(), cause.map(str::to_owned)));
        assert_eq!(outcomes, expected.into());
        let page = page(&outcomes, None);
        assert!(page.contains("| Windlass | 3 | 1 |"), "{page}");
        assert!(page.contains("| run_jobs | error: a \\| b | did not run |"), "{page}");
        assert!(!page.contains("run_pods"), "{page}");
    }

    #[test]
    fn parses_arguments() {
        let parse = |line: &str| {
            Args::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let args = parse("--kubernetes /k --peer /p").unwrap();
        assert_eq!(args, Args { kubernetes: "/k".into(), peer: "/p".into() });
        for line in ["", "--peer /p", "--kubernetes /k", "--kubernetes", "--peer /p --more x"] {
            assert_eq!(parse(line).unwrap_err().to_string(), USAGE, "{line}");
        }
    }
}
