use api_meta::Decision;

use super::*;

/// An authorizer that allows the listed requests, as `verb group/resource/subresource/namespace/name`.
struct AllowList(Vec<String>);

impl AllowList {
    fn these(list: &[&str]) -> Self {
        Self(list.iter().map(|entry| (*entry).to_owned()).collect())
    }

    /// Allows the listed requests with the verb `impersonate`.
    fn legacy(list: &[&str]) -> Self {
        Self(list.iter().map(|entry| format!("impersonate {entry}")).collect())
    }
}

impl Authorizer for AllowList {
    fn authorize(&self, a: &Attributes<'_>) -> Decision {
        let (verb, group, resource) = (a.verb, a.group, a.resource);
        let (subresource, namespace, name) = (a.subresource, a.namespace, a.name);
        let asked = format!("{verb} {group}/{resource}/{subresource}/{namespace}/{name}");
        if self.0.contains(&asked) { Decision::Allow(None) } else { Decision::NoOpinion(None) }
    }
}

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

fn list_pods(user: &UserInfo) -> Attributes<'_> {
    Attributes::resource(user, "list", "", "pods").in_namespace("ns")
}

#[test]
fn requires_permission_for_every_part() {
    let me = UserInfo::new("me", &[]);
    let asked = headers(&[
        ("impersonate-user", "bob"),
        ("impersonate-group", "dev"),
        ("impersonate-uid", "7"),
        ("impersonate-extra-scopes%2fa", "x"),
    ]);
    let all = [
        "/users///bob",
        "/groups///dev",
        "authentication.k8s.io/uids///7",
        "authentication.k8s.io/userextras/scopes/a//x",
    ];
    let bob = impersonate(&asked, &list_pods(&me), &AllowList::legacy(&all)).unwrap().unwrap();
    assert_eq!(
        (bob.name.as_str(), bob.groups.join(","), bob.uid.as_str()),
        ("bob", "dev,system:authenticated".into(), "7")
    );
    assert_eq!(bob.extra_value("scopes/a"), Some("x"));
    for lacking in 0..all.len() {
        let mut some = all.to_vec();
        some.remove(lacking);
        let refused = impersonate(&asked, &list_pods(&me), &AllowList::legacy(&some)).unwrap_err();
        // As upstream, the error of the first tried mode is returned.
        assert_eq!(
            refused.message,
            "pods is forbidden: User \"me\" cannot impersonate-on:user-info:list resource \"pods\" in API group \"\" in the namespace \"ns\""
        );
    }
    let asked = headers(&[
        ("impersonate-user", "system:serviceaccount:ns:app"),
        ("impersonate-group", "dev"),
    ]);
    let account = AllowList::legacy(&["/serviceaccounts//ns/app"]);
    assert_eq!(
        impersonate(&asked, &list_pods(&me), &account).unwrap_err().message,
        "groups \"dev\" is forbidden: User \"me\" cannot impersonate resource \"groups\" in API group \"\" at the cluster scope"
    );
}

#[test]
fn adds_groups_of_service_account() {
    let me = UserInfo::new("me", &[]);
    let ask = |asked: &HeaderMap, allowed: &[&str]| {
        impersonate(asked, &list_pods(&me), &AllowList::legacy(allowed))
    };
    let asked = headers(&[("impersonate-user", "system:serviceaccount:ns:app")]);
    let app = ask(&asked, &["/serviceaccounts//ns/app"]).unwrap().unwrap();
    assert_eq!(
        app.groups,
        ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
    );
    assert_eq!(ask(&headers(&[]), &[]), Ok(None));
    assert_eq!(ask(&headers(&[("impersonate-group", "g")]), &[]).unwrap_err().code, 400);
}

/// Each constrained mode needs two permissions and sets the groups of its kind of user.
#[test]
fn constrained_modes_require_permission_for_request() {
    let mut agent = UserInfo::service_account("ns", "agent");
    agent.extra.insert(NODE_NAME.to_owned(), vec!["n1".to_owned()]);
    let nodes = "system:nodes,system:authenticated";
    let accounts = "system:serviceaccounts,system:serviceaccounts:ns,system:authenticated";
    for (mode, what, name, groups) in [
        ("associated-node", "nodes///*", "system:node:n1", nodes),
        ("arbitrary-node", "nodes///n2", "system:node:n2", nodes),
        ("serviceaccount", "serviceaccounts//ns/app", "system:serviceaccount:ns:app", accounts),
        ("user-info", "users///bob", "bob", "system:authenticated"),
    ] {
        let on = format!("impersonate-on:{mode}:list /pods//ns/");
        let be = format!("impersonate:{mode} authentication.k8s.io/{what}");
        let ask = |allowed: &[&str], more: &[(&'static str, &'static str)]| {
            let mut headers = headers(more);
            headers.insert("impersonate-user", name.parse().unwrap());
            impersonate(&headers, &list_pods(&agent), &AllowList::these(allowed))
        };
        let user = ask(&[&on, &be], &[]).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups.join(",").as_str()), (name, groups));
        for half in [&on, &be] {
            assert_eq!(ask(&[half], &[]).unwrap_err().code, 403, "{half}");
        }
        let group = "impersonate:user-info authentication.k8s.io/groups///system:masters";
        let master = [("impersonate-group", "system:masters")];
        assert_eq!(ask(&[&on, &be, group], &master).unwrap_err().code, 403, "{mode}");
    }
    // A permission for the own node does not extend to other nodes.
    let own = AllowList::these(&[
        "impersonate-on:associated-node:list /pods//ns/",
        "impersonate:associated-node authentication.k8s.io/nodes///*",
    ]);
    let other = headers(&[("impersonate-user", "system:node:n2")]);
    assert_eq!(impersonate(&other, &list_pods(&agent), &own).unwrap_err().code, 403);
}

#[test]
fn constrained_modes_reject_reserved_parts() {
    let me = UserInfo::new("me", &[]);
    struct All;
    impl Authorizer for All {
        fn authorize(&self, a: &Attributes<'_>) -> Decision {
            if a.verb == "impersonate" { Decision::NoOpinion(None) } else { Decision::Allow(None) }
        }
    }
    for (header, value, wanted) in [
        ("impersonate-group", "", "the empty string group is not allowed"),
        ("impersonate-group", "system:masters", "the system:masters group is not allowed"),
        ("impersonate-extra-plain", "x", "an invalid key in extra is not allowed: extra.key: "),
        (
            "impersonate-extra-a.b%2f%43",
            "x",
            "a non-lowercase key in extra is not allowed: \"a.b/C\"",
        ),
        ("impersonate-extra-a.b%2fc", "", "the empty string value in extra is not allowed"),
    ] {
        let asked = headers(&[("impersonate-user", "bob"), (header, value)]);
        let refused = impersonate(&asked, &list_pods(&me), &All).unwrap_err();
        assert!(refused.message.contains(wanted), "{header}: {}", refused.message);
    }
}

#[test]
fn rejects_header_that_is_not_utf8() {
    let me = UserInfo::new("me", &[]);
    let ask = |name: &[u8]| {
        let mut asked = HeaderMap::new();
        asked.insert("impersonate-user", HeaderValue::from_bytes(name).unwrap());
        impersonate(&asked, &list_pods(&me), &AllowList::legacy(&["/users///björn"]))
    };
    assert_eq!(ask(b"b\xffb").unwrap_err().code, 400);
    assert_eq!(ask("björn".as_bytes()).unwrap().unwrap().name, "björn");
}
