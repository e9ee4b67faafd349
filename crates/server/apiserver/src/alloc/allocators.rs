//! Allocates the addresses and ports of Services.

use std::{net::IpAddr, sync::Arc};

use api_meta::{Cidr, FieldError, GroupKind, Path, Status, Tree as _};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    address::{self, ServiceName},
    allocation::Allocation,
    bitmap::Bitmap,
    hints::Hints,
    pool::Pool,
    range,
    service::{AddressRequest, PortsRejection, choose_ports, requested_addresses, strings},
};

/// The allocators of Service addresses and node ports.
pub(crate) struct Allocators {
    pub(crate) pool: Arc<Pool>,
    hints: Hints,
}

/// A Service that is about to be written.
struct Request {
    new: Value,
    old: Option<Value>,
    dry_run: bool,
}

impl Allocators {
    pub(crate) fn new(pool: Arc<Pool>, hints: Hints) -> Self {
        Self { pool, hints }
    }

    /// Allocates a Service's addresses and ports, or returns the error for those that it requests.
    pub(crate) async fn allocate(
        self: &Arc<Self>,
        tree: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Allocation, Box<Status>> {
        let request = Request { new: std::mem::take(tree), old: old.cloned(), dry_run };
        let allocators = self.clone();
        let (done, outcome) = oneshot::channel();
        // In its own task: if the client disconnects halfway, no allocation may be lost.
        self.pool.cache.tasks.spawn("addresses and ports of a Service", async move {
            // The receiver may be gone. Dropping the result then releases the allocation.
            let _ = done.send(allocators.serve(request).await);
        });
        let stopped = || Box::new(Status::internal("failed to allocate: the server is stopping"));
        let (new, allocation) = outcome.await.map_err(|_| stopped())??;
        *tree = new;
        Ok(allocation)
    }

    /// Prepares the release of everything that a Service has, for a write that deletes it.
    pub(crate) fn ending(&self, last: &Value, allocation: Allocation) -> Allocation {
        let mut allocation = if allocation.is_of_service() {
            allocation
        } else {
            Allocation::of(self.pool.clone(), last)
        };
        allocation.release_after_delete(last);
        allocation
    }

    async fn serve(self: Arc<Self>, request: Request) -> Result<(Value, Allocation), Box<Status>> {
        let Request { mut new, old, dry_run } = request;
        let mut allocation = Allocation::of(self.pool.clone(), &new);
        let families = self.hints.lock().families();
        let requests = requested_addresses(&mut new, old.as_ref(), &families)
            .map_err(|error| invalid(&new, error))?;
        self.addresses(&mut new, requests, dry_run, &mut allocation).await?;
        self.node_ports(&mut new, old.as_ref(), dry_run, &mut allocation).await?;
        if let Some(old) = &old {
            allocation.release_after_update(old, &new);
        }
        Ok((new, allocation))
    }

    async fn addresses(
        &self,
        service: &mut Value,
        requests: Vec<AddressRequest>,
        dry_run: bool,
        allocation: &mut Allocation,
    ) -> Result<(), Box<Status>> {
        if requests.is_empty() {
            return Ok(());
        }
        let mut addresses = Vec::new();
        let families = strings(service.at("spec.ipFamilies"));
        for (i, (family, request)) in families.into_iter().zip(requests).enumerate() {
            let ranges = self.hints.lock().ranges(&family);
            if ranges.is_empty() {
                let field = Path::new("spec").child("ipFamilies").index(i);
                let detail = "not configured on this cluster";
                return Err(invalid(service, FieldError::invalid(&field, family, detail)));
            }
            let address = match request {
                AddressRequest::Keep(address) => address,
                AddressRequest::Exact(address) => {
                    self.allocate_address(service, address, &ranges, dry_run, allocation).await?;
                    address
                }
                AddressRequest::Any => {
                    self.allocate_any_address(&ranges, dry_run, allocation).await?
                }
            };
            addresses.push(address.to_string());
        }
        service.put(&["spec", "clusterIP"], json!(addresses.first().cloned().unwrap_or_default()));
        service.put(&["spec", "clusterIPs"], json!(addresses));
        Ok(())
    }

    async fn allocate_address(
        &self,
        service: &Value,
        address: IpAddr,
        ranges: &[Cidr],
        dry_run: bool,
        allocation: &mut Allocation,
    ) -> Result<(), Box<Status>> {
        let refuse = |cause: &str| {
            let field = Path::new("spec").child("clusterIPs");
            let mut requested = service.at("spec.clusterIPs").clone();
            if requested.as_array().is_none_or(Vec::is_empty) {
                requested = json!([service["spec"]["clusterIP"]]);
            }
            let detail = format!("failed to allocate IP {address}: {cause}");
            Err(invalid(service, FieldError::invalid(&field, requested, detail)))
        };
        if !ranges.iter().any(|range| range::gives(*range, address)) {
            return refuse("the provided network does not match the current range");
        }
        if self.take(address, dry_run, allocation).await? {
            return Ok(());
        }
        refuse("provided IP is already allocated")
    }

    async fn allocate_any_address(
        &self,
        ranges: &[Cidr],
        dry_run: bool,
        allocation: &mut Allocation,
    ) -> Result<IpAddr, Box<Status>> {
        for range in ranges {
            for address in range::addresses(*range) {
                let heard_of = self.hints.lock().taken.contains(&address);
                if !heard_of && self.take(address, dry_run, allocation).await? {
                    return Ok(address);
                }
            }
        }
        let name = &allocation.service().name;
        let cause = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
        Err(Box::new(Status::internal(cause)))
    }

    /// Allocates an address. Returns `false` if it is allocated already.
    async fn take(
        &self,
        address: IpAddr,
        dry_run: bool,
        allocation: &mut Allocation,
    ) -> Result<bool, Box<Status>> {
        if dry_run {
            let found = address::get(&self.pool.client, address).await;
            return found.map(|found| found.is_none()).map_err(client_status);
        }
        let created = address::create(&self.pool.client, address, allocation.service()).await;
        let Some(known) = created.map_err(client_status)? else { return Ok(false) };
        allocation.additions().addresses.push(known);
        Ok(true)
    }

    async fn node_ports(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
        allocation: &mut Allocation,
    ) -> Result<(), Box<Status>> {
        if !matches!(service.text("spec.type"), "NodePort" | "LoadBalancer") {
            return Ok(());
        }
        // Most updates do not change the ports, and need not read the store.
        if let Ok(chosen) = choose_ports(service, old, &mut Bitmap::new(self.pool.ports.range))
            && chosen.taken.is_empty()
        {
            return Ok(());
        }
        let chosen = if dry_run {
            self.pool.ports.try_out(|map| choose_ports(service, old, map)).await
        } else {
            self.pool.ports.change(|map| choose_ports(service, old, map)).await
        };
        let chosen = chosen.map_err(|error| error.status())?.map_err(|refused| match refused {
            PortsRejection::Field(error) => invalid(service, error),
            PortsRejection::Internal(cause) => Box::new(Status::internal(cause)),
        })?;
        chosen.apply(service);
        if !dry_run {
            allocation.additions().ports = chosen.taken;
        }
        Ok(())
    }
}

fn invalid(service: &Value, error: FieldError) -> Box<Status> {
    let ServiceName { name, .. } = ServiceName::of(service);
    Box::new(Status::invalid(&GroupKind::new("", "Service"), &name, &[error]))
}

/// Converts an error of the server's own request.
fn client_status(error: client::Error) -> Box<Status> {
    Box::new(Status::internal(format!("failed to allocate IP: {error}")))
}
