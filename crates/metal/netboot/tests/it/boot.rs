//! Boots machines with empty disks in QEMU without acceleration.
//!
//! The BIOS machine is fast and boots with the other tests. Machines with UEFI firmware are slow and run only with
//! `cargo xtask test --full`.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::world::{Host, SERVER, World, eventually, have, inside, run, try_run};

/// The maximum time from power-on to the first request by BIOS iPXE.
const BUDGET: Duration = Duration::from_secs(8);
/// The deadline for firmware without acceleration on a busy host.
const PATIENCE: Duration = Duration::from_secs(240);

const MAC: &str = "52:54:00:a1:9c:ae";
const RANGE: &str = "--dhcp-range 192.168.77.100,192.168.77.200";

/// A running machine.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    fn power_on(arguments: &str) -> Self {
        let machine =
            "-accel tcg -M q35 -nodefaults -display none -monitor none -no-reboot -serial none";
        let network = "-netdev tap,id=n0,ifname=t0,script=no,downscript=no";
        let process = Command::new("qemu-system-x86_64")
            .args(machine.split(' ').chain(network.split(' ')).chain(arguments.split(' ')))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(process)
    }

    fn bios() -> Self {
        Self::power_on(&format!("-m 512 -boot n -device virtio-net-pci,netdev=n0,mac={MAC}"))
    }

    /// Starts EDK2 firmware without iPXE in the network card; `more` selects the boot method.
    fn uefi(world: &World, more: &str) -> Self {
        let variables = world.path("variables.fd");
        std::fs::copy("/usr/share/OVMF/OVMF_VARS_4M.fd", &variables).unwrap();
        let arguments = format!(
            "-m 1024 -drive if=pflash,unit=0,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd -drive \
             if=pflash,unit=1,format=raw,file={} -device virtio-rng-pci -device virtio-net-pci,netdev=n0,mac={MAC},romfile= \
             -fw_cfg name=opt/org.tianocore/IPv6PXESupport,string=n {more}",
            variables.display()
        );
        Self::power_on(arguments.trim_end())
    }
}

/// Creates a world with a tap for a machine and iPXE files for the firmware.
fn world() -> World {
    let world = World::new();
    run("ip tuntap add dev t0 mode tap && ip link set t0 master br0 up");
    for (from, to) in [
        ("/usr/lib/ipxe/undionly.kpxe", "tftp/undionly.kpxe"),
        ("/usr/lib/ipxe/ipxe.efi", "tftp/ipxe.efi"),
        ("/usr/lib/ipxe/ipxe.efi", "assets/ipxe.efi"),
    ] {
        if Path::new(from).exists() {
            std::fs::copy(from, world.path(to)).unwrap();
        }
    }
    world
}

/// Returns the time from now until the machine has received its script.
fn until_script(start: Instant, limit: Duration) -> Option<Duration> {
    while start.elapsed() < limit {
        let (_, metrics) = try_run(&format!("curl -sS http://{SERVER}:8080/metrics"));
        if metrics.contains("{endpoint=\"ipxe\",outcome=\"answered\"} 1") {
            return Some(start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

fn timeline() -> String {
    try_run(&format!("curl -sS http://{SERVER}:8080/machines.json")).1
}

/// Waits for the bridge's link-local address, from which advertisements are sent.
fn settled() {
    eventually("! ip -6 addr show dev br0 tentative | grep -q fe80");
}

#[test]
fn bios_ipxe_requests_its_script() {
    if !have("qemu-system-x86_64") || !inside("boot::bios_ipxe_requests_its_script") {
        return;
    }
    let mut world = world();
    world.serve(RANGE);
    settled();
    let start = Instant::now();
    let _machine = Machine::bios();
    let took = until_script(start, PATIENCE).unwrap_or_else(|| panic!("{}", timeline()));
    // A busy host is slower, so the result is printed and not asserted.
    let judged = if took < BUDGET { "within" } else { "over" };
    eprintln!("power-on to /ipxe: {took:?}, {judged} the budget of {BUDGET:?}");
    let timeline = timeline();
    for stage in ["\"stage\":\"dhcp\"", "\"stage\":\"ipxe\"", "\"boots\":1", MAC] {
        assert!(timeline.contains(stage), "{timeline}");
    }
    world.stop();
}

#[test]
#[ignore = "takes a while: cargo xtask test --full"]
fn bios_beside_another_dhcp_server() {
    if !have("qemu-system-x86_64")
        || !have("dnsmasq")
        || !inside("boot::bios_beside_another_dhcp_server")
    {
        return;
    }
    let mut world = world();
    let other = Host::new("h1");
    other.run("ip addr add 192.168.77.2/24 dev eth0");
    let leases = world.path("other.leases");
    // dnsmasq probes an address for three seconds without answering others, and iPXE gives up after seven.
    other.run(&format!(
        "dnsmasq --conf-file=/dev/null --port=0 --no-ping --interface=eth0 --bind-interfaces --user=root --pid-file={0}.pid \
         --dhcp-leasefile={0} --dhcp-range=192.168.77.100,192.168.77.200",
        leases.display()
    ));
    world.serve("--dhcp-proxy");
    settled();
    let start = Instant::now();
    let machine = Machine::bios();
    let took = until_script(start, PATIENCE).unwrap_or_else(|| panic!("{}", timeline()));
    eprintln!("power-on to /ipxe by proxyDHCP: {took:?}");
    drop(machine);
    run(&format!("kill $(cat {}.pid)", leases.display()));
    world.stop();
}

#[test]
#[ignore = "takes a while: cargo xtask test --full"]
fn uefi_pxe() {
    uefi("boot::uefi_pxe", "UEFI PXE", "", "\"stage\":\"firmware\"");
}

#[test]
#[ignore = "takes a while: cargo xtask test --full"]
fn uefi_http() {
    let more = "-fw_cfg name=opt/org.tianocore/IPv4PXESupport,string=n";
    uefi("boot::uefi_http", "UEFI HTTP boot", more, "UEFI HTTP x64");
}

fn uefi(test: &str, what: &str, more: &str, trace: &str) {
    let needed =
        ["qemu-system-x86_64", "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/lib/ipxe/ipxe.efi"];
    if !needed.into_iter().all(have) || !inside(test) {
        return;
    }
    let mut world = world();
    world.serve(RANGE);
    settled();
    let start = Instant::now();
    let _machine = Machine::uefi(&world, more);
    let took = until_script(start, PATIENCE).unwrap_or_else(|| panic!("{}", timeline()));
    eprintln!("power-on to /ipxe by {what}: {took:?}");
    let timeline = timeline();
    assert!(timeline.contains(trace) && timeline.contains("\"boots\":1"), "{timeline}");
    world.stop();
}
