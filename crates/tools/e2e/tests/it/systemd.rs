//! `windlass init` on a virtual machine with Debian, systemd and cgroup v2.

use std::time::Instant;

use e2e::{BootMethod, Guest, Machines, Rack, lock_machine, until, until_within};
use serde_json::json;

use crate::metal::{
    BIOS, BOOT_TIMEOUT, MAC, are_installed, certificates, image, provision_in_memory,
};

const ADDRESS: &str = "192.0.2.100";
const NODE: &str = "guest";

/// The configuration of a machine without a registry and without etcd. No preflight check is ignored.
const CONFIGURATION: &str = "
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.100}
timeouts: {controlPlaneComponentHealthCheck: 20m0s, kubeletHealthCheck: 10m0s, kubernetesAPICall: 5m0s}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
etcd: {embedded: {dataDir: /var/lib/windlass/store}}
encryptionAlgorithm: ECDSA-P256
networking: {podSubnet: 10.244.0.0/16}
";

const UNIT: &str = "[Unit]
Description=Makes this machine a control plane
ConditionPathExists=!/etc/kubernetes/admin.conf
Wants=network-online.target
Requires=containerd.service windlass-images.service
After=network-online.target containerd.service windlass-images.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/windlass init --config /etc/kubeadm.yaml
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
";

/// The components that run as static Pods.
const STATIC: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Writes the boot server's files for the machine, which runs from memory and accepts one SSH key.
fn provision(rack: &Rack<'_>, key: &str) {
    let file = |path: &str, text: &str| json!({"path": path, "mode": 0o644, "overwrite": true, "contents": {"inline": text}});
    let config = json!({
        "variant": "fcos",
        "version": "1.5.0",
        "passwd": {"users": [{"name": "root", "ssh_authorized_keys": [key]}]},
        "storage": {"files": [file("/etc/hostname", NODE), file("/etc/kubeadm.yaml", CONFIGURATION)]},
        "systemd": {"units": [{"name": "plane.service", "enabled": true, "contents": UNIT}]},
    });
    provision_in_memory(rack, "plane", &config);
    rack.metal(&["check", "--data-path", &rack.path("store").display().to_string()]).ok();
}

/// Returns the properties of a unit, in the order of `properties`.
fn unit<const N: usize>(guest: &Guest<'_>, name: &str, properties: [&str; N]) -> [String; N] {
    let flags = properties.map(|property| format!("--property={property}")).join(" ");
    let output = guest.output(&format!("systemctl show {flags} {name}"));
    properties.map(|property| {
        let value = output.lines().find_map(|line| line.strip_prefix(&format!("{property}=")));
        value.unwrap_or_else(|| panic!("no {property} in {output}")).to_owned()
    })
}

/// Returns the pid and cgroup of the process in each static Pod's container.
fn processes(guest: &Guest<'_>) -> Vec<(String, String)> {
    STATIC
        .map(|name| {
            let script = format!("pid=$(pgrep -of ^{name}) && echo $pid && cat /proc/$pid/cgroup");
            let output = guest.output(&script);
            let (pid, group) = output.trim().split_once('\n').unwrap();
            (pid.to_owned(), group.to_owned())
        })
        .into()
}

#[test]
#[ignore = "takes many minutes: cargo xtask test --full"]
fn systemd_runs_a_control_plane() {
    let _turn = lock_machine();
    if !are_installed(BIOS) || !are_installed(&["/usr/bin/ssh"]) {
        return;
    }
    let machines = Machines::new("systemd");
    let mut rack = Rack::new(&machines);
    certificates(&rack);
    image(&rack, &[]);
    rack.serve(&["--dhcp-range", "192.0.2.100,192.0.2.100"]);
    let rack = rack;
    let guest = Guest::new(&rack, ADDRESS);
    provision(&rack, &guest.public_key());
    rack.wipe(1);
    let start = Instant::now();
    let _power = rack.power_on(MAC, BootMethod::Bios);

    until_within(BOOT_TIMEOUT, "windlass init on the machine", || {
        match guest.run("systemctl is-active plane.service").stdout.trim() {
            "active" => Ok(()),
            _ => Err(rack.diagnosis(MAC)),
        }
    });
    println!("power-on to the end of init: {:?}", start.elapsed());
    let network = guest.output("windlass network print");
    // An emulated machine may need longer than kubectl waits for the OpenAPI document.
    until("the Pod network", || guest.kubectl("apply -f -", &network).ok_if(|_| true));
    wait_until_ready(&guest, &rack);
    println!("power-on to Ready: {:?}", start.elapsed());

    kubelet_is_a_service(&guest);
    systemd_manages_pod_cgroups(&guest);
    systemd_restarts_the_kubelet(&guest, &rack);
    println!("power-on to the end: {:?}", start.elapsed());
}

fn wait_until_ready(guest: &Guest<'_>, rack: &Rack<'_>) {
    until_within(BOOT_TIMEOUT, "the node to be Ready", || {
        let ran =
            guest.kubectl(&format!("wait node/{NODE} --for=condition=Ready --timeout=30s"), "");
        match ran.code {
            Some(0) => Ok(()),
            _ => {
                let pods = guest.kubectl("get pods -A -o wide", "");
                Err(format!("{ran}\n{pods}\n{}", rack.diagnosis(MAC)))
            }
        }
    });
}

/// Asserts that the kubelet runs with the unit and drop-in of kubeadm's packages and the two files that `init` writes.
fn kubelet_is_a_service(guest: &Guest<'_>) {
    let properties = ["ActiveState", "SubState", "DropInPaths", "ControlGroup", "Restart"];
    let found = unit(guest, "kubelet.service", properties);
    println!("kubelet.service: {found:?}");
    let drop_in = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf";
    let wanted = ["active", "running", drop_in, "/system.slice/kubelet.service", "always"];
    assert_eq!(found, wanted);
    let line = guest.output("tr '\\0' ' ' </proc/$(systemctl show -P MainPID kubelet)/cmdline");
    println!("the kubelet's command line: {line}");
    for flag in [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
    ] {
        assert!(line.contains(flag), "{flag}: {line}");
    }
    let flags = guest.output("cat /var/lib/kubelet/kubeadm-flags.env");
    println!("{flags}");
    let kubeadm_flags =
        flags.trim().strip_prefix("KUBELET_KUBEADM_ARGS=\"").unwrap().trim_matches('"');
    assert!(line.contains(kubeadm_flags), "{kubeadm_flags}: {line}");
}

/// Asserts that systemd manages the Pods' cgroups, which are of version 2.
fn systemd_manages_pod_cgroups(guest: &Guest<'_>) {
    assert_eq!(guest.output("stat -fc %T /sys/fs/cgroup").trim(), "cgroup2fs");
    let config = guest.output("cat /var/lib/kubelet/config.yaml");
    for line in ["cgroupDriver: systemd", "resolvConf: /run/systemd/resolve/resolv.conf"] {
        assert!(config.lines().any(|found| found == line), "{line}: {config}");
    }
    for (name, (_, group)) in STATIC.iter().zip(processes(guest)) {
        println!("{name}: {group}");
        let below = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod";
        assert!(group.starts_with(below), "{name}: {group}");
        let scope = group.rsplit('/').next().unwrap();
        assert!(scope.starts_with("cri-containerd-") && scope.ends_with(".scope"), "{group}");
        assert_eq!(unit(guest, scope, ["ActiveState"]), ["active"], "{scope}");
    }
    assert_eq!(unit(guest, "kubepods.slice", ["ActiveState"]), ["active"]);
}

/// Kills the kubelet and asserts that systemd restarts it and that the Pods keep running.
fn systemd_restarts_the_kubelet(guest: &Guest<'_>, rack: &Rack<'_>) {
    let before = processes(guest);
    let [pid, restarts] = unit(guest, "kubelet.service", ["MainPID", "NRestarts"]);
    let renewed = || {
        guest
            .kubectl(
                &format!("get lease {NODE} -n kube-node-lease -o jsonpath={{.spec.renewTime}}"),
                "",
            )
            .ok()
    };
    guest.output(&format!("kill -9 {pid}; ! kill -0 {pid}"));
    let killed = Instant::now();
    let last = renewed();
    until_within(BOOT_TIMEOUT, "another kubelet", || {
        let found = unit(guest, "kubelet.service", ["MainPID", "NRestarts", "ActiveState"]);
        let count = |text: &str| text.parse::<u32>().unwrap();
        let is_another = found[0] != pid && found[0] != "0" && found[2] == "active";
        if is_another && count(&found[1]) > count(&restarts) {
            println!("kubelet {pid} was killed; {} runs after {:?}", found[0], killed.elapsed());
            return Ok(());
        }
        Err(format!("{found:?}"))
    });
    until_within(BOOT_TIMEOUT, "a renewed node lease", || {
        if renewed() > last { Ok(()) } else { Err(rack.diagnosis(MAC)) }
    });
    wait_until_ready(guest, rack);
    assert_eq!(processes(guest), before, "the Pods were restarted");
}
