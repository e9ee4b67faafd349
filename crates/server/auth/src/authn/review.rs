//! TokenReview: validates a token on behalf of a client.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{Authenticated, Authentication, TokenError};

/// The question of a TokenReview.
pub struct TokenReviewRequest {
    /// The token to validate.
    pub token: String,
    /// The requested audiences; the API's own if the review names none.
    pub audiences: Vec<String>,
}

impl TokenReviewRequest {
    /// Reads the `spec`.
    pub fn of(review: &Value, authentication: &Authentication) -> Self {
        let named = review.items("spec.audiences").iter();
        let named: Vec<_> = named.filter_map(|a| a.as_str().map(str::to_owned)).collect();
        let own = &authentication.api_audiences;
        let audiences = if named.is_empty() { own.clone() } else { named };
        Self { token: review.text("spec.token").to_owned(), audiences }
    }
}

/// Sets the `status`.
pub fn answer(
    review: &mut Value,
    request: &TokenReviewRequest,
    found: Result<Option<Authenticated>, TokenError>,
) {
    let status = match found {
        Ok(Some(found)) => {
            json!({"authenticated": true, "user": found.user, "audiences": found.audiences})
        }
        Ok(None) if request.token.is_empty() => json!({"user": {}, "error": "[no token given]"}),
        Ok(None) => json!({"user": {}, "error": "invalid bearer token"}),
        Err(error) => json!({"user": {}, "error": format!("[invalid bearer token, {error}]")}),
    };
    review.put(&["status"], status);
}
