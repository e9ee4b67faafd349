//! Claims the virtual address of a cluster in `init`, and releases it in `reset`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use api_config::kubeadm::{ApiEndpoint, VirtualAddress};
use bootstrap::host::Host;
use bootstrap_core::manifests::VIRTUAL_ADDRESS;

/// The time in which another holder of the address must answer.
const LOOK: Duration = Duration::from_secs(1);

/// Claims the address for a first control plane. The Pod that later contends for the address finds it there and keeps
/// it.
pub(crate) fn claim(
    held: &VirtualAddress,
    local: &ApiEndpoint,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let address: Ipv4Addr = held.address.parse()?;
    let beside = local.advertise_address.parse().ok();
    let interface = Some(held.interface.as_str()).filter(|name| !name.is_empty());
    let place = place(address, interface, beside)?;
    if place.is_present()? {
        return Ok(());
    }
    let port = u16::try_from(local.bind_port).unwrap_or_default();
    if TcpStream::connect_timeout(&SocketAddr::new(address.into(), port), LOOK).is_ok() {
        let cause = "another machine has it and answers at the API's port; \
                     choose another address, or join that cluster";
        return Err(cause.into());
    }
    place.add()?;
    // Neighbors that miss the announcement resolve the address themselves.
    let _ = place.announce();
    Ok(())
}

/// Releases the address that this machine's manifest names. Returns the error, if any.
pub(crate) fn release(host: &Host) -> Option<vip::Error> {
    let manifest = host.path(&format!("/etc/kubernetes/manifests/{VIRTUAL_ADDRESS}.yaml"));
    let text = std::fs::read_to_string(manifest).ok()?;
    let flag = |name: &str| {
        let address = text.lines().find_map(|line| line.trim().strip_prefix(name));
        address.map(str::to_owned)
    };
    let address = flag("- --address=")?.parse().ok()?;
    let server = flag("- --server=").unwrap_or_default();
    let place = place(address, flag("- --interface=").as_deref(), vip::host_of(&server));
    place.and_then(|place| place.remove()).err()
}

fn place(
    address: Ipv4Addr,
    interface: Option<&str>,
    beside: Option<IpAddr>,
) -> Result<vip::AddressInterface, vip::Error> {
    let net = netlink::Kernel::open()?;
    vip::AddressInterface::find(Arc::new(net), address.into(), interface, beside)
}
