use std::net::Ipv4Addr;

use netlink::{Fake, NewKind, NewLink};

use super::*;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);

fn machine() -> Arc<Fake> {
    let net = Arc::new(Fake::new());
    for (name, address) in [("eth0", [10, 0, 0, 1]), ("eth1", [192, 0, 2, 1])] {
        net.add_link(&NewLink { name, mtu: 0, mac: None, kind: NewKind::Bridge }).unwrap();
        let index = net.link(name).unwrap().unwrap().index;
        net.add_address(index, Cidr::new(Ipv4Addr::from(address).into(), 24).unwrap()).unwrap();
    }
    net
}

fn has(net: &Fake) -> bool {
    net.addresses().unwrap().iter().any(|a| a.cidr == Cidr::host(ADDRESS.into()))
}

#[test]
fn the_address_is_taken_beside_the_servers_and_given_up_once() {
    let net = machine();
    let beside = host_of("https://192.0.2.1:6443");
    let place = Place::find(net.clone(), ADDRESS, None, beside).unwrap();
    assert_eq!(place.interface, "eth1");
    place.take().unwrap();
    place.take().unwrap();
    assert!(has(&net));
    place.give_up().unwrap();
    place.give_up().unwrap();
    assert!(!has(&net));
}

#[test]
fn a_place_that_is_not_there_is_an_error_with_a_way_out() {
    let net = machine();
    let find = |interface, beside| {
        Place::find(net.clone(), ADDRESS, interface, beside).err().map(|e| e.to_string())
    };
    assert!(find(Some("eth7"), None).unwrap().contains("eth7"));
    let nowhere = find(None, host_of("https://[fd00::1]:6443")).unwrap();
    assert!(nowhere.contains("fd00::1") && nowhere.contains("--interface"), "{nowhere}");
    assert_eq!(find(Some("eth0"), None), None);
}
