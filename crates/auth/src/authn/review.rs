//! TokenReview: asking the API server whose token this is.

use api_meta::Tree as _;
use serde_json::{Value, json};

use super::{Authenticated, Authentication, TokenError};

/// What a TokenReview asks.
pub struct Asked {
    pub token: String,
    /// The API's own where it names none.
    pub audiences: Vec<String>,
}

impl Asked {
    /// Reads the `spec`.
    pub fn of(review: &Value, authentication: &Authentication) -> Self {
        let named = review.items("spec.audiences").iter();
        let named: Vec<_> = named.filter_map(|a| a.as_str().map(str::to_owned)).collect();
        let own = &authentication.api_audiences;
        let audiences = if named.is_empty() { own.clone() } else { named };
        Self { token: review.text("spec.token").to_owned(), audiences }
    }
}

/// Fills in the `status`.
pub fn answer(review: &mut Value, asked: &Asked, found: Result<Option<Authenticated>, TokenError>) {
    let status = match found {
        Ok(Some(found)) => {
            json!({"authenticated": true, "user": found.user, "audiences": found.audiences})
        }
        Ok(None) if asked.token.is_empty() => json!({"user": {}, "error": "[no token given]"}),
        Ok(None) => json!({"user": {}, "error": "invalid bearer token"}),
        Err(error) => json!({"user": {}, "error": format!("[invalid bearer token, {error}]")}),
    };
    review.put(&["status"], status);
}
