//! Gives Services their addresses and ports.

use std::{net::IpAddr, sync::Arc};

use api_meta::{Cidr, FieldError, GroupKind, Path, Status, Tree as _};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    address::{self, Place},
    bitmap::Bitmap,
    held::Held,
    hints::Hints,
    pool::Pool,
    range,
    service::{Refused, Wanted, choose_ports, strings, wanted_addresses},
};

pub(crate) struct Allocators {
    pub(crate) pool: Arc<Pool>,
    hints: Hints,
}

/// A Service that is to be written.
struct Request {
    new: Value,
    old: Option<Value>,
    dry_run: bool,
}

impl Allocators {
    pub(crate) fn new(pool: Arc<Pool>, hints: Hints) -> Self {
        Self { pool, hints }
    }

    /// Gives a Service its addresses and ports, or says why it cannot have those that it wants.
    pub(crate) async fn allocate(
        self: &Arc<Self>,
        tree: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Held, Box<Status>> {
        let request = Request { new: std::mem::take(tree), old: old.cloned(), dry_run };
        let allocators = self.clone();
        let (done, outcome) = oneshot::channel();
        // A task of its own, because a client that goes away in the middle would leave behind what nobody knows of.
        self.pool.cache.tasks.spawn("addresses and ports of a Service", async move {
            // Who asked may be gone; what was taken is then given back.
            let _ = done.send(allocators.serve(request).await);
        });
        let stopped = || Box::new(Status::internal("allocating: the server stops"));
        let (new, held) = outcome.await.map_err(|_| stopped())??;
        *tree = new;
        Ok(held)
    }

    /// What a write that ends a Service gives back: all that it has.
    pub(crate) fn ending(&self, last: &Value, held: Held) -> Held {
        let mut held = match held.is_something() {
            true => held,
            false => Held::of(self.pool.clone(), last),
        };
        held.giving_up_all(last);
        held
    }

    async fn serve(self: Arc<Self>, request: Request) -> Result<(Value, Held), Box<Status>> {
        let Request { mut new, old, dry_run } = request;
        let mut held = Held::of(self.pool.clone(), &new);
        let families = self.hints.lock().families();
        let wanted = wanted_addresses(&mut new, old.as_ref(), &families)
            .map_err(|error| invalid(&new, error))?;
        self.addresses(&mut new, wanted, dry_run, &mut held).await?;
        self.node_ports(&mut new, old.as_ref(), dry_run, &mut held).await?;
        if let Some(old) = &old {
            held.giving_up(old, &new);
        }
        Ok((new, held))
    }

    async fn addresses(
        &self,
        service: &mut Value,
        wanted: Vec<Wanted>,
        dry_run: bool,
        held: &mut Held,
    ) -> Result<(), Box<Status>> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut given = Vec::new();
        let families = strings(&service["spec"]["ipFamilies"]);
        for (i, (family, wanted)) in families.into_iter().zip(wanted).enumerate() {
            let ranges = self.hints.lock().ranges(&family);
            if ranges.is_empty() {
                let field = Path::new("spec").child("ipFamilies").index(i);
                let detail = "not configured on this cluster";
                return Err(invalid(service, FieldError::invalid(&field, family, detail)));
            }
            let address = match wanted {
                Wanted::Kept(address) => address,
                Wanted::This(address) => {
                    self.this_address(service, address, &ranges, dry_run, held).await?;
                    address
                }
                Wanted::Any => self.any_address(&ranges, dry_run, held).await?,
            };
            given.push(address.to_string());
        }
        service.put(&["spec", "clusterIP"], json!(given.first().cloned().unwrap_or_default()));
        service.put(&["spec", "clusterIPs"], json!(given));
        Ok(())
    }

    async fn this_address(
        &self,
        service: &Value,
        address: IpAddr,
        ranges: &[Cidr],
        dry_run: bool,
        held: &mut Held,
    ) -> Result<(), Box<Status>> {
        let refuse = |cause: &str| {
            let field = Path::new("spec").child("clusterIPs");
            let mut asked = service["spec"]["clusterIPs"].clone();
            if asked.as_array().is_none_or(Vec::is_empty) {
                asked = json!([service["spec"]["clusterIP"]]);
            }
            let detail = format!("failed to allocate IP {address}: {cause}");
            Err(invalid(service, FieldError::invalid(&field, asked, detail)))
        };
        if !ranges.iter().any(|range| range::gives(*range, address)) {
            return refuse("the provided network does not match the current range");
        }
        if self.take(address, dry_run, held).await? {
            return Ok(());
        }
        refuse("provided IP is already allocated")
    }

    async fn any_address(
        &self,
        ranges: &[Cidr],
        dry_run: bool,
        held: &mut Held,
    ) -> Result<IpAddr, Box<Status>> {
        for range in ranges {
            for address in range::addresses(*range) {
                let heard_of = self.hints.lock().taken.contains(&address);
                if !heard_of && self.take(address, dry_run, held).await? {
                    return Ok(address);
                }
            }
        }
        let name = &held.place().name;
        let cause = format!("failed to allocate a serviceIP for Service {name:?}: range is full");
        Err(Box::new(Status::internal(cause)))
    }

    /// Returns whether nobody else has the address.
    async fn take(
        &self,
        address: IpAddr,
        dry_run: bool,
        held: &mut Held,
    ) -> Result<bool, Box<Status>> {
        if dry_run {
            let found = address::get(&self.pool.client, address).await;
            return found.map(|found| found.is_none()).map_err(client_status);
        }
        let made = address::create(&self.pool.client, address, held.place()).await;
        let Some(known) = made.map_err(client_status)? else { return Ok(false) };
        held.took().addresses.push(known);
        Ok(true)
    }

    async fn node_ports(
        &self,
        service: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
        held: &mut Held,
    ) -> Result<(), Box<Status>> {
        if !matches!(service["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
            return Ok(());
        }
        // Most updates leave the ports as they are, and need not ask the store.
        if let Ok(chosen) = choose_ports(service, old, &mut Bitmap::new(self.pool.ports.range))
            && chosen.taken.is_empty()
        {
            return Ok(());
        }
        let chosen = match dry_run {
            true => self.pool.ports.try_out(|map| choose_ports(service, old, map)).await,
            false => self.pool.ports.change(|map| choose_ports(service, old, map)).await,
        };
        let chosen = chosen.map_err(|error| error.status())?.map_err(|refused| match refused {
            Refused::Field(error) => invalid(service, error),
            Refused::Internal(cause) => Box::new(Status::internal(cause)),
        })?;
        chosen.apply(service);
        if !dry_run {
            held.took().ports = chosen.taken;
        }
        Ok(())
    }
}

fn invalid(service: &Value, error: FieldError) -> Box<Status> {
    let Place { name, .. } = Place::of(service);
    Box::new(Status::invalid(&GroupKind::new("", "Service"), &name, &[error]))
}

/// A failure of a request that the server has made of itself.
fn client_status(error: client::Error) -> Box<Status> {
    Box::new(Status::internal(format!("failed to allocate IP: {error}")))
}
