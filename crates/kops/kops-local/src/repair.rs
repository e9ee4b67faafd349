//! The period after which a machine with an unready Node is replaced.

use api_meta::{GoDuration, ParseDurationError};
use kops_api::Object;
use serde_json::Value;

use crate::{
    error::{Error, RepairAfterError},
    names::REPAIR_AFTER,
};

const DEFAULT_REPAIR_AFTER: u64 = 60;

/// Returns the seconds after which a group's machines with unready Nodes are replaced; `None` for never.
pub(crate) fn repair_after(group: &Object) -> Result<Option<u64>, Error> {
    let annotations = group.metadata.get("annotations");
    let Some(text) = annotations.and_then(|all| all.get(REPAIR_AFTER)).and_then(Value::as_str)
    else {
        return Ok(Some(DEFAULT_REPAIR_AFTER));
    };
    let wrong = |cause: RepairAfterError| {
        let (group, value) = (group.name().to_owned(), text.to_owned());
        Error::RepairAfter { group, value, cause }
    };
    let period: GoDuration = text.parse().map_err(|e: ParseDurationError| wrong(e.into()))?;
    match period.to_std().as_secs() {
        0 => Ok(None),
        // A kubelet reports every ten seconds, and a new machine needs some time to start.
        seconds if seconds < 30 => Err(wrong(RepairAfterError::Short)),
        seconds => Ok(Some(seconds)),
    }
}
