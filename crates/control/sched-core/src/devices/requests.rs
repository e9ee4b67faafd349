//! The requests of claims, prepared for a search.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use crate::devices::{
    error::ClaimError,
    selectors::{Selector, SelectorCache},
    view::{DeviceClassView, DeviceSelectorView, ExactRequestView, ResourceClaimView},
};

/// The largest number of devices of one claim (`AllocationResultsMaxSize`).
pub(super) const MAX_RESULTS: usize = 32;

/// The number of devices that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Exactly(usize),
    All,
}

/// An alternative of a request.
pub(super) struct Alternative<'a> {
    pub(super) view: ExactRequestView,
    /// The name in results: `request` or `request/alternative`.
    pub(super) name: Box<str>,
    pub(super) class: &'a DeviceClassView,
    pub(super) count: Count,
    pub(super) admin: bool,
    /// The selectors of the class and then of the request, each with its location for errors.
    pub(super) selectors: Vec<(String, Arc<Selector>)>,
}

pub(super) struct Request<'a> {
    pub(super) name: Box<str>,
    pub(super) alternatives: Vec<Alternative<'a>>,
}

/// A claim that is not allocated yet.
pub(super) struct PendingClaim<'a> {
    pub(super) claim: Cow<'a, ResourceClaimView>,
    /// `namespace/name`
    pub(super) label: String,
    pub(super) requests: Vec<Request<'a>>,
}

/// The classes and compiled selectors that requests refer to.
pub(super) struct Reader<'a> {
    pub(super) classes: &'a HashMap<Box<str>, DeviceClassView>,
    pub(super) compiled: &'a SelectorCache,
}

impl<'a> Reader<'a> {
    /// Prepares the claim's requests. The error is the reason why no node can meet them.
    pub(super) fn read(
        &self,
        claim: Cow<'a, ResourceClaimView>,
    ) -> Result<PendingClaim<'a>, ClaimError> {
        let label = format!("{}/{}", claim.metadata.namespace, claim.metadata.name);
        let mut requests = Vec::new();
        for view in &claim.spec.devices.requests {
            let name = &*view.name;
            let mut alternatives = Vec::new();
            if let Some(exactly) = &view.exactly {
                alternatives.push(self.alternative(&label, name.into(), exactly)?);
            }
            for listed in &view.first_available {
                let name = format!("{name}/{}", listed.name);
                alternatives.push(self.alternative(&label, name.into(), listed)?);
            }
            if alternatives.is_empty() {
                return Err(ClaimError::RequestType { claim: label, request: name.to_owned() });
            }
            requests.push(Request { name: name.into(), alternatives });
        }
        for (i, constraint) in claim.spec.devices.constraints.iter().enumerate() {
            if constraint.match_attribute.is_none() && constraint.distinct_attribute.is_none() {
                return Err(ClaimError::Constraint { claim: label, index: i });
            }
        }
        let pending = PendingClaim { claim, label, requests };
        let least = pending.least();
        if least > MAX_RESULTS {
            let (claim, limit) = (pending.label, MAX_RESULTS);
            return Err(ClaimError::TooManyDevices { claim, devices: least, limit });
        }
        Ok(pending)
    }

    fn alternative(
        &self,
        claim: &str,
        name: Box<str>,
        view: &ExactRequestView,
    ) -> Result<Alternative<'a>, ClaimError> {
        let class_name = &view.device_class_name;
        let Some(class) = self.classes.get(class_name) else {
            return Err(ClaimError::NoClass { request: name, class: class_name.clone() });
        };
        let count = match &*view.allocation_mode {
            "All" => Count::All,
            "ExactCount" | "" => {
                Count::Exactly(usize::try_from(view.count.max(1)).unwrap_or(usize::MAX))
            }
            mode => {
                let (claim, mode) = (claim.to_owned(), mode.into());
                return Err(ClaimError::CountMode { claim, request: name, mode });
            }
        };
        let mut selectors = Vec::new();
        self.selectors(&format!("class {class_name}"), &class.spec.selectors, &mut selectors)?;
        self.selectors(&format!("claim {claim}"), &view.selectors, &mut selectors)?;
        let admin = view.admin_access == Some(true);
        let view = view.clone();
        Ok(Alternative { view, name, class, count, admin, selectors })
    }

    fn selectors(
        &self,
        of: &str,
        views: &[DeviceSelectorView],
        out: &mut Vec<(String, Arc<Selector>)>,
    ) -> Result<(), ClaimError> {
        for (i, view) in views.iter().enumerate() {
            let selector = format!("{of}: selector #{i}");
            let Some(cel) = &view.cel else { return Err(ClaimError::NoExpression { selector }) };
            out.push((selector, self.compiled.get(&cel.expression)));
        }
        Ok(())
    }
}

impl PendingClaim<'_> {
    /// Returns the smallest number of devices that meets the claim.
    pub(super) fn least(&self) -> usize {
        let least = |request: &Request<'_>| {
            let counts = request.alternatives.iter().map(|alternative| match alternative.count {
                Count::Exactly(count) => count,
                Count::All => 1,
            });
            counts.min().unwrap_or(0)
        };
        self.requests.iter().fold(0, |sum: usize, request| sum.saturating_add(least(request)))
    }
}
