//! Image credential providers: programs of the node that print credentials for a registry
//! (credentialprovider.kubelet.k8s.io). Read [`Providers`] first.
//!
//! A provider never delays a Pod beyond its time limit, and a provider that fails leaves the other credentials to use.

mod cache;
mod config;
mod matching;
mod program;
mod provider;
#[cfg(test)]
mod tests;

pub use config::ProvidersError;
pub(crate) use provider::{PodAccount, ProviderCredential, Providers};
