//! A machine with an empty disk, by QEMU without acceleration.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::world::{SERVER, World, eventually, inside, run, try_run};

/// How long from power-on to the first request may take.
const BUDGET: Duration = Duration::from_secs(8);

#[test]
#[ignore = "boots a machine: needs root, qemu-system-x86_64 and its iPXE ROM"]
fn bios_ipxe_asks_for_its_script() {
    if !inside("boot::bios_ipxe_asks_for_its_script") {
        return;
    }
    let mut world = World::new();
    run("ip tuntap add dev t0 mode tap && ip link set t0 master br0 up");
    world.serve("--dhcp-range 192.168.77.100,192.168.77.200");
    // The bridge's link-local address is tentative for a while, and until it is not, nobody advertises.
    eventually("! ip -6 addr show dev br0 tentative | grep -q fe80");
    let start = Instant::now();
    let mut machine = Command::new("qemu-system-x86_64")
        .args(
            "-accel tcg -M q35 -nodefaults -display none -monitor none -no-reboot -m 512"
                .split(' '),
        )
        .args("-boot n -netdev tap,id=n0,ifname=t0,script=no,downscript=no".split(' '))
        .args("-device virtio-net-pci,netdev=n0,mac=52:54:00:a1:9c:ae".split(' '))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let asked = || {
        let (_, metrics) = try_run(&format!("curl -sS http://{SERVER}:8080/metrics"));
        metrics.contains("{endpoint=\"ipxe\",outcome=\"answered\"} 1")
    };
    while !asked() && start.elapsed() < BUDGET {
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = start.elapsed();
    machine.kill().unwrap();
    machine.wait().unwrap();
    eprintln!("power-on to /ipxe: {took:?}");
    assert!(took < BUDGET);
    world.stop();
}
