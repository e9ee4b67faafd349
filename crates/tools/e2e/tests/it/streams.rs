//! Streaming commands: logs, exec, attach, port-forward, cp.

use e2e::{shared, until};

#[test]
fn logs_shows_and_follows_output() {
    let s = shared("streams-logs");
    let script =
        "echo one; echo two; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo three; sleep 1000";
    s.kubectl_with(&["run", "talker", "--image=box:1", "--command", "--", "sh", "-c", script], "")
        .ok();
    s.until("logs talker", |text| text == "one\ntwo\n");
    assert_eq!(s.kubectl("logs talker --tail=1").ok(), "two\n");
    let stamped = s.kubectl("logs talker --timestamps --tail=1").ok();
    assert!(stamped.trim_end().ends_with("Z two"), "{stamped}");
    // Log collectors read the log by a link.
    let links = std::fs::read_dir(s.cluster.root().join("var/log/containers")).unwrap();
    let mut links = links.map(|link| link.unwrap().path());
    let link = links.find(|link| link.to_string_lossy().contains("/talker_streams-logs_talker-"));
    let text = std::fs::read_to_string(link.expect("a link to the log")).unwrap();
    assert!(text.contains("stdout F one\n"), "{text}");
    let mut follow = s.start("logs -f talker");
    follow.wait_for_line(|line| line == "two");
    s.kubectl("exec talker -- touch /tmp/go").ok();
    follow.wait_for_line(|line| line == "three");
}

#[test]
fn logs_shows_the_previous_container() {
    let s = shared("streams-previous");
    let script = "echo run; sleep 1; exit 1";
    s.kubectl_with(&["run", "again", "--image=box:1", "--command", "--", "sh", "-c", script], "")
        .ok();
    s.until("logs again --previous", |text| text == "run\n");
}

#[test]
fn logs_resolves_a_deployment() {
    let s = shared("streams-deployment");
    s.deploy("web", "app:1", 1);
    s.kubectl("logs deployment/web").ok();
}

#[test]
fn exec_passes_input_output_and_exit_code() {
    let s = shared("streams-exec");
    s.toolbox();
    assert_eq!(s.kubectl("exec box -- echo hello").ok(), "hello\n");
    assert_eq!(s.kubectl_with(&["exec", "-i", "box", "--", "cat"], "through\n").ok(), "through\n");
    let large = "0123456789abcdef".repeat(65536);
    assert_eq!(
        s.kubectl_with(&["exec", "-i", "box", "--", "wc", "-c"], &large).ok().trim(),
        large.len().to_string()
    );
    let ran =
        s.kubectl_with(&["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 42"], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(42), "out\n"), "{ran}");
    assert!(ran.stderr.contains("err") && ran.stderr.contains("exit code 42"), "{ran}");
    s.kubectl("exec box -- nonsense").refused();
    s.kubectl("exec missing -- true").refused();
}

#[test]
fn exec_allocates_a_terminal() {
    let s = shared("streams-terminal");
    s.toolbox();
    // `in_terminal` gives kubectl a terminal with script(1).
    let line = "exec -it box -- test -t 0";
    until("a terminal", || {
        let ran = s.in_terminal(line);
        if ran.code == Some(0) { Ok(()) } else { Err(ran.to_string()) }
    });
}

#[test]
fn forwards_a_port_to_a_deployment() {
    let s = shared("streams-forward");
    s.deploy("web", "app:1", 1);
    let mut forward = s.start("port-forward deployment/web 18080:8080");
    forward.wait_for_line(|line| line.contains("Forwarding from 127.0.0.1:18080 -> 8080"));
    for _ in 0..5 {
        let ask =
            "printf 'GET / HTTP/1.0\r\n\r\n' | busybox nc -w 5 127.0.0.1 18080 | grep version";
        let page = s.on_node("sh", &["-c", ask]).ok();
        assert!(page.starts_with("version 1"), "{page}");
    }
}

#[test]
fn cp_copies_files_in_both_directions() {
    let s = shared("streams-copy");
    s.toolbox();
    let directory = tempfile::tempdir().unwrap();
    let (there, back) = (directory.path().join("there"), directory.path().join("back"));
    let content = "0123456789".repeat(50_000);
    std::fs::write(&there, &content).unwrap();
    s.kubectl(&format!("cp {} box:/tmp/file", there.display())).ok();
    assert_eq!(
        s.kubectl("exec box -- wc -c /tmp/file").ok().split_whitespace().next(),
        Some("500000")
    );
    s.kubectl(&format!("cp box:/tmp/file {}", back.display())).ok();
    assert_eq!(std::fs::read_to_string(&back).unwrap(), content);
}

#[test]
fn attach_shows_output_of_a_running_container() {
    let s = shared("streams-attach");
    let script = "while :; do echo tick; sleep 0.2; done";
    s.kubectl_with(&["run", "ticker", "--image=box:1", "--command", "--", "sh", "-c", script], "")
        .ok();
    s.kubectl("wait pod/ticker --for=condition=Ready --timeout=90s").ok();
    s.start("attach ticker").wait_for_line(|line| line == "tick");
}
