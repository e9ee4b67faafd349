//! A rack that powers on: many machines at once, behind a relay.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use dhcproto::{
    Decodable, Decoder, Encodable, Encoder,
    v4::{DhcpOption, Message, MessageType},
};

use crate::world::{Host, SERVER, World, eventually, inside, run};

const MACHINES: u32 = 500;
const RELAY: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 99);

fn packet(machine: u32, options: &[DhcpOption]) -> Vec<u8> {
    let [_, _, high, low] = machine.to_be_bytes();
    let none = Ipv4Addr::UNSPECIFIED;
    let mac = [0x52, 0x54, 0, 0, high, low];
    let mut message = Message::new_with_id(machine, none, none, none, RELAY, &mac);
    for option in options {
        message.opts_mut().insert(option.clone());
    }
    let mut bytes = Vec::new();
    message.encode(&mut Encoder::new(&mut bytes)).unwrap();
    bytes
}

/// Sends one packet for each machine and waits for all answers. Returns the addresses and the 99th percentile of the
/// latency.
fn exchange(
    socket: &UdpSocket,
    packets: BTreeMap<u32, Vec<u8>>,
) -> (BTreeMap<u32, Ipv4Addr>, Duration) {
    let mut sent = BTreeMap::new();
    for (machine, bytes) in &packets {
        sent.insert(*machine, Instant::now());
        socket.send_to(bytes, (SERVER, 67)).unwrap();
    }
    let (mut given, mut times, mut buffer) = (BTreeMap::new(), Vec::new(), [0; 2048]);
    while given.len() < packets.len() {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| {
            panic!("{} of {} answers came: {error}", given.len(), packets.len())
        });
        let answer = Message::decode(&mut Decoder::new(&buffer[..length])).unwrap();
        times.push(sent[&answer.xid()].elapsed());
        given.insert(answer.xid(), answer.yiaddr());
    }
    times.sort();
    (given, times[times.len() * 99 / 100])
}

#[test]
fn serves_five_hundred_machines_at_once() {
    if !inside("flood::serves_five_hundred_machines_at_once") {
        return;
    }
    let mut world = World::new();
    let host = Host::new("h1");
    host.run(&format!("ip addr add {RELAY}/22 dev eth0"));
    eventually(&format!("busybox ping -c 1 -W 1 {RELAY}"));
    run("ip addr add 192.168.76.1/22 dev br0");
    world.serve("--dhcp-range 192.168.77.110,192.168.79.250,255.255.252.0");
    let (offers, offered, acks, acknowledged) = host.within(|| {
        let socket = UdpSocket::bind((RELAY, 67)).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let kind = |kind| DhcpOption::MessageType(kind);
        let discovers = (0..MACHINES).map(|n| (n, packet(n, &[kind(MessageType::Discover)])));
        let (offers, offered) = exchange(&socket, discovers.collect());
        let requests = offers.iter().map(|(machine, address)| {
            let options = [kind(MessageType::Request), DhcpOption::RequestedIpAddress(*address)];
            (*machine, packet(*machine, &options))
        });
        let (acks, acknowledged) = exchange(&socket, requests.collect());
        (offers, offered, acks, acknowledged)
    });
    eprintln!("p99: offer {offered:?}, acknowledgement {acknowledged:?}");
    assert_eq!(offers, acks);
    let distinct: BTreeSet<_> = acks.values().collect();
    assert_eq!(distinct.len(), acks.len());
    let leases = std::fs::read_to_string(world.path("leases")).unwrap();
    assert_eq!(leases.lines().count(), acks.len());
    world.stop();
}
