//! The load balancers of the API. The internal one is there for each type, because machines use it.

use api_meta::Tree as _;
use kops_api::Object;

use super::{
    context::Context,
    firewall::{API, CILIUM_ETCD, KOPS_CONTROLLER},
    graph::Model,
    names,
};
use crate::{
    boot::is_balanced,
    error::Error,
    gce::{
        Address, BackendService, ForwardingRule, HealthCheck, HttpHealthCheck, Kind, Probe, Ref,
        TargetPool, Traffic,
    },
    model::queries::has_cilium_etcd,
};

/// The port of the API servers' health check.
const HEALTH: u16 = 3990;

impl Context<'_> {
    /// Returns the target pool of machines with an API server, if they have a public load balancer.
    pub(super) fn api_pool(&self) -> Result<Option<Ref>, Error> {
        if self.spec.text("api.loadBalancer.type") != "Public" {
            return Ok(None);
        }
        Ok(Some(Ref::new(Kind::TargetPool, self.resource_name("api")?)))
    }
}

/// Reports whether the machines of a group have an API server.
pub(super) fn serves_api(group: &Object) -> bool {
    ["ControlPlane", "APIServer"].contains(&group.spec.text("role"))
}

pub(super) fn add(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    if !context.spec.has("api.loadBalancer") {
        return Ok(());
    }
    match context.spec.text("api.loadBalancer.type") {
        "Public" => add_public(context, model)?,
        "Internal" => {}
        other => {
            let reason = "is neither Public nor Internal";
            return Err(Error::value("spec.api.loadBalancer.type", other, reason));
        }
    }
    add_internal(context, model)
}

fn add_public(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let name = context.resource_name("api")?;
    let check = HttpHealthCheck { port: HEALTH, path: "/healthz" };
    let health_check = model.add(name.clone(), check);
    let pool = model.add(name.clone(), TargetPool { health_check });
    let address = model.add(name.clone(), Address { subnet: None });
    let (traffic, labels) = (Traffic::External { pool }, context.labels("api"));
    model.add(name, ForwardingRule { address, port: API, traffic, labels });
    Ok(())
}

fn add_internal(context: &Context<'_>, model: &mut Model) -> Result<(), Error> {
    let (mut api, mut control_planes) = (Vec::new(), Vec::new());
    for group in context.groups.iter().filter(|group| serves_api(group)) {
        let zone = context.only_zone(group, "is behind the API's load balancer")?;
        let name = names::manager(group.name(), zone, context.name);
        let manager = Ref::new(Kind::InstanceGroupManager, name);
        if group.spec.text("role") == "ControlPlane" {
            control_planes.push(manager.clone());
        }
        api.push(manager);
    }
    let api =
        add_service(context, model, "api", HealthCheck { probe: Probe::Tcp, port: API }, api)?;
    // Only control planes have kops-controller and etcd.
    let control_planes = if context.has_api_servers() {
        let check = HealthCheck { probe: Probe::Ssl, port: KOPS_CONTROLLER };
        add_service(context, model, "kops-controller", check, control_planes)?
    } else {
        api.clone()
    };
    for subnet in context.spec.items("networking.subnets") {
        let name = subnet.text("name");
        let is_used = |group: &Object| {
            serves_api(group) && group.spec.texts("subnets").any(|one| one == name)
        };
        if !context.groups.iter().any(is_used) {
            continue;
        }
        let subnet = context.subnet(subnet)?;
        let address = Address { subnet: Some(subnet.clone()) };
        let address = model.add(context.resource_name(&format!("api-{name}"))?, address);
        let mut forward = |what: &str, port, service: &Ref| {
            let name = format!("{what}-{name}");
            let (service, network) = (service.clone(), context.network());
            let rule = ForwardingRule {
                address: address.clone(),
                port,
                traffic: Traffic::Internal { service, network, subnet: subnet.clone() },
                labels: context.labels(&name),
            };
            model.add(context.resource_name(&name)?, rule);
            Ok::<_, Error>(())
        };
        forward("api", API, &api)?;
        if is_balanced(context.cluster) {
            forward("kops-controller", KOPS_CONTROLLER, &control_planes)?;
        }
        if has_cilium_etcd(context.spec) {
            forward("cilium-etcd", CILIUM_ETCD, &control_planes)?;
        }
    }
    Ok(())
}

/// Adds a backend service with its health check.
fn add_service(
    context: &Context<'_>,
    model: &mut Model,
    name: &str,
    check: HealthCheck,
    groups: Vec<Ref>,
) -> Result<Ref, Error> {
    let name = context.resource_name(name)?;
    let health_check = model.add(name.clone(), check);
    Ok(model.add(name, BackendService { health_check, groups }))
}
