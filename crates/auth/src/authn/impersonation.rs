//! `Impersonate-*` headers: acting as someone else, where that is allowed.

use api_meta::{
    Attributes, Authorizer, Status, UserInfo,
    user::{GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED},
};
use http::HeaderMap;

use super::front_proxy::unescape;
use crate::forbidden;

const EXTRA_PREFIX: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

pub fn is_impersonation_header(name: &str) -> bool {
    name.get(..12).is_some_and(|n| n.eq_ignore_ascii_case("impersonate-"))
}

/// The user to go on as: `None` when the headers ask for nobody else. Every part of the wanted identity needs its own
/// permission to impersonate.
pub fn impersonate(
    headers: &HeaderMap,
    user: &UserInfo,
    authorizer: &dyn Authorizer,
) -> Result<Option<UserInfo>, Status> {
    let Some(wanted) = requested(headers)? else { return Ok(None) };
    let check = |request: Attributes<'_>| -> Result<(), Status> {
        let decision = authorizer.authorize(&request);
        if decision.is_allowed() { Ok(()) } else { Err(forbidden(&request, decision.reason())) }
    };
    let on = |group, resource| Attributes::resource(user, "impersonate", group, resource);
    match wanted.as_service_account() {
        Some((namespace, name)) => {
            check(on("", "serviceaccounts").in_namespace(namespace).named(name))?
        }
        None => check(on("", "users").named(&wanted.name))?,
    }
    for group in &wanted.groups {
        check(on("", "groups").named(group))?;
    }
    if !wanted.uid.is_empty() {
        check(on(AUTHENTICATION, "uids").named(&wanted.uid))?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            check(on(AUTHENTICATION, "userextras").with_subresource(key).named(value))?;
        }
    }
    Ok(Some(with_implied_groups(wanted)))
}

fn requested(headers: &HeaderMap) -> Result<Option<UserInfo>, Status> {
    let all = |name: &str| -> Vec<String> {
        headers
            .get_all(name)
            .into_iter()
            .filter_map(|v| v.to_str().ok().map(str::to_owned))
            .collect()
    };
    let one = |name: &str| all(name).into_iter().next().unwrap_or_default();
    let mut wanted = UserInfo {
        name: one("impersonate-user"),
        uid: one("impersonate-uid"),
        groups: all("impersonate-group"),
        ..UserInfo::default()
    };
    for (name, value) in headers {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix(EXTRA_PREFIX), value.to_str()) {
            wanted.extra.entry(unescape(key)).or_default().push(value.to_owned());
        }
    }
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted == UserInfo::default() {
        return Ok(None);
    }
    Err(Status::bad_request(format!("requested {wanted:?} without impersonating a user")))
}

fn with_implied_groups(mut user: UserInfo) -> UserInfo {
    if let (Some((namespace, name)), true) = (user.as_service_account(), user.groups.is_empty()) {
        user.groups = UserInfo::service_account(namespace, name).groups;
    }
    let implied = if user.name == api_meta::user::ANONYMOUS {
        GROUP_UNAUTHENTICATED
    } else {
        GROUP_AUTHENTICATED
    };
    let settled = user.in_group(GROUP_AUTHENTICATED) || user.in_group(GROUP_UNAUTHENTICATED);
    if !settled {
        user.groups.push(implied.to_owned());
    }
    user
}

#[cfg(test)]
mod tests {
    use api_meta::Decision;
    use http::HeaderValue;

    use super::*;

    /// Allows what is listed, written as `group/resource/subresource/namespace/name`.
    struct Only(&'static [&'static str]);

    impl Authorizer for Only {
        fn authorize(&self, a: &Attributes<'_>) -> Decision {
            let asked =
                format!("{}/{}/{}/{}/{}", a.group, a.resource, a.subresource, a.namespace, a.name);
            if self.0.contains(&asked.as_str()) {
                Decision::Allow(None)
            } else {
                Decision::NoOpinion(None)
            }
        }
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn every_part_needs_permission() {
        let me = UserInfo::new("me", &[]);
        let asked = headers(&[
            ("impersonate-user", "bob"),
            ("impersonate-group", "dev"),
            ("impersonate-extra-scopes%2fa", "x"),
        ]);
        let all = Only(&[
            "/users///bob",
            "/groups///dev",
            "authentication.k8s.io/userextras/scopes/a//x",
        ]);
        let bob = impersonate(&asked, &me, &all).unwrap().unwrap();
        assert_eq!(
            (bob.name.as_str(), bob.groups.join(",")),
            ("bob", "dev,system:authenticated".into())
        );
        assert_eq!(bob.extra_value("scopes/a"), Some("x"));
        let refused = impersonate(&asked, &me, &Only(&["/users///bob"])).unwrap_err();
        assert_eq!(
            refused.message,
            "groups \"dev\" is forbidden: User \"me\" cannot impersonate resource \"groups\" in API group \"\" at the cluster scope"
        );
    }

    #[test]
    fn service_accounts_bring_their_groups() {
        let me = UserInfo::new("me", &[]);
        let asked = headers(&[("impersonate-user", "system:serviceaccount:ns:app")]);
        let app = impersonate(&asked, &me, &Only(&["/serviceaccounts//ns/app"])).unwrap().unwrap();
        assert_eq!(
            app.groups,
            ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
        );
        assert_eq!(impersonate(&headers(&[]), &me, &Only(&[])), Ok(None));
        assert_eq!(
            impersonate(&headers(&[("impersonate-group", "g")]), &me, &Only(&[])).unwrap_err().code,
            400
        );
    }
}
