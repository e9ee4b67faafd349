use super::{packet, transfer::netascii, *};

fn rrq(options: &[(&str, &str)]) -> ReadRequest {
    let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    ReadRequest { name: "f".into(), mode: Mode::Octet, options }
}

fn packets(transfer: &Transfer) -> Vec<Vec<u8>> {
    transfer.packets().collect::<std::io::Result<_>>().unwrap()
}

#[test]
fn parses_packets() {
    for (bytes, want) in [
        (
            &b"\0\x01a/b\0OCTET\0blkSize\x001468\0"[..],
            Some(Packet::Read(ReadRequest {
                name: "a/b".into(),
                mode: Mode::Octet,
                options: vec![("blksize".into(), "1468".into())],
            })),
        ),
        (b"\0\x01a\0mail\0", None),
        (b"\0\x01a\0octet", None),
        (b"\0\x01", None),
        (b"\0\x02a\0octet\0", Some(Packet::Write)),
        (b"\0\x04\x01\x02", Some(Packet::Ack(258))),
        (b"\0\x04\x01", None),
        (b"\0\x05\0\x01gone\0", Some(Packet::Error(1, "gone".into()))),
        (b"", None),
    ] {
        assert_eq!(Packet::parse(bytes), want, "{bytes:?}");
    }
}

#[test]
fn acknowledges_agreed_options() {
    for (options, want) in [
        (&[("tsize", "0")][..], &[("tsize", 1000)][..]),
        (&[("blksize", "70000"), ("windowsize", "1000")], &[("blksize", 65464), ("windowsize", 4)]),
        (&[("windowsize", "1000")], &[("windowsize", 64)]),
        (&[("timeout", "3"), ("other", "1")], &[("timeout", 3)]),
    ] {
        let transfer = Transfer::new(Source::Bytes(vec![0; 1000]), &rrq(options));
        assert_eq!(packets(&transfer), [packet::oack(want)]);
    }
    // No known option: plain RFC 1350.
    let transfer = Transfer::new(Source::Bytes(vec![7; 3]), &rrq(&[("blksize", "4"), ("x", "")]));
    assert_eq!(packets(&transfer), [packet::data(1, &[7; 3])]);
}

#[test]
fn gives_up_silent_client() {
    let mut transfer = Transfer::new(Source::Bytes(vec![0; 10]), &rrq(&[]));
    let tries = (0..100).take_while(|_| transfer.timed_out() != Step::GiveUp).count();
    assert_eq!(tries, 6);
}

#[test]
fn text_mode() {
    assert_eq!(netascii(b"a\nb\r"), b"a\r\nb\r\0");
}

/// Simulates a client that acknowledges the end of each window, on a network that loses the packets that `lost`
/// selects.
fn receive(len: usize, block: u64, window: u64, lost: impl Fn(usize) -> bool) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    let (size, count) = (block.to_string(), window.to_string());
    let request = rrq(&[("blksize", &size), ("windowsize", &count)]);
    let mut transfer = Transfer::new(Source::Bytes(bytes), &request);
    let (mut got, mut expected, mut sent) = (Vec::new(), 1u64, 0);
    let mut step = Step::Send;
    for _ in 0..1_000_000 {
        let mut answer = None;
        let mut in_window = 0;
        match step {
            Step::Send => {
                for packet in packets(&transfer) {
                    sent += 1;
                    if lost(sent) {
                        continue;
                    }
                    if packet[1] == 6 {
                        answer = Some(0);
                        continue;
                    }
                    let number = u16::from_be_bytes([packet[2], packet[3]]);
                    if number == (expected & 0xffff) as u16 {
                        got.extend(&packet[4..]);
                        expected += 1;
                        in_window += 1;
                    }
                    if in_window == window || packet.len() < block as usize + 4 {
                        in_window = 0;
                    }
                    answer = Some(((expected - 1) & 0xffff) as u16);
                }
            }
            Step::Wait => {}
            Step::Done => return got,
            Step::GiveUp => panic!("given up after {sent} packets"),
        }
        step = match answer {
            Some(number) => transfer.acknowledged(number),
            None => transfer.timed_out(),
        };
    }
    panic!("no end");
}

#[test]
fn wraps_block_numbers() {
    let len = 8 * 70_000;
    assert_eq!(receive(len, 8, 1, |_| false).len(), len);
    assert_eq!(receive(len, 8, 7, |_| false).len(), len);
}

proptest::proptest! {
    #[test]
    fn resends_lost_packets(
        len in 0usize..5000,
        block in 8u64..600,
        window in 1u64..10,
        lost in proptest::collection::btree_map(1usize..400, proptest::bool::weighted(0.3), 0..100),
    ) {
        // At most three losses in a row, so that the transfer is not given up.
        let lost = |n: usize| lost.get(&n) == Some(&true) && !n.is_multiple_of(4);
        let got = receive(len, block, window, lost);
        proptest::prop_assert_eq!(got, (0..len).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    }

    #[test]
    fn no_packet_panics(bytes in proptest::collection::vec(0u8..=255, 0..64)) {
        let _: Option<Packet> = Packet::parse(&bytes);
    }
}
