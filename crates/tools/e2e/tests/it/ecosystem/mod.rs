//! Programs of other projects on clusters of `windlass up`. Those of Debian run always; the others need
//! `cargo xtask ecosystem --programs DIR`.

mod cert_manager;
mod csi;
mod dra;
mod gatekeeper;
mod glewlwyd;
mod kms;
mod kueue;
mod metrics;
mod postgres;
mod prometheus;
mod rules;
mod syslog_ng;
mod tekton;
