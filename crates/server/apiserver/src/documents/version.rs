//! Serves `/version`.

use diagnostics::GO_VERSION;
use serde_json::{Value, json};

pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": version::BUILD_VERSION,
        "gitCommit": version::COMMIT,
        "gitTreeState": "clean",
        "buildDate": version::BUILD_DATE,
        "goVersion": GO_VERSION,
        "compiler": "rustc",
        "platform": version::PLATFORM,
    })
}
