//! Computes the share of a device's capacities that a request consumes.

use std::collections::BTreeMap;

use api_meta::{Quantity, QuantityFormat};

use crate::devices::view::{
    CapacityRequestView, DeviceCapacityView, RequestPolicyView, RequestRangeView,
};

/// Amounts by capacity name.
pub(super) type Amounts = BTreeMap<Box<str>, Quantity>;

/// Returns the amounts for a request. `None` if the device lacks a capacity, does not allow the amount, or has too
/// little left beside what is `taken`.
pub(super) fn consumed(
    device: &BTreeMap<Box<str>, DeviceCapacityView>,
    request: Option<&CapacityRequestView>,
    used: impl Fn(&str) -> Quantity,
) -> Option<Amounts> {
    let requested = |name: &str| request.and_then(|r| r.requests.get(name));
    if request.is_some_and(|r| !r.requests.keys().all(|name| device.contains_key(name))) {
        return None;
    }
    let amounts = device.iter().map(|(name, capacity)| {
        let amount = amount(requested(name), capacity);
        let policy = capacity.request_policy.as_ref();
        let allowed = !amount.is_negative() && policy.is_none_or(|policy| allows(policy, amount));
        (allowed && used(name) + amount <= capacity.value).then(|| (name.clone(), amount))
    });
    amounts.collect()
}

/// Returns the amount to consume: the request rounded up, or else the default or the whole capacity.
fn amount(requested: Option<&Quantity>, capacity: &DeviceCapacityView) -> Quantity {
    let policy = capacity.request_policy.as_ref();
    let Some(requested) = requested.copied() else {
        return policy.and_then(|policy| policy.default).unwrap_or(capacity.value);
    };
    let Some(policy) = policy else { return requested };
    match &policy.valid_range {
        Some(RequestRangeView { min: Some(min), step, .. }) => match step {
            _ if requested < *min => *min,
            Some(step) if step.value() > 0 => {
                let over = requested.value().saturating_sub(min.value());
                let steps = over / step.value() + i64::from(over % step.value() > 0);
                let value = min.value().saturating_add(steps.saturating_mul(step.value()));
                Quantity::new(value, QuantityFormat::BinarySi)
            }
            _ => requested,
        },
        _ => policy
            .valid_values
            .iter()
            .find(|valid| requested <= **valid)
            .copied()
            .unwrap_or(requested),
    }
}

fn allows(policy: &RequestPolicyView, amount: Quantity) -> bool {
    if policy.default == Some(amount) {
        return true;
    }
    match &policy.valid_range {
        Some(range) => {
            let in_step = range.step.as_ref().filter(|step| step.value() > 0).is_none_or(|step| {
                let min = range.min.unwrap_or_default();
                amount.value().saturating_sub(min.value()) % step.value() == 0
            });
            range.max.is_none_or(|max| amount <= max) && in_step
        }
        None => policy.valid_values.is_empty() || policy.valid_values.contains(&amount),
    }
}
