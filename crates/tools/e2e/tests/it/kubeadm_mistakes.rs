//! Mistakes while machines become a cluster: each error says what to do, and leaves the machine as it was or for
//! `reset` to clean.

use std::{
    thread,
    time::{Duration, SystemTime},
};

use e2e::{
    Host, Machines, beside_others, configuration, connect, init, is_etcd_there, ready, until,
};
use pki::{Authority, KeyAlgorithm, Validity};

use crate::kubeadm::traces;

/// Returns the traces that are on the machine now and were not before.
fn left(host: &Host<'_>, before: &str) -> Vec<String> {
    let now = traces(host);
    now.lines().filter(|l| !before.lines().any(|b| b == *l)).map(str::to_owned).collect()
}

/// Runs a command that must fail with these words and leave nothing.
fn refused(host: &Host<'_>, before: &str, line: &str, wanted: &str) {
    let said = host.windlass(line).refused();
    assert!(said.contains(wanted), "wanted {wanted:?} of {line}: {said}");
    let left = left(host, before);
    assert!(left.is_empty(), "{line} leaves {left:#?}");
}

/// The second version of cgroups on a machine whose controllers are all taken by the first, or whose list of them is
/// hidden.
fn cgroups_without_controllers(host: &Host<'_>, clean: &str) {
    let hide = "list=/sys/fs/cgroup/cgroup.controllers; \
                if [ -f $list ]; then mount --bind /dev/null $list; else mount -t cgroup2 cgroup2 /sys/fs/cgroup; fi";
    let show = "umount /sys/fs/cgroup/cgroup.controllers 2>/dev/null || umount /sys/fs/cgroup";
    host.run("sh", &["-c", hide]).ok();
    let wanted = "[ERROR SystemVerification]: missing required cgroups: cpu cpuset memory pids";
    for line in [
        "init",
        "join 192.0.2.1:6443 --token abcdef.0123456789abcdef --discovery-token-unsafe-skip-ca-verification",
    ] {
        let said = host.windlass(line).refused();
        assert!(said.contains(wanted), "wanted {wanted:?} of {line}: {said}");
    }
    // Looked at without that mount, which shows the groups of every other test too.
    host.run("sh", &["-c", show]).ok();
    assert!(left(host, clean).is_empty(), "{:#?}", left(host, clean));
}

const DAY: Duration = Duration::from_secs(86_400);

/// Creates the authority that a machine sees whose clock is a day behind.
fn authority_of_tomorrow() -> Authority {
    let validity = Validity::starting(SystemTime::now() + DAY, 3650 * DAY);
    Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity).expect("an authority")
}

/// Runs `init` with a given authority that is not valid yet by the machine's clock.
fn clock_that_is_off(host: &Host<'_>, clean: &str, file: &str) {
    let ca = authority_of_tomorrow();
    let directory = "/etc/kubernetes/pki";
    host.run("mkdir", &["-p", directory]).ok();
    let key = ca.key().to_pem().expect("a key");
    for (name, text) in [("ca.crt", ca.cert().to_pem()), ("ca.key", key)] {
        let there = host.write(name, &text);
        host.run("mv", &[&there, &format!("{directory}/{name}")]).ok();
    }
    let said = host.windlass(&format!("init --config {file}")).refused();
    let words = "is not valid before";
    assert!(said.contains(words) && said.contains("check this machine's clock"), "{said}");
    assert_eq!(host.run("cat", &[&format!("{directory}/ca.crt")]).ok(), ca.cert().to_pem());
    host.windlass("reset --force").ok();
    assert!(left(host, clean).is_empty(), "{:#?}", left(host, clean));
}

/// A cluster whose authority begins tomorrow, as a machine sees it whose clock is a day behind. `line` is its join,
/// but for the pin.
fn clock_of_a_joining_machine(first: &Host<'_>, other: &Host<'_>, clean: &str, line: &str) {
    let path = "-o jsonpath={.data.kubeconfig}";
    let info = first.kubectl(&format!("-n kube-public get configmap cluster-info {path}")).ok();
    let ca = authority_of_tomorrow();
    let file = first.write("tomorrow.crt", &ca.cert().to_pem());
    let data = first.run("base64", &["-w0", &file]).ok();
    let tomorrow: String = info
        .lines()
        .map(|l| match l.split_once("certificate-authority-data: ") {
            Some((before, _)) => format!("{before}certificate-authority-data: {data}\n"),
            None => format!("{l}\n"),
        })
        .collect();
    let give = |info: &str| {
        let patch = serde_json::json!({"data": {"kubeconfig": info}}).to_string();
        let what = ["-n", "kube-public", "patch", "configmap", "cluster-info", "-p", &patch];
        first.kubectl_with(&what, "").ok();
    };
    give(&tomorrow);
    let line = line.replace("PIN", &ca.cert().pin().expect("a pin"));
    // The controller manager signs what it holds a moment after it has changed.
    until("a join that tells of the clock", || {
        let ran = other.windlass(&line);
        assert_ne!(ran.code, Some(0), "{ran}");
        let told = ran.stderr.contains("is not valid before")
            && ran.stderr.contains("check this machine's clock");
        if told { Ok(()) } else { Err(ran.to_string()) }
    });
    assert!(left(other, clean).is_empty(), "{:#?}", left(other, clean));
    give(&info);
}

/// The configuration of a cluster whose first machine is `host`.
fn configuration_of(host: &Host<'_>, more: &str) -> String {
    let endpoint = format!("controlPlaneEndpoint: {}:6443", host.address);
    configuration(&format!("{endpoint}\n{more}"))
        .replace("advertiseAddress: 192.0.2.1", &format!("advertiseAddress: {}", host.address))
}

/// Runs `init` where a component does not come up, and expects all of `words` in the error.
fn fails(host: &Host<'_>, configuration: &str, words: &[&str]) {
    let patient = "nodeRegistration: {";
    let impatient = "timeouts: {controlPlaneComponentHealthCheck: 20s, kubeletHealthCheck: 5s}\n\
                     nodeRegistration: {";
    let text = configuration.replace(patient, impatient);
    let file = host.write(&format!("broken-{}.yaml", host.name), &text);
    let said = host.windlass(&format!("init --config {file}")).refused();
    for word in words {
        assert!(said.contains(word), "wanted {word:?}: {said}");
    }
}

/// The same on a clean machine, on which `reset` leaves nothing.
fn fails_and_is_reset(host: &Host<'_>, configuration: &str, words: &[&str]) {
    let clean = traces(host);
    fails(host, configuration, words);
    host.windlass("reset --force").ok();
    assert!(left(host, &clean).is_empty(), "{:#?}", left(host, &clean));
}

/// A disk with no room for the files of etcd.
fn no_room_for_etcd(host: &Host<'_>) {
    let clean = traces(host);
    host.run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", "/var/lib/etcd"]).ok();
    fails(host, &configuration_of(host, ""), &["no space left on device"]);
    host.windlass("reset --force").ok();
    host.run("umount", &["/var/lib/etcd"]).ok();
    assert!(left(host, &clean).is_empty(), "{:#?}", left(host, &clean));
}

#[test]
fn init_explains_why_a_component_does_not_come_up() {
    let _turn = beside_others();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("broken");
    let [first, second, third] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let bad = "extraArgs: [{name: nonsense, value: x}]";
    let late = "did not come up within";
    // Side by side, because `init` waits for the component until its time is over.
    thread::scope(|scope| {
        scope.spawn(|| {
            let text = configuration_of(&first, &format!("apiServer: {{{bad}}}"));
            fails_and_is_reset(&first, &text, &[late, "--nonsense"]);
            let flag = "nodeRegistration: {kubeletExtraArgs: [{name: nonsense, value: x}], ";
            let text = configuration_of(&first, "").replace("nodeRegistration: {", flag);
            fails_and_is_reset(&first, &text, &[late, "--nonsense"]);
        });
        scope.spawn(|| {
            let text = configuration_of(&second, &format!("etcd: {{local: {{{bad}}}}}"));
            fails_and_is_reset(&second, &text, &[late, "etcd does not run either", "nonsense"]);
        });
        scope.spawn(|| no_room_for_etcd(&third));
    });
}

#[test]
fn init_and_join_explain_mistakes_and_leave_nothing_behind() {
    let _turn = beside_others();
    if !is_etcd_there() {
        return;
    }
    let machines = Machines::new("mistakes");
    let [first, other, third] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let [clean, other_clean, third_clean] = [&first, &other, &third].map(traces);
    let file = first.write("kubeadm.yaml", &configuration("controlPlaneEndpoint: 192.0.2.1:6443"));
    if !std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        refused(&first, &clean, "init", "[ERROR SystemVerification]: cgroup v2 is not mounted");
    }
    cgroups_without_controllers(&first, &clean);
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

    clock_that_is_off(&first, &clean, &file);

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
    thread::scope(|scope| {
        // On a machine of its own, because a token is unknown only after some seconds without its signature.
        let line = by(own, &unknown, pin);
        let words = "invalid for this cluster or it has expired";
        let (third, clean) = (&third, &third_clean);
        scope.spawn(move || refused(third, clean, &line, words));
        for (line, words) in [
            (by(own, "malformed", pin), "token"),
            (by(own, token, "sha256:123"), "64 hexadecimal digits"),
            (by(own, &wrong, pin), "can't trust this API Server"),
            (by(own, token, &zeroes), "are pinned"),
            (format!("join --config {unreachable} {rest}"), "192.0.2.77:6443"),
            (format!("{} --node-name alpha", join.worker), "name \"alpha\" and status \"Ready\""),
        ] {
            refused(&other, &other_clean, &line, words);
        }
    });
    clock_of_a_joining_machine(&first, &other, &other_clean, &by(own, token, "PIN"));
    other.windlass(&join.worker).ok();
    let again = other.windlass(&join.worker).refused();
    assert!(again.contains("already exists") && again.contains("run reset first"), "{again}");
}
