//! Fuzz tests of damaged packets, URLs, files and reports.

use std::{net::Ipv4Addr, sync::Arc};

use crate::{
    dhcp::{Action, Arrival, BootFiles, Config, Leases, Machine, parse_host, parse_range, wire},
    dns::Names,
    matchbox::{Group, HttpRequest, Matchbox, Profile, Settings, Store},
    tftp::{Packet, Source, Step, Transfer},
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Builds a DHCP packet with these options.
fn dhcp(options: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 1, 6, 0, 0, 0, 0, 7];
    bytes.resize(28, 0);
    bytes.extend([0x52, 0x54, 0, 0, 0, 1]);
    bytes.resize(236, 0);
    bytes.extend([99, 130, 83, 99]);
    bytes.extend(options);
    bytes.push(255);
    bytes
}

#[test]
fn dhcp_packets() {
    let (subnet, lease) = parse_range("10.0.0.10,10.0.0.13,255.255.255.0,1h").unwrap();
    let (mac, reservation) = parse_host("52:54:00:00:00:99,10.0.0.50,fixed").unwrap();
    let server = Ipv4Addr::new(10, 0, 0, 1);
    let config = |proxy| Config {
        subnets: vec![subnet.clone()],
        reservations: [(mac.clone(), reservation.clone())].into(),
        lease: lease.unwrap(),
        domain: Some("example.test".into()),
        proxy,
        probe: false,
        options: vec![],
        boot: BootFiles::with_defaults(8080),
    };
    let seeds = [
        dhcp(b"\x35\x01\x01\x3c\x15PXEClient:Arch:00000:\x5d\x02\0\0\x0c\x04host"),
        dhcp(b"\x35\x01\x03\x32\x04\x0a\0\0\x0a\x36\x04\x0a\0\0\x01\x4d\x04iPXE\x61\x11\0aaaaaaaaaaaaaaaa"),
        dhcp(b"\x35\x01\x08\x52\x04\x01\x02ab\x51\x08\0\0\0a.b.c"),
        dhcp(b"\x35\x01\x04\x32\x04\x0a\0\0\x0a"),
    ];
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    fuzz::fuzz(HERE, "dhcp", &seeds, |input| {
        let Some(request) = wire::decode(input) else { return };
        for proxy in [false, true] {
            let mut machine = Machine::new(config(proxy), Leases::default());
            for (port, now) in [(67, 0), (4011, 1), (67, 4000)] {
                let source = std::net::SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
                let arrival = Arrival { server, source, port };
                if let Action::Reply { message, .. } = machine.handle(&request, arrival, now) {
                    wire::encode(&message).unwrap();
                }
            }
            assert!(machine.leases().len() <= 5);
            // The lease file has one line for the client, whatever host name it sends.
            let text: String = machine.leases().lines().collect();
            assert_eq!(Leases::parse(&text).lines().collect::<String>(), text);
        }
    });
}

#[test]
fn tftp_packets() {
    let seeds: [&[u8]; 4] = [
        b"\0\x01undionly.kpxe\0octet\0blksize\x001468\0tsize\x000\0windowsize\x004\0timeout\x002\0",
        b"\0\x01../../etc/passwd\0netascii\0",
        b"\0\x04\0\x01",
        b"\0\x05\0\x08refused\0",
    ];
    fuzz::fuzz(HERE, "tftp", &seeds, |input| {
        let Some(Packet::Read(request)) = Packet::parse(input) else { return };
        let mut transfer = Transfer::new(Source::Bytes(vec![7; 5000]), &request);
        let mut step = Step::Send;
        // A client that acknowledges every packet finishes soon. The server sends at most one window at once.
        for _ in 0..1000 {
            let last = match step {
                Step::Send => {
                    let packets: Vec<_> = transfer.packets().map(Result::unwrap).collect();
                    assert!(packets.iter().map(Vec::len).sum::<usize>() < 20_000);
                    packets.last().map_or(0, |packet| match packet[1] {
                        3 => u16::from_be_bytes([packet[2], packet[3]]),
                        _ => 0,
                    })
                }
                Step::Wait => 0,
                Step::Done | Step::GiveUp => return,
            };
            step = transfer.acknowledged(last);
        }
        panic!("no end");
    });
}

#[test]
fn dns_packets() {
    let mut names = Names::new(Some("example.test")).unwrap();
    names.add("node1", Ipv4Addr::new(10, 0, 0, 1).into()).unwrap();
    let question = |name: &[u8], kind: u8| {
        [b"\0\x07\x01\0\0\x01\0\0\0\0\0\0", name, &[0, 0, kind, 0, 1]].concat()
    };
    let seeds = [
        question(b"\x05node1\x07example\x04test", 1),
        question(b"\x011\x010\x010\x0210\x07in-addr\x04arpa", 12),
        question(b"\xc0\x0c", 255),
    ];
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    fuzz::fuzz(HERE, "dns", &seeds, |input| {
        for tcp in [false, true] {
            if let Some(answer) = names.answer(input, tcp) {
                // The server must not amplify queries with a forged sender.
                assert!(answer.len() <= input.len() + 512);
            }
        }
    });
}

#[test]
fn requests() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        (
            "groups/g.json",
            r#"{"id":"g","profile":"p","metadata":{"a":{"b":1}},"selector":{"os":"x"}}"#,
        ),
        ("groups/d.json", r#"{"id":"d","profile":"p"}"#),
        (
            "profiles/p.json",
            r#"{"id":"p","generic_id":"t","boot":{"kernel":"/k","args":["{{.request.query.mac}}"]}}"#,
        ),
        ("generic/t", "{{.request.raw_query}}{{range $k, $v := .request.query}}{{$k}}{{end}}"),
        ("secret", "not for you"),
    ] {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let matchbox = Matchbox::new(Arc::new(Store::new(dir.path())), Settings::default());
    let seeds: [&[u8]; 5] = [
        b"/ipxe?mac=52-54-00-00-00-01&uuid=a%20b&os=x",
        b"/metadata?os=x&MAC=5254.0000.0001",
        b"/generic?a=%zz;b=c&&=",
        b"/machines/52%3A54:00:00:00:01",
        b"/grub?windlass_disk=none&mac=%2e%2e%2f",
    ];
    fuzz::fuzz(HERE, "request", &seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let (path, query) = text.split_once('?').unwrap_or((&text, ""));
        let request = HttpRequest {
            path: path.to_owned(),
            query: query.to_owned(),
            ..HttpRequest::default()
        };
        if let Some(Ok(content)) = matchbox.serve(&request) {
            assert!(!content.body.windows(11).any(|window| window == b"not for you"), "{text}");
        }
    });
}

#[test]
fn store_entries_and_lease_files() {
    let seeds: [&[u8]; 3] = [
        br#"{"id":"g","profile":"p","selector":{"mac":["52:54:00:00:00:01",{"prefix":"52:54"}],"os":""},"metadata":{"x":[1]}}"#,
        br#"{"id":"p","boot":{"kernel":"k","initrd":["i"],"args":["a"]},"ignition_id":"i","install_once":true}"#,
        b"1700000000 52:54:00:00:00:01 10.0.0.10 host *\n0 52:54:00:00:00:02 10.0.0.11 * *\nduid 00:01\n",
    ];
    fuzz::fuzz(HERE, "entry", &seeds, |input| {
        let _ = serde_json::from_slice::<Profile>(input);
        if let Ok(group) = Group::parse(input) {
            // A parsed entry can be written and parsed again.
            let written = serde_json::to_vec(&group).unwrap();
            assert_eq!(Group::parse(&written).unwrap(), group);
        }
        let leases = Leases::parse(&String::from_utf8_lossy(input));
        let text: String = leases.lines().collect();
        assert_eq!(Leases::parse(&text).lines().collect::<String>(), text);
    });
}
