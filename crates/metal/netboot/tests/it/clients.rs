//! Tests with busybox's udhcpc, ISC's dhclient, curl and tftp-hpa, and a socket that solicits routers like iPXE.

use std::{
    net::{SocketAddrV6, UdpSocket},
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketType};

use crate::world::{Host, SERVER, World, eventually, have, inside};

const RANGE: &str = "--dhcp-range 192.168.77.100,192.168.77.104,255.255.255.0,1h";

/// Runs udhcpc and returns the lease as `name=value` lines.
fn udhcpc(world: &World, host: &Host, options: &str) -> String {
    let script = world.path("udhcpc.sh");
    if !script.exists() {
        std::fs::write(&script, "#!/bin/sh\n[ \"$1\" = bound ] && env\nexit 0\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    host.run(&format!(
        "busybox udhcpc -i eth0 -f -q -n -t 5 -T 2 -s {} {options} 2>/dev/null",
        script.display()
    ))
}

fn address(given: &str) -> String {
    given.lines().find_map(|line| line.strip_prefix("ip=")).unwrap().to_owned()
}

#[test]
fn dhcp_with_a_real_client() {
    if !inside("clients::dhcp_with_a_real_client") {
        return;
    }
    let mut world = World::new();
    let host = Host::new("h1");
    world.serve(RANGE);
    let given = udhcpc(&world, &host, "-V PXEClient:Arch:00000");
    assert!(given.contains("boot_file=undionly.kpxe"), "{given}");
    assert!(given.contains("lease=3600") && given.contains("subnet=255.255.255.0"), "{given}");
    let first = address(&given);
    world.stop();

    // After a restart, the server knows the lease. After the file is lost, a probe finds the host that has the address.
    world.serve(RANGE);
    assert_eq!(address(&udhcpc(&world, &host, "")), first);
    world.stop();
    std::fs::remove_file(world.path("leases")).unwrap();
    let other = Host::new("h2");
    other.run(&format!("ip addr add {first}/24 dev eth0"));
    // A new link carries no packets for a while.
    eventually(&format!("busybox ping -c 1 -W 1 {first}"));
    world.serve(RANGE);
    assert_ne!(address(&udhcpc(&world, &host, &format!("-r {first}"))), first);
    world.stop();
}

#[test]
fn dhcp_with_debians_client() {
    if !have("dhclient") || !inside("clients::dhcp_with_debians_client") {
        return;
    }
    let mut world = World::new();
    let host = Host::new("h1");
    let (script, given) = (world.path("dhclient.sh"), world.path("given"));
    let text = format!("#!/bin/sh\n[ \"$reason\" = BOUND ] && env > {}\nexit 0\n", given.display());
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let options =
        "--dhcp-option option:ntp-server,0.0.0.0 --dhcp-option option:domain-search,a.test,b.test";
    world.serve(&format!("{RANGE} --domain example.test --dhcp-router {SERVER} {options}"));
    let at = world.dir.path().display();
    let client = format!("dhclient -1 -sf {at}/dhclient.sh -lf {at}/db -pf {at}/pid");
    host.run(&format!("{client} eth0"));
    let env = std::fs::read_to_string(given).unwrap();
    let value = |name: &str| {
        let found = env.lines().find_map(|line| line.strip_prefix(&format!("new_{name}=")));
        found.unwrap_or_else(|| panic!("no {name}: {env}")).to_owned()
    };
    for (name, wanted) in [
        ("subnet_mask", "255.255.255.0"),
        ("routers", SERVER),
        ("dhcp_server_identifier", SERVER),
        ("dhcp_lease_time", "3600"),
        ("domain_name", "example.test"),
        ("domain_search", "a.test. b.test."),
        ("ntp_servers", SERVER),
    ] {
        assert_eq!(value(name), wanted, "{name}");
    }
    let address = value("ip_address");
    let leases = || std::fs::read_to_string(world.path("leases")).unwrap();
    let is_leased = |text: &str| text.lines().last().is_some_and(|line| !line.starts_with("1 "));
    assert!(leases().contains(&address) && is_leased(&leases()), "{}", leases());
    // A released address is free for other clients.
    host.run(&format!("ip addr add {address}/24 dev eth0"));
    host.run(&format!("{client} -r eth0"));
    eventually(&format!("tail -n 1 {at}/leases | grep -q \"^1 .* {address} \""));
    world.stop();
}

#[test]
fn answers_router_solicitations() {
    if !inside("clients::answers_router_solicitations") {
        return;
    }
    let mut world = World::new();
    let host = Host::new("h1");
    world.serve(RANGE);
    let link = host.run("ip -oneline link show eth0");
    let index: u32 = link.split(':').next().unwrap().parse().unwrap();
    let advertised = host.within(|| {
        let socket = rustix::net::socket(
            AddressFamily::INET6,
            SocketType::RAW,
            Some(rustix::net::ipproto::ICMPV6),
        );
        let socket = UdpSocket::from(socket.unwrap());
        rustix::net::sockopt::set_ipv6_multicast_hops(&socket, 255).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let routers = SocketAddrV6::new("ff02::2".parse().unwrap(), 0, 0, index);
        let mut buffer = [0; 256];
        // A tentative address belongs to no host yet and sends nothing.
        while Instant::now() < deadline {
            let _ = socket.send_to(&[133, 0, 0, 0, 0, 0, 0, 0], routers);
            while let Ok(length) = socket.recv(&mut buffer) {
                if buffer[0] == 134 {
                    return buffer[..length].to_vec();
                }
            }
        }
        panic!("no advertisement came");
    });
    assert_eq!(advertised.len(), 16, "{advertised:?}");
    let lifetime = u16::from_be_bytes([advertised[6], advertised[7]]);
    assert_eq!((advertised[4], advertised[5], lifetime), (64, 0, 0));
    world.stop();
}

#[test]
fn resolves_names_by_dns() {
    if !inside("clients::resolves_names_by_dns") {
        return;
    }
    let mut world = World::new();
    let host = Host::new("h1");
    host.run("ip addr add 192.168.77.99/24 dev eth0");
    let hosts = "--dhcp-host 52:54:00:00:00:01,192.168.77.50,node1 --domain example.test";
    world.serve(&format!("{RANGE} {hosts} --host-record matchbox.example.com,{SERVER}"));
    for (name, want) in [("node1.example.test", "192.168.77.50"), ("matchbox.example.com", SERVER)]
    {
        let answer = host.run(&format!("busybox nslookup -type=a {name} {SERVER}"));
        assert!(answer.contains(&format!("Address: {want}")), "{answer}");
    }
    let (_, absent) = host.try_run(&format!("busybox nslookup -type=a x.example.test {SERVER}"));
    assert!(absent.contains("NXDOMAIN"), "{absent}");
    let by_tcp = host.run(&format!("dig +tcp +short @{SERVER} node1.example.test"));
    assert_eq!(by_tcp, "192.168.77.50\n");
    world.stop();
}

#[test]
fn serves_files_by_http_and_tftp() {
    if !inside("clients::serves_files_by_http_and_tftp") {
        return;
    }
    let mut world = World::new();
    let big: Vec<u8> = (0..1_000_003u32).map(|i| (i % 253) as u8).collect();
    std::fs::write(world.path("tftp/big"), &big).unwrap();
    std::fs::write(world.path("secret"), "secret").unwrap();
    let host = Host::new("h1");
    host.run("ip addr add 192.168.77.99/24 dev eth0");
    world.serve(RANGE);
    let get = |path: &str| host.run(&format!("curl -sS --path-as-is http://{SERVER}:8080{path}"));
    assert_eq!(get("/ipxe?mac=52-54-00-00-00-01"), "#!ipxe\nkernel /assets/k\nboot\n");
    assert_eq!(get("/generic"), "b");
    assert_eq!(get("/assets/k"), "kernel");
    assert_eq!(get("/assets/../secret"), "404 page not found\n");
    assert_eq!(get("/assets/%2e%2e/secret"), "404 page not found\n");
    let out = world.path("out");
    for client in [
        format!("curl -sS --tftp-blksize 1400 -o {} tftp://{SERVER}/big", out.display()),
        format!("curl -sS --tftp-no-options -o {} tftp://{SERVER}/big", out.display()),
        format!("tftp -4 {SERVER} -m binary -c get big {}", out.display()),
    ] {
        host.run(&client);
        assert!(std::fs::read(&out).unwrap() == big, "{client}");
    }
    host.run(&format!("tftp -4 {SERVER} -m netascii -c get text {}", out.display()));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "a\nb\n");
    let script = host.run(&format!("curl -sS tftp://{SERVER}/autoexec.ipxe"));
    assert_eq!(script, format!("#!ipxe\nchain http://{SERVER}:8080/boot.ipxe\n"));
    let (ok, _) = host.try_run(&format!("curl -sS tftp://{SERVER}/../secret"));
    assert!(!ok);
    let (_, refused) =
        host.try_run(&format!("cd {} && tftp -4 {SERVER} -c put out", world.dir.path().display()));
    assert!(refused.contains("read-only"), "{refused}");
    world.stop();
}
