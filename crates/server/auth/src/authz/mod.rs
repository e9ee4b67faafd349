//! Authorization: the authorizers, their configuration and access reviews. Each authorizer implements
//! `api_meta::Authorizer`.

pub mod abac;
pub mod node;
pub mod review;
pub mod simple;
pub mod validation;
pub mod webhook;
