//! The `loopback` plugin, which containerd calls in addition to the network's plugin.

use netlink::{LinkChange, Namespace, Net};
use serde_json::{Value, json};

use crate::spec::{Attachment, Call, Config, Failure};

pub(crate) fn handle(call: &Call, config: &Config) -> Result<Option<Value>, Failure> {
    match call {
        Call::Add(attachment) => {
            bring_up(attachment)?;
            Ok(Some(config.prev_result.clone().unwrap_or_else(|| result(config, attachment))))
        }
        Call::Check(attachment) => is_up(attachment).map(|()| None),
        // Deleting a namespace deletes its loopback interface.
        _ => Ok(None),
    }
}

fn kernel(attachment: &Attachment) -> Result<netlink::Kernel, Failure> {
    let opened = Namespace::open(&attachment.netns).and_then(|namespace| namespace.kernel());
    opened.map_err(Failure::container)
}

fn bring_up(attachment: &Attachment) -> Result<(), Failure> {
    let inside = kernel(attachment)?;
    let Some(link) = inside.link("lo").map_err(Failure::network)? else { return Ok(()) };
    let up = LinkChange { up: Some(true), ..LinkChange::default() };
    inside.change_link(link.index, &up).map_err(Failure::network)
}

fn is_up(attachment: &Attachment) -> Result<(), Failure> {
    let link = kernel(attachment)?.link("lo").map_err(Failure::network)?;
    if link.is_some_and(|link| link.up) {
        Ok(())
    } else {
        Err(Failure::differs("loopback is down"))
    }
}

fn result(config: &Config, attachment: &Attachment) -> Value {
    let address =
        |text: &str| text.parse().ok().map(|cidr| config.address_json(cidr, None, Some(0)));
    let ips: Vec<_> = [address("127.0.0.1/8"), address("::1/128")].into_iter().flatten().collect();
    json!({
        "cniVersion": config.cni_version,
        "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": attachment.netns}],
        "ips": ips,
        "dns": {},
    })
}
