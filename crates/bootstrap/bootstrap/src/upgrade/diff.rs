//! `upgrade diff`: the changes that `upgrade apply` would make to the static Pods of this machine.

use std::path::PathBuf;

use api_config::yaml;
use serde_json::Value;
use similar::TextDiff;

use super::{context::Ctx, control_plane::new_pods};
use crate::Error;

/// The change of one static Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestDiff {
    /// The path of the manifest.
    pub path: PathBuf,
    /// The change as a unified diff; empty without one.
    pub text: String,
}

/// Compares the static Pods of this machine with those of the target version.
pub fn diff(ctx: &Ctx, context_lines: usize) -> Result<Vec<ManifestDiff>, Error> {
    let manifests = ctx.node.layout.manifests();
    let pods = new_pods(ctx)?.into_iter();
    pods.map(|(new, current)| {
        let path = manifests.join(new.file());
        let text = unified(&path.display().to_string(), &current, &new.pod, context_lines)?;
        Ok(ManifestDiff { path, text })
    })
    .collect()
}

/// Formats the difference of two static Pods. Both are printed in the same way, so that only contents differ.
fn unified(path: &str, current: &Value, new: &Value, lines: usize) -> Result<String, Error> {
    let current = if current.is_null() { String::new() } else { yaml::to_string(current)? };
    let new = yaml::to_string(new)?;
    let diff = TextDiff::from_lines(&current, &new);
    Ok(diff.unified_diff().context_radius(lines).header(path, "new manifest").to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prints_changed_lines_only() {
        let pod = |image: &str| json!({"spec": {"containers": [{"name": "c", "image": image}], "hostNetwork": true}});
        let text = unified("/m/a.yaml", &pod("a:1"), &pod("a:2"), 0).unwrap();
        let changes: Vec<&str> = text.lines().collect();
        assert_eq!(changes[..2], ["--- /m/a.yaml", "+++ new manifest"]);
        assert!(text.contains("image: a:1\n+") && !text.contains("hostNetwork"), "{text}");
        assert_eq!(unified("/m/a.yaml", &pod("a:1"), &pod("a:1"), 3).unwrap(), "");
        assert!(unified("/m/a.yaml", &Value::Null, &pod("a:1"), 3).unwrap().contains("+spec:"));
    }
}
