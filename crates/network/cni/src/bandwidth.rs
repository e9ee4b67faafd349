//! Limits the bandwidth of a Pod, as the annotations `kubernetes.io/ingress-bandwidth` and
//! `kubernetes.io/egress-bandwidth` set. The runtime checks them and passes bits per second.
//!
//! The limits are on the node's side of the pair, where the Pod cannot remove them. What the Pod sends passes an `ifb`
//! device, because the kernel only delays what a link sends.

use netlink::{Link, LinkChange, Net, NewKind, NewLink, RateLimit};

use crate::spec::{Bandwidth, Failure};

/// The longest time that a packet waits in a queue, in milliseconds.
const LATENCY: u64 = 25;
/// The smallest burst, in bytes. A packet that is larger than the burst would never pass.
const MIN_BURST: u64 = 64 << 10;

/// Returns the limit for the kernel; `None` without a rate.
///
/// containerd passes the largest burst, 512 MiB, so that short-lived Pods would never be limited. A burst lasts for one
/// second at most.
fn limit(rate: u64, burst: u64) -> Option<RateLimit> {
    if rate == 0 {
        return None;
    }
    let bytes_per_second = (rate / 8).max(1);
    let burst = (burst / 8).min(bytes_per_second).clamp(MIN_BURST, u64::from(u32::MAX));
    let queue = (bytes_per_second / 1000).saturating_mul(LATENCY).saturating_add(burst);
    let u32 = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Some(RateLimit { bytes_per_second, burst: u32(burst), queue: u32(queue) })
}

/// Returns the name of the device through which the packets of a Pod pass, from that of its pair's host end.
pub(crate) fn device_name(host: &str) -> String {
    format!("ifb{}", host.trim_start_matches("veth"))
}

/// Sets the limits on the host end of a Pod's pair.
pub(crate) fn apply(net: &dyn Net, bandwidth: &Bandwidth, host: &Link) -> Result<(), Failure> {
    let failed = |module: &'static str| {
        move |error: netlink::Error| {
            let message = format!(
                "limiting the Pod's bandwidth: {}; has the kernel the module {module}? Without it, remove the \
                 annotations kubernetes.io/ingress-bandwidth and kubernetes.io/egress-bandwidth",
                Failure::network(error)
            );
            Failure::new(103, message)
        }
    };
    if let Some(limit) = limit(bandwidth.ingress_rate, bandwidth.ingress_burst) {
        net.limit_sent(host.index, &limit).map_err(failed("sch_tbf"))?;
    }
    let Some(limit) = limit(bandwidth.egress_rate, bandwidth.egress_burst) else { return Ok(()) };
    let name = device_name(&host.name);
    let new = NewLink { name: &name, mtu: host.mtu, mac: None, kind: NewKind::Ifb };
    match net.add_link(&new) {
        Err(error) if !error.is_exists() => return Err(failed("ifb")(error)),
        _ => {}
    }
    let device = net.link(&name).map_err(Failure::network)?;
    let device = device.ok_or_else(|| Failure::new(100, format!("interface {name} vanished")))?;
    net.limit_sent(device.index, &limit).map_err(failed("sch_tbf"))?;
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    net.change_link(device.index, &up).map_err(Failure::network)?;
    net.redirect_received(host.index, device.index).map_err(failed("act_mirred"))
}

/// Checks that the device of a limited Pod is there.
pub(crate) fn check(net: &dyn Net, bandwidth: &Bandwidth, host: &str) -> Result<(), Failure> {
    let name = device_name(host);
    if bandwidth.egress_rate > 0 && net.link(&name).map_err(Failure::network)?.is_none() {
        return Err(Failure::differs(format!(
            "interface {name} is missing, which limits the Pod's bandwidth"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use netlink::Fake;

    use super::*;

    #[test]
    fn converts_bits_of_annotations_to_limits() {
        let containerd = u64::from(u32::MAX);
        for (rate, burst, expected) in [
            (0, containerd, None),
            // 1 Mbit/s: a burst of one second, and 25 ms of queue.
            (1_000_000, containerd, Some((125_000, 125_000, 128_125))),
            (1_000_000, 800_000, Some((125_000, 100_000, 103_125))),
            // A packet must fit into the burst.
            (1_000, containerd, Some((125, 65_536, 65_536))),
            (1, 0, Some((1, 65_536, 65_536))),
            // 1 Pbit/s, the largest that runtimes accept.
            (1_000_000_000_000_000, u64::MAX, Some((125_000_000_000_000, u32::MAX, u32::MAX))),
            (u64::MAX, u64::MAX, Some((u64::MAX / 8, u32::MAX, u32::MAX))),
        ] {
            let expected = expected.map(|(bytes_per_second, burst, queue)| RateLimit {
                bytes_per_second,
                burst,
                queue,
            });
            assert_eq!(limit(rate, burst), expected, "{rate} {burst}");
        }
    }

    #[test]
    fn sets_nothing_without_limits() {
        let net = Fake::new();
        net.add_link(&NewLink { name: "veth01", mtu: 0, mac: None, kind: NewKind::Bridge })
            .unwrap();
        let host = net.link("veth01").unwrap().unwrap();
        net.take_log();
        apply(&net, &Bandwidth::default(), &host).unwrap();
        assert!(net.take_log().is_empty());
        let egress = Bandwidth { egress_rate: 8_000_000, ..Bandwidth::default() };
        assert!(check(&net, &egress, "veth01").is_err());
        for _ in 0..2 {
            apply(&net, &egress, &host).unwrap();
            check(&net, &egress, "veth01").unwrap();
        }
        assert!(net.take_log().contains(&"redirect what 1 receives to 2".to_owned()));
    }

    #[test]
    fn parses_keys_of_specification_and_of_containerd() {
        let parse = |text: &str| serde_json::from_str::<Bandwidth>(text);
        let expected =
            Bandwidth { ingress_rate: 1, ingress_burst: 2, egress_rate: 3, egress_burst: 4 };
        let own = r#"{"ingressRate": 1, "ingressBurst": 2, "egressRate": 3, "egressBurst": 4}"#;
        let go = r#"{"IngressRate": 1, "IngressBurst": 2, "EgressRate": 3, "EgressBurst": 4}"#;
        assert_eq!((parse(own).unwrap(), parse(go).unwrap()), (expected, expected));
        for bad in [r#"{"ingressRate": -1}"#, r#"{"egressRate": "1M"}"#, r#"{"egressRate": 1e30}"#]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
