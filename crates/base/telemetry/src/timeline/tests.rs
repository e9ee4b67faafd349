use std::fs;

use super::{runs::runs, *};

fn step(name: &str, start: u64, duration: u64) -> Step {
    Step {
        component: "init".to_owned(),
        step: name.to_owned(),
        start,
        duration,
        waited_for: Vec::new(),
        read: Vec::new(),
        written: Vec::new(),
        outcome: Outcome::Done,
    }
}

#[test]
fn loads_recorded_steps_in_order() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(load(root.path()).unwrap(), []);
    let init = Recorder::new(root.path(), "init");
    let kubelet = Recorder::new(root.path(), "kubelet");
    let mut running = init.begin("certs");
    running.read("/a").written("/b").waited_for("nothing");
    running.done();
    kubelet.begin("register").failed("connection refused");
    init.begin("addons").skipped("disabled");
    drop(init.begin("etcd"));
    let steps = load(root.path()).unwrap();
    assert_eq!(steps.len(), 4);
    assert!(steps.is_sorted_by_key(|s| s.start));
    let of = |name: &str| steps.iter().find(|s| s.step == name).unwrap();
    assert_eq!(
        (&of("certs").read, &of("certs").written),
        (&vec![PathBuf::from("/a")], &vec![PathBuf::from("/b")])
    );
    assert_eq!(of("register").outcome, Outcome::Failed("connection refused".to_owned()));
    assert_eq!(of("register").component, "kubelet");
    assert_eq!(of("addons").outcome, Outcome::Skipped("disabled".to_owned()));
    assert!(matches!(&of("etcd").outcome, Outcome::Failed(cause) if cause.contains("interrupted")));
}

#[test]
fn rotates_file_and_skips_incomplete_line() {
    let root = tempfile::tempdir().unwrap();
    let recorder = Recorder::bounded(root.path(), "init", 2_000);
    for n in 0..100 {
        recorder.begin(format!("step {n}")).done();
    }
    let sizes: u64 = fs::read_dir(directory(root.path()))
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().len())
        .sum();
    assert!(sizes <= 4_000, "{sizes}");
    assert_eq!(load(root.path()).unwrap().last().unwrap().step, "step 99");
    let path = directory(root.path()).join("init.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let before = load(root.path()).unwrap().len();
    fs::write(&path, &text[..text.len() - 5]).unwrap();
    assert_eq!(load(root.path()).unwrap().len(), before - 1);
}

#[test]
fn ignores_failed_writes() {
    let root = tempfile::tempdir().unwrap();
    fs::write(directory(root.path()), "a file in the way").unwrap();
    Recorder::new(root.path(), "init").begin("certs").done();
    assert!(load(root.path()).is_err());
}

#[test]
fn draws_bars_in_proportion() {
    let mut failed = step("second", 1_000_000, 1_000_000);
    failed.outcome = Outcome::Failed("port 6443 is in use\nmore".to_owned());
    failed.waited_for.push("first".to_owned());
    let text = chart(&[step("first", 0, 1_000_000), failed], 63);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "2 steps in 2.0 s");
    let bar = |line: &str| {
        (line.find('█').map(|at| line[..at].chars().count()), line.matches('█').count())
    };
    let ((from, length), (next, rest)) = (bar(lines[1]), bar(lines[2]));
    assert_eq!(next.unwrap(), from.unwrap() + length);
    assert_eq!(length, rest);
    assert!(lines[2].ends_with("failed: port 6443 is in use  after first"), "{}", lines[2]);
    assert_eq!(chart(&[], 80), "No steps are recorded yet.\n");
}

#[test]
fn renders_self_contained_escaped_page() {
    let mut odd = step("<script>&\"", 5, 10);
    odd.read.push("/etc/<x>".into());
    let page = html(&[odd, step("plain", 7, 1)]);
    assert!(page.contains("&lt;script&gt;&amp;&quot;") && page.contains("/etc/&lt;x&gt;"));
    assert!(!page.contains("<script") && !page.contains("http") && !page.contains("src="));
}

proptest::proptest! {
    #[test]
    fn renders_any_steps_within_width(
        spans in proptest::collection::vec((0u64..1u64 << 50, 0u64..1u64 << 36), 0..20), width in 0usize..300,
    ) {
        let steps: Vec<_> = spans.iter().map(|(start, duration)| step("s", *start, *duration)).collect();
        let text = chart(&steps, width);
        for line in text.lines().filter(|line| line.contains('█')) {
            proptest::prop_assert!(line.chars().count() <= width.max(40), "{line}");
        }
        html(&steps);
    }
}

#[test]
fn separates_runs_after_pause() {
    const SECOND: u64 = 1_000_000;
    let steps = [
        step("certs", 0, SECOND),
        // A long step during which others end.
        step("images", SECOND, 200 * SECOND),
        step("kubelet", 2 * SECOND, SECOND),
        step("addons", 230 * SECOND, SECOND),
        step("restart", 1000 * SECOND, SECOND),
    ];
    let found: Vec<(String, Vec<&str>)> = runs(&steps)
        .into_iter()
        .map(|(title, run)| (title, run.iter().map(|s| s.step.as_str()).collect()))
        .collect();
    assert_eq!(
        found,
        [
            ("4 steps in 3 min 51 s".to_owned(), vec!["certs", "images", "kubelet", "addons"]),
            ("1 step in 1.0 s, 12 min 49 s later".to_owned(), vec!["restart"]),
        ]
    );
    assert_eq!(runs(&[]), []);
    assert_eq!(html(&steps).matches("<table>").count(), 2);
    assert_eq!(chart(&steps, 80).lines().filter(|l| l.contains("████████")).count(), 2);
}
