//! IPAddresses of Services: each address that a Service has is an object, too, so that nobody else takes it.
//!
//! The Services say what is right. What is missing is made and what is left over is taken away, whoever made the
//! difference: this is upstream's repair and its allocation in one.

use std::{net::IpAddr, sync::Arc};

use api_meta::{GroupResource, Objects as _};
use client::{Client, DeleteOptions, Error, IfThere as _, Resource, WorkQueue};
use serde_json::{Value, json};

use crate::{
    alloc, cache::EventKind, definition::Definition, hub::Observer, server::Server, startup::ensure,
};

pub(crate) const IP_ADDRESSES: Resource =
    Resource::constant("networking.k8s.io", "v1", "ipaddresses", "IPAddress", false);
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED: &str = "ipaddress.kubernetes.io/managed-by";
const MANAGER: &str = "ipallocator.k8s.io";

/// Puts every address into the queue that [`follow`] works off, when its Service or its object changes.
pub(crate) fn observer() -> (Observer, WorkQueue<IpAddr>) {
    let queue = WorkQueue::default();
    let changes = queue.clone();
    let observe = move |definition: &Definition, event: &crate::cache::Event, _: Option<&Value>| {
        if definition.is("", "services") {
            let of = |object: &crate::object::Object| {
                object.tree().map(|tree| alloc::addresses(&tree)).unwrap_or_default()
            };
            let before = event.previous.as_deref().map(of).unwrap_or_default();
            let now = match event.kind {
                EventKind::Deleted => Vec::new(),
                _ => of(&event.object),
            };
            let gone = before.iter().filter(|a| !now.contains(a));
            let new = now.iter().filter(|a| !before.contains(a));
            gone.chain(new).for_each(|address| changes.add(*address));
        } else if definition.is("networking.k8s.io", "ipaddresses")
            && let Ok(address) = event.object.name().parse()
        {
            changes.add(address);
        }
    };
    (Box::new(observe), queue)
}

/// Makes the objects what the Services say, until the server stops.
pub(crate) fn follow(
    server: Arc<Server>,
    client: Client,
    queue: &WorkQueue<IpAddr>,
    tasks: &rt::Tasks,
) {
    queue.run(tasks, "addresses of services", 1, move |address| {
        let (server, client) = (server.clone(), client.clone());
        async move {
            let done = reconcile(&server, &client, address).await;
            done.inspect_err(|error| tracing::warn!(%address, %error, "the IPAddress of a Service"))
                .is_ok()
        }
    });
}

async fn reconcile(server: &Server, client: &Client, address: IpAddr) -> Result<(), Error> {
    let name = address.to_string();
    let known = GroupResource::new("networking.k8s.io", "ipaddresses");
    let found = server.security.objects.get(&known, "", &name);
    let owner = server.allocators.owner(address);
    let parent = owner.as_deref().and_then(|key| key.split_once('/')).map(|(namespace, name)| {
        json!({"group": "", "resource": "services", "namespace": namespace, "name": name})
    });
    let Some(found) = found else {
        return match parent {
            Some(parent) => ensure(client, &IP_ADDRESSES, "", &object(address, &parent)).await,
            None => Ok(()),
        };
    };
    let of = |field: &str| found["spec"]["parentRef"][field].as_str().unwrap_or_default();
    let right = parent.as_ref().is_some_and(|parent| {
        ["group", "resource", "namespace", "name"].iter().all(|f| parent[f] == of(f))
    });
    let ours = found["metadata"]["labels"][MANAGED] == MANAGER;
    // What somebody made for something else is theirs, even where a Service has got the same address since.
    if right || !ours {
        return Ok(());
    }
    // Its deletion comes back to us as a change, and then the right one is made.
    let deleted = client.delete(&IP_ADDRESSES, "", &name, &DeleteOptions::default()).await;
    deleted.if_there().map(drop)
}

fn object(address: IpAddr, parent: &Value) -> Value {
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    json!({
        "metadata": {"name": address.to_string(), "labels": {FAMILY: family, MANAGED: MANAGER}},
        "spec": {"parentRef": parent},
    })
}

/// Whether an address belongs to something that is no Service.
pub(crate) fn is_foreign(address: &Value) -> bool {
    let parent = &address["spec"]["parentRef"];
    let text = |field: &str| parent[field].as_str().unwrap_or_default();
    !(text("group").is_empty() && text("resource") == "services")
}
