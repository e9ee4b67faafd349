//! A machine for tests of other crates.

use std::net::IpAddr;

use crate::Machine;

/// Returns the document of an untrusted machine without volumes.
pub fn machine(group: &str, name: &str) -> Machine {
    let address = IpAddr::from([172, 29, 0, 2]);
    Machine {
        cluster: "a.local".to_owned(),
        group: group.to_owned(),
        name: name.to_owned(),
        id: name.to_owned(),
        made: 0,
        address,
        gateway: address,
        cgroup: String::new(),
        trusted: false,
        user_data: String::new(),
        volumes: Vec::new(),
    }
}
