//! The flags of `delete instance`.

use api_config::GoFlag as _;

use super::connection::Connection;

/// The flags of `delete instance`.
#[derive(clap::Args, Debug)]
pub(crate) struct DeleteInstance {
    /// The ID of the machine, or the name of its Node
    pub(crate) instance: String,
    /// Do not use the cluster's API: the machine is not drained, and the cluster is not validated
    #[arg(long)]
    pub(crate) cloudonly: bool,
    /// Replace the machine before it ends; control planes are replaced after they have ended
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) surge: bool,
    /// Stop if the Node cannot be drained
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) fail_on_drain_error: bool,
    /// Stop if the cluster does not validate
    #[arg(long, go_bool(), default_value_t = true)]
    pub(crate) fail_on_validate_error: bool,
    /// The pause after the Node was drained
    #[arg(long, default_value = "5s")]
    pub(crate) post_drain_delay: api_config::GoDuration,
    /// The number of consecutive successful validations
    #[arg(long, default_value_t = 2)]
    pub(crate) validate_count: u32,
    /// The time limit for the cluster to validate
    #[arg(long, default_value = "15m")]
    pub(crate) validation_timeout: api_config::GoDuration,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Confirm the deletion
    #[arg(short, long)]
    pub(crate) yes: bool,
}
