//! Integration tests of the API server: on an embedded store, with its own PKI, in process and over TLS.
//!
//! Tests share one server and are separated by namespaces. Tests that need their own server start one.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod admission;
mod admission_configuration;
mod admission_plugins;
mod admission_policies;
mod admission_webhooks;
mod aggregation;
mod allocation;
mod audit;
mod audit_webhook;
mod authorizers;
mod bodies;
mod cbor;
mod conversion;
mod custom;
mod cves;
mod deletion;
mod egress;
mod elections;
mod encryption;
mod figures;
mod harness;
mod hostile;
mod issuers;
mod linear;
mod listener;
mod lists;
mod minimal;
mod objects;
mod on_demand;
mod openapi;
mod overload;
mod panics;
mod patches;
mod peers;
mod processor_time;
mod proxy_targets;
mod records;
mod reference;
mod renewal;
mod second_authorisation;
mod security;
mod services;
mod slow;
mod sockets;
mod stores;
mod subresources;
mod token_signer;
mod traces;
mod watches;
