//! Compares the search with an exhaustive one: it finds an allocation if and only if one exists, and the allocation
//! satisfies all rules. The rules are implemented here a second time, over whole allocations.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const DRIVER: &str = "d";

#[derive(Clone, Debug)]
struct Dev {
    kind: i64,
    group: Option<i64>,
    cores: i64,
    tainted: bool,
    /// The bandwidth of a shareable device.
    bandwidth: Option<i64>,
    /// The amount that other claims use, of the device or of its bandwidth.
    taken: Option<i64>,
}

#[derive(Clone, Debug)]
struct Want {
    kind: Option<i64>,
    /// The number of devices; `None` for all.
    count: Option<usize>,
    admin: bool,
    tolerates: bool,
    bandwidth: Option<i64>,
}

#[derive(Clone, Debug)]
struct Ask {
    requests: Vec<Vec<Want>>,
    same: bool,
    distinct: bool,
}

#[derive(Clone, Debug)]
struct Scene {
    devices: Vec<Dev>,
    cores: i64,
    claims: Vec<Ask>,
}

fn device() -> impl Strategy<Value = Dev> {
    let bandwidth = prop::option::weighted(0.3, 1..5i64);
    let taken = prop::option::weighted(0.2, 1..3i64);
    (0..2i64, prop::option::weighted(0.8, 0..2i64), 0..3i64, any::<bool>(), bandwidth, taken)
        .prop_map(|(kind, group, cores, tainted, bandwidth, taken)| Dev {
            kind,
            group,
            cores,
            tainted: tainted && kind == 0,
            bandwidth,
            taken,
        })
}

fn want() -> impl Strategy<Value = Want> {
    let kind = prop::option::weighted(0.6, 0..2i64);
    let count = prop::option::weighted(0.8, 1..3usize);
    let bandwidth = prop::option::weighted(0.2, 1..4i64);
    (kind, count, prop::bool::weighted(0.15), any::<bool>(), bandwidth).prop_map(
        |(kind, count, admin, tolerates, bandwidth)| Want {
            kind,
            count,
            admin,
            tolerates,
            bandwidth,
        },
    )
}

fn scene() -> impl Strategy<Value = Scene> {
    let requests = prop::collection::vec(prop::collection::vec(want(), 1..3), 1..3);
    let ask = (requests, prop::bool::weighted(0.3), prop::bool::weighted(0.3))
        .prop_map(|(requests, same, distinct)| Ask { requests, same, distinct });
    (prop::collection::vec(device(), 0..6), 0..7i64, prop::collection::vec(ask, 1..3))
        .prop_map(|(devices, cores, claims)| Scene { devices, cores, claims })
}

/// The indexes of claim, request, alternative and device.
type ChosenIndexes = (usize, usize, usize, usize);

impl Scene {
    /// Reports whether a device matches a request.
    fn is_for(&self, want: &Want, at: usize) -> bool {
        let device = &self.devices[at];
        let gives = self.gives(want, at);
        let left = device.bandwidth.map(|all| all - device.taken.unwrap_or(0));
        let enough = gives.is_some_and(|gives| left.is_none_or(|left| gives <= left));
        want.kind.is_none_or(|kind| kind == device.kind) && enough
    }

    /// Returns the bandwidth that a device gives; `None` if it is not shareable but bandwidth is requested.
    fn gives(&self, want: &Want, at: usize) -> Option<i64> {
        match (self.devices[at].bandwidth, want.bandwidth) {
            (None, None) => Some(0),
            (None, Some(_)) => None,
            (Some(_), Some(wanted)) => Some(wanted),
            (Some(all), None) => Some(all),
        }
    }

    fn wanted(&self, (claim, request, alternative, _): &ChosenIndexes) -> &Want {
        &self.claims[*claim].requests[*request][*alternative]
    }

    /// Reports whether a whole allocation satisfies all rules.
    fn allows(&self, chosen: &[ChosenIndexes]) -> bool {
        let shared = |at: usize| self.devices[at].bandwidth.is_some();
        let each = chosen.iter().all(|choice| {
            let (device, want) = (&self.devices[choice.3], self.wanted(choice));
            let others = chosen.iter().filter(|other| other.3 == choice.3);
            let within = others.clone().filter(|other| other.0 == choice.0).count();
            let rivals = others.filter(|other| !self.wanted(other).admin).count();
            let alone = shared(choice.3)
                || within == 1 && (want.admin || device.taken.is_none() && rivals == 1);
            self.is_for(want, choice.3) && (!device.tainted || want.tolerates) && alone
        });
        each && self.sums_hold(chosen) && self.constraints_hold(chosen)
    }

    fn sums_hold(&self, chosen: &[ChosenIndexes]) -> bool {
        let mut cores = 0;
        let bandwidth = self.devices.iter().enumerate().all(|(at, device)| {
            let choices: Vec<_> = chosen.iter().filter(|choice| choice.3 == at).collect();
            // A shared device consumes its counters once; an exclusive one for each user.
            let draws = match device.bandwidth {
                Some(_) => usize::from(device.taken.is_some() || !choices.is_empty()),
                None => usize::from(device.taken.is_some()) + choices.len(),
            };
            cores += device.cores * draws as i64;
            let given = choices.iter().filter_map(|choice| self.gives(self.wanted(choice), at));
            let sum = given.sum::<i64>() + device.taken.unwrap_or(0);
            choices.is_empty() || device.bandwidth.is_none_or(|all| sum <= all)
        });
        let draws = chosen.iter().any(|choice| {
            let device = &self.devices[choice.3];
            device.cores > 0 && !(device.bandwidth.is_some() && device.taken.is_some())
        });
        bandwidth && (cores <= self.cores || !draws)
    }

    fn constraints_hold(&self, chosen: &[ChosenIndexes]) -> bool {
        self.claims.iter().enumerate().all(|(claim, ask)| {
            let own = chosen.iter().filter(|choice| choice.0 == claim);
            let groups: Vec<_> = own.map(|choice| self.devices[choice.3].group).collect();
            let there = groups.iter().all(Option::is_some);
            let same = groups.windows(2).all(|pair| pair[0] == pair[1]);
            let distinct = (0..groups.len()).all(|at| !groups[..at].contains(&groups[at]));
            (!ask.same || there && same) && (!ask.distinct || there && distinct)
        })
    }

    /// Tries every allocation with the requested number of devices until one is allowed.
    fn has_solution(&self, chosen: &mut Vec<ChosenIndexes>, claim: usize, request: usize) -> bool {
        let Some(ask) = self.claims.get(claim) else { return self.allows(chosen) };
        let Some(wants) = ask.requests.get(request) else {
            return self.has_solution(chosen, claim + 1, 0);
        };
        wants.iter().enumerate().any(|(alternative, want)| {
            let sets = 0..1usize << self.devices.len();
            sets.into_iter().any(|set| {
                let members: Vec<usize> =
                    (0..self.devices.len()).filter(|at| set & (1 << at) != 0).collect();
                let all = || (0..self.devices.len()).filter(|at| self.is_for(want, *at));
                let right = match want.count {
                    Some(count) => members.len() == count,
                    None => !members.is_empty() && members.iter().copied().eq(all()),
                };
                let before = chosen.len();
                chosen.extend(members.iter().map(|at| (claim, request, alternative, *at)));
                let found = right && self.has_solution(chosen, claim, request + 1);
                chosen.truncate(before);
                found
            })
        })
    }

    fn slices(&self) -> [Value; 2] {
        let device = |(at, device): (usize, &Dev)| {
            let mut out =
                json!({"name": at.to_string(), "attributes": {"kind": {"int": device.kind}}});
            if let Some(group) = device.group {
                out["attributes"]["group"] = json!({"int": group});
            }
            if device.cores > 0 {
                out["consumesCounters"] = json!([{"counterSet": "s",
                    "counters": {"cores": {"value": device.cores.to_string()}}}]);
            }
            if device.tainted {
                out["taints"] = json!([{"key": "t", "effect": "NoExecute"}]);
            }
            if let Some(bandwidth) = device.bandwidth {
                out["allowMultipleAllocations"] = json!(true);
                out["capacity"] = json!({"bandwidth": {"value": bandwidth.to_string()}});
            }
            out
        };
        let devices: Vec<_> = self.devices.iter().enumerate().map(device).collect();
        let counters =
            json!([{"name": "s", "counters": {"cores": {"value": self.cores.to_string()}}}]);
        let spec = |devices: Value, counters: Value| {
            json!({"spec": {"driver": DRIVER, "allNodes": true, "devices": devices,
                "sharedCounters": counters,
                "pool": {"name": "p", "generation": 1, "resourceSliceCount": 2}}})
        };
        [spec(json!(devices), json!([])), spec(json!([]), counters)]
    }

    fn claim(&self, ask: &Ask) -> Value {
        let alternative = |(at, want): (usize, &Want)| {
            let mut out = json!({"name": at.to_string(), "deviceClassName": "c",
                "allocationMode": if want.count.is_some() { "ExactCount" } else { "All" },
                "count": want.count.unwrap_or(0), "adminAccess": want.admin});
            if let Some(kind) = want.kind {
                let text = format!("device.attributes['d'].kind == {kind}");
                out["selectors"] = json!([{"cel": {"expression": text}}]);
            }
            if want.tolerates {
                out["tolerations"] = json!([{"key": "t", "operator": "Exists"}]);
            }
            if let Some(bandwidth) = want.bandwidth {
                out["capacity"] = json!({"requests": {"bandwidth": bandwidth.to_string()}});
            }
            out
        };
        let requests = ask.requests.iter().enumerate().map(|(at, wants)| {
            let all: Vec<_> = wants.iter().enumerate().map(alternative).collect();
            json!({"name": at.to_string(), "firstAvailable": all})
        });
        let mut constraints = Vec::new();
        if ask.same {
            constraints.push(json!({"matchAttribute": "d/group"}));
        }
        if ask.distinct {
            constraints.push(json!({"distinctAttribute": "d/group"}));
        }
        json!({"devices": {"requests": requests.collect::<Vec<_>>(), "constraints": constraints}})
    }

    /// Returns the status of a claim that uses the devices marked as taken.
    fn others(&self) -> Value {
        let taken = self.devices.iter().enumerate().filter_map(|(at, device)| {
            let amount = device.taken?;
            let mut out =
                json!({"request": "r", "driver": DRIVER, "pool": "p", "device": at.to_string()});
            if device.bandwidth.is_some() {
                out["shareID"] = json!("some");
                out["consumedCapacity"] = json!({"bandwidth": amount.to_string()});
            }
            Some(out)
        });
        json!({"allocation": {"devices": {"results": taken.collect::<Vec<_>>()}}})
    }

    fn devices(&self) -> Devices {
        let mut devices = Devices::default();
        for (name, slice) in ["devices", "counters"].iter().zip(self.slices()) {
            devices.set_slice(name, Some(&serde_json::from_value(slice).unwrap()));
        }
        devices.set_class("c", Some(&DeviceClassView::default()));
        let mut set = |name: &str, spec: Value, status: Value| {
            let meta = json!({"namespace": "ns", "name": name, "uid": name});
            let view = json!({"metadata": meta, "spec": spec, "status": status});
            devices.set_claim(&"ns".into(), name, Some(&serde_json::from_value(view).unwrap()));
        };
        set("others", json!({}), self.others());
        for (at, ask) in self.claims.iter().enumerate() {
            set(&at.to_string(), self.claim(ask), json!({}));
        }
        devices
    }

    /// Converts allocations to the indexes used here.
    fn read(&self, allocations: &[Allocation]) -> Vec<ChosenIndexes> {
        let of = |(claim, allocation): (usize, &Allocation)| {
            let results = allocation.devices.results.iter();
            let read = results.map(move |device| {
                let (request, alternative) = device.request.split_once('/').unwrap();
                let number = |text: &str| text.parse::<usize>().unwrap();
                (claim, number(request), number(alternative), number(&device.device))
            });
            read.collect::<Vec<_>>()
        };
        allocations.iter().enumerate().flat_map(of).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn search_finds_allocation_iff_one_exists(scene in scene()) {
        let devices = scene.devices();
        let names = (0..scene.claims.len()).map(|at| json!({"name": at.to_string(), "resourceClaimName": at.to_string()}));
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p"},
            "spec": {"resourceClaims": names.collect::<Vec<_>>()}})).unwrap();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let found = devices.evaluator(&pod).unwrap().allocate(&node);
        match found {
            Ok(allocations) => {
                let chosen = scene.read(&allocations);
                prop_assert!(scene.allows(&chosen), "{chosen:?}");
                for (claim, ask) in scene.claims.iter().enumerate() {
                    for (request, wants) in ask.requests.iter().enumerate() {
                        let own: Vec<_> = chosen.iter().filter(|c| (c.0, c.1) == (claim, request)).collect();
                        let want = &wants[own[0].2];
                        let all = (0..scene.devices.len()).filter(|at| scene.is_for(want, *at)).count();
                        prop_assert_eq!(own.len(), want.count.unwrap_or(all));
                    }
                }
            }
            Err(Stop::Unmet) => prop_assert!(!scene.has_solution(&mut Vec::new(), 0, 0)),
            Err(other) => prop_assert!(false, "{other:?}"),
        }
    }
}
