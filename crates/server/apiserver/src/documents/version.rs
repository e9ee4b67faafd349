//! Serves `/version`.

use diagnostics::{GO_VERSION, KUBERNETES_VERSION};
use serde_json::{Value, json};

pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": KUBERNETES_VERSION,
        "gitCommit": option_env!("WINDLASS_COMMIT").unwrap_or("unknown"),
        "gitTreeState": "clean",
        "buildDate": option_env!("WINDLASS_BUILD_DATE").unwrap_or("1970-01-01T00:00:00Z"),
        "goVersion": GO_VERSION,
        "compiler": "rustc",
        "platform": if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" },
    })
}
