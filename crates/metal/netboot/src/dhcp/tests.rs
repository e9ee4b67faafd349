use std::net::{Ipv4Addr, SocketAddrV4};

use dhcproto::v4::{Architecture, DhcpOption as O, Message, MessageType, OptionCode};

use super::{config::parse_lease, machine::PXE_PORT, *};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

fn config() -> Config {
    let (subnet, lease) = parse_range("10.0.0.10,10.0.0.13,255.255.255.0,1h").unwrap();
    let (mac, reservation) = parse_host("52:54:00:00:00:99,10.0.0.50,fixed").unwrap();
    let subnet = Subnet { routers: vec![SERVER], ..subnet };
    Config {
        subnets: vec![subnet, parse_range("10.1.0.10,10.1.0.20").unwrap().0],
        reservations: [(mac, reservation)].into(),
        lease: lease.unwrap(),
        domain: Some("example.test".into()),
        proxy: false,
        probe: false,
        options: vec![],
        boot: BootFiles::with_defaults(8080),
    }
}

fn machine() -> Machine {
    Machine::new(config(), Leases::default())
}

fn arrival() -> Arrival {
    let source = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
    Arrival { server: SERVER, source, port: 67 }
}

fn message(kind: MessageType, mac: &[u8], options: &[O]) -> Message {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(7, none, none, none, none, mac);
    message.opts_mut().insert(O::MessageType(kind));
    for option in options {
        message.opts_mut().insert(option.clone());
    }
    message
}

#[track_caller]
fn reply(action: Action) -> (Message, SocketAddrV4) {
    match action {
        Action::Reply { message, to, .. } => (*message, to),
        other => panic!("no reply but {other:?}"),
    }
}

fn mac(n: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, n]
}

/// Sends discover and request; returns the assigned address, if any.
fn take(machine: &mut Machine, mac: &[u8], now: u64) -> Option<Ipv4Addr> {
    let Action::Reply { message: offer, .. } =
        machine.handle(&message(MessageType::Discover, mac, &[]), arrival(), now)
    else {
        return None;
    };
    let options = [O::RequestedIpAddress(offer.yiaddr()), O::ServerIdentifier(SERVER)];
    let (ack, _) =
        reply(machine.handle(&message(MessageType::Request, mac, &options), arrival(), now));
    assert_eq!(ack.opts().msg_type(), Some(MessageType::Ack));
    Some(ack.yiaddr())
}

#[test]
fn parses_ranges_hosts_and_lease_times() {
    for (text, good) in [
        ("10.0.0.1,10.0.0.9", true),
        ("10.0.0.1,10.0.1.9,255.255.254.0,12h", true),
        ("10.0.0.1,10.0.1.9", false),
        ("10.0.0.9,10.0.0.1", false),
        ("10.0.0.1,10.0.0.9,255.0.255.0", false),
        ("10.0.0.0,10.255.255.255,255.0.0.0", false),
        ("10.0.0.1", false),
        ("10.0.0.1,10.0.0.9,soon", false),
    ] {
        assert_eq!(parse_range(text).is_ok(), good, "{text}");
    }
    assert!(parse_host("52:54:00:00:00:01").is_err());
    assert!(parse_host("x,10.0.0.1").is_err());
    for (text, want) in [("45m", Some(2700)), ("1d", Some(86_400)), ("5", Some(120)), ("x", None)] {
        assert_eq!(parse_lease(text).map(|lease| lease.as_secs()), want, "{text}");
    }
}

#[test]
fn keeps_address_over_restarts_until_lease_ends() {
    let mut machine = machine();
    let first = take(&mut machine, &MAC, 100).unwrap();
    assert_eq!(take(&mut machine, &MAC, 200), Some(first));
    let file: String = machine.leases().lines().collect();
    assert_eq!(file, format!("3800 52:54:00:00:00:01 {first} * *\n"));
    // Later lines replace earlier ones about the same client.
    let torn = format!("9 52:54:00:00:00:01 10.0.0.13 * *\n{file}");
    assert_eq!(Leases::parse(&torn).lines().collect::<String>(), file);
    let mut machine = Machine::new(config(), Leases::parse(&torn));
    let mut given: Vec<_> = (2..5).map(|n| take(&mut machine, &mac(n), 300).unwrap()).collect();
    assert!(!given.contains(&first));
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 3);
    // All four addresses are assigned: none is free until the first lease ends.
    assert_eq!(take(&mut machine, &mac(9), 300), None);
    assert_eq!(take(&mut machine, &mac(9), 3801), Some(first));
}

#[test]
fn offers_address_with_network_settings() {
    let mut machine = machine();
    let (offer, to) =
        reply(machine.handle(&message(MessageType::Discover, &MAC, &[]), arrival(), 0));
    assert_eq!(to, SocketAddrV4::new(Ipv4Addr::BROADCAST, 68));
    assert_eq!((offer.xid(), offer.chaddr()), (7, &MAC[..]));
    for option in [
        O::MessageType(MessageType::Offer),
        O::ServerIdentifier(SERVER),
        O::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
        O::BroadcastAddr(Ipv4Addr::new(10, 0, 0, 255)),
        O::Router(vec![SERVER]),
        O::AddressLeaseTime(3600),
        O::Renewal(1800),
        O::Rebinding(3150),
        O::DomainName("example.test".into()),
    ] {
        assert_eq!(offer.opts().get(OptionCode::from(&option)), Some(&option));
    }
    assert_eq!(offer.opts().get(OptionCode::BootfileName), None);
}

#[test]
fn gives_reserved_address_to_its_machine_only() {
    let mut machine = machine();
    assert_eq!(take(&mut machine, &mac(0x99), 0), Some(Ipv4Addr::new(10, 0, 0, 50)));
    let options = [O::RequestedIpAddress(Ipv4Addr::new(10, 0, 0, 50))];
    let (nak, _) =
        reply(machine.handle(&message(MessageType::Request, &MAC, &options), arrival(), 0));
    assert_eq!(nak.opts().msg_type(), Some(MessageType::Nak));
}

#[test]
fn searches_exhausted_range_once_a_second() {
    let mut machine = machine();
    for n in 1..=4 {
        take(&mut machine, &mac(n), 100).unwrap();
    }
    assert_eq!(take(&mut machine, &mac(5), 200), None);
    let release = |n: u8, address: Ipv4Addr| {
        let mut message = message(MessageType::Release, &mac(n), &[]);
        message.set_ciaddr(address);
        message
    };
    let (freed, _) = machine.leases().of("52:54:00:00:00:01").unwrap();
    machine.handle(&release(1, freed), arrival(), 200);
    assert_eq!(take(&mut machine, &mac(5), 200), None);
    // Clients with a lease or a reservation need no search.
    assert!(take(&mut machine, &mac(2), 200).is_some());
    assert_eq!(take(&mut machine, &mac(0x99), 200), Some(Ipv4Addr::new(10, 0, 0, 50)));
    assert_eq!(take(&mut machine, &mac(5), 201), Some(freed));
}

#[test]
fn acks_or_naks_returning_clients() {
    let at = |text: &str| text.parse::<Ipv4Addr>().unwrap();
    for (what, requested, is_known, want) in [
        ("free, in our range", "10.0.0.12", false, Some(MessageType::Ack)),
        ("of another network", "10.9.0.12", false, Some(MessageType::Nak)),
        ("reserved for another", "10.0.0.50", false, Some(MessageType::Nak)),
        ("another server's", "10.0.0.200", false, None),
        (
            "out of our range, of a client that we gave one",
            "10.0.0.200",
            true,
            Some(MessageType::Nak),
        ),
    ] {
        // After a reboot, the client requests the address in an option; for renewal, it is the packet's sender.
        for renews in [false, true] {
            let mut machine = machine();
            if is_known {
                take(&mut machine, &MAC, 0).unwrap();
            }
            let option = O::RequestedIpAddress(at(requested));
            let options = if renews { vec![] } else { vec![option] };
            let mut request = message(MessageType::Request, &MAC, &options);
            if renews {
                request.set_ciaddr(at(requested));
            }
            let answer = match machine.handle(&request, arrival(), 1) {
                Action::Reply { message, .. } => message.opts().msg_type(),
                _ => None,
            };
            assert_eq!(answer, want, "{what}, renews: {renews}");
        }
    }
}

#[test]
fn frees_offer_when_client_takes_another_server() {
    let mut machine = machine();
    machine.handle(&message(MessageType::Discover, &MAC, &[]), arrival(), 0);
    assert_eq!(machine.leases().len(), 1);
    let options = [O::ServerIdentifier(Ipv4Addr::new(10, 0, 0, 2))];
    let action = machine.handle(&message(MessageType::Request, &MAC, &options), arrival(), 0);
    assert!(matches!(action, Action::Nothing) && machine.leases().is_empty());
}

#[test]
fn handles_decline_release_and_inform() {
    let mut machine = machine();
    let first = take(&mut machine, &MAC, 0).unwrap();
    let options = [O::RequestedIpAddress(first)];
    // Only the holder may decline.
    machine.handle(&message(MessageType::Decline, &mac(2), &options), arrival(), 0);
    assert_eq!(machine.leases().get(first).unwrap().state, State::Bound);
    machine.handle(&message(MessageType::Decline, &MAC, &options), arrival(), 0);
    assert_eq!(machine.leases().get(first).unwrap().state, State::Conflict);
    let second = take(&mut machine, &MAC, 1).unwrap();
    assert_ne!(second, first);
    let mut release = message(MessageType::Release, &MAC, &[]);
    release.set_ciaddr(second);
    assert!(matches!(machine.handle(&release, arrival(), 2), Action::Save(_)));
    assert_eq!(machine.leases().get(second), None);
    let mut inform = message(MessageType::Inform, &MAC, &[]);
    inform.set_ciaddr(Ipv4Addr::new(10, 0, 0, 77));
    let (ack, to) = reply(machine.handle(&inform, arrival(), 2));
    assert_eq!(to, "10.0.0.77:68".parse().unwrap());
    assert!(ack.yiaddr().is_unspecified());
    assert_eq!(ack.opts().get(OptionCode::AddressLeaseTime), None);
}

#[test]
fn probes_address_before_offering_it() {
    let mut machine = Machine::new(Config { probe: true, ..config() }, Leases::default());
    let discover = message(MessageType::Discover, &MAC, &[]);
    let Action::Probe(first) = machine.handle(&discover, arrival(), 0) else { panic!("no probe") };
    machine.probed(first, true, 0);
    let Action::Probe(second) = machine.handle(&discover, arrival(), 0) else { panic!("no probe") };
    assert_ne!(first, second);
    machine.probed(second, false, 0);
    let (offer, _) = reply(machine.handle(&discover, arrival(), 0));
    assert_eq!(offer.yiaddr(), second);
}

#[test]
fn selects_subnet_by_relay_and_replies_to_it() {
    let mut machine = machine();
    let mut discover = message(MessageType::Discover, &MAC, &[]);
    let relay = Ipv4Addr::new(10, 1, 0, 1);
    discover.set_giaddr(relay);
    let (offer, to) = reply(machine.handle(&discover, arrival(), 0));
    assert_eq!(to, SocketAddrV4::new(relay, 67));
    assert_eq!(offer.giaddr(), relay);
    assert_eq!(offer.yiaddr().octets()[..2], [10, 1]);
    discover.set_giaddr(Ipv4Addr::new(10, 9, 0, 1));
    assert!(matches!(machine.handle(&discover, arrival(), 0), Action::Nothing));
}

fn pxe(class: &str, architecture: u16) -> Vec<O> {
    vec![
        O::ClassIdentifier(class.as_bytes().to_vec()),
        O::ClientSystemArchitecture(Architecture(architecture)),
    ]
}

#[test]
fn selects_boot_file_by_firmware() {
    let mut ipxe = pxe("PXEClient:Arch:00000", 0);
    ipxe.push(O::UserClass(b"iPXE".to_vec()));
    for (options, file, class) in [
        (pxe("PXEClient:Arch:00000:UNDI:002001", 0), "undionly.kpxe", None),
        (pxe("PXEClient:Arch:00007", 7), "ipxe.efi", None),
        (pxe("PXEClient:Arch:00009", 9), "ipxe.efi", None),
        (pxe("PXEClient:Arch:00011", 11), "ipxe-arm64.efi", None),
        (
            pxe("HTTPClient:Arch:00016", 16),
            "http://10.0.0.1:8080/assets/ipxe.efi",
            Some(&b"HTTPClient"[..]),
        ),
        (
            pxe("HTTPClient:Arch:00019", 19),
            "http://10.0.0.1:8080/assets/ipxe-arm64.efi",
            Some(&b"HTTPClient"[..]),
        ),
        (ipxe, "http://10.0.0.1:8080/boot.ipxe", None),
    ] {
        let mut machine = machine();
        let discover = message(MessageType::Discover, &MAC, &options);
        let (offer, _) = reply(machine.handle(&discover, arrival(), 0));
        assert_eq!(offer.fname_str().unwrap().unwrap(), file);
        assert_eq!(offer.siaddr(), SERVER);
        let bootfile = O::BootfileName(file.into());
        assert_eq!(offer.opts().get(OptionCode::BootfileName), Some(&bootfile));
        let class = class.map(|class| O::ClassIdentifier(class.to_vec()));
        assert_eq!(offer.opts().get(OptionCode::ClassIdentifier), class.as_ref(), "{file}");
        let skips_proxy = offer.opts().get(OptionCode::from(175)).is_some();
        assert_eq!(skips_proxy, file.ends_with("boot.ipxe"));
    }
}

#[test]
fn proxy_sends_boot_files_without_address() {
    let mut machine = Machine::new(Config { proxy: true, ..config() }, Leases::default());
    let plain = message(MessageType::Discover, &MAC, &[]);
    assert!(matches!(machine.handle(&plain, arrival(), 0), Action::Nothing));
    let options = pxe("PXEClient:Arch:00007", 7);
    let (offer, to) =
        reply(machine.handle(&message(MessageType::Discover, &MAC, &options), arrival(), 0));
    assert!(offer.yiaddr().is_unspecified());
    assert_eq!(to.port(), 68);
    let vendor = O::VendorExtensions(vec![6, 1, 8, 255]);
    assert_eq!(offer.opts().get(OptionCode::VendorExtensions), Some(&vendor));
    let class = O::ClassIdentifier(b"PXEClient".to_vec());
    assert_eq!(offer.opts().get(OptionCode::ClassIdentifier), Some(&class));
    // The request goes to the other server; the client then asks our port 4011.
    let request = message(MessageType::Request, &MAC, &options);
    assert!(matches!(machine.handle(&request, arrival(), 0), Action::Nothing));
    let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 12), 4011);
    let (ack, to) =
        reply(machine.handle(&request, Arrival { source, port: PXE_PORT, ..arrival() }, 0));
    assert_eq!((ack.opts().msg_type(), to), (Some(MessageType::Ack), source));
    assert!(machine.leases().is_empty());
}

proptest::proptest! {
    /// No address is bound to two clients, and the table stays within the ranges.
    #[test]
    fn never_binds_address_to_two_clients(steps in proptest::collection::vec((0u8..8, 0u8..5, 8u8..16, 0u64..2000), 1..200)) {
        let mut machine = machine();
        let mut now = 0;
        let mut held: std::collections::BTreeMap<Ipv4Addr, (u8, u64)> = Default::default();
        for (client, kind, host, wait) in steps {
            now += wait;
            let address = Ipv4Addr::new(10, 0, 0, host);
            let kind = [MessageType::Discover, MessageType::Request, MessageType::Request, MessageType::Release, MessageType::Decline][usize::from(kind)];
            let mut packet = message(kind, &mac(client), &[O::RequestedIpAddress(address)]);
            if kind == MessageType::Release {
                packet.set_ciaddr(address);
            }
            if let Action::Reply { message, .. } = machine.handle(&packet, arrival(), now)
                && message.opts().msg_type() == Some(MessageType::Ack)
            {
                let given = message.yiaddr();
                if let Some((other, until)) = held.get(&given) {
                    proptest::prop_assert!(*other == client || *until <= now);
                }
                held.retain(|_, (other, _)| *other != client);
                held.insert(given, (client, now + 3600));
            }
            if matches!(kind, MessageType::Release | MessageType::Decline)
                && held.get(&address).is_some_and(|(other, _)| *other == client)
            {
                held.remove(&address);
            }
            proptest::prop_assert!(machine.leases().len() <= 5);
        }
    }

    /// Arbitrary packets are handled and encoded without a panic, and the table stays within the ranges.
    #[test]
    fn handles_arbitrary_packets(
        packets in proptest::collection::vec((
            proptest::collection::vec(0u8..=255, 43),
            proptest::collection::vec((
                proptest::sample::select(vec![12u8, 43, 50, 53, 54, 60, 61, 77, 82, 93, 97, 118, 255, 0]),
                proptest::collection::vec(0u8..20, 0..9)), 0..12),
            0u64..4000), 1..12),
        proxy: bool,
    ) {
        let mut machine = Machine::new(Config { proxy, probe: false, ..config() }, Leases::default());
        let mut now = 0;
        for (head, options, wait) in packets {
            now += wait;
            let mut bytes = head;
            bytes[0] = 1;
            bytes[2] %= 18;
            bytes.resize(236, 0);
            bytes.extend([99, 130, 83, 99]);
            for (code, value) in options {
                bytes.extend([code, value.len() as u8]);
                bytes.extend(value);
            }
            let Some(request) = wire::decode(&bytes) else { continue };
            for port in [67, PXE_PORT] {
                if let Action::Reply { message, .. } =
                    machine.handle(&request, Arrival { port, ..arrival() }, now)
                {
                    wire::encode(&message).unwrap();
                }
            }
            // Two ranges of four and eleven addresses, and one reservation.
            proptest::prop_assert!(machine.leases().len() <= 16);
        }
    }
}
