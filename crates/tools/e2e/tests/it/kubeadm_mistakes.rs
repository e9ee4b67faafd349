//! Mistakes during `init` and `join`: each error names the fix, and the machine is unchanged or `reset` cleans it.

use std::{
    thread,
    time::{Duration, SystemTime},
};

use e2e::{
    Host, Machines, configuration, connect, init, is_etcd_installed, ready, share_machine, until,
};
use pki::{Authority, KeyAlgorithm, Validity};

use crate::kubeadm::traces;

/// Returns the traces that are new on the machine.
fn left(host: &Host<'_>, before: &str) -> Vec<String> {
    let now = traces(host);
    now.lines().filter(|l| !before.lines().any(|b| b == *l)).map(str::to_owned).collect()
}

/// Runs a command that must fail with this message and change nothing.
fn refused(host: &Host<'_>, before: &str, line: &str, wanted: &str) {
    let output = host.windlass(line).refused();
    assert!(output.contains(wanted), "wanted {wanted:?} of {line}: {output}");
    let left = left(host, before);
    assert!(left.is_empty(), "{line} leaves {left:#?}");
}

/// Runs `init` and `join` on a machine whose cgroup v2 has no controllers.
fn init_without_cgroup_controllers(host: &Host<'_>, clean: &str) {
    let hide = "list=/sys/fs/cgroup/cgroup.controllers; \
                if [ -f $list ]; then mount --bind /dev/null $list; else mount -t cgroup2 cgroup2 /sys/fs/cgroup; fi";
    let show = "umount /sys/fs/cgroup/cgroup.controllers 2>/dev/null || umount /sys/fs/cgroup";
    host.run("sh", &["-c", hide]).ok();
    let wanted = "[ERROR SystemVerification]: missing required cgroups: cpu cpuset memory pids";
    for line in [
        "init",
        "join 192.0.2.1:6443 --token abcdef.0123456789abcdef --discovery-token-unsafe-skip-ca-verification",
    ] {
        let output = host.windlass(line).refused();
        assert!(output.contains(wanted), "wanted {wanted:?} of {line}: {output}");
    }
    // Undo the mount first, because it shows the cgroups of all other tests too.
    host.run("sh", &["-c", show]).ok();
    assert!(left(host, clean).is_empty(), "{:#?}", left(host, clean));
}

const DAY: Duration = Duration::from_secs(86_400);

/// Creates an authority that becomes valid tomorrow, as a machine sees it whose clock is a day behind.
fn authority_of_tomorrow() -> Authority {
    let validity = Validity::starting(SystemTime::now() + DAY, 3650 * DAY);
    Authority::create("kubernetes", KeyAlgorithm::EcdsaP256, validity).expect("an authority")
}

/// Runs `init` with an existing authority that is not valid yet.
fn init_with_wrong_clock(host: &Host<'_>, clean: &str, file: &str) {
    let ca = authority_of_tomorrow();
    let directory = "/etc/kubernetes/pki";
    host.run("mkdir", &["-p", directory]).ok();
    let key = ca.key().to_pem().expect("a key");
    for (name, text) in [("ca.crt", ca.cert().to_pem()), ("ca.key", key)] {
        let there = host.write(name, &text);
        host.run("mv", &[&there, &format!("{directory}/{name}")]).ok();
    }
    let output = host.windlass(&format!("init --config {file}")).refused();
    let words = "is not valid before";
    assert!(output.contains(words) && output.contains("check this machine's clock"), "{output}");
    assert_eq!(host.run("cat", &[&format!("{directory}/ca.crt")]).ok(), ca.cert().to_pem());
    host.windlass("reset --force").ok();
    assert!(left(host, clean).is_empty(), "{:#?}", left(host, clean));
}

/// Runs `join` while the cluster's authority is not valid yet. `line` is the join command with `PIN` for the CA's hash.
fn join_with_wrong_clock(first: &Host<'_>, other: &Host<'_>, clean: &str, line: &str) {
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
    // The controller manager signs the changed ConfigMap a moment later.
    until("a join error that names the clock", || {
        let ran = other.windlass(&line);
        assert_ne!(ran.code, Some(0), "{ran}");
        let is_reported = ran.stderr.contains("is not valid before")
            && ran.stderr.contains("check this machine's clock");
        if is_reported { Ok(()) } else { Err(ran.to_string()) }
    });
    assert!(left(other, clean).is_empty(), "{:#?}", left(other, clean));
    give(&info);
}

/// Returns the configuration of a cluster whose first machine is `host`.
fn configuration_of(host: &Host<'_>, more: &str) -> String {
    let endpoint = format!("controlPlaneEndpoint: {}:6443", host.address);
    configuration(&format!("{endpoint}\n{more}"))
        .replace("advertiseAddress: 192.0.2.1", &format!("advertiseAddress: {}", host.address))
}

/// Runs `init` with a broken component and expects all of `words` in the error.
fn fails(host: &Host<'_>, configuration: &str, words: &[&str]) {
    let registration = "nodeRegistration: {";
    let short_timeouts = "timeouts: {controlPlaneComponentHealthCheck: 20s, kubeletHealthCheck: 5s}\n\
                     nodeRegistration: {";
    let text = configuration.replace(registration, short_timeouts);
    let file = host.write(&format!("broken-{}.yaml", host.name), &text);
    let output = host.windlass(&format!("init --config {file}")).refused();
    for word in words {
        assert!(output.contains(word), "wanted {word:?}: {output}");
    }
}

/// Runs [`fails`] on a clean machine and asserts that `reset` leaves nothing.
fn fails_and_is_reset(host: &Host<'_>, configuration: &str, words: &[&str]) {
    let clean = traces(host);
    fails(host, configuration, words);
    host.windlass("reset --force").ok();
    assert!(left(host, &clean).is_empty(), "{:#?}", left(host, &clean));
}

/// Runs `init` with a disk that is too small for etcd's files.
fn init_without_disk_space(host: &Host<'_>) {
    let clean = traces(host);
    host.run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", "/var/lib/etcd"]).ok();
    fails(host, &configuration_of(host, ""), &["no space left on device"]);
    host.windlass("reset --force").ok();
    host.run("umount", &["/var/lib/etcd"]).ok();
    assert!(left(host, &clean).is_empty(), "{:#?}", left(host, &clean));
}

#[test]
fn init_explains_why_a_component_does_not_come_up() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("broken");
    let [first, second, third] =
        [("alpha", 1), ("beta", 2), ("gamma", 3)].map(|(name, n)| machines.start(name, n));
    let bad = "extraArgs: [{name: nonsense, value: x}]";
    let late = "did not come up within";
    // Run in parallel, because `init` waits for the component until its timeout.
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
        scope.spawn(|| init_without_disk_space(&third));
    });
}

#[test]
fn init_and_join_explain_mistakes_and_leave_nothing_behind() {
    let _turn = share_machine();
    if !is_etcd_installed() {
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
    init_without_cgroup_controllers(&first, &clean);
    refused(&first, &clean, "init --config /nowhere", "cannot read /nowhere");

    // On a full disk `init` fails, and `reset` removes the files that were written.
    let full = "mount -t tmpfs -o size=32k tmpfs /etc/kubernetes";
    first.run("sh", &["-c", full]).ok();
    let output = first.windlass(&format!("init --config {file}")).refused();
    assert!(
        output.contains("/etc/kubernetes/") && output.contains("No space left on device"),
        "{output}"
    );
    first.windlass("reset --force").ok();
    first.run("umount", &["/etc/kubernetes"]).ok();
    assert!(left(&first, &clean).is_empty(), "{:#?}", left(&first, &clean));

    init_with_wrong_clock(&first, &clean, &file);

    let join = init(&first, "controlPlaneEndpoint: 192.0.2.1:6443");
    let again = first.windlass("init").refused();
    assert!(again.contains("[ERROR Port-6443]") && again.contains("run reset first"), "{again}");
    first.kubectl("get nodes").ok();

    connect(&first, &[&first]);
    ready(&first, &[&first]);
    let pin = join.worker.split_whitespace().find(|w| w.starts_with("sha256:")).expect("a pin");
    let token = join.worker.split_whitespace().find(|w| w.len() == 23).expect("a token");
    let rest = "--ignore-preflight-errors=SystemVerification";
    let join_line = |server: &str, token: &str, pin: &str| {
        format!("join {server}:6443 --token {token} --discovery-token-ca-cert-hash {pin} {rest}")
    };
    let unknown = format!("zzzzzz.{}", &token[7..]);
    let wrong = format!("{}.0123456789abcdef", &token[..6]);
    let zeroes = format!("sha256:{}", "0".repeat(64));
    let short_discovery = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\ntimeouts: {discovery: 3s}\ndiscovery: \
                   {bootstrapToken: {token: TOKEN, apiServerEndpoint: '192.0.2.77:6443', caCertHashes: ['PIN']}}\n";
    let unreachable =
        other.write("join.yaml", &short_discovery.replace("TOKEN", token).replace("PIN", pin));
    let own = "192.0.2.1";
    thread::scope(|scope| {
        // Use a separate machine: `join` waits several seconds for a signature of the token.
        let line = join_line(own, &unknown, pin);
        let words = "invalid for this cluster or it has expired";
        let (third, clean) = (&third, &third_clean);
        scope.spawn(move || refused(third, clean, &line, words));
        for (line, words) in [
            (join_line(own, "malformed", pin), "token"),
            (join_line(own, token, "sha256:123"), "64 hexadecimal digits"),
            (join_line(own, &wrong, pin), "can't trust this API Server"),
            (join_line(own, token, &zeroes), "are pinned"),
            (format!("join --config {unreachable} {rest}"), "192.0.2.77:6443"),
            (format!("{} --node-name alpha", join.worker), "name \"alpha\" and status \"Ready\""),
        ] {
            refused(&other, &other_clean, &line, words);
        }
    });
    join_with_wrong_clock(&first, &other, &other_clean, &join_line(own, token, "PIN"));
    other.windlass(&join.worker).ok();
    let again = other.windlass(&join.worker).refused();
    assert!(again.contains("already exists") && again.contains("run reset first"), "{again}");
}
