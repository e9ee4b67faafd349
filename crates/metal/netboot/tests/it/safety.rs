//! Clients that send floods or malformed packets, or use the wrong interface.

use std::{
    io::{Read, Write},
    net::{TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::world::{Host, SERVER, World, eventually, inside, run};

const RANGE: &str = "--dhcp-range 192.168.77.100,192.168.77.140 --dhcp-host 52:54:00:00:00:42,192.168.77.50,fixed \
                     --no-ping --host-record a.example.test,192.168.77.9 --domain example.test";

/// Builds the discover packet of the n-th machine.
fn discover(n: u32) -> Vec<u8> {
    let mut bytes = vec![1, 1, 6, 0];
    bytes.extend(n.to_be_bytes());
    bytes.resize(28, 0);
    bytes.extend([0x02, 0xff]);
    bytes.extend(n.to_be_bytes());
    bytes.resize(236, 0);
    bytes.extend([99, 130, 83, 99, 53, 1, 1]);
    bytes.extend(b"\x3c\x15PXEClient:Arch:00000:\xff");
    bytes
}

fn read_request(name: &str) -> Vec<u8> {
    [b"\0\x01", name.as_bytes(), b"\0octet\0blksize\x0065464\0windowsize\x0064\0timeout\x00255\0"]
        .concat()
}

/// Checks that the server still serves other clients.
fn all_is_well(host: &Host) {
    let given = host.run("busybox udhcpc -i eth0 -f -q -n -t 5 -T 2 -s /bin/true 2>&1");
    assert!(given.contains("192.168.77.50"), "{given}");
    host.run("ip addr replace 192.168.77.50/24 dev eth0");
    let get = |url: &str| host.run(&format!("curl -sS --max-time 10 {url}"));
    assert_eq!(get(&format!("tftp://{SERVER}/text")), "a\nb\n");
    assert_eq!(get(&format!("http://{SERVER}:8080/generic")), "b");
    let answer = host.run(&format!("busybox nslookup -type=a a.example.test {SERVER}"));
    assert!(answer.contains("192.168.77.9"), "{answer}");
}

/// Returns the resident memory of this process in kilobytes. The server runs in it.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn survives_floods_and_malformed_packets() {
    if !inside("safety::survives_floods_and_malformed_packets") {
        return;
    }
    let mut world = World::new();
    let (bad, good) = (Host::new("h1"), Host::new("h2"));
    good.run("ip link set eth0 down && ip link set eth0 address 52:54:00:00:00:42 && ip link set eth0 up");
    bad.run("ip addr add 192.168.77.90/24 dev eth0");
    eventually("busybox ping -c 1 -W 1 192.168.77.90");
    std::fs::write(world.path("tftp/big"), vec![7; 8 << 20]).unwrap();
    world.serve(RANGE);
    all_is_well(&good);
    let before = resident();
    bad.within(|| {
        let socket = UdpSocket::bind("192.168.77.90:0").unwrap();
        socket.set_broadcast(true).unwrap();
        // Discovers of twenty thousand machines for forty addresses.
        for n in 0..20_000 {
            let _ = socket.send_to(&discover(n), (SERVER, 67));
        }
        // Half-open transfers, each from a port of its own.
        let open: Vec<UdpSocket> = (0..2000)
            .filter_map(|_| {
                let socket = UdpSocket::bind("192.168.77.90:0").ok()?;
                socket.send_to(&read_request("big"), (SERVER, 69)).ok()?;
                Some(socket)
            })
            .collect();
        assert!(open.len() > 900, "{}", open.len());
        // Random bytes to every port.
        let mut state = 1u64;
        for n in 0..20_000usize {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .take(n % 300)
            .collect();
            for (port, head) in
                [(67, &discover(1)[..240]), (4011, &discover(1)[..240]), (69, b"\0\x01"), (53, b"")]
            {
                let _ = socket.send_to(&[head, &bytes].concat(), (SERVER, port));
            }
        }
        std::mem::forget(open);
    });
    let start = Instant::now();
    all_is_well(&good);
    assert!(start.elapsed() < Duration::from_secs(20));
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} kB more");
    let metrics = good.run(&format!("curl -sS http://{SERVER}:8080/metrics"));
    assert!(metrics.contains("netboot_tftp_transfers_total{outcome=\"failed\"}"), "{metrics}");
    world.stop();
}

/// Returns the open UDP ports in this namespace.
fn ports() -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/self/net/udp").unwrap();
    let locals = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    let mut ports: Vec<u16> = locals
        .map(|local| u16::from_str_radix(local.rsplit(':').next().unwrap(), 16).unwrap())
        .collect();
    ports.sort_unstable();
    ports
}

#[test]
fn disabled_servers_open_no_port() {
    if !inside("safety::disabled_servers_open_no_port") {
        return;
    }
    for (left_out, wanted) in [
        ("", &[53, 67, 69, 4011][..]),
        ("--no-dhcp", &[53, 69]),
        ("--no-tftp", &[53, 67, 4011]),
        ("--no-dns", &[67, 69, 4011]),
        ("--no-dhcp --no-tftp --no-dns --no-ra", &[]),
    ] {
        let mut world = World::new();
        world.serve(&format!("{RANGE} {left_out}"));
        assert_eq!(ports(), wanted, "{left_out}");
        // The other servers answer and report their health.
        let get = |path: &str| run(&format!("curl -sS http://{SERVER}:8080/{path}"));
        assert_eq!((get("generic"), get("healthz")), ("b".into(), "ok\n".into()), "{left_out}");
        let metrics = get("metrics");
        let counted = "netboot_requests_total{endpoint=\"generic\",outcome=\"answered\"} 1";
        assert!(metrics.contains(counted), "{metrics}");
        std::fs::remove_dir_all(world.path("groups")).unwrap();
        std::fs::write(world.path("groups"), "").unwrap();
        let broken = get("healthz");
        assert!(broken.starts_with("reading ") && broken.contains("groups"), "{broken}");
        world.stop();
        run("ip link del br0");
    }
}

#[test]
fn stalled_downloads_use_little_memory() {
    if !inside("safety::stalled_downloads_use_little_memory") {
        return;
    }
    const DOWNLOADS: u64 = 300;
    let mut world = World::new();
    let asset = std::fs::File::create(world.path("assets/big")).unwrap();
    asset.set_len(8 << 20).unwrap();
    world.serve("--no-dhcp --no-tftp --no-dns");
    assert_eq!(run(&format!("curl -sS http://{SERVER}:8080/assets/big | wc -c")).trim(), "8388608");
    let before = resident();
    let address = std::net::SocketAddrV4::new(SERVER.parse().unwrap(), 8080);
    let open: Vec<TcpStream> = (0..DOWNLOADS)
        .map(|_| {
            let socket =
                rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            // A small receive buffer, because the kernel would otherwise take the data that the server should hold.
            sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
            rustix::net::connect(&socket, &address).unwrap();
            let mut stream = TcpStream::from(socket);
            stream.write_all(b"GET /assets/big HTTP/1.1\r\nHost: m\r\n\r\n").unwrap();
            stream
        })
        .collect();
    for mut stream in &open {
        stream.read_exact(&mut [0; 12]).unwrap();
    }
    // When the server answers another request, it has handled all downloads.
    assert_eq!(run(&format!("curl -sS --max-time 10 http://{SERVER}:8080/generic")), "b");
    let grown = resident().saturating_sub(before);
    assert!(grown < DOWNLOADS * 16, "{grown} kB more");
    // The stalled downloads continue.
    let mut last = open.into_iter().next_back().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = vec![0; 8 << 20];
    last.read_exact(&mut rest).unwrap();
    world.stop();
}

#[test]
fn answers_on_configured_interfaces_only() {
    if !inside("safety::answers_on_configured_interfaces_only") {
        return;
    }
    let mut world = World::new();
    run("ip link add br1 type bridge && ip link set br1 up && ip addr add 192.168.78.1/24 dev br1");
    let host = Host::new("h1");
    run("ip link set h1 master br1");
    host.run("ip addr add 192.168.78.9/24 dev eth0");
    eventually("busybox ping -c 1 -W 1 192.168.78.9");
    world.serve("--dhcp-range 192.168.77.100,192.168.77.140 --dhcp-range 192.168.78.100,192.168.78.140 --no-ping");
    let (leased, text) =
        host.try_run("busybox udhcpc -i eth0 -f -q -n -t 2 -T 1 -s /bin/true 2>&1");
    assert!(!leased, "{text}");
    // Our other address does not answer either.
    host.run("ip route add 192.168.77.1/32 via 192.168.78.1");
    for server in [SERVER, "192.168.78.1"] {
        for command in [
            format!("curl -sS --max-time 2 tftp://{server}/text"),
            format!("timeout 2 busybox nslookup -type=a a {server}"),
        ] {
            assert!(!host.try_run(&command).0, "{command}");
        }
    }
    assert!(!host.try_run("curl -sS --max-time 2 http://192.168.78.1:8080/").0);
    world.stop();
}
