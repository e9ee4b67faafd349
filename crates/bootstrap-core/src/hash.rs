//! The mark of a ConfigMap that was generated: an upgrade may replace it only while its content still fits the mark.

use api_meta::Tree as _;
use aws_lc_rs::digest;
use data_encoding::HEXLOWER;
use serde_json::Value;

/// The annotation that holds the mark: `sha256:` and hexadecimal digits.
pub const ANNOTATION: &str = "kubeadm.kubernetes.io/component-config.hash";

/// Marks the ConfigMap's content, unless the user gave it.
pub fn mark(config_map: &mut Value, given: bool) {
    if !given {
        config_map["metadata"]["annotations"][ANNOTATION] = of(config_map).into();
    }
}

/// Whether the ConfigMap is as it was generated.
pub fn is_untouched(config_map: &Value) -> bool {
    config_map["metadata"]["annotations"][ANNOTATION] == of(config_map)
}

/// The hash of the data, by sorted key.
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
    fn only_generated_content_is_marked_and_a_change_shows() {
        let mut map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
        mark(&mut map, true);
        assert!(!is_untouched(&map) && map["metadata"].get("annotations").is_none());
        mark(&mut map, false);
        assert!(is_untouched(&map));
        map["data"]["k"] = "w".into();
        assert!(!is_untouched(&map));
    }
}
