//! The flags of coordinated leader election: the lease of the API server that elects leaders.

use api_config::GoDuration;
use client::LeaderElectionConfig;

use crate::config::Config;

/// Flags of coordinated leader election
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct ElectionFlags {
    /// Time without a renewal after which another API server may elect leaders
    #[arg(long, default_value = "15s", allow_hyphen_values = true)]
    pub coordinated_leadership_lease_duration: GoDuration,
    /// Time without a renewal after which the API server stops electing leaders; less than the lease duration
    #[arg(long, default_value = "10s", allow_hyphen_values = true)]
    pub coordinated_leadership_renew_deadline: GoDuration,
    /// Time between two attempts to acquire or renew the lease; less than the renew deadline
    #[arg(long, default_value = "2s", allow_hyphen_values = true)]
    pub coordinated_leadership_retry_period: GoDuration,
}

/// The error for times of the lease that contradict each other. The first two are in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElectionFlagError {
    #[error(
        "--coordinated-leadership-lease-duration must be greater than --coordinated-leadership-renew-deadline"
    )]
    LeaseDuration,
    #[error(
        "--coordinated-leadership-renew-deadline must be greater than --coordinated-leadership-retry-period"
    )]
    RenewDeadline,
    #[error("--coordinated-leadership-retry-period={0} must be greater than zero")]
    RetryPeriod(GoDuration),
}

impl ElectionFlags {
    /// Returns the lease of the API server that elects leaders.
    pub(super) fn lease(&self) -> Result<LeaderElectionConfig, ElectionFlagError> {
        let duration = self.coordinated_leadership_lease_duration;
        let deadline = self.coordinated_leadership_renew_deadline;
        let period = self.coordinated_leadership_retry_period;
        if duration <= deadline {
            return Err(ElectionFlagError::LeaseDuration);
        }
        if deadline <= period {
            return Err(ElectionFlagError::RenewDeadline);
        }
        if period <= GoDuration::ZERO {
            return Err(ElectionFlagError::RetryPeriod(period));
        }
        Ok(LeaderElectionConfig {
            lease_duration: duration.to_std(),
            renew_deadline: deadline.to_std(),
            retry_period: period.to_std(),
            ..Config::election_lease()
        })
    }
}
