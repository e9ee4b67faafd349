//! Everything that streams: logs, exec, attach, port-forward, cp.

use e2e::shared;

#[test]
fn logs_of_the_container_before_are_kept() {
    let s = shared("streams-previous");
    let script = "echo run; sleep 1; exit 1";
    s.kubectl_with(&["run", "again", "--image=box:1", "--command", "--", "sh", "-c", script], "")
        .ok();
    s.until("logs again --previous", |text| text == "run\n");
}

#[test]
fn logs_of_a_deployment_are_found() {
    let s = shared("streams-deployment");
    s.deploy("web", "app:1", 1);
    s.kubectl("logs deployment/web").ok();
}

#[test]
fn attach_shows_what_a_container_says() {
    let s = shared("streams-attach");
    let script = "while :; do echo tick; sleep 0.2; done";
    s.kubectl_with(&["run", "ticker", "--image=box:1", "--command", "--", "sh", "-c", script], "")
        .ok();
    s.kubectl("wait pod/ticker --for=condition=Ready --timeout=90s").ok();
    s.start("attach ticker").line(|line| line == "tick");
}
