//! The flags of audit.

use std::{path::PathBuf, time::Duration};

use audit::{Format, Rotation};

use crate::auditing::{AuditLogOptions, AuditOptions, Mode};

/// Upstream's flags of the audit log.
#[derive(clap::Args, Clone, Debug)]
pub struct AuditFlags {
    /// Says what is recorded of which requests: an audit.k8s.io/v1 Policy
    #[arg(long)]
    pub audit_policy_file: Option<PathBuf>,
    /// Where records are written; - is standard output
    #[arg(long)]
    pub audit_log_path: Option<PathBuf>,
    /// json or legacy
    #[arg(long, default_value = "json")]
    pub audit_log_format: String,
    /// Days for which old files are kept; 0: for ever
    #[arg(long, default_value_t = 366, allow_negative_numbers = true)]
    pub audit_log_maxage: i64,
    /// How many old files are kept; 0: all
    #[arg(long, default_value_t = 100, allow_negative_numbers = true)]
    pub audit_log_maxbackup: i64,
    /// Megabytes after which a new file is begun; 0: never
    #[arg(long, default_value_t = 100, allow_negative_numbers = true)]
    pub audit_log_maxsize: i64,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
        action = clap::ArgAction::Set)]
    pub audit_log_compress: bool,
    /// blocking, blocking-strict or batch
    #[arg(long, default_value = "blocking")]
    pub audit_log_mode: String,
    /// How many records wait in batch mode; more are lost
    #[arg(long, default_value_t = 10_000, allow_negative_numbers = true)]
    pub audit_log_batch_buffer_size: i64,
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
        action = clap::ArgAction::Set)]
    pub audit_log_truncate_enabled: bool,
    /// Bytes above which a record loses its objects, where truncation is enabled
    #[arg(long, default_value_t = 100 << 10, allow_negative_numbers = true)]
    pub audit_log_truncate_max_event_size: i64,
    /// Only audit.k8s.io/v1
    #[arg(long, default_value = "audit.k8s.io/v1")]
    pub audit_log_version: String,
}

/// What is wrong with a flag of audit.
#[derive(Debug, thiserror::Error)]
#[error("--{flag}={value} is not supported: {reason}")]
pub struct AuditFlagError {
    flag: &'static str,
    value: String,
    reason: &'static str,
}

impl AuditFlags {
    pub(super) fn options(&self) -> Result<AuditOptions, AuditFlagError> {
        let policy = self.audit_policy_file.clone();
        let log = self.audit_log_path.clone().map(|path| self.log(path)).transpose()?;
        Ok(AuditOptions { policy, log })
    }

    fn log(&self, path: PathBuf) -> Result<AuditLogOptions, AuditFlagError> {
        let refuse = |flag, value: &str, reason| {
            Err(AuditFlagError { flag, value: value.to_owned(), reason })
        };
        let mode = match self.audit_log_mode.as_str() {
            "blocking" => Mode::Blocking,
            "blocking-strict" => Mode::BlockingStrict,
            "batch" => {
                let buffer = self.audit_log_batch_buffer_size;
                Mode::Batch { buffer: number("audit-log-batch-buffer-size", buffer, 1)? as usize }
            }
            other => {
                let reason = "allowed modes are batch,blocking,blocking-strict";
                return refuse("audit-log-mode", other, reason);
            }
        };
        let format = match self.audit_log_format.as_str() {
            "json" => Format::Json,
            "legacy" => Format::Legacy,
            other => return refuse("audit-log-format", other, "allowed formats are legacy,json"),
        };
        if self.audit_log_version != "audit.k8s.io/v1" {
            let reason = "the allowed version is audit.k8s.io/v1";
            return refuse("audit-log-version", &self.audit_log_version, reason);
        }
        let limit =
            number("audit-log-truncate-max-event-size", self.audit_log_truncate_max_event_size, 1)?;
        let days = number("audit-log-maxage", self.audit_log_maxage, 0)?;
        let rotation = Rotation {
            max_bytes: number("audit-log-maxsize", self.audit_log_maxsize, 0)?
                .saturating_mul(1 << 20),
            max_age: Duration::from_secs(days.saturating_mul(86_400)),
            max_backups: number("audit-log-maxbackup", self.audit_log_maxbackup, 0)? as usize,
            compress: self.audit_log_compress,
        };
        let max_event_bytes = self.audit_log_truncate_enabled.then_some(limit as usize);
        Ok(AuditLogOptions { path, format, rotation, mode, max_event_bytes })
    }
}

fn number(flag: &'static str, value: i64, least: u64) -> Result<u64, AuditFlagError> {
    let found = u64::try_from(value).ok().filter(|value| *value >= least);
    let reason = if least > 0 { "must be a positive number" } else { "can't be a negative number" };
    found.ok_or_else(|| AuditFlagError { flag, value: value.to_string(), reason })
}
