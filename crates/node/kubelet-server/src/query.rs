//! The query string of a request.

use std::collections::BTreeMap;

use api_meta::query_decode;

/// The values of a query string by name.
pub(crate) struct Query(BTreeMap<String, Vec<String>>);

impl Query {
    pub(crate) fn of(text: &str) -> Self {
        let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in text.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A pair with a broken escape is ignored, as in Go.
            if let (Some(name), Some(value)) = (query_decode(name), query_decode(value)) {
                values.entry(name).or_default().push(value);
            }
        }
        Self(values)
    }

    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.0.get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.first().map(String::as_str).filter(|v| !v.is_empty())
    }

    /// Returns `true` if Go would parse the value as true.
    pub(crate) fn is(&self, name: &str) -> bool {
        matches!(self.get(name), Some("1" | "t" | "T" | "true" | "TRUE" | "True"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_query_values() {
        let query = Query::of("command=sh&command=-c&command=echo%20a+b%3D&tty=1&x");
        assert_eq!(query.all("command"), ["sh", "-c", "echo a b="]);
        assert!(query.is("tty") && !query.is("x") && !query.is("none"));
    }
}
