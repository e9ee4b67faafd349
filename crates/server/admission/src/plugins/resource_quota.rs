//! ResourceQuota: limits the total use of a namespace.
//!
//! The plugin compares with the usage in the quotas' status and returns the quotas with the usage that the request
//! adds. The server writes them at their resourceVersion, so that two requests cannot use the same remainder.

mod limited_resources;
mod missing_requests;
#[cfg(test)]
mod tests;

use api_meta::{GroupResource, Quantity, Status, StatusReason, Tree as _};
use api_rules::{
    amounts::{Amounts, amounts},
    quota::{in_scope, usage},
};
use serde_json::{Value, json};

use self::limited_resources::{LimitedResources, UncoveredUsage};
use crate::{
    configuration::ConfigurationError,
    request::{Plugin, Request},
};

/// The ResourceQuota plugin.
#[derive(Default)]
pub(crate) struct ResourceQuota {
    /// The resources that need a quota that counts them.
    limited: LimitedResources,
}

impl ResourceQuota {
    /// Reads a `ResourceQuotaConfiguration`; null means no configuration.
    pub(crate) fn configured(configuration: &Value) -> Result<Self, ConfigurationError> {
        Ok(Self { limited: LimitedResources::configured(configuration)? })
    }
}

impl Plugin for ResourceQuota {
    fn charge(&self, request: &Request<'_>, object: &Value) -> Result<Vec<Value>, Status> {
        // A quota must not prevent writes of its own status.
        let counted = request.creates() || request.updates() && changes_by_update(request);
        if request.namespace.is_empty()
            || !counted
            || request.on(&GroupResource::NAMESPACES)
            || request.on(&GroupResource::RESOURCE_QUOTAS) && request.updates()
        {
            return Ok(Vec::new());
        }
        if !request.subresource.is_empty()
            && !request.is_sub(&GroupResource::PODS, "resize")
            && !is_status_of_claim(request)
        {
            return Ok(Vec::new());
        }
        let quotas = request.objects.list(&GroupResource::RESOURCE_QUOTAS, request.namespace);
        if quotas.is_empty() && self.limited.is_empty() {
            return Ok(Vec::new());
        }
        let resource = request.resource.group_resource();
        let now = usage(&resource, object);
        let before = request
            .old
            .filter(|_| request.updates())
            .map(|old| usage(&resource, old))
            .unwrap_or_default();
        let added = difference(&now, &before);
        if !added.is_empty() {
            let uncovered = self.limited.check_covered(&resource, object, &now, &quotas);
            uncovered.map_err(|lack| match lack {
                UncoveredUsage::Resources(cause) => request.forbidden(object, cause),
                // As upstream, which returns a plain error and no Forbidden status here.
                UncoveredUsage::Scopes(cause) => Status::failure(500, StatusReason::Unknown, cause),
            })?;
        }
        // An update is also charged if it brings the object into a quota's scopes.
        let moved = request.old.filter(|_| request.updates());
        let mut charged = Vec::new();
        for quota in quotas {
            if in_scope(&quota, &resource, object) {
                let added = match moved {
                    Some(old) if !in_scope(&quota, &resource, old) => &now,
                    Some(_) if request.is(&GroupResource::PODS) => continue,
                    _ => &added,
                };
                let updated = charge(request, &quota, object, added);
                charged.extend(updated.map_err(|cause| request.forbidden(object, cause))?);
            }
        }
        Ok(charged)
    }
}

/// Reports whether an update of this resource can change its usage.
fn changes_by_update(request: &Request<'_>) -> bool {
    request.is(&GroupResource::PODS)
        || request.is_sub(&GroupResource::PODS, "resize")
        || request.is(&GroupResource::PERSISTENT_VOLUME_CLAIMS)
        || is_status_of_claim(request)
        || request.is(&GroupResource::SERVICES)
}

/// Reports whether the status of a claim is written, which has the allocated size and the current class.
fn is_status_of_claim(request: &Request<'_>) -> bool {
    request.is_sub(&GroupResource::PERSISTENT_VOLUME_CLAIMS, "status")
}

/// Returns the change of usage, negative for a decrease. Zeros are left out.
fn difference(now: &Amounts, before: &Amounts) -> Amounts {
    let mut difference = now.clone();
    for (resource, amount) in before {
        let left = *difference.get(resource).unwrap_or(&Quantity::ZERO) - *amount;
        difference.insert(resource.clone(), left);
    }
    difference.retain(|_, amount| !amount.is_zero());
    difference
}

/// The reason why a quota cannot be charged, with upstream's messages.
#[derive(Debug, thiserror::Error)]
enum QuotaError {
    #[error("failed quota: {quota}: must specify {missing}")]
    Unspecified { quota: String, missing: String },
    #[error("status unknown for quota: {quota}, resources: {resources}")]
    UnknownUsage { quota: String, resources: String },
    #[error("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}")]
    Exceeded { quota: String, requested: String, used: String, limited: String },
}

/// Returns the quota with the added usage, or an error if that exceeds it. `None` if the quota counts none of the
/// usage.
fn charge(
    request: &Request<'_>,
    quota: &Value,
    object: &Value,
    added: &Amounts,
) -> Result<Option<Value>, QuotaError> {
    let name = || quota.name().to_owned();
    // The status has the enforced limits: a quota that its controller has not synced yet enforces nothing.
    let hard = amounts(&quota["status"]["hard"]);
    if let Some(missing) = missing_requests::missing_requests(request, object, &hard) {
        return Err(QuotaError::Unspecified { quota: name(), missing });
    }
    let added: Amounts =
        added.iter().filter(|(r, _)| hard.contains_key(*r)).map(|(r, a)| (r.clone(), *a)).collect();
    if added.is_empty() {
        return Ok(None);
    }
    let used = amounts(&quota["status"]["used"]);
    let unknown: Vec<&str> =
        added.keys().filter(|r| !used.contains_key(*r)).map(String::as_str).collect();
    if !unknown.is_empty() {
        return Err(QuotaError::UnknownUsage { quota: name(), resources: unknown.join(",") });
    }
    // A status is a fact that a quota cannot refuse.
    let limits = !is_status_of_claim(request);
    let exceeded: Vec<&String> = added
        .iter()
        .filter(|(resource, amount)| {
            limits && **amount > Quantity::ZERO && used[*resource] + **amount > hard[*resource]
        })
        .map(|(resource, _)| resource)
        .collect();
    if !exceeded.is_empty() {
        let list = |amounts: &Amounts| {
            exceeded.iter().map(|r| format!("{r}={}", amounts[*r])).collect::<Vec<_>>().join(",")
        };
        return Err(QuotaError::Exceeded {
            quota: name(),
            requested: list(&added),
            used: list(&used),
            limited: list(&hard),
        });
    }
    let mut updated = quota.clone();
    for (resource, amount) in &added {
        updated.put(&["status", "used", resource], json!((used[resource] + *amount).to_string()));
    }
    Ok(Some(updated))
}
