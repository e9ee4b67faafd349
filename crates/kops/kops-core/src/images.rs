//! The locations of images behind a proxy or in a registry.

use api_meta::Tree as _;
use serde_json::Value;

/// Returns the location of an image behind the spec's proxy or registry. A proxy keeps the path; in a registry all
/// images are on one level.
pub(crate) fn remap(spec: &Value, image: String) -> String {
    let mut image = image;
    if let Some(proxy) = spec.at("assets.containerProxy").as_str() {
        let proxy = proxy.trim_end_matches('/');
        let (host, path) = image.split_once('/').unwrap_or(("", &image));
        // A name without a host is on Docker Hub.
        let hub = !host.contains(['.', ':']) && !path.contains('/');
        image = if hub { format!("{proxy}/{image}") } else { format!("{proxy}/{path}") };
    }
    if let Some(registry) = spec.at("assets.containerRegistry").as_str() {
        let plain = image.strip_prefix("registry.k8s.io/").unwrap_or(&image);
        if !plain.starts_with(&format!("{registry}/")) {
            image = format!("{registry}/{}", plain.replace('/', "-"));
        }
    }
    image
}
