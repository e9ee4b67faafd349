//! Authorizers without state.

use api_meta::{Attributes, Authorizer, Decision, user::GROUP_MASTERS};

/// Allows everything to the members of a group, so that `system:masters` has access even if RBAC is broken.
pub struct Privileged {
    group: String,
}

impl Privileged {
    /// Returns the authorizer for the group `system:masters`.
    pub fn masters() -> Self {
        Self { group: GROUP_MASTERS.to_owned() }
    }
}

impl Authorizer for Privileged {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        if request.user.in_group(&self.group) {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(None)
        }
    }
}

/// The authorizer of `--authorization-mode=AlwaysAllow`.
pub struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn authorize(&self, _request: &Attributes<'_>) -> Decision {
        Decision::Allow(None)
    }
}

/// The authorizer of `--authorization-mode=AlwaysDeny`. It has no opinion, so another authorizer may allow a request.
pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize(&self, _request: &Attributes<'_>) -> Decision {
        Decision::NoOpinion(Some("Everything is forbidden.".into()))
    }
}

/// The paths of `--authorization-always-allow-paths`, which need no permission. `/x/*` matches paths with this prefix.
pub struct AlwaysAllowPaths {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl AlwaysAllowPaths {
    /// Reads paths with or without a leading slash.
    pub fn new<S: AsRef<str>>(paths: &[S]) -> Self {
        let (mut exact, mut prefixes) = (Vec::new(), Vec::new());
        for path in paths {
            let path = path.as_ref().trim_start_matches('/');
            match path.strip_suffix('*') {
                Some(prefix) => prefixes.push(prefix.to_owned()),
                None => exact.push(path.to_owned()),
            }
        }
        Self { exact, prefixes }
    }
}

impl Authorizer for AlwaysAllowPaths {
    fn authorize(&self, request: &Attributes<'_>) -> Decision {
        let path = request.path.trim_start_matches('/');
        let listed = self.exact.iter().any(|p| p == path)
            || self.prefixes.iter().any(|p| path.starts_with(p.as_str()));
        if !request.is_resource && listed {
            Decision::Allow(None)
        } else {
            Decision::NoOpinion(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use api_meta::UserInfo;

    use super::*;

    #[test]
    fn matches_exact_paths_and_prefixes() {
        let allow = AlwaysAllowPaths::new(&["/healthz", "/public/*"]);
        let user = UserInfo::default();
        for (path, want) in
            [("/healthz", true), ("/healthz/x", false), ("/public/a/b", true), ("/publi", false)]
        {
            assert_eq!(
                allow.authorize(&Attributes::path(&user, "get", path)).is_allowed(),
                want,
                "{path}"
            );
        }
        assert!(!allow.authorize(&Attributes::resource(&user, "get", "", "healthz")).is_allowed());
    }
}
