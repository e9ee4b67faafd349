use api_meta::{GroupResource, UserInfo};
use serde_json::json;

use super::*;
use crate::testing::Cluster;

fn resource(text: &str) -> GroupVersionResource {
    let parts: Vec<&str> = text.split('/').collect();
    GroupVersionResource::new(parts[0].to_owned(), parts[1].to_owned(), parts[2].to_owned())
}

/// Runs `then` with a request of the form `CREATE group/version/resource[/subresource] namespace`.
fn with<T>(asked: &str, old: Option<&Value>, then: impl FnOnce(&Request<'_>) -> T) -> T {
    let cluster = Cluster::default()
        .with(
            &GroupResource::NAMESPACES,
            json!({"metadata": {"name": "red", "labels": {"c": "red"}}}),
        )
        .with(&GroupResource::NAMESPACES, json!({"metadata": {"name": "bare"}}));
    let authorizer: std::sync::Arc<dyn api_meta::Authorizer> =
        std::sync::Arc::new(Cluster::default());
    let words: Vec<&str> = asked.split(' ').collect();
    let operation = match words[0] {
        "CREATE" => Operation::Create,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        _ => Operation::Connect,
    };
    let (kind, of) = (GroupVersionKind::new("g", "v", "K"), resource(words[1]));
    let namespace = words.get(2).copied().unwrap_or_default();
    let request = Request {
        operation,
        kind: &kind,
        resource: &of,
        subresource: words[1].split('/').nth(3).unwrap_or_default(),
        namespace,
        name: if of.resource == "namespaces" { namespace } else { "n" },
        user: &UserInfo::default(),
        old,
        options: &Value::Null,
        dry_run: false,
        objects: &cluster,
        authorizer: &authorizer,
        now: api_meta::Timestamp::from_unix(1_700_000_000, 0),
        random: &|_| 0,
    };
    then(&request)
}

fn rule(text: &str) -> Rule {
    let w: Vec<Vec<&str>> = text.split(' ').map(|part| part.split(',').collect()).collect();
    let group = if w[1] == ["core"] { vec![""] } else { w[1].clone() };
    Rule::of(&json!({"operations": w[0], "apiGroups": group, "apiVersions": w[2],
        "resources": w[3], "scope": w.get(4).map(|s| s[0])}))
}

#[test]
fn matches_operations_resources_and_scope() {
    let table = [
        ("CREATE core v1 pods", "CREATE /v1/pods a", true),
        ("CREATE core v1 pods", "UPDATE /v1/pods a", false),
        ("CREATE,UPDATE core v1 pods", "UPDATE /v1/pods a", true),
        ("* core v1 pods", "DELETE /v1/pods a", true),
        ("CONNECT core v1 pods", "CONNECT /v1/pods/exec a", false),
        ("CONNECT core v1 pods/*", "CONNECT /v1/pods/exec a", true),
        ("CONNECT core v1 pods/exec", "CONNECT /v1/pods/attach a", false),
        ("CONNECT core v1 */exec", "CONNECT /v1/pods/exec a", true),
        ("* * * *", "UPDATE /v1/pods/status a", false),
        ("* * * */*", "UPDATE /v1/pods/status a", true),
        ("* * * */*", "UPDATE /v1/pods a", true),
        ("* * * pods/*", "UPDATE /v1/pods a", true),
        ("* * * */status", "UPDATE /v1/pods a", false),
        ("* apps v1 *", "CREATE /v1/pods a", false),
        ("* apps v1beta1 *", "CREATE apps/v1/deployments a", false),
        ("* apps,core v1 pods", "CREATE apps/v1/deployments a", false),
        ("* * * * Namespaced", "CREATE /v1/pods a", true),
        ("* * * * Namespaced", "CREATE /v1/nodes", false),
        ("* * * * Namespaced", "UPDATE /v1/namespaces red", false),
        ("* * * * Cluster", "CREATE /v1/pods a", false),
        ("* * * * Cluster", "CREATE /v1/nodes", true),
        ("* * * * Cluster", "UPDATE /v1/namespaces red", true),
        ("* * * * *", "UPDATE /v1/namespaces red", true),
        ("* * * * Elsewhere", "CREATE /v1/nodes", false),
    ];
    for (text, asked, wanted) in table {
        let matched = with(asked, None, |request| rule(text).matches(request, request.resource));
        assert_eq!(matched, wanted, "{text}: {asked}");
    }
}

#[test]
fn matches_equivalent_resource_if_own_one_does_not_match() {
    let shown = |text: &str| MatchedResource {
        resource: resource(text),
        kind: GroupVersionKind::new("g", text.split('/').nth(1).unwrap().to_owned(), "K"),
    };
    let all = || vec![shown("g/v1/ks"), shown("g/v2/ks"), shown("g/v3/ks")];
    let ask = |rules: &[&str]| {
        let rules: Vec<Rule> = rules.iter().map(|text| rule(text)).collect();
        let found = with("CREATE g/v1/ks a", None, |request| first_match(&rules, request, all));
        found.map(|shown| (shown.resource.version.to_string(), shown.kind.version.to_string()))
    };
    let found = |resource: &str, kind: &str| Some((resource.to_owned(), kind.to_owned()));
    // The requested resource wins over equivalents, in any rule. Among equivalents, the earlier rule wins.
    assert_eq!(ask(&["* g v2 ks", "* g v1 ks"]), found("v1", "v"));
    assert_eq!(ask(&["* g v3 ks", "* g v2 ks"]), found("v3", "v3"));
    assert_eq!(ask(&["UPDATE g v3 ks", "* g v2 ks"]), found("v2", "v2"));
    assert_eq!(ask(&["* g v4 ks", "* h v1 ks"]), None);
    let rules = [rule("UPDATE g v2 ks"), rule("* g v2 ks Cluster")];
    let none = with("CREATE g/v1/ks a", None, |request| {
        first_match(&rules, request, || panic!("nobody asked"))
    });
    assert_eq!(none, None);
}

#[test]
fn selectors_match_namespace_and_both_objects() {
    let red = json!({"metadata": {"labels": {"c": "red"}}});
    let plain = json!({"metadata": {}});
    let is_red = json!({"matchLabels": {"c": "red"}});
    let not_red =
        json!({"matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["red"]}]});
    let any = json!({});
    let null = Value::Null;
    let options = json!({});
    type Case<'a> =
        (&'a Value, &'a Value, &'a str, &'a Value, Option<&'a Value>, Result<bool, u16>);
    let table: Vec<Case<'_>> = vec![
        (&any, &any, "CREATE /v1/pods nowhere", &plain, None, Ok(true)),
        (&is_red, &any, "CREATE /v1/pods red", &plain, None, Ok(true)),
        (&is_red, &any, "CREATE /v1/pods bare", &red, None, Ok(false)),
        (&not_red, &any, "CREATE /v1/pods bare", &red, None, Ok(true)),
        (&is_red, &any, "CREATE /v1/pods nowhere", &plain, None, Err(404)),
        // Ignore a failing selector if the other selector does not match anyway.
        (&is_red, &is_red, "CREATE /v1/pods nowhere", &plain, None, Ok(false)),
        // Cluster-scoped objects match. A Namespace is matched by its own new labels.
        (&is_red, &any, "CREATE /v1/nodes", &plain, None, Ok(true)),
        (&is_red, &any, "CREATE /v1/namespaces new", &red, None, Ok(true)),
        (&is_red, &any, "UPDATE /v1/namespaces red", &plain, Some(&red), Ok(false)),
        (&is_red, &any, "UPDATE /v1/namespaces/status red", &plain, Some(&red), Ok(true)),
        (&is_red, &any, "DELETE /v1/namespaces red", &null, Some(&plain), Ok(true)),
        (&any, &is_red, "UPDATE /v1/pods bare", &plain, Some(&red), Ok(true)),
        (&any, &is_red, "UPDATE /v1/pods bare", &red, Some(&plain), Ok(true)),
        (&any, &is_red, "UPDATE /v1/pods bare", &plain, Some(&plain), Ok(false)),
        (&any, &is_red, "DELETE /v1/pods bare", &null, Some(&red), Ok(true)),
        (&any, &not_red, "DELETE /v1/pods bare", &null, Some(&red), Ok(false)),
        // The options of a connection have no labels.
        (&any, &not_red, "CONNECT /v1/pods/exec bare", &options, None, Ok(false)),
        (&any, &any, "CONNECT /v1/pods/exec bare", &options, None, Ok(true)),
        (&null, &any, "CREATE /v1/pods red", &plain, None, Ok(false)),
    ];
    for (namespace, object, asked, new, old, wanted) in table {
        let selectors =
            Selectors::of(&json!({"namespaceSelector": namespace, "objectSelector": object}));
        let found = with(asked, old, |request| selectors.match_request(request, new));
        assert_eq!(found.map_err(|s| s.code), wanted, "{namespace} {object} {asked} {new}");
    }
}

#[test]
fn rejects_invalid_selector() {
    for selector in [
        json!({"matchExpressions": [{"key": "a", "operator": "Near"}]}),
        json!({"matchLabels": {"_!": "x"}}),
        json!({"matchLabels": [1]}),
        json!("a=b"),
    ] {
        let selectors =
            Selectors::of(&json!({"namespaceSelector": selector, "objectSelector": {}}));
        let found = with("CREATE /v1/pods red", None, |request| {
            selectors.match_request(request, &json!({}))
        });
        assert_eq!(found.unwrap_err().code, 500, "{selector}");
    }
}
