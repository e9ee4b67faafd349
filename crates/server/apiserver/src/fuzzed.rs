//! Fuzzes URLs, headers, continue tokens, JSON paths of printer columns, custom definitions and proxy names.

use api_meta::Tree as _;
use http::{HeaderMap, HeaderValue, Method, header};
use serde_json::{Value, json};

use crate::request::{RequestInfo, ResponseFormat};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn urls() {
    let seeds: [&[u8]; 4] = [
        b"/apis/apps/v1/namespaces/a%2fb/deployments/d/status?dryRun=All&fieldSelector=metadata.name%3Dx",
        b"/api/v1/watch/namespaces/a/pods/p?watch=1&labelSelector=a+in+(b)",
        b"/api/v1/nodes/n:1/proxy/x/..//y?a=%zz",
        b"/openapi/v3/apis/apps/v1?hash=0",
    ];
    fuzz::fuzz(HERE, "url", &seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let (path, query) = text.split_once('?').unwrap_or((&text, ""));
        for method in [Method::GET, Method::POST, Method::DELETE] {
            let info = RequestInfo::new(&method, path, query);
            if let Some(resource) = &info.resource {
                assert!(!resource.resource.is_empty() && !resource.version.is_empty(), "{text}");
            }
            let selectors = crate::security::Selectors::of(&info);
            let user = api_meta::UserInfo::new("u", &[]);
            let _ = selectors.attributes(&user, &info);
        }
    });
}

#[test]
fn accept_headers() {
    let seed = b"application/json;as=Table;v=v1;g=meta.k8s.io;q=0.9, application/vnd.kubernetes.protobuf;q=NaN, application/cbor, */*;q=-1";
    fuzz::fuzz(HERE, "accept", &[seed], |input| {
        let Ok(value) = HeaderValue::from_bytes(input) else { return };
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, value.clone());
        headers.insert(header::ACCEPT_ENCODING, value);
        let info = RequestInfo::new(&Method::GET, "/api", "");
        let served = crate::request::Encodings { cbor: true };
        let _ = ResponseFormat::negotiate(&headers, &info.query, served);
        let _ = crate::response::compress::accepted(&headers);
    });
}

#[test]
fn continue_tokens() {
    let seed = crate::handlers::read::encode_token(crate::handlers::read::Continue {
        v: "meta.k8s.io/v1".to_owned(),
        rv: 7,
        start: "default/a".to_owned(),
        left: Some(3),
    });
    fuzz::fuzz(HERE, "continue", &[seed.as_bytes()], |input| {
        let _ = crate::handlers::read::decode_token(&String::from_utf8_lossy(input));
    });
}

#[test]
fn json_paths() {
    let object = json!({"spec": {"list": [{"a": 1, "b.c": [1, 2]}, {"a": "x"}]}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let seeds: [&[u8]; 3] = [
        b".status.conditions[?(@.type==\"Ready\")].status",
        b"$.spec.list[*]['b\\.c'][-1]",
        b".spec.list[0:2].a",
    ];
    fuzz::fuzz(HERE, "jsonpath", &seeds, |input| {
        let found = gotmpl::jsonpath::find(&object, &String::from_utf8_lossy(input)).len();
        assert!(found < 10_000, "{found} values");
    });
}

#[test]
fn definitions_of_custom_kinds() {
    let crd = json!({"metadata": {"name": "a.b.c"}, "spec": {"group": "b.c", "scope": "Namespaced",
        "names": {"plural": "a", "kind": "A", "shortNames": ["x"]},
        "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"scale": {}},
            "additionalPrinterColumns": [{"name": "S", "type": "integer", "jsonPath": ".spec.s"}],
            "selectableFields": [{"jsonPath": ".spec.c"}],
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}}]}});
    fuzz::fuzz(HERE, "definition", &[crd.to_string().as_bytes()], |input| {
        let Ok(tree) = serde_json::from_slice::<Value>(input) else { return };
        // A definition without a served version is rejected before it is stored.
        if tree
            .at("spec.versions")
            .as_array()
            .is_some_and(|v| v.iter().any(|v| v["served"] == true))
        {
            let objects = std::sync::Arc::new(crate::watch_cache::Snapshot::default());
            let backends =
                crate::outbound::backends::Backends::new(objects, None, crate::Egress::default());
            let cel = crate::registry::cel_metrics::CelMetrics::new(
                &telemetry::metrics::Metrics::default(),
            );
            let definition = crate::registry::custom::definition(&tree, &backends, &cel);
            let _ = crate::reconcilers::custom_names::accept(&tree, &[]);
            let _ = definition.stored();
        }
    });
}

#[test]
fn proxy_names() {
    use crate::outbound::target::{Port, ProxyName};
    let seeds: [&[u8]; 4] =
        [b"https:name:8443", b"name:http", b"http:p:80@169.254.169.254:80", b":[::1]:080"];
    fuzz::fuzz(HERE, "proxy-name", &seeds, |input| {
        let text = String::from_utf8_lossy(input);
        let Some(ProxyName { name, port, .. }) = ProxyName::parse(&text) else { return };
        assert!(!name.is_empty() && !name.contains(':'), "{text}");
        match port {
            Port::Default => {}
            Port::Number(number) => assert_ne!(number, 0, "{text}"),
            Port::Name(name) => {
                assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{text}");
            }
        }
    });
}
