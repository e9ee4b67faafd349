//! Behaviour of a node: containers, limits, network, restarts, security, the kubelet's server, and volumes.

mod containers;
mod limits;
mod network;
mod restarts;
mod security;
mod server;
mod volumes;

use e2e::Session;

/// Runs a shell script in a Pod's first container.
#[track_caller]
fn exec(s: &Session<'_>, pod: &str, script: &str) -> String {
    s.kubectl_with(&["exec", pod, "--", "sh", "-c", script], "").ok()
}

#[track_caller]
fn ready(s: &Session<'_>, pod: &str) {
    let ran = s.kubectl(&format!("wait pod/{pod} --for=condition=Ready --timeout=90s"));
    assert!(ran.code == Some(0), "{ran}\n{}", s.kubectl(&format!("describe pod {pod}")));
}

/// Waits for an Event about a Pod with this reason whose message contains `part`.
#[track_caller]
fn event(s: &Session<'_>, pod: &str, reason: &str, part: &str) {
    let line = format!(
        "get events --field-selector involvedObject.name={pod},reason={reason} -o jsonpath={{.items[*].message}}"
    );
    s.until(&line, |text| text.contains(part));
}

/// Asserts that a text has these lines in this order. Other lines may be between them.
#[track_caller]
fn in_order(text: &str, wanted: &[&str]) {
    let mut lines = text.lines();
    for line in wanted {
        assert!(lines.any(|l| l == *line), "{line} is missing, or out of order:\n{text}");
    }
}
