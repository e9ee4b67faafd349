//! Calls of AWS' API.

use serde_json::Value;

/// A call of an AWS operation, with its parameters under their wire names.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The AWS service, such as `ec2`.
    pub service: &'static str,
    /// The operation's name.
    pub operation: &'static str,
    /// The operation's parameters.
    pub parameters: Value,
}

impl Call {
    /// Creates a call.
    pub(crate) fn new(service: &'static str, operation: &'static str, parameters: Value) -> Self {
        Self { service, operation, parameters }
    }

    /// Creates a call of EC2.
    pub(crate) fn ec2(operation: &'static str, parameters: Value) -> Self {
        Self::new("ec2", operation, parameters)
    }
}
