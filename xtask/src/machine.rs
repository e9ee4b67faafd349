//! What a Debian machine needs, from Debian's own packages.

use crate::run::{on_path, output, pass, program};

/// A program, and the package that brings it.
type Needed = (&'static str, &'static str);

/// What a cluster runs on.
const TO_RUN: &[Needed] =
    &[("containerd", "containerd"), ("runc", "runc"), ("nft", "nftables"), ("ip", "iproute2")];

/// What the tests use besides: a peer's store, a peer's firewall, the application in the test images.
const TO_TEST: &[Needed] = &[
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("busybox", "busybox-static"),
    ("etcd", "etcd-server"),
    ("nsenter", "util-linux"),
    ("sysctl", "procps"),
];

/// The C compiler builds the cryptography and the allocator, and links.
const TO_BUILD: &[Needed] = &[("cc", "gcc"), ("cc", "libc6-dev")];

pub(crate) fn install_to_run() -> Result<(), String> {
    install(&[TO_BUILD, TO_RUN].concat())
}

pub(crate) fn install_to_test() -> Result<(), String> {
    install(&[TO_BUILD, TO_RUN, TO_TEST].concat())
}

pub(crate) fn install_to_bench() -> Result<(), String> {
    install(
        &[TO_BUILD, TO_RUN, TO_TEST, &[("h2load", "nghttp2-client"), ("curl", "curl")]].concat(),
    )
}

/// Installs the packages of those programs that are not there; a machine that has all is left alone.
pub(crate) fn install(needed: &[Needed]) -> Result<(), String> {
    let missing: Vec<&str> =
        needed.iter().filter(|(name, _)| !on_path(name)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let cure = format!("install by hand what provides {}", missing.join(", "));
    if !on_path("apt-get") {
        return Err(format!("this machine lacks packages and has no apt-get; {cure}"));
    }
    if output(&mut program("id", ["-u"]))?.trim() != "0" {
        return Err(format!(
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

/// apt asks no questions, and its chatter is not the result of the command that calls it.
fn quiet(command: &mut std::process::Command) -> &mut std::process::Command {
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
}

/// Pods reach other networks only where the kernel forwards packets.
pub(crate) fn forward_packets() -> Result<(), String> {
    let path = "/proc/sys/net/ipv4/ip_forward";
    let current = std::fs::read_to_string(path).map_err(|e| format!("reading {path}: {e}"))?;
    if current.trim() == "1" {
        return Ok(());
    }
    eprintln!("    turning on net.ipv4.ip_forward");
    std::fs::write(path, "1").map_err(|e| format!("writing {path}: {e}"))
}
