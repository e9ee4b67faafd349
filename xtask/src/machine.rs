//! The requirements of a Debian machine, installed from Debian's packages.

use std::path::Path;

use crate::{
    error::{Result, fail},
    file::{read, write},
    run::{on_path, output, pass, program},
};

/// A program and the package that contains it.
type Requirement = (&'static str, &'static str);

/// The programs that a cluster needs.
const TO_RUN: &[Requirement] = &[
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("mkfs.ext4", "e2fsprogs"),
];

/// The additional programs for tests: another store, another firewall, the application of the test images.
const TO_TEST: &[Requirement] = &[
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("busybox", "busybox-static"),
    ("etcd", "etcd-server"),
    ("nsenter", "util-linux"),
    ("sysctl", "procps"),
    // It kills a program at a chosen system call.
    ("strace", "strace"),
    // The programs for machines that boot from the network, and for their clients.
    ("curl", "curl"),
    ("dhclient", "isc-dhcp-client"),
    ("dig", "bind9-dnsutils"),
    // A DNS server that accepts signed updates.
    ("named", "bind9"),
    ("ipmi_sim", "openipmi"),
    ("ipmitool", "ipmitool"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("tftp", "tftp-hpa"),
    // The programs that unlock a machine's encrypted volumes.
    ("clevis-luks-bind", "clevis-luks"),
    ("/usr/libexec/tangd", "tang"),
    // A simulated TPM, with which a machine proves its identity.
    ("swtpm", "swtpm"),
    ("tpm2", "tpm2-tools"),
    // The bus on which a kubelet's tests call logind.
    ("dbus-daemon", "dbus-daemon"),
    // Workloads that Debian packages.
    ("/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
    ("prometheus", "prometheus"),
    // An OpenID Connect provider and its database.
    ("glewlwyd", "glewlwyd"),
    ("sqlite3", "sqlite3"),
    // A log collector.
    ("syslog-ng", "syslog-ng-core"),
    // An independent Kubernetes client.
    ("/usr/lib/python3/dist-packages/kubernetes/__init__.py", "python3-kubernetes"),
];

/// The additional programs for long tests: firmware and boot loaders, a second DHCP server, a browser, another
/// network's plugins, packages for the node image, an SSH client, a gRPC client.
const TO_TEST_FULLY: &[Requirement] = &[
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"),
    ("/usr/lib/ipxe/ipxe.efi", "ipxe"),
    ("dnsmasq", "dnsmasq-base"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("mmdebstrap", "mmdebstrap"),
    ("socat", "socat"),
    ("ssh", "openssh-client"),
    ("/usr/lib/python3/dist-packages/grpc_tools/protoc.py", "python3-grpc-tools"),
];

/// The C compiler, which builds the cryptography and the allocator, and links.
const TO_BUILD: &[Requirement] = &[("cc", "gcc"), ("cc", "libc6-dev")];

pub(crate) fn install_to_run() -> Result<()> {
    install(&[TO_BUILD, TO_RUN].concat())
}

pub(crate) fn install_to_test(full: bool) -> Result<()> {
    let fully = if full { TO_TEST_FULLY } else { &[] };
    install(&[TO_BUILD, TO_RUN, TO_TEST, fully].concat())
}

pub(crate) fn install_to_bench() -> Result<()> {
    let peers = &[("h2load", "nghttp2-client"), ("dnsmasq", "dnsmasq-base")];
    install(&[TO_BUILD, TO_RUN, TO_TEST, peers].concat())
}

/// Installs the packages of the missing programs. A complete machine is not changed.
pub(crate) fn install(needed: &[Requirement]) -> Result<()> {
    let missing: Vec<&str> =
        needed.iter().filter(|(name, _)| !on_path(name)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let cure = format!("install by hand what provides {}", missing.join(", "));
    if !on_path("apt-get") {
        return fail(format!("this machine lacks packages and has no apt-get; {cure}"));
    }
    if output(&mut program("id", ["-u"]))?.trim() != "0" {
        return fail(format!(
            "installing {} needs root; run this with sudo, or {cure}",
            missing.join(" ")
        ));
    }
    eprintln!("    installing {}", missing.join(" "));
    let mut update = program("apt-get", ["update", "-q"]);
    pass(quiet(&mut update))?;
    let mut arguments = vec!["install", "-y", "-q", "--no-install-recommends"];
    arguments.extend(missing);
    pass(quiet(&mut program("apt-get", arguments)))
}

/// Makes apt ask no questions, and hides its output from that of the calling command.
fn quiet(command: &mut std::process::Command) -> &mut std::process::Command {
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
}

/// Enables packet forwarding, without which Pods reach no other networks.
pub(crate) fn forward_packets() -> Result<()> {
    let path = Path::new("/proc/sys/net/ipv4/ip_forward");
    if read(path)?.trim() == "1" {
        return Ok(());
    }
    eprintln!("    turning on net.ipv4.ip_forward");
    write(path, "1")
}
