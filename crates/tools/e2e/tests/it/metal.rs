//! Network boot, from power-on to a Ready node, of virtual machines with empty disks.

use std::{
    fs,
    net::IpAddr,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use e2e::{
    BootMethod, Host, Machines, Rack, TangServer, configuration, is_etcd_installed, lock_machine,
    until, until_within,
};
use pki::{AltName, Authority, KeyAlgorithm, LeafSpec, Subject, Usage, Validity};
use serde_json::{Value, json};

/// The URL of the boot server.
pub(crate) const SERVER: &str = "https://192.0.2.254:8443";
pub(crate) const MAC: &str = "52:54:00:a1:9c:ae";
const NODE: &str = "rack-525400a19cae";
/// The limit of a boot from power-on to Ready, with two passes through the firmware and without acceleration.
pub(crate) const BOOT_TIMEOUT: Duration = Duration::from_secs(1500);
/// The budget from power-on to the first request of iPXE with BIOS.
const BUDGET: Duration = Duration::from_secs(8);
/// The files that tests with BIOS need.
pub(crate) const BIOS: &[&str] = &["/usr/bin/qemu-system-x86_64", "/usr/bin/mmdebstrap"];
/// The files that tests with UEFI need.
const UEFI: &[&str] = &[
    "/usr/bin/qemu-system-x86_64",
    "/usr/bin/mmdebstrap",
    "/usr/lib/ipxe/snponly.efi",
    "/usr/share/OVMF/OVMF_CODE_4M.fd",
];
const RANGE: &[&str] = &["--dhcp-range", "192.0.2.100,192.0.2.120"];

const SITE: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: site}
spec:
  selector: {matchLabels: {app: site}}
  template:
    metadata: {labels: {app: site}}
    spec:
      nodeSelector: {kubernetes.io/hostname: rack-525400a19cae}
      containers: [{name: site, image: 'site:1', imagePullPolicy: Never, ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Service
metadata: {name: site}
spec:
  selector: {app: site}
  ports: [{port: 80, targetPort: 8080}]
";

/// Creates a cluster with one control plane on the rack's network.
fn cluster<'a>(machines: &'a Machines) -> Host<'a> {
    let first = machines.start("alpha", 1);
    let file = first.write("kubeadm.yaml", &configuration("controlPlaneEndpoint: 192.0.2.1:6443"));
    first.windlass(&format!("init --config {file}")).ok();
    first.windlass("images build windlass").ok();
    let network = first.windlass("network print").ok();
    first.kubectl_with(&["apply", "-f", "-"], &network).ok();
    first.write("admin.conf", &first.run("cat", &["/etc/kubernetes/admin.conf"]).ok());
    first
}

/// Writes a certificate for the server and its CA, because the server requires TLS for secrets.
pub(crate) fn certificates(rack: &Rack<'_>) {
    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(86_400));
    let authority = Authority::create("boot", KeyAlgorithm::EcdsaP256, validity).unwrap();
    let address: IpAddr = [192, 0, 2, 254].into();
    let spec = LeafSpec {
        subject: Subject::new("boot"),
        alt_names: vec![AltName::Ip(address)],
        usage: Usage::Server,
    };
    let (cert, key) = authority.issue_new(&spec, KeyAlgorithm::EcdsaP256, validity).unwrap();
    pki::write_cert(&rack.path("ca.crt"), authority.cert()).unwrap();
    pki::write_cert(&rack.path("server.crt"), &cert).unwrap();
    pki::write_key(&rack.path("server.key"), &key).unwrap();
}

/// Builds the node image with these application images. `WINDLASS_TREE` can name an installed root to save time.
pub(crate) fn image(rack: &Rack<'_>, applications: &[&Path]) {
    let name = |path: &Path| path.display().to_string();
    let (ca, output) = (name(&rack.path("ca.crt")), name(&rack.path("store/assets")));
    let applications: Vec<String> = applications.iter().map(|path| name(path)).collect();
    let mut args = vec!["image", "--ca", &ca, "--output", &output];
    args.extend(applications.iter().flat_map(|archive| ["--image", archive]));
    let tree = std::env::var("WINDLASS_TREE").ok();
    args.extend(tree.iter().flat_map(|tree| ["--tree", tree]));
    let start = Instant::now();
    rack.metal_outside(&args).ok();
    println!("built the image in {:?}", start.elapsed());
}

/// Writes the boot server's files for the machine, which runs from memory with this Butane config. `name` is that of
/// its profile, group and config.
pub(crate) fn provision_in_memory(rack: &Rack<'_>, name: &str, config: &Value) {
    let own = "uuid=${uuid}&mac=${mac:hexhyp}&nonce={{.request.nonce}}";
    let args = [
        "initrd=initrd.img".to_owned(),
        "initrd=rootfs.img".to_owned(),
        "ignition.firstboot".to_owned(),
        "ignition.platform.id=metal".to_owned(),
        format!("ignition.config.url={SERVER}/ignition?{own}"),
        format!("windlass.report={SERVER}/report?{own}"),
        "console=ttyS0".to_owned(),
        "quiet".to_owned(),
    ];
    let initrd = ["/assets/initrd.img", "/assets/rootfs.img"];
    let boot = json!({"kernel": "/assets/vmlinuz", "initrd": initrd, "args": args});
    let ignition = format!("{name}.yaml");
    let profile = json!({"id": name, "ignition_id": ignition, "boot": boot});
    let group = json!({"id": name, "profile": name, "selector": {"mac": MAC}});
    let store = rack.path("store");
    for directory in ["profiles", "groups", "ignition"] {
        fs::create_dir_all(store.join(directory)).unwrap();
    }
    fs::write(store.join(format!("profiles/{name}.json")), profile.to_string()).unwrap();
    fs::write(store.join(format!("groups/{name}.json")), group.to_string()).unwrap();
    // Butane's configs are YAML, which includes JSON.
    fs::write(store.join("ignition").join(ignition), config.to_string()).unwrap();
}

fn enroll(rack: &Rack<'_>) {
    let name = |path: &str| rack.path(path).display().to_string();
    let (kubeconfig, store) = (name("admin.conf"), name("store"));
    let usual = ["enroll", "rack", "--mac", MAC, "--profile", "node", "--image", "/assets"];
    let more = ["--boot-server", SERVER, "--install", "/dev/vda"];
    let rest = ["--install-once", "--arg", "console=ttyS0", "--arg", "quiet"];
    let place = ["--kubeconfig", &kubeconfig, "--data-path", &store];
    rack.metal(&[&usual[..], &more, &rest, &place].concat()).ok();
    rack.metal(&["check", "--data-path", &store]).ok();
}

/// Waits until a boot stage has succeeded after `since`, in milliseconds since the epoch.
fn wait_for_stage(rack: &Rack<'_>, since: u64, stage: &str) {
    until_within(BOOT_TIMEOUT, stage, || {
        let machine = rack.record(MAC)?;
        let there = |entry: &Value| {
            entry["stage"] == stage
                && entry["outcome"] == "succeeded"
                && entry["at"].as_u64() > Some(since)
        };
        if entries(&machine).iter().any(there) { Ok(()) } else { Err(rack.diagnosis(MAC)) }
    });
}

fn entries(machine: &Value) -> Vec<Value> {
    machine["timeline"].as_array().cloned().unwrap_or_default()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// Prints the time of each stage after power-on.
fn print_stages(rack: &Rack<'_>, what: &str, since: u64) {
    println!("{what}:");
    for entry in entries(&rack.record(MAC).unwrap()) {
        let after = entry["at"].as_u64().unwrap_or_default().saturating_sub(since) as f64 / 1000.0;
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        println!("  {after:8.1} s  {} {} {}", text("stage"), text("outcome"), text("detail"));
    }
}

/// Boots and installs a machine, which reboots from its disk, and waits until the node is Ready.
fn boot_and_install(rack: &Rack<'_>, first: &Host<'_>, boots: BootMethod) -> e2e::RunningMachine {
    let start = now();
    let power = rack.power_on(MAC, boots);
    wait_for_stage(rack, start, "ipxe");
    let timeline = entries(&rack.record(MAC).unwrap());
    let request = timeline.iter().find(|entry| entry["stage"] == "ipxe").unwrap();
    let took = Duration::from_millis(request["at"].as_u64().unwrap() - start);
    let verdict = if took < BUDGET { "within" } else { "over" };
    println!(
        "{boots:?}: power-on to the first request: {took:?}, {verdict} the budget of {BUDGET:?}"
    );
    wait_for_stage(rack, start, "installed");
    print_stages(rack, "from power-on to installed", start);
    wait_for_stage(rack, start, "ready");
    print_stages(rack, "from power-on to Ready", start);
    first.kubectl(&format!("wait node/{NODE} --for=condition=Ready --timeout=60s")).ok();
    power
}

/// Waits until the Pod on the node answers the control plane's machine through its Service.
fn wait_for_answer(first: &Host<'_>) {
    let address = first.kubectl("get service site -o jsonpath={.spec.clusterIP}").ok();
    until_within(BOOT_TIMEOUT, "an answer of the Pod through its Service", || {
        let ran = first.run("curl", &["-sS", "--max-time", "5", &format!("http://{address}/")]);
        if ran.stdout.contains("here is site") {
            Ok(())
        } else {
            Err(format!("{ran}\n{}", first.kubectl("describe pods")))
        }
    });
}

pub(crate) fn are_installed(files: &[&str]) -> bool {
    let there = files.iter().all(|file| Path::new(file).exists());
    if !there {
        eprintln!(
            "skipped: {files:?} are not all installed; `cargo xtask test --full` installs them"
        );
    }
    there && is_etcd_installed()
}

#[test]
#[ignore = "takes many minutes: cargo xtask test --full"]
fn installs_and_reinstalls_a_node_by_bios() {
    let _turn = lock_machine();
    if !are_installed(BIOS) {
        return;
    }
    let machines = Machines::new("metal");
    let (first, mut rack) = prepare(&machines);
    rack.serve(RANGE);

    rack.wipe(8);
    let power = boot_and_install(&rack, &first, BootMethod::Bios);
    first.kubectl_with(&["apply", "-f", "-"], SITE).ok();
    wait_for_answer(&first);
    drop(power);

    // With a new disk the machine is reinstalled as the same Node, with the same Pods.
    let field = |path: &str| first.kubectl(&format!("get node {NODE} -o jsonpath={{{path}}}")).ok();
    let before = (field(".metadata.uid"), field(".status.nodeInfo.bootID"));
    rack.wipe(8);
    reinstall(&rack);
    let power = boot_and_install(&rack, &first, BootMethod::Bios);
    wait_for_answer(&first);
    let after = (field(".metadata.uid"), field(".status.nodeInfo.bootID"));
    assert!(before.0 == after.0 && before.1 != after.1, "{before:?} {after:?}");
    drop(power);

    fail_with_broken_config(&rack);
}

/// Creates a cluster and enrolls a machine on the rack.
fn prepare<'a>(machines: &'a Machines) -> (Host<'a>, Rack<'a>) {
    let rack = Rack::new(machines);
    let first = cluster(machines);
    certificates(&rack);
    let site = rack.path("site.tar");
    first.build_site(&site);
    image(&rack, &[&site]);
    enroll(&rack);
    (first, rack)
}

/// Appends to the storage section of the machines' Ignition template.
fn configure(rack: &Rack<'_>, more: &str) {
    let template = rack.path("store/ignition/windlass-rack.yaml");
    let text = fs::read_to_string(&template).unwrap();
    fs::write(&template, text + more).unwrap();
}

const ENCRYPTED_ARRAY: &str = r#"
  disks:
    - device: /dev/vda
      partitions:
        - {number: 2, label: windlass-root, size_mib: 5120}
        - {number: 3, label: data-a, size_mib: 256}
        - {number: 4, label: data-b, size_mib: 256}
  raid:
    - {name: data, level: raid1, devices: [/dev/disk/by-partlabel/data-a, /dev/disk/by-partlabel/data-b]}
  luks:
    - name: data
      device: /dev/md/data
      wipe_volume: true
      key_file: {inline: sesame}
      options: [--pbkdf, pbkdf2, --pbkdf-force-iterations, "1000"]
  filesystems:
    - {device: /dev/mapper/data, format: ext4, path: /var/lib/data, wipe_filesystem: true, with_mount_unit: true}
"#;

const LOOK: &str = "
apiVersion: v1
kind: Pod
metadata: {name: look}
spec:
  nodeName: rack-525400a19cae
  restartPolicy: Never
  volumes: [{name: data, hostPath: {path: /var/lib/data, type: Directory}}]
  containers:
  - name: look
    image: site:1
    imagePullPolicy: Never
    command: [/bin/sh, -c, 'cat /proc/mounts /proc/mdstat']
    volumeMounts: [{name: data, mountPath: /data}]
";

#[test]
#[ignore = "takes many minutes: cargo xtask test --full"]
fn installs_a_node_with_an_encrypted_array_by_uefi() {
    let _turn = lock_machine();
    if !are_installed(UEFI) {
        return;
    }
    let machines = Machines::new("uefi");
    let (first, mut rack) = prepare(&machines);
    configure(&rack, ENCRYPTED_ARRAY);
    rack.serve(RANGE);
    rack.wipe(8);
    let _power = boot_and_install(&rack, &first, BootMethod::Uefi);
    first.kubectl_with(&["apply", "-f", "-"], LOOK).ok();
    until_within(BOOT_TIMEOUT, "the mounts in the Pod's log", || {
        let seen = first.kubectl("logs look");
        let there =
            seen.stdout.contains("/dev/mapper/data /data ext4") && seen.stdout.contains("raid1");
        if there { Ok(()) } else { Err(format!("{seen}\n{}", first.kubectl("describe pod look"))) }
    });
}

/// Returns Butane's `boot_device`: a mirror of two disks whose encrypted root needs the TPM and the Tang server.
fn boot_device(tang: &TangServer) -> String {
    let TangServer { url, thumbprint } = tang;
    format!(
        "boot_device:\n  mirror: {{devices: [/dev/vda, /dev/vdb]}}\n  luks:\n    tpm2: true\n    threshold: 2\n    \
         tang: [{{url: '{url}', thumbprint: {thumbprint}}}]\n"
    )
}

#[test]
#[ignore = "takes many minutes: cargo xtask test --full"]
fn node_with_encrypted_mirror_survives_the_loss_of_a_disk() {
    let _turn = lock_machine();
    let more = ["/usr/bin/swtpm", "/usr/bin/socat", "/usr/libexec/tangd"];
    if !are_installed(&[BIOS, &more].concat()) {
        return;
    }
    let machines = Machines::new("mirror");
    let (first, mut rack) = prepare(&machines);
    let tang = rack.tang();
    configure(&rack, &boot_device(&tang));
    rack.serve(RANGE);
    rack.wipe(8);
    rack.second_disk(8);
    rack.tpm();
    drop(boot_and_install(&rack, &first, BootMethod::Bios));

    // Without the first disk the machine boots from the second one, and its half of the mirror opens.
    rack.wipe(8);
    boot_from_disk(&rack, &first, BootMethod::Bios);
}

/// Boots an installed machine and asserts that the node is Ready again without another installation.
fn boot_from_disk(rack: &Rack<'_>, first: &Host<'_>, boots: BootMethod) {
    let boot =
        || first.kubectl(&format!("get node {NODE} -o jsonpath={{.status.nodeInfo.bootID}}")).ok();
    let (before, start) = (boot(), now());
    let _power = rack.power_on(MAC, boots);
    until_within(BOOT_TIMEOUT, "a new boot id after a boot from the remaining disk", || {
        if boot() == before { Err(rack.diagnosis(MAC)) } else { Ok(()) }
    });
    first.kubectl(&format!("wait node/{NODE} --for=condition=Ready --timeout=300s")).ok();
    print_stages(rack, &format!("{boots:?}: from power-on to Ready, from the disk"), start);
    let entries = entries(&rack.record(MAC).unwrap());
    let since = entries.iter().filter(|entry| entry["at"].as_u64() > Some(start));
    let stages: Vec<&str> = since.filter_map(|entry| entry["stage"].as_str()).collect();
    assert!(stages.contains(&"local-disk") && !stages.contains(&"kernel"), "{stages:?}");
}

#[test]
#[ignore = "takes many minutes: cargo xtask test --full"]
fn installs_a_node_by_uefi_http_boot() {
    let _turn = lock_machine();
    if !are_installed(UEFI) {
        return;
    }
    let machines = Machines::new("http");
    let (first, mut rack) = prepare(&machines);
    rack.serve(RANGE);
    rack.wipe(8);
    let _power = boot_and_install(&rack, &first, BootMethod::UefiHttp);
    let fetched = entries(&rack.record(MAC).unwrap());
    assert!(fetched.iter().any(|entry| entry["detail"] == "UEFI HTTP x64"), "{fetched:?}");
}

#[test]
#[ignore = "takes many minutes: cargo xtask test --full"]
fn installs_a_node_with_another_dhcp_server() {
    let _turn = lock_machine();
    if !are_installed(BIOS) || !are_installed(&["/usr/sbin/dnsmasq"]) {
        return;
    }
    let machines = Machines::new("proxy");
    let (first, mut rack) = prepare(&machines);
    // The other server leases addresses, without boot options.
    let other = "--keep-in-foreground --conf-file=/dev/null --port=0 --user=root --pid-file= \
                 --dhcp-range=192.0.2.100,192.0.2.120 --dhcp-leasefile=/run/other.leases";
    let words: Vec<&str> = other.split_whitespace().collect();
    let mut other = first.command("dnsmasq", &words).spawn().unwrap();
    rack.serve(&["--dhcp-proxy"]);
    rack.wipe(8);
    let power = boot_and_install(&rack, &first, BootMethod::Bios);
    drop(power);
    let _ = (other.kill(), other.wait());
}

/// Requests a reinstallation of the machine.
fn reinstall(rack: &Rack<'_>) {
    let file = rack.path("machines").display().to_string();
    rack.metal(&["reinstall", MAC, "--machines-file", &file]).ok();
}

/// Boots with a config that fails, and asserts that console, page and `metal status` show the cause.
fn fail_with_broken_config(rack: &Rack<'_>) {
    configure(
        rack,
        "    - path: /etc/absent\n      contents: {source: \"http://192.0.2.254:8080/assets/absent\"}\n",
    );
    rack.wipe(8);
    reinstall(rack);
    let _power = rack.power_on(MAC, BootMethod::Bios);
    let why = |text: &str| text.contains("assets/absent") && text.contains("404");
    let file = rack.path("machines").display().to_string();
    until_within(BOOT_TIMEOUT, "the cause in metal status", || {
        let output = rack.metal(&["status", MAC, "--machines-file", &file]);
        if why(&output.stdout) { Ok(()) } else { Err(rack.diagnosis(MAC)) }
    });
    until("the cause on the console", || {
        let console = fs::read(rack.path("console.log")).unwrap();
        let console = String::from_utf8_lossy(&console).into_owned();
        let stopped = console.contains("The boot has stopped") && why(&console);
        if stopped { Ok(()) } else { Err(console) }
    });
    let page = rack.page(MAC);
    assert!(why(&page), "{page}");
}
