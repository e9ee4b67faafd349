//! The hash annotation of generated ConfigMaps. An upgrade replaces a ConfigMap only while its content matches the
//! hash.

use api_meta::Tree as _;
use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use serde_json::Value;

/// The annotation with the hash: `sha256:` and hexadecimal digits.
pub const ANNOTATION: &str = "kubeadm.kubernetes.io/component-config.hash";

/// Adds the hash unless the user provided the content.
pub fn mark(config_map: &mut Value, is_custom: bool) {
    if !is_custom {
        let hash = of(config_map);
        config_map.put(&["metadata", "annotations", ANNOTATION], hash);
    }
}

/// Returns `true` if the ConfigMap's content matches its hash.
pub fn is_untouched(config_map: &Value) -> bool {
    *config_map.at(&["metadata", "annotations", ANNOTATION]) == of(config_map)
}

/// Returns the hash of the data, in the order of the keys.
fn of(config_map: &Value) -> String {
    let mut context = digest::Context::new(&digest::SHA256);
    for (key, value) in config_map.pairs("data") {
        context.update(key.as_bytes());
        context.update(value.as_str().unwrap_or_default().as_bytes());
    }
    format!("sha256:{}", HEXLOWER.encode(context.finish().as_ref()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn marks_generated_content_and_detects_changes() {
        let mut map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
        mark(&mut map, true);
        assert!(!is_untouched(&map) && map["metadata"].get("annotations").is_none());
        mark(&mut map, false);
        assert!(is_untouched(&map));
        map["data"]["k"] = "w".into();
        assert!(!is_untouched(&map));
    }
}
