//! Requests and limits of CPU and memory, of a container and of a Pod.

use k8s_openapi::{
    api::core::v1::{Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::spec::{Role, members};

/// Returns the quantity in thousandths. An invalid quantity, possible only in a static Pod, counts as 0.
pub fn milli(quantity: &Quantity) -> i64 {
    api_meta::Quantity::parse(&quantity.0).map_or(0, |q| q.milli_value())
}

/// Returns the quantity rounded up to an integer. An invalid quantity counts as 0.
pub fn whole(quantity: &Quantity) -> i64 {
    api_meta::Quantity::parse(&quantity.0).map_or(0, |q| q.value())
}

/// Requests and limits: CPU in thousandths, memory in bytes. Zero stands for a value that is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// The requested CPU.
    pub cpu_request: i64,
    /// The limit of CPU.
    pub cpu_limit: i64,
    /// The requested memory.
    pub memory_request: i64,
    /// The limit of memory.
    pub memory_limit: i64,
}

impl Amounts {
    /// Reads requests and limits. A limit without a request is also the request.
    pub fn of(resources: &ResourceRequirements) -> Self {
        let get = |map: &Option<std::collections::BTreeMap<String, Quantity>>,
                   name: &str,
                   read: fn(&Quantity) -> i64| {
            map.as_ref().and_then(|m| m.get(name)).map_or(0, read)
        };
        let (limits, requests) = (&resources.limits, &resources.requests);
        let cpu_limit = get(limits, "cpu", milli);
        let memory_limit = get(limits, "memory", whole);
        // The API server sets such a request, but a static Pod may lack it.
        let or = |request: i64, limit: i64| if request == 0 { limit } else { request };
        Self {
            cpu_request: or(get(requests, "cpu", milli), cpu_limit),
            cpu_limit,
            memory_request: or(get(requests, "memory", whole), memory_limit),
            memory_limit,
        }
    }

    /// Returns `true` if there are no requests and no limits.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn is_guaranteed(&self) -> bool {
        self.cpu_limit > 0
            && self.memory_limit > 0
            && self.cpu_request == self.cpu_limit
            && self.memory_request == self.memory_limit
    }

    /// Returns the sum. It has a limit only if both parts have one.
    fn plus(self, other: Self) -> Self {
        let limit = |a: i64, b: i64| if a == 0 || b == 0 { 0 } else { a.saturating_add(b) };
        Self {
            cpu_request: self.cpu_request.saturating_add(other.cpu_request),
            cpu_limit: limit(self.cpu_limit, other.cpu_limit),
            memory_request: self.memory_request.saturating_add(other.memory_request),
            memory_limit: limit(self.memory_limit, other.memory_limit),
        }
    }

    /// Replaces the amounts of containers by those that the containers share.
    fn replace(&mut self, shared: &ResourceRequirements) {
        let has = |name: &str| shared.requests.as_ref().is_some_and(|r| r.contains_key(name));
        let shared = Self::of(shared);
        if has("cpu") || self.cpu_request == 0 {
            self.cpu_request = shared.cpu_request;
        }
        if has("memory") || self.memory_request == 0 {
            self.memory_request = shared.memory_request;
        }
        if shared.cpu_limit > 0 {
            self.cpu_limit = shared.cpu_limit;
        }
        if shared.memory_limit > 0 {
            self.memory_limit = shared.memory_limit;
        }
    }

    fn maximum(self, other: Self) -> Self {
        let limit = |a: i64, b: i64| if a == 0 || b == 0 { 0 } else { a.max(b) };
        Self {
            cpu_request: self.cpu_request.max(other.cpu_request),
            cpu_limit: limit(self.cpu_limit, other.cpu_limit),
            memory_request: self.memory_request.max(other.memory_request),
            memory_limit: limit(self.memory_limit, other.memory_limit),
        }
    }
}

/// Returns the resources that all containers of a Pod share, unless they are empty.
pub fn pod_level(pod: &Pod) -> Option<&ResourceRequirements> {
    let shared = pod.spec.as_ref()?.resources.as_ref()?;
    Some(shared).filter(|shared| !Amounts::of(shared).is_empty())
}

/// Returns the amounts that a container is started with. A limit that it lacks is that of the resources which all
/// containers of the Pod share.
pub fn container_amounts(
    shared: Option<&ResourceRequirements>,
    own: Option<&ResourceRequirements>,
) -> Amounts {
    let mut amounts = own.map(Amounts::of).unwrap_or_default();
    let shared = shared.map(Amounts::of).unwrap_or_default();
    let or = |own: i64, shared: i64| if own == 0 { shared } else { own };
    // CPU shares without a request follow the limit.
    amounts.cpu_request = or(amounts.cpu_request, shared.cpu_limit);
    amounts.cpu_limit = or(amounts.cpu_limit, shared.cpu_limit);
    amounts.memory_limit = or(amounts.memory_limit, shared.memory_limit);
    amounts
}

/// Returns the sum of the requests for memory of a Pod's long-running containers, and the number of these.
pub(crate) fn memory_requests(pod: &Pod) -> (i64, i64) {
    let lasting = members(pod).into_iter().filter(|m| matches!(m.role, Role::App | Role::Sidecar));
    lasting.fold((0, 0), |(sum, count), member| {
        let own = member.container.resources.as_ref().map(Amounts::of).unwrap_or_default();
        (sum.saturating_add(own.memory_request), count + 1)
    })
}

/// Returns the resources that a Pod may use at the same time: the larger one of its long-running containers together,
/// and of each init container with earlier sidecars. Amounts that the containers share replace those of the containers.
/// The overhead is added.
pub fn pod_amounts(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::default() };
    let (mut sidecars, mut apps, mut init) = (None, None, None);
    let add = |sum: Option<Amounts>, one: Amounts| Some(sum.map_or(one, |sum| sum.plus(one)));
    for member in members(pod) {
        let one = member.container.resources.as_ref().map(Amounts::of).unwrap_or_default();
        match member.role {
            Role::Sidecar => {
                sidecars = add(sidecars, one);
                init = Some(init.map_or(sidecars.unwrap_or(one), |most: Amounts| {
                    most.maximum(sidecars.unwrap_or(one))
                }));
            }
            Role::Init => {
                let with = sidecars.map_or(one, |s: Amounts| s.plus(one));
                init = Some(init.map_or(with, |most| most.maximum(with)));
            }
            Role::App => apps = add(apps, one),
            Role::Ephemeral => {}
        }
    }
    let running = match (apps, sidecars) {
        (Some(a), Some(s)) => a.plus(s),
        (a, s) => a.or(s).unwrap_or_default(),
    };
    let mut total = init.map_or(running, |init| running.maximum(init));
    if let Some(shared) = pod_level(pod) {
        total.replace(shared);
    }
    let overhead = |name: &str, read: fn(&Quantity) -> i64| {
        spec.overhead.as_ref().and_then(|o| o.get(name)).map_or(0, read)
    };
    let (cpu, memory) = (overhead("cpu", milli), overhead("memory", self::whole));
    total.cpu_request += cpu;
    total.memory_request += memory;
    if total.cpu_limit > 0 {
        total.cpu_limit += cpu;
    }
    if total.memory_limit > 0 {
        total.memory_limit += memory;
    }
    total
}
