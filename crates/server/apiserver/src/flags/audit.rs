//! The flags of auditing.

use std::{path::PathBuf, time::Duration};

use audit::{Format, Rotation};

use api_config::{GoDuration, GoFlag as _};

use crate::config::{
    AuditLogOptions, AuditOptions, AuditWebhookOptions, Batch, Mode, Throttle, WebhookMode,
};

/// Upstream's flags of the audit log.
#[derive(clap::Args, Clone, Debug)]
pub struct AuditFlags {
    /// The audit policy: an audit.k8s.io/v1 Policy
    #[arg(long)]
    pub audit_policy_file: Option<PathBuf>,
    /// The path of the audit log; - is standard output
    #[arg(long)]
    pub audit_log_path: Option<PathBuf>,
    /// The format of the audit log: json or legacy
    #[arg(long, default_value = "json")]
    pub audit_log_format: String,
    /// Days that rotated files are kept; 0 keeps them indefinitely
    #[arg(long, default_value_t = 366, allow_negative_numbers = true)]
    pub audit_log_maxage: i64,
    /// The number of rotated files to keep; 0 keeps all
    #[arg(long, default_value_t = 100, allow_negative_numbers = true)]
    pub audit_log_maxbackup: i64,
    /// Megabytes at which the file is rotated; 0 never rotates it
    #[arg(long, default_value_t = 100, allow_negative_numbers = true)]
    pub audit_log_maxsize: i64,
    /// Compress rotated files
    #[arg(long, go_bool(), default_value = "false")]
    pub audit_log_compress: bool,
    /// blocking, blocking-strict or batch
    #[arg(long, default_value = "blocking")]
    pub audit_log_mode: String,
    /// The number of events that may wait in batch mode; further ones are dropped
    #[arg(long, default_value_t = 10_000, allow_negative_numbers = true)]
    pub audit_log_batch_buffer_size: i64,
    /// Truncate large events
    #[arg(long, go_bool(), default_value = "false")]
    pub audit_log_truncate_enabled: bool,
    /// The size in bytes above which an event loses its objects, if truncation is enabled
    #[arg(long, default_value_t = 100 << 10, allow_negative_numbers = true)]
    pub audit_log_truncate_max_event_size: i64,
    /// Only audit.k8s.io/v1
    #[arg(long, default_value = "audit.k8s.io/v1")]
    pub audit_log_version: String,
    /// Flags of the audit webhook
    #[command(flatten)]
    pub webhook: AuditWebhookFlags,
}

/// Upstream's flags of the audit webhook.
#[derive(clap::Args, Clone, Debug)]
pub struct AuditWebhookFlags {
    /// The kubeconfig of the audit webhook
    #[arg(long)]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// batch, blocking or blocking-strict
    #[arg(long, default_value = "batch")]
    pub audit_webhook_mode: String,
    /// The number of events that may wait in batch mode; further ones are dropped
    #[arg(long, default_value_t = 10_000, allow_negative_numbers = true)]
    pub audit_webhook_batch_buffer_size: i64,
    /// The maximum number of events in a batch
    #[arg(long, default_value_t = 400, allow_negative_numbers = true)]
    pub audit_webhook_batch_max_size: i64,
    /// The time that the first event of a batch waits for others
    #[arg(long, default_value = "30s")]
    pub audit_webhook_batch_max_wait: GoDuration,
    /// Limit the rate of batches
    #[arg(long, go_bool(), default_value = "true")]
    pub audit_webhook_batch_throttle_enable: bool,
    /// The average number of batches per second
    #[arg(long, default_value_t = 10.0, allow_negative_numbers = true)]
    pub audit_webhook_batch_throttle_qps: f64,
    /// The number of batches that may be sent at once after a pause
    #[arg(long, default_value_t = 15, allow_negative_numbers = true)]
    pub audit_webhook_batch_throttle_burst: i64,
    /// The delay before the first retry of a failed call
    #[arg(long, default_value = "10s")]
    pub audit_webhook_initial_backoff: GoDuration,
    /// The former name of --audit-webhook-initial-backoff
    #[arg(long)]
    pub audit_webhook_batch_initial_backoff: Option<GoDuration>,
    /// Truncate large events and batches
    #[arg(long, go_bool(), default_value = "false")]
    pub audit_webhook_truncate_enabled: bool,
    /// The size in bytes above which an event loses its objects, if truncation is enabled
    #[arg(long, default_value_t = 100 << 10, allow_negative_numbers = true)]
    pub audit_webhook_truncate_max_event_size: i64,
    /// The size in bytes above which a batch is split, if truncation is enabled
    #[arg(long, default_value_t = 10 << 20, allow_negative_numbers = true)]
    pub audit_webhook_truncate_max_batch_size: i64,
    /// Only audit.k8s.io/v1
    #[arg(long, default_value = "audit.k8s.io/v1")]
    pub audit_webhook_version: String,
}

impl AuditWebhookFlags {
    fn options(&self) -> Result<Option<AuditWebhookOptions>, AuditFlagError> {
        let Some(kubeconfig) = self.audit_webhook_config_file.clone() else { return Ok(None) };
        let mode = match self.audit_webhook_mode.as_str() {
            "blocking" => WebhookMode::Blocking,
            "blocking-strict" => WebhookMode::BlockingStrict,
            "batch" => WebhookMode::Batch(self.batch()?),
            other => return refuse("audit-webhook-mode", other, MODES),
        };
        if self.audit_webhook_version != VERSION {
            return refuse("audit-webhook-version", &self.audit_webhook_version, ONE_VERSION);
        }
        let (event, batch) = (
            self.audit_webhook_truncate_max_event_size,
            self.audit_webhook_truncate_max_batch_size,
        );
        let most = number("audit-webhook-truncate-max-event-size", event, 1)? as usize;
        if batch < event {
            let must = "must be greater than the max event size";
            return refuse("audit-webhook-truncate-max-batch-size", &batch.to_string(), must);
        }
        let truncates = self.audit_webhook_truncate_enabled;
        Ok(Some(AuditWebhookOptions {
            kubeconfig,
            mode,
            initial_backoff: self
                .audit_webhook_batch_initial_backoff
                .unwrap_or(self.audit_webhook_initial_backoff)
                .to_std(),
            max_event_bytes: truncates.then_some(most),
            max_batch_bytes: truncates.then_some(usize::try_from(batch).unwrap_or(usize::MAX)),
        }))
    }

    fn batch(&self) -> Result<Batch, AuditFlagError> {
        let (qps, burst) =
            (self.audit_webhook_batch_throttle_qps, self.audit_webhook_batch_throttle_burst);
        let throttle = if !self.audit_webhook_batch_throttle_enable {
            None
        } else if qps.is_nan() || qps <= 0.0 {
            return refuse("audit-webhook-batch-throttle-qps", &qps.to_string(), POSITIVE);
        } else {
            let burst = number("audit-webhook-batch-throttle-burst", burst, 1)?;
            Some(Throttle { qps, burst: u32::try_from(burst).unwrap_or(u32::MAX) })
        };
        let buffer =
            number("audit-webhook-batch-buffer-size", self.audit_webhook_batch_buffer_size, 1)?;
        let size = number("audit-webhook-batch-max-size", self.audit_webhook_batch_max_size, 1)?;
        Ok(Batch {
            // The channel's maximum; a larger buffer would not fit into memory anyway.
            buffer: (buffer as usize).min(tokio::sync::Semaphore::MAX_PERMITS),
            max_size: size as usize,
            max_wait: self.audit_webhook_batch_max_wait.to_std(),
            throttle,
        })
    }
}

const POSITIVE: &str = "must be a positive number";
const MODES: &str = "allowed modes are batch,blocking,blocking-strict";
const VERSION: &str = "audit.k8s.io/v1";
const ONE_VERSION: &str = "the allowed version is audit.k8s.io/v1";

/// The error for an invalid flag of auditing.
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
        Ok(AuditOptions { policy, log, webhook: self.webhook.options()? })
    }

    fn log(&self, path: PathBuf) -> Result<AuditLogOptions, AuditFlagError> {
        let mode = match self.audit_log_mode.as_str() {
            "blocking" => Mode::Blocking,
            "blocking-strict" => Mode::BlockingStrict,
            "batch" => {
                let buffer = self.audit_log_batch_buffer_size;
                Mode::Batch { buffer: number("audit-log-batch-buffer-size", buffer, 1)? as usize }
            }
            other => {
                return refuse("audit-log-mode", other, MODES);
            }
        };
        let format = match self.audit_log_format.as_str() {
            "json" => Format::Json,
            "legacy" => Format::Legacy,
            other => return refuse("audit-log-format", other, "allowed formats are legacy,json"),
        };
        if self.audit_log_version != VERSION {
            return refuse("audit-log-version", &self.audit_log_version, ONE_VERSION);
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

fn refuse<T>(flag: &'static str, value: &str, reason: &'static str) -> Result<T, AuditFlagError> {
    Err(AuditFlagError { flag, value: value.to_owned(), reason })
}

fn number(flag: &'static str, value: i64, least: u64) -> Result<u64, AuditFlagError> {
    let found = u64::try_from(value).ok().filter(|value| *value >= least);
    let reason = if least > 0 { POSITIVE } else { "can't be a negative number" };
    found.ok_or_else(|| AuditFlagError { flag, value: value.to_string(), reason })
}
