//! Certificate signing requests: approves those of kubelets, signs approved ones, and deletes old ones. Also deletes
//! old requests for certificates of Pods.

mod approve;
mod clean;
mod clean_pods;
mod reconcile;
mod request;
mod sign;

pub(crate) use approve::start as start_approving;
pub(crate) use clean::{delete as delete_request, start as start_cleaning};
pub(crate) use clean_pods::start as start_cleaning_pods;
pub(crate) use sign::start as start_signing;

#[cfg(test)]
mod tests;
