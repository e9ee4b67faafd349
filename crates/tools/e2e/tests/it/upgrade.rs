//! kubeadm's `upgrade`: from an earlier patch version, killed and repeated, and a new version that does not start.

use e2e::{
    Background, Host, Machines, configuration, connect, is_etcd_installed, join_commands, ready,
    share_machine, until,
};

/// A version whose images are built like those of the current one.
pub(super) const EARLIER: &str = "v1.36.1";
pub(super) const CURRENT: &str = version::KUBERNETES_VERSION;

/// Returns the command line of a subcommand of `upgrade`. The host may have cgroup v1 only.
pub(super) fn upgrade(subcommand: &str) -> String {
    format!("upgrade {subcommand} --ignore-preflight-errors SystemVerification")
}

/// Returns the images of the containers of kube-system's Pods.
fn images(host: &Host<'_>) -> String {
    let path = "jsonpath={.items[*].spec.containers[*].image}";
    host.kubectl(&format!("-n kube-system get pods -o {path}")).ok()
}

fn container(host: &Host<'_>, namespace: &str, pod: &str) -> String {
    let path = "jsonpath={.status.containerStatuses[0].containerID}";
    host.kubectl(&format!("-n {namespace} get pod {pod} -o {path}")).ok()
}

#[test]
fn upgrades_a_cluster_and_returns_from_a_version_that_does_not_start() {
    let _turn = share_machine();
    if !is_etcd_installed() {
        return;
    }
    let machines = Machines::new("upgrade");
    let (alpha, beta) = (machines.start("alpha", 1), machines.start("beta", 2));
    let more = format!("kubernetesVersion: {EARLIER}\ncontrolPlaneEndpoint: 192.0.2.1:6443");
    let file = alpha.write("kubeadm.yaml", &configuration(&more));
    let output = alpha.windlass(&format!("init --config {file} --upload-certs")).ok();
    beta.windlass(&join_commands(&alpha, &output).worker).ok();
    connect(&alpha, &[&alpha, &beta]);
    ready(&alpha, &[&alpha, &beta]);
    beta.build_box();
    alpha.kubectl("run box --image=box:1 --restart=Never").ok();
    alpha.kubectl("wait pod/box --for=condition=Ready --timeout=60s").ok();
    let (boxed, etcd) =
        (container(&alpha, "default", "box"), container(&alpha, "kube-system", "etcd-alpha"));

    let plan = alpha.windlass("upgrade plan").ok();
    let row = |line: &&str| line.starts_with("kube-apiserver") && line.contains("alpha");
    let row = plan.lines().find(row).unwrap_or_else(|| panic!("{plan}")).split_whitespace();
    assert_eq!(row.collect::<Vec<_>>(), ["kube-apiserver", "alpha", EARLIER, CURRENT], "{plan}");
    assert!(plan.contains(&format!("windlass upgrade apply {CURRENT}")), "{plan}");
    let diff = alpha.windlass(&format!("upgrade diff {CURRENT}")).ok();
    assert!(diff.contains(&format!("kube-scheduler:{EARLIER}\n+")), "{diff}");
    for (arguments, reason) in [
        ("", "Required arguments: [version]"),
        ("v1.38.0 --yes", "is too high"),
        ("v1.35.0 --yes --force", "is too low"),
        ("latest --yes", "is not a version of Kubernetes"),
        (CURRENT, "use --yes to upgrade without asking"),
    ] {
        let output = alpha.windlass(&upgrade(&format!("apply {arguments}"))).refused();
        assert!(output.contains(reason), "{arguments}: {output}");
    }
    let output = beta.windlass(&upgrade(&format!("apply {CURRENT} --yes"))).refused();
    assert!(output.contains("use upgrade node here"), "{output}");
    assert!(!images(&alpha).contains(CURRENT));

    refuses_corefile(&alpha);
    respects_kubelets_versions(&alpha);
    does_not_start(&alpha);
    full_disk_stops_an_upgrade(&alpha);
    is_killed_in_each_phase(&alpha);
    until("an upgrade after one that was killed", || {
        alpha
            .windlass(&upgrade(&format!("apply {CURRENT} --yes")))
            .ok_if(|text| text.contains("SUCCESS"))
    });
    let output = beta.windlass(&upgrade("node")).ok();
    assert!(output.contains("[upgrade] The configuration for this node"), "{output}");
    ready(&alpha, &[&alpha, &beta]);
    alpha.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=90s").ok();
    alpha.kubectl("-n kube-system rollout status deployment/coredns --timeout=90s").ok();
    until("only images of the new version", || {
        let images = images(&alpha);
        if images.contains(EARLIER) { Err(images) } else { Ok(()) }
    });
    let config = alpha.kubectl("-n kube-system get configmap kubeadm-config -o yaml").ok();
    assert!(config.contains(&format!("kubernetesVersion: {CURRENT}")), "{config}");
    let map = coredns(&alpha);
    let (migrated, backup) = (&map["data"]["Corefile"], &map["data"]["Corefile-backup"]);
    assert!(!migrated.as_str().unwrap().contains("upstream"), "{migrated}");
    assert!(migrated.as_str().unwrap().contains("192.0.2.77 name.example"), "{migrated}");
    assert!(backup.as_str().unwrap().contains("upstream"), "{backup}");
    until("an answer of the migrated Corefile", || {
        let ran = alpha.kubectl("exec box -- nslookup name.example");
        if ran.stdout.contains("192.0.2.77") { Ok(()) } else { Err(ran.to_string()) }
    });
    // What did not change was not restarted.
    assert_eq!(container(&alpha, "default", "box"), boxed);
    assert_eq!(container(&alpha, "kube-system", "etcd-alpha"), etcd);
    until("a log through the restarted kubelet", || {
        alpha.kubectl("logs box").ok_if(|log| log.contains("here is box"))
    });
    let plan = alpha.windlass("upgrade plan").ok();
    assert!(plan.contains("up-to-date"), "{plan}");
}

/// Returns the ConfigMap with the Corefile.
fn coredns(alpha: &Host<'_>) -> serde_json::Value {
    let map = alpha.kubectl("-n kube-system get configmap coredns -o json").ok();
    serde_json::from_str(&map).unwrap()
}

/// A Corefile with a plugin that Windlass does not have stops an upgrade before it changes anything. One with a removed
/// option remains, for the upgrade to migrate.
fn refuses_corefile(alpha: &Host<'_>) {
    let map = coredns(alpha);
    let default = map["data"]["Corefile"].as_str().unwrap();
    let put = |corefile: String| {
        let patch = serde_json::json!({"data": {"Corefile": corefile}}).to_string();
        let map = ["-n", "kube-system", "patch", "configmap", "coredns"];
        alpha.kubectl_with(&[&map[..], &["--type=merge", "-p", patch.as_str()]].concat(), "").ok();
    };
    put(default.replacen("errors", "errors\n    k8s_external example.org", 1));
    for command in ["upgrade plan".to_owned(), upgrade(&format!("apply {CURRENT} --yes"))] {
        let output = alpha.windlass(&command).refused();
        assert!(output.contains("[ERROR CoreDNSUnsupportedPlugins]"), "{output}");
        assert!(output.contains("Corefile line 3: k8s_external: unknown plugin"), "{output}");
        assert!(output.contains("+    k8s_external example.org"), "{output}");
    }
    assert!(!images(alpha).contains(CURRENT));
    let hosts = "hosts {\n        192.0.2.77 name.example\n        fallthrough\n    }\n    forward";
    put(default
        .replacen("pods insecure", "pods insecure\n       upstream", 1)
        .replacen("forward", hosts, 1));
    let output = alpha.windlass("upgrade plan");
    assert_eq!(output.code, Some(0), "{output}");
    let notice = r#"option "upstream" in plugin "kubernetes" is removed in 1.7.0"#;
    assert!(output.stderr.contains(notice), "{output}");
}

/// A kubelet may be three minor versions older than the new API server, as far as it reports its version.
fn respects_kubelets_versions(alpha: &Host<'_>) {
    let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "old"}}"#;
    alpha.kubectl_with(&["create", "-f", "-"], node).ok();
    let report = |version: &str| {
        let patch = serde_json::json!({"status": {"nodeInfo": {"kubeletVersion": version}}});
        let patch = patch.to_string();
        let args = ["patch", "node", "old", "--subresource=status", "--type=merge", "-p", &patch];
        alpha.kubectl_with(&args, "").ok();
    };
    report("v1.32.9");
    let output = alpha.windlass(&upgrade(&format!("apply {CURRENT} --yes"))).refused();
    assert!(output.contains("too old that have these versions [v1.32.9]"), "{output}");
    for version in ["v1.33.0", "v1.35.7"] {
        report(version);
        let plan = alpha.windlass("upgrade plan").ok();
        let row = |line: &&str| line.starts_with("kubelet") && line.contains("old");
        let row = plan.lines().find(row).unwrap_or_else(|| panic!("{plan}")).split_whitespace();
        assert_eq!(row.collect::<Vec<_>>(), ["kubelet", "old", version, CURRENT], "{plan}");
        alpha.windlass(&upgrade(&format!("apply {CURRENT} --yes --dry-run"))).ok();
    }
    alpha.kubectl("delete node old").ok();
    let pods = "-n kube-system delete pods --field-selector=spec.nodeName=old --force";
    alpha.kubectl(pods).ok();
}

/// A disk that fills during an upgrade stops it before a static Pod without a backup is replaced.
fn full_disk_stops_an_upgrade(alpha: &Host<'_>) {
    let backups = "/etc/kubernetes/tmp";
    alpha.run("mount", &["-t", "tmpfs", "-o", "size=8k", "tmpfs", backups]).ok();
    let output = alpha.windlass(&upgrade(&format!("apply {CURRENT} --yes"))).refused();
    assert!(output.contains("No space left on device") && output.contains(backups), "{output}");
    let scheduler = "jsonpath={.items[*].spec.containers[*].image}";
    let line = format!("-n kube-system get pods -l component=kube-scheduler -o {scheduler}");
    assert!(alpha.kubectl(&line).ok().ends_with(EARLIER));
    alpha.run("umount", &[backups]).ok();
}

/// Kills an upgrade once in each phase: the line is the last one that is printed before. The next run continues.
fn is_killed_in_each_phase(alpha: &Host<'_>) {
    let apply =
        format!("exec {} {} 2>&1", alpha.binary(), upgrade(&format!("apply {CURRENT} --yes")));
    for line in [
        "[preflight] Running pre-flight checks",
        "manifests/kube-scheduler.yaml\" and backing up",
        "✓ control-plane ",
        "✓ upload-config/kubeadm ",
        "✓ upload-config/kubelet ",
        "✓ kubelet-config ",
        "✓ bootstrap-token ",
        "✓ addon/coredns ",
        "✓ addon/kube-proxy ",
    ] {
        let mut process = Background::start(alpha.command("sh", &["-c", &apply]));
        process.wait_for_line(|printed| printed.contains(line));
    }
}

/// Upgrades with a patch that ends the scheduler at once: the earlier static Pods return.
fn does_not_start(alpha: &Host<'_>) {
    let manifests = || alpha.run("sh", &["-c", "cat /etc/kubernetes/manifests/kube-*.yaml"]).ok();
    let before = manifests();
    let script = "mkdir -p /etc/broken && cp $0 /etc/broken/kube-scheduler.yaml";
    let patch =
        "spec: {containers: [{name: kube-scheduler, command: [kube-scheduler, --nonsense]}]}\n";
    alpha.run("sh", &["-c", script, &alpha.write("patch.yaml", patch)]).ok();
    let file = alpha.write(
        "upgrade.yaml",
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: UpgradeConfiguration\ntimeouts: {upgradeManifests: 20s}\n\
         apply: {patches: {directory: /etc/broken}}\n",
    );
    let output =
        alpha.windlass(&upgrade(&format!("apply {CURRENT} --yes --config {file}"))).refused();
    assert!(
        output.contains("couldn't upgrade kube-scheduler, and the earlier static Pods run again"),
        "{output}"
    );
    assert_eq!(manifests(), before);
    alpha
        .kubectl("-n kube-system wait pod/kube-scheduler-alpha --for=condition=Ready --timeout=60s")
        .ok();
}
