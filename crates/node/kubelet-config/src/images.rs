//! Settings of image pulls and of the removal of images.

use std::{path::PathBuf, time::Duration};

use api_config::GoDuration;
use serde::Deserialize;

use crate::{
    error::{ConfigError, invalid},
    rate::{Rate, RateField},
};

/// The image fields of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ImageConfiguration {
    serialize_image_pulls: Option<bool>,
    max_parallel_image_pulls: Option<i32>,
    #[serde(rename = "registryPullQPS")]
    registry_pull_qps: Option<i32>,
    registry_burst: i32,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high_threshold_percent: Option<u64>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low_threshold_percent: Option<u64>,
    image_service_endpoint: String,
}

/// The checked image settings.
#[derive(Clone, Debug)]
pub struct ImageSettings {
    /// The number of concurrent image pulls; `None` if there is no limit.
    pub parallel_pulls: Option<usize>,
    /// The rate of image pulls; `None` if there is no limit.
    pub pull_rate: Option<Rate>,
    /// The disk usage in percent above which unused images are removed.
    pub gc_high: u64,
    /// The disk usage in percent down to which unused images are removed.
    pub gc_low: u64,
    /// The age below which unused images are kept.
    pub min_age: Duration,
    /// The time without use after which an image is removed, whatever the disk usage; `None` if it is not limited.
    pub max_age: Option<Duration>,
    /// The endpoint of the image service; `None` if the container runtime's endpoint serves images.
    pub endpoint: Option<String>,
    /// The credential providers (`--image-credential-provider-config` and `-bin-dir`), if they are set.
    pub credential_providers: Option<CredentialProviderPaths>,
}

/// The paths of credential providers. Each has a flag and no field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialProviderPaths {
    /// The configuration file (CredentialProviderConfig), or a directory of such files.
    pub config: PathBuf,
    /// The directory of the providers' programs.
    pub programs: PathBuf,
    /// `true` if programs may receive tokens of service accounts.
    pub account_tokens: bool,
}

const PARALLEL: &str = "maxParallelImagePulls";

impl ImageSettings {
    pub(crate) fn new(config: &ImageConfiguration) -> Result<Self, ConfigError> {
        let pull_rate = Rate::new(
            &RateField { name: "registryPullQPS", value: config.registry_pull_qps, default: 5 },
            &RateField {
                name: "registryBurst",
                value: Some(config.registry_burst).filter(|burst| *burst != 0),
                default: 10,
            },
        )?;
        let (gc_low, gc_high) = thresholds(config)?;
        let min_age = crate::defaults::duration_or(config.image_minimum_gc_age, 120);
        Ok(Self {
            parallel_pulls: parallel_pulls(config)?,
            pull_rate,
            gc_high,
            gc_low,
            min_age,
            max_age: max_age(config.image_maximum_gc_age, min_age)?,
            endpoint: Some(config.image_service_endpoint.clone()).filter(|text| !text.is_empty()),
            credential_providers: None,
        })
    }
}

fn parallel_pulls(config: &ImageConfiguration) -> Result<Option<usize>, ConfigError> {
    // As upstream, several parallel pulls turn serial ones off unless these are requested.
    let serial = config
        .serialize_image_pulls
        .unwrap_or_else(|| config.max_parallel_image_pulls.is_none_or(|most| most == 1));
    let Some(most) = config.max_parallel_image_pulls else { return Ok(serial.then_some(1)) };
    match usize::try_from(most) {
        Ok(0) | Err(_) => Err(invalid(PARALLEL, format!("{most} must be a positive number"))),
        Ok(2..) if serial => {
            Err(invalid(PARALLEL, "cannot be larger than 1 unless serializeImagePulls is false"))
        }
        Ok(most) => Ok(Some(most)),
    }
}

/// Returns the low and the high threshold of image garbage collection.
fn thresholds(config: &ImageConfiguration) -> Result<(u64, u64), ConfigError> {
    let high = config.image_gc_high_threshold_percent.unwrap_or(85);
    let low = config.image_gc_low_threshold_percent.unwrap_or(80);
    if low > high || high > 100 {
        let message = format!(
            "{low} and {high}: the low threshold must not exceed the high one, nor that 100"
        );
        return Err(invalid("imageGCLowThresholdPercent", message));
    }
    Ok((low, high))
}

fn max_age(age: GoDuration, min_age: Duration) -> Result<Option<Duration>, ConfigError> {
    const FIELD: &str = "imageMaximumGCAge";
    if age.is_zero() {
        return Ok(None);
    }
    if age.nanos() < 0 {
        return Err(invalid(FIELD, format!("{age} must not be negative")));
    }
    let age = age.to_std();
    if age <= min_age {
        let message = format!("{age:?} must be greater than imageMinimumGCAge {min_age:?}");
        return Err(invalid(FIELD, message));
    }
    Ok(Some(age))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<ImageSettings, String> {
        let config = crate::load::parse(text).unwrap();
        ImageSettings::new(&config.images).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_parallel_pulls_and_their_rate() {
        let pulls = |text: &str| settings(text).map(|settings| settings.parallel_pulls);
        assert_eq!(pulls("{}"), Ok(Some(1)));
        assert_eq!(pulls("maxParallelImagePulls: 5"), Ok(Some(5)));
        assert_eq!(pulls("serializeImagePulls: false"), Ok(None));
        assert_eq!(pulls("serializeImagePulls: false\nmaxParallelImagePulls: 3"), Ok(Some(3)));
        let rate = |text: &str| settings(text).unwrap().pull_rate;
        assert_eq!(rate("{}"), Some(Rate { per_second: 5, burst: 10 }));
        assert_eq!(rate("registryPullQPS: 0"), None);
        let set = rate("registryPullQPS: 1\nregistryBurst: 2");
        assert_eq!(set, Some(Rate { per_second: 1, burst: 2 }));
    }

    #[test]
    fn rejects_image_settings_that_contradict() {
        for (text, cause) in [
            ("serializeImagePulls: true\nmaxParallelImagePulls: 2", "unless serializeImagePulls"),
            ("maxParallelImagePulls: 0", "0 must be a positive number"),
            ("maxParallelImagePulls: -1", "-1 must be a positive number"),
            ("registryPullQPS: -1", "registryPullQPS: -1 must not be a negative number"),
            ("registryBurst: -2", "registryBurst: -2 must not be a negative number"),
            ("imageMaximumGCAge: 1m", "must be greater than imageMinimumGCAge"),
            ("imageMaximumGCAge: -1m", "must not be negative"),
            ("imageGCHighThresholdPercent: 101", "the low threshold must not exceed"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(cause), "{error}");
        }
        assert_eq!(settings("imageMaximumGCAge: 3m").unwrap().max_age.unwrap().as_secs(), 180);
    }
}
