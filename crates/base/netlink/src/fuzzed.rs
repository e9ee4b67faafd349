//! Fuzzes messages of the kernel and listings of nft.

use crate::{
    conntrack, link, nft, route,
    wire::{ACK, Message, messages, verdict},
};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A link, a route, a neighbour, a conntrack entry and an error.
fn seeds() -> Vec<Vec<u8>> {
    let mut link = Message::new(16, ACK, &[1; 16]);
    link.text(3, "eth0").u32(4, 1500).attribute(1, &[2; 6]).attribute(16, &[6]);
    link.nest(18, |info| _ = info.text(1, "veth").nest(2, |data| _ = data.u32(1, 2)));
    let mut fixed = [2, 24, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0];
    let mut route = Message::new(24, 0, &fixed);
    route.attribute(1, &[10, 0, 0, 0]).attribute(5, &[10, 0, 0, 1]).u32(4, 2).u32(6, 100);
    fixed[8] = 0x80;
    let mut neighbour = Message::new(28, 0, &fixed);
    neighbour.attribute(1, &[0xfd; 16]).attribute(2, &[2; 6]);
    let mut flow = Message::new(0x0100, 0, &[2, 0, 0, 0]);
    for kind in [1, 2] {
        flow.nest(kind, |tuple| {
            tuple.nest(1, |ip| _ = ip.attribute(1, &[10, 0, 0, 1]).attribute(2, &[10, 0, 0, 2]));
            tuple.nest(2, |transport| {
                transport.attribute(1, &[17]).attribute(2, &[0, 53]).attribute(3, &[0, 54]);
            });
        });
    }
    let mut refusal = Message::new(2, 0, &(-17_i32).to_ne_bytes());
    let all = [&mut link, &mut route, &mut neighbour, &mut flow, &mut refusal];
    all.into_iter().map(|message| message.finish(7).to_vec()).collect()
}

#[test]
fn kernel_messages() {
    let seeds = seeds();
    let mut seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    // The smallest error number must be converted without overflow.
    let smallest = Message::new(2, 0, &i32::MIN.to_ne_bytes()).finish(7).to_vec();
    seeds.push(&smallest);
    fuzz::fuzz(HERE, "message", &seeds, |input| {
        for message in messages(input) {
            let _ = verdict(message.body);
            let _ = link::parse(message.body);
            let _ = route::parse_route(message.body);
            let _ = route::parse_neighbour(message.body, false);
            let _ = conntrack::parse(message.body, 17);
        }
    });
}

#[test]
fn nft_listings() {
    let seed = br#"{"nftables": [{"metainfo": {"version": "1.0"}}, {"chain": {"name": "c"}}, {"map": {"name": "m"}},
        {"rule": {"chain": "state", "comment": "x"}}, {"set": {"name": "s", "elem": ["a", {"concat": [1, {"range": [2, 3]}]}]}}]}"#;
    fuzz::fuzz(HERE, "listing", &[seed], |input| {
        let _ = serde_json::from_slice::<nft::Listing>(input);
    });
}
