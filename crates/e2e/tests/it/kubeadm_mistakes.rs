//! What can go wrong while machines become a cluster: each has an answer that says what to do, and leaves the machine
//! as it was or for `reset` to clean.

use e2e::{Host, Machines, alone, configuration, connect, init, is_etcd_there, ready};

use crate::kubeadm::traces;

/// What is on the machine now and was not before, but for the record of what was tried.
fn left(host: &Host<'_>, before: &str) -> Vec<String> {
    let now = traces(host);
    let new = now.lines().filter(|l| !before.lines().any(|b| b == *l));
    new.filter(|l| !l.starts_with("/var/lib/windlass/timeline")).map(str::to_owned).collect()
}

/// The command fails with these words, and leaves nothing.
fn refused(host: &Host<'_>, before: &str, line: &str, wanted: &str) {
    let said = host.windlass(line).refused();
    assert!(said.contains(wanted), "wanted {wanted:?} of {line}: {said}");
    let left = left(host, before);
    assert!(left.is_empty(), "{line} leaves {left:#?}");
}

#[test]
fn mistakes_are_told_and_leave_a_machine_as_it_was() {
    let _turn = alone();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("mistakes");
    let (first, other) = (machines.start("alpha", 1), machines.start("beta", 2));
    let (clean, other_clean) = (traces(&first), traces(&other));
    let file = first.write("kubeadm.yaml", &configuration("controlPlaneEndpoint: 192.0.2.1:6443"));
    if !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        refused(&first, &clean, "init", "[ERROR SystemVerification]: cgroup v2 is not mounted");
    }
    refused(&first, &clean, "init --config /nowhere", "cannot read /nowhere");

    // A full disk: what could be written is reset's to clean.
    let full = "mount -t tmpfs -o size=32k tmpfs /etc/kubernetes";
    first.run("sh", &["-c", full]).ok();
    let said = first.windlass(&format!("init --config {file}")).refused();
    assert!(
        said.contains("/etc/kubernetes/") && said.contains("No space left on device"),
        "{said}"
    );
    first.windlass("reset --force").ok();
    first.run("umount", &["/etc/kubernetes"]).ok();
    assert!(left(&first, &clean).is_empty(), "{:#?}", left(&first, &clean));

    let join = init(&first, "controlPlaneEndpoint: 192.0.2.1:6443");
    let again = first.windlass("init").refused();
    assert!(again.contains("[ERROR Port-6443]") && again.contains("run reset first"), "{again}");
    first.kubectl("get nodes").ok();

    connect(&first, &[&first]);
    ready(&first, &[&first]);
    let pin = join.worker.split_whitespace().find(|w| w.starts_with("sha256:")).expect("a pin");
    let token = join.worker.split_whitespace().find(|w| w.len() == 23).expect("a token");
    let rest = "--ignore-preflight-errors=SystemVerification";
    let by = |server: &str, token: &str, pin: &str| {
        format!("join {server}:6443 --token {token} --discovery-token-ca-cert-hash {pin} {rest}")
    };
    let unknown = format!("zzzzzz.{}", &token[7..]);
    let wrong = format!("{}.0123456789abcdef", &token[..6]);
    let zeroes = format!("sha256:{}", "0".repeat(64));
    let patient = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ntimeouts: {discovery: 3s}\ndiscovery: \
                   {bootstrapToken: {token: TOKEN, apiServerEndpoint: '192.0.2.77:6443', caCertHashes: ['PIN']}}\n";
    let unreachable =
        other.write("join.yaml", &patient.replace("TOKEN", token).replace("PIN", pin));
    let own = "192.0.2.1";
    for (line, words) in [
        (by(own, "malformed", pin), "token"),
        (by(own, token, "sha256:123"), "64 hexadecimal digits"),
        (by(own, &unknown, pin), "invalid for this cluster or it has expired"),
        (by(own, &wrong, pin), "can't trust this API Server"),
        (by(own, token, &zeroes), "are pinned"),
        (format!("join --config {unreachable} {rest}"), "192.0.2.77:6443"),
        (format!("{} --node-name alpha", join.worker), "name \"alpha\" and status \"Ready\""),
    ] {
        refused(&other, &other_clean, &line, words);
    }
    other.windlass(&join.worker).ok();
    let again = other.windlass(&join.worker).refused();
    assert!(again.contains("already exists") && again.contains("run reset first"), "{again}");
}
