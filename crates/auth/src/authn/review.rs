//! TokenReview: asking the API server whose token this is.

use api_meta::{Objects, Timestamp, Tree as _};
use serde_json::{Value, json};

use super::Authentication;

/// Fills in the `status` of a TokenReview.
pub fn token_review(
    review: &mut Value,
    authentication: &Authentication,
    now: Timestamp,
    objects: &dyn Objects,
) {
    let token = review.text("spec.token").to_owned();
    let asked: Vec<String> = review["spec"]["audiences"]
        .as_array()
        .map(|list| list.iter().filter_map(|a| a.as_str().map(str::to_owned)).collect())
        .unwrap_or_default();
    let audiences = if asked.is_empty() { &authentication.api_audiences } else { &asked };
    review.put(
        &["status"],
        match authentication.by_token(&token, audiences, now, objects) {
            Ok(Some(found)) => {
                json!({"authenticated": true, "user": found.user, "audiences": found.audiences})
            }
            Ok(None) if token.is_empty() => json!({"user": {}, "error": "[no token given]"}),
            Ok(None) => json!({"user": {}, "error": "invalid bearer token"}),
            Err(error) => json!({"user": {}, "error": format!("[invalid bearer token, {error}]")}),
        },
    );
}
