//! `windlass nodeup` on a virtual machine with Debian and systemd: programs, units, users, packages, kernel parameters
//! and hooks of a control plane. No registry can be reached, so the control plane's Pods do not start.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use e2e::{BootMethod, Guest, Machines, Rack, lock_machine, until_within};
use pki::{Authority, KeyAlgorithm, Validity};
use serde_json::{Value, json};

use crate::metal::{
    BIOS, BOOT_TIMEOUT, MAC, SERVER, are_installed, certificates, image, provision_in_memory,
};

const ADDRESS: &str = "192.0.2.101";
const CLUSTER: &str = "demo.example.com";
const STORE: &str = "/var/lib/kops-store/demo.example.com";
const CONFIG: &str =
    "/var/lib/kops-store/demo.example.com/igconfig/control-plane/cp/nodeupconfig.yaml";
const CONF: &str = "/opt/kops/conf/kube_env.yaml";
const UNIT: &str = "kops-configuration.service";

/// The packages that nodeup installs and that the image lacks, with those that they depend on.
const PACKAGES: [&str; 12] = [
    "iptables",
    "libapparmor1",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libpopt0",
    "libxtables12",
    "logrotate",
    "netbase",
];

/// Makes the programs that the node configuration lists, and enters their hashes and its own. The node image has a
/// drop-in for kubeadm, which would replace the command of nodeup's unit.
const PREPARE: &str = "#!/bin/sh -e
rm -r /usr/lib/systemd/system/kubelet.service.d
mkdir -p /opt/assets/tree/bin
cp /usr/bin/containerd /usr/bin/containerd-shim-runc-v2 /usr/bin/ctr /opt/assets/tree/bin
tar -C /opt/assets/tree -cf /opt/assets/containerd.tar bin
ln -sf /usr/bin/windlass /opt/assets/kubelet
ln -sf /usr/sbin/runc /opt/assets/runc.amd64
printf '#!/bin/sh\\necho kubectl\\n' >/opt/assets/kubectl
for name in kubelet kubectl runc.amd64 containerd.tar; do
  sum=$(sha256sum /opt/assets/$name | cut -d' ' -f1)
  sed -i \"s|@$name@|$sum|\" $CONFIG
done
/opt/set-hash
exec /usr/bin/windlass nodeup --install-systemd-unit --conf=$CONF
";

/// Enters the hash of the node configuration into the boot configuration.
const SET_HASH: &str = "#!/bin/sh -e
hash=$(openssl dgst -sha256 -binary $CONFIG | base64)
sed -i \"s|\\\"NodeupConfigHash\\\":\\\"[^\\\"]*\\\"|\\\"NodeupConfigHash\\\":\\\"$hash\\\"|\" $CONF
";

const PREPARE_UNIT: &str = "[Unit]
Description=Prepares this machine for nodeup
ConditionPathExists=!/opt/assets/tree
Wants=network-online.target
After=network-online.target containerd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/opt/prepare
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
";

/// Returns the keysets of a control plane: name, ID of the key pair, certificate, and document in upstream's form.
fn keysets() -> Vec<(&'static str, String, Value)> {
    let encode = |text: &str| base64(text.as_bytes());
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(86_400 * 365));
    ["kubernetes-ca", "apiserver-aggregator-ca", "etcd-clients-ca", "service-account"]
        .map(|name| {
            let authority = Authority::create(name, KeyAlgorithm::EcdsaP256, validity).unwrap();
            let certificate = authority.cert().to_pem();
            let document = json!({
                "apiVersion": "kops.k8s.io/v1alpha2", "kind": "Keyset", "metadata": {"name": name},
                "spec": {"type": "Keypair", "primaryID": "7", "keys": [{
                    "id": "7", "publicMaterial": encode(&certificate),
                    "privateMaterial": encode(&authority.key().to_pem().unwrap()),
                }]},
            });
            (name, certificate, document)
        })
        .into()
}

/// Returns text in base64.
fn base64(bytes: &[u8]) -> String {
    let mut child = Command::new("base64");
    child.arg("--wrap=0").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

/// Returns the node configuration, in which the hashes of programs are entered later.
fn config(keysets: &[(&str, String, Value)]) -> Value {
    let (mut ids, mut trusted) = (json!({}), json!({}));
    for (name, certificate, _) in keysets {
        ids[*name] = "7".into();
        trusted[*name] = certificate.clone().into();
    }
    let asset = |name: &str| format!("@{name}@@file:///opt/assets/{name}");
    let image = |name: &str| format!("registry.k8s.io/{name}:v1.36.2");
    let assets = ["kubelet", "kubectl", "runc.amd64", "containerd.tar"].map(asset);
    json!({
        "ClusterName": CLUSTER, "KubernetesVersion": "1.36.2", "CAs": trusted, "KeypairIDs": ids,
        "Assets": {"amd64": assets},
        "Networking": {"nonMasqueradeCIDR": "100.64.0.0/10", "serviceClusterIPRange": "100.64.0.0/13"},
        "KubeletConfig": {
            "podManifestPath": "/etc/kubernetes/manifests", "clusterDNS": "100.64.0.10",
            "clusterDomain": "cluster.local", "kubeconfigPath": "/var/lib/kubelet/kubeconfig",
            "cgroupDriver": "systemd", "cgroupRoot": "/", "maxPods": 20,
            "evictionHard": "memory.available<100Mi", "failSwapOn": false, "logLevel": 2,
        },
        "APIServerConfig": {
            "ClusterDNSDomain": "cluster.local", "API": {"publicName": "api.demo.example.com"},
            "KubeAPIServer": {"image": image("kube-apiserver"), "securePort": 443},
            "ServiceAccountPublicKeys": "",
        },
        "ControlPlaneConfig": {
            "KubeControllerManager": {"image": image("kube-controller-manager")},
            "KubeScheduler": {"image": image("kube-scheduler")},
        },
        "KubeProxy": {"image": image("kube-proxy"), "cpuRequest": "100m"},
        "containerdConfig": {"version": "1.6.20", "logLevel": "info"},
        "Hooks": [null, [
            {"name": "greet", "manifest": "Type=oneshot\nExecStart=/bin/sh -c 'date >>/run/greeted'\n"},
            {"name": "systemd-timesyncd", "enabled": false},
        ]],
        "FileAssets": [{"name": "note", "content": "hello", "mode": "0400"}],
        "SysctlParameters": ["kernel.printk_ratelimit = 7"],
        "UpdatePolicy": "external", "NTPUnmanaged": true, "usesNoneDNS": true, "usesLegacyGossip": false,
    })
}

/// Downloads the packages and their index to the boot server.
fn packages(rack: &Rack<'_>) -> Vec<String> {
    let directory = rack.path("store/assets/debs");
    fs::create_dir_all(&directory).unwrap();
    let run = |script: &str| {
        let output =
            Command::new("sh").args(["-ec", script]).current_dir(&directory).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&format!("apt-get download {}", PACKAGES.join(" ")));
    run(
        "for deb in *.deb; do dpkg-deb -f $deb; echo Filename: ./$deb; echo Size: $(stat -c %s $deb); \
         echo SHA256: $(sha256sum $deb | cut -d' ' -f1); echo; done >Packages",
    );
    let listed = fs::read_dir(&directory).unwrap();
    listed.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Writes the boot server's files for the machine, which runs from memory and accepts one SSH key.
fn provision(rack: &Rack<'_>, key: &str) {
    let file = |path: &str, mode: u32, text: &str| json!({"path": path, "mode": mode, "overwrite": true, "contents": {"inline": text}});
    let script = |text: &str| text.replace("$CONFIG", CONFIG).replace("$CONF", CONF);
    let keysets = keysets();
    let boot = json!({
        "CloudProvider": "metal", "ClusterName": CLUSTER, "InstanceGroupName": "cp",
        "InstanceGroupRole": "ControlPlane", "ConfigBase": format!("file://{STORE}"), "NodeupConfigHash": "",
    });
    let mut files = vec![
        file("/etc/hostname", 0o644, "cp-1"),
        file(CONF, 0o600, &boot.to_string()),
        file(CONFIG, 0o600, &config(&keysets).to_string()),
        file("/opt/prepare", 0o755, &script(PREPARE)),
        file("/opt/set-hash", 0o755, &script(SET_HASH)),
        file("/etc/apt/sources.list", 0o644, "deb [trusted=yes] file:///opt/debs ./\n"),
    ];
    for (name, _, document) in &keysets {
        let path = format!("{STORE}/pki/private/{name}/keyset.yaml");
        files.push(file(&path, 0o600, &document.to_string()));
    }
    for name in packages(rack) {
        let source = format!("{SERVER}/assets/debs/{name}");
        files.push(json!({"path": format!("/opt/debs/{name}"), "mode": 0o644, "contents": {"source": source}}));
    }
    let config = json!({
        "variant": "fcos",
        "version": "1.5.0",
        "passwd": {"users": [{"name": "root", "ssh_authorized_keys": [key]}]},
        "storage": {"files": files},
        "systemd": {"units": [{"name": "prepare.service", "enabled": true, "contents": PREPARE_UNIT}]},
    });
    provision_in_memory(rack, "node", &config);
}

/// Returns one property of a unit.
fn property(guest: &Guest<'_>, unit: &str, name: &str) -> String {
    guest.output(&format!("systemctl show --value --property={name} {unit}")).trim().to_owned()
}

/// Returns the process of a service and the time of its start.
fn start(guest: &Guest<'_>, unit: &str) -> (String, String) {
    (property(guest, unit, "MainPID"), property(guest, unit, "ExecMainStartTimestamp"))
}

#[test]
#[ignore = "takes many minutes: cargo xtask test --full"]
fn configures_a_machine_with_systemd() {
    let _turn = lock_machine();
    let needed = ["/usr/bin/ssh", "/usr/bin/apt-get", "/usr/bin/dpkg-deb"];
    if !are_installed(BIOS) || !are_installed(&needed) {
        return;
    }
    let machines = Machines::new("nodeup");
    let mut rack = Rack::new(&machines);
    certificates(&rack);
    image(&rack, &[]);
    rack.serve(&["--dhcp-range", &format!("{ADDRESS},{ADDRESS}")]);
    let rack = rack;
    let guest = Guest::new(&rack, ADDRESS);
    provision(&rack, &guest.public_key());
    rack.wipe(1);
    let begin = Instant::now();
    let _power = rack.power_on(MAC, BootMethod::Bios);

    until_within(BOOT_TIMEOUT, "nodeup on the machine", || {
        let script = format!(
            "systemctl show --property=Result,ExecMainStatus,ExecMainExitTimestamp {UNIT}; journalctl -u {UNIT} -n 5"
        );
        let ran = guest.run(&script).stdout;
        let has_ended = ran.contains("Result=success")
            && !ran.contains("ExecMainExitTimestamp=\n")
            && ran.contains("is configured");
        if has_ended { Ok(()) } else { Err(format!("{ran}\n{}", rack.diagnosis(MAC))) }
    });
    println!("power-on to the end of nodeup: {:?}", begin.elapsed());
    services_run(&guest);
    settings_act(&guest);
    second_run_changes_nothing(&guest);
    change_restarts_only_the_kubelet(&guest);
    println!("power-on to the end: {:?}", begin.elapsed());
}

fn services_run(guest: &Guest<'_>) {
    for (unit, path) in [
        ("kubelet.service", "/usr/lib/systemd/system/kubelet.service"),
        ("containerd.service", "/usr/lib/systemd/system/containerd.service"),
    ] {
        until_within(BOOT_TIMEOUT, unit, || {
            let state = property(guest, unit, "SubState");
            if state == "running" {
                Ok(())
            } else {
                Err(guest.run(&format!("systemctl status {unit}")).to_string())
            }
        });
        let found = property(guest, unit, "FragmentPath");
        assert!(found == path || format!("/usr{found}") == path, "{unit}: {found}");
        assert_eq!(property(guest, unit, "UnitFileState"), "enabled", "{unit}");
    }
    let line = guest.output("tr '\\0' ' ' </proc/$(systemctl show -P MainPID kubelet)/cmdline");
    println!("the kubelet's command line: {line}");
    assert!(
        line.starts_with("/usr/local/bin/kubelet ")
            && line.contains("--config=/var/lib/kubelet/kubelet.conf"),
        "{line}"
    );
    guest.output("ctr version");
    assert_eq!(property(guest, "systemd-timesyncd.service", "ActiveState"), "inactive");
    assert_eq!(property(guest, "systemd-timesyncd.service", "UnitFileState"), "disabled");
}

fn settings_act(guest: &Guest<'_>) {
    for (parameter, value) in [
        ("vm.max_map_count", "1048576"),
        ("kernel.printk_ratelimit", "7"),
        ("net.ipv4.ip_forward", "1"),
    ] {
        assert_eq!(guest.output(&format!("sysctl -n {parameter}")).trim(), value, "{parameter}");
    }
    assert!(guest.output("getent passwd kops-controller").starts_with("kops-controller:x:10011:"));
    let key = "/etc/kubernetes/kops-controller/kops-controller.key";
    assert_eq!(guest.output(&format!("stat -c '%U %a' {key}")).trim(), "kops-controller 600");
    assert_eq!(guest.output("stat -c %a /srv/kubernetes/assets/note").trim(), "400");
    assert_eq!(guest.output("cat /srv/kubernetes/assets/note"), "hello");
    for package in ["logrotate", "iptables"] {
        let state = guest.output(&format!("dpkg-query -W -f '${{db:Status-Abbrev}}' {package}"));
        assert_eq!(state.trim(), "ii", "{package}");
    }
    assert_eq!(guest.output("wc -l </run/greeted").trim(), "1");
    assert!(guest.output("getent hosts api.internal.demo.example.com").starts_with("127.0.0.1"));
    let verified =
        "openssl verify -CAfile /srv/kubernetes/ca.crt /srv/kubernetes/kube-apiserver/server.crt";
    assert!(guest.output(verified).contains("OK"));
}

/// The directories that nodeup writes to.
const WRITTEN: &str = "/etc /srv /opt/kops/bin /usr/lib/systemd /usr/local /var/lib/kubelet/kubelet.conf /var/lib/nodeup";

fn second_run_changes_nothing(guest: &Guest<'_>) {
    let units = ["kubelet.service", "containerd.service"];
    let before = units.map(|unit| start(guest, unit));
    guest.output("touch /run/stamp && sleep 1");
    let ran = guest.output(&format!("windlass nodeup --conf={CONF} 2>&1"));
    println!("{ran}");
    assert!(ran.contains("changes=0"), "{ran}");
    let changed = guest.output(&format!("find {WRITTEN} -type f -newer /run/stamp"));
    assert_eq!(changed, "", "{changed}");
    assert_eq!(units.map(|unit| start(guest, unit)), before);
    assert_eq!(guest.output("wc -l </run/greeted").trim(), "1");
}

fn change_restarts_only_the_kubelet(guest: &Guest<'_>) {
    let [kubelet, containerd] =
        ["kubelet.service", "containerd.service"].map(|unit| start(guest, unit));
    guest.output(&format!("sed -i 's|\"maxPods\":20|\"maxPods\":30|' {CONFIG} && /opt/set-hash"));
    let ran = guest.output(&format!("windlass nodeup --conf={CONF} 2>&1"));
    println!("{ran}");
    assert!(
        ran.contains("restart --no-block kubelet.service") && ran.contains("changes=2"),
        "{ran}"
    );
    until_within(BOOT_TIMEOUT, "another kubelet", || {
        let now = start(guest, "kubelet.service");
        if now != kubelet && now.0 != "0" { Ok(()) } else { Err(format!("{now:?}")) }
    });
    assert_eq!(start(guest, "containerd.service"), containerd);
    assert!(guest.output("cat /var/lib/kubelet/kubelet.conf").contains("maxPods: 30"));
}
