//! Removes the routes, rules and the tunnel device.

use net_core::{Family, policy};
use netlink::Net;

use crate::overlay::PROTOCOL;

/// Removes everything that [`crate::run`] wrote: tables, routes and the tunnel device. Missing parts are not an error.
pub fn remove(net: &dyn Net, device: &str) -> Result<(), netlink::Error> {
    for family in Family::ALL {
        if net.has_table(family, policy::TABLE)? {
            net.nft(&format!("delete table {} {}\n", family.nft(), policy::TABLE))?;
        }
    }
    for route in net.routes()?.iter().filter(|route| route.protocol == PROTOCOL) {
        net.delete_route(route).or_else(unless_missing)?;
    }
    match net.link(device)?.filter(|link| link.kind == "vxlan") {
        Some(link) => net.delete_link(link.index).or_else(unless_missing),
        None => Ok(()),
    }
}

fn unless_missing(error: netlink::Error) -> Result<(), netlink::Error> {
    if error.is_missing() { Ok(()) } else { Err(error) }
}
