//! Manifests of Kubernetes objects.

/// Returns the manifest of a Pod. `spec` is its specification as YAML, indented by two spaces.
pub fn pod(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n{spec}")
}
