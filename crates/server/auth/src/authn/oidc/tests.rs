use api_config::AuthenticationConfiguration;
use api_meta::{Timestamp, aggregate};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use serde_json::{Value, json};

use super::*;
use crate::{
    authn::{jwt, keys::SigningKey},
    testing::signing_key as key,
};

const URL: &str = "https://issuer.example";

fn config(jwt: &str, more: &str) -> AuthenticationConfiguration {
    AuthenticationConfiguration::parse(&format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: {jwt}\n{more}"
    ))
    .unwrap()
}

fn told(jwt: &str, more: &str) -> String {
    match authenticators(&config(jwt, more), &["https://ours".to_owned()], EgressTypes::None) {
        Ok(_) => String::new(),
        Err(errors) => aggregate(&errors),
    }
}

/// Builds an authenticator with these mappings and rules.
fn mapped(mappings: &str, more: &str) -> JwtAuthenticator {
    let text = format!(
        "[{{issuer: {{url: '{URL}', audiences: [k8s]}}, claimMappings: {mappings}{more}}}]"
    );
    authenticators(&config(&text, ""), &[], EgressTypes::None)
        .unwrap_or_else(|e| panic!("{e:?}"))
        .remove(0)
}

fn keys(of: &[&SigningKey]) -> KeySet {
    let keys: Vec<Value> = of.iter().map(|key| key.public().jwk()).collect();
    KeySet::parse(json!({"keys": keys}).to_string().as_bytes()).unwrap()
}

const NOW: i64 = 1_000_000;

fn claims() -> Value {
    json!({"iss": URL, "aud": "k8s", "sub": "alice", "exp": NOW + 60})
}

/// Validates a token and verifies its signature.
fn verify(token: &str, keys: &KeySet) -> Result<(), IdTokenError> {
    let parsed = IdToken::parse(token)?;
    parsed.check(&["k8s".to_owned()], ALGORITHMS, Timestamp::from_unix(NOW, 0))?;
    parsed.is_signed_by(keys).then_some(()).ok_or(IdTokenError::Signature)
}

#[test]
fn accepts_only_valid_signed_tokens() {
    for algorithm in
        [&rcgen::PKCS_RSA_SHA256, &rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384]
    {
        let (ours, other) = (key(algorithm), key(algorithm));
        let signed = |with: &dyn Fn(&mut Value)| {
            let mut claims = claims();
            with(&mut claims);
            jwt::sign(&ours, &claims).unwrap()
        };
        let put = |name: &'static str, value: Value| signed(&move |c| c[name] = value.clone());
        let both = keys(&[&other, &ours]);
        verify(&signed(&|_| {}), &both).unwrap();
        verify(&put("aud", json!(["x", "k8s"])), &both).unwrap();
        verify(&put("nbf", json!(NOW + 59)), &both).unwrap();
        verify(&put("exp", json!(NOW as f64 + 0.5)), &both).unwrap();
        for (token, words) in [
            (signed(&|_| {}), "signature"),
            (put("exp", json!(NOW - 1)), "expired"),
            (put("exp", json!("2100")), "expired"),
            (put("exp", Value::Null), "expired"),
            (put("nbf", json!(NOW + 61)), "before the nbf"),
            (put("nbf", json!("soon")), "before the nbf"),
            (put("aud", json!("other")), "expected audience"),
            (put("aud", json!(["other", 3])), "expected audience"),
            (put("aud", Value::Null), "expected audience"),
        ] {
            let error = verify(&token, &keys(&[&other])).unwrap_err();
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
    }
}

#[test]
fn rejects_algorithm_of_another_key_type() {
    let ours = key(&rcgen::PKCS_RSA_SHA256);
    let genuine = jwt::sign(&ours, &claims()).unwrap();
    let (message, signature) = genuine.rsplit_once('.').unwrap();
    let (_, payload) = message.split_once('.').unwrap();
    let with = |header: Value, signature: &str| {
        format!("{}.{payload}.{signature}", BASE64.encode(header.to_string()))
    };
    // An HMAC whose secret is the public key, which is publicly known.
    let public = ours.public().jwk().to_string();
    let hashed = {
        let head = BASE64.encode(json!({"alg": "HS256"}).to_string());
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, public.as_bytes());
        let tag = aws_lc_rs::hmac::sign(&key, format!("{head}.{payload}").as_bytes());
        format!("{head}.{payload}.{}", BASE64.encode(tag))
    };
    let set = keys(&[&ours]);
    verify(&genuine, &set).unwrap();
    for (token, words) in [
        (with(json!({"alg": "none"}), ""), "unsupported algorithm"),
        (with(json!({"alg": "None"}), signature), "unsupported algorithm"),
        (with(json!({"alg": "EdDSA"}), signature), "unsupported algorithm"),
        (hashed, "unsupported algorithm"),
        (with(json!({"alg": "RS512"}), signature), "signature"),
        (with(json!({"alg": "PS256"}), signature), "signature"),
        (with(json!({"alg": "ES256"}), signature), "signature"),
        (with(json!({"alg": "RS256", "kid": "other"}), signature), "signature"),
        (with(json!({"alg": "RS256", "jwk": ours.public().jwk()}), signature), "signature"),
        (with(json!({"alg": "RS256", "crit": ["exp"]}), signature), "crit"),
        (with(json!({"alg": ["RS256"]}), signature), "malformed"),
        (format!("{message}."), "signature"),
        (format!("{genuine}.x"), "malformed"),
        ("a.b".into(), "malformed"),
        ("..".into(), "malformed"),
        ("".into(), "malformed"),
    ] {
        let error = verify(&token, &set).unwrap_err();
        assert!(error.to_string().contains(words), "{token}: {error}");
    }
    assert_eq!(untrusted_issuer(&genuine).as_deref(), Some(URL));
    assert_eq!(untrusted_issuer("a.b.c"), None);
}

#[test]
fn ignores_unsupported_keys() {
    let ours = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let token = jwt::sign(&ours, &claims()).unwrap();
    let mut short = ours.public().jwk();
    short["kid"] = json!("x");
    short["x"] = json!("AAAA");
    let odd = json!({"keys": [
        {"kty": "oct", "k": "AA"}, {"kty": "OKP", "crv": "Ed25519", "x": "AA"}, 3, {"kty": "RSA"},
        {"kty": "EC", "crv": "P-256", "x": "A".repeat(400), "y": "AA"}, short, ours.public().jwk()]});
    let set = KeySet::parse(odd.to_string().as_bytes()).unwrap();
    verify(&token, &set).unwrap();
    for bad in ["", "[]", "{}", "{\"keys\": 3}", "<html>"] {
        assert!(KeySet::parse(bad.as_bytes()).is_err(), "{bad}");
    }
    const HERE: &str = env!("CARGO_MANIFEST_DIR");
    fuzz::fuzz(HERE, "oidc", &[odd.to_string().as_bytes(), token.as_bytes()], |input| {
        let _ = KeySet::parse(input);
        if let Ok(text) = std::str::from_utf8(input) {
            let _ = verify(text, &set);
            let _ = untrusted_issuer(text);
        }
    });
}

#[test]
fn maps_claims_to_user() {
    let claim = "{username: {claim: sub, prefix: 'x:'}}";
    let groups =
        "{username: {claim: sub, prefix: ''}, groups: {claim: g, prefix: 'o:'}, uid: {claim: id}}";
    let cel = "{username: {expression: 'claims.sub + \"!\"'}, groups: {expression: 'claims.g.filter(x, x != \"b\")'}, uid: {expression: 'string(claims.n)'}, extra: [{key: a.b/c, valueExpression: 'claims.?none.orValue(\"\")'}, {key: a.b/d, valueExpression: 'claims[\"k.io\"].a__dot__b'}]}";
    let email = "{username: {claim: email, prefix: ''}}";
    let user = |mappings: &str, more: &str, claims: Value| {
        let found = mapped(mappings, more).user(claims.as_object().unwrap());
        found.map(|user| serde_json::to_value(user).unwrap()).map_err(|error| error.to_string())
    };
    let wanted = [
        (
            claim,
            json!({"sub": "a", "jti": "i"}),
            json!({"username": "x:a", "extra": {"authentication.kubernetes.io/credential-id": ["JTI=i"]}}),
        ),
        (
            groups,
            json!({"sub": "a", "g": "dev", "id": "7"}),
            json!({"username": "a", "uid": "7", "groups": ["o:dev"]}),
        ),
        (
            groups,
            json!({"sub": "a", "g": ["b", "c"], "id": "7"}),
            json!({"username": "a", "uid": "7", "groups": ["o:b", "o:c"]}),
        ),
        (
            cel,
            json!({"sub": "a", "g": ["b", "", "c"], "n": 12, "k.io": {"a.b": ["v"]}}),
            json!({"username": "a!", "uid": "12", "groups": ["c"], "extra": {"a.b/d": ["v"]}}),
        ),
        (email, json!({"email": "a@b", "email_verified": true}), json!({"username": "a@b"})),
        (email, json!({"email": "a@b"}), json!({"username": "a@b"})),
    ];
    for (mappings, claims, wanted) in wanted {
        assert_eq!(user(mappings, "", claims), Ok(wanted), "{mappings}");
    }
    let refused = [
        (claim, "", json!({}), "claim not present"),
        (claim, "", json!({"sub": 3}), "it is not a string"),
        ("{username: {claim: sub, prefix: ''}}", "", json!({"sub": null}), "is empty"),
        (groups, "", json!({"sub": "a", "g": [3], "id": "7"}), "parse groups claim"),
        (groups, "", json!({"sub": "a"}), "parse uid claim"),
        (groups, "", json!({"sub": "a", "id": "1", "_claim_names": {"g": "s"}}), "distributed"),
        (cel, "", json!({"sub": 3}), "no such overload"),
        (cel, "", json!({"sub": "a", "g": [3], "n": 1}), "must return a string or a list"),
        (email, "", json!({"email": "a@b", "email_verified": false}), "email not verified"),
        (email, "", json!({"email": "a@b", "email_verified": "true"}), "not a boolean"),
        (
            claim,
            ", claimValidationRules: [{claim: hd, requiredValue: x}]",
            json!({"sub": "a"}),
            "required claim hd not present",
        ),
        (
            claim,
            ", claimValidationRules: [{claim: hd, requiredValue: x}]",
            json!({"sub": "a", "hd": "y"}),
            "Got = y, want = x",
        ),
        (
            claim,
            ", claimValidationRules: [{expression: 'claims.hd == \"x\"', message: none of ours}]",
            json!({"sub": "a", "hd": "y"}),
            "failed: none of ours",
        ),
        (
            claim,
            ", userValidationRules: [{expression: '!user.username.startsWith(\"x:system:\")', message: reserved}]",
            json!({"sub": "system:admin"}),
            "failed: reserved",
        ),
    ];
    for (mappings, more, claims, words) in refused {
        let error = user(mappings, more, claims).unwrap_err();
        assert!(error.contains(words), "{words}: {error}");
    }
    // Numbers in claims are doubles, as in Go.
    let typed = ", claimValidationRules: [{expression: 'type(claims.n) == double && claims.n == 3 && claims.n < 4'}]";
    assert!(user(claim, typed, json!({"sub": "a", "n": 3})).is_ok());
}

/// The expected messages were recorded from kube-apiserver v1.36.2.
#[test]
#[allow(clippy::too_many_lines, reason = "a table of cases")]
fn reports_errors_in_upstream_words() {
    let issuer = |issuer: &str| {
        format!(
            "[{{issuer: {{{issuer}}}, claimMappings: {{username: {{claim: sub, prefix: ''}}}}}}]"
        )
    };
    let mapping = |mapping: &str| {
        format!("[{{issuer: {{url: 'https://a', audiences: [b]}}, claimMappings: {{{mapping}}}}}]")
    };
    let rules = |rules: &str| {
        format!(
            "[{{issuer: {{url: 'https://a', audiences: [b]}}, claimMappings: {{username: {{claim: sub, prefix: ''}}}}, {rules}}}]"
        )
    };
    for (given, wanted) in [
        ("[]".to_owned(), ""),
        (issuer("url: 'https://a', audiences: [b]"), ""),
        (issuer("audiences: [b]"), "jwt[0].issuer.url: Required value"),
        (
            issuer("url: 'http://a', audiences: [b]"),
            "jwt[0].issuer.url: Invalid value: \"http://a\": URL scheme must be https",
        ),
        (
            issuer("url: 'https://u:p@a?q=1#f', audiences: [b]"),
            "[jwt[0].issuer.url: Invalid value: \"https://u:p@a?q=1#f\": URL must not contain a username or password, jwt[0].issuer.url: Invalid value: \"https://u:p@a?q=1#f\": URL must not contain a query, jwt[0].issuer.url: Invalid value: \"https://u:p@a?q=1#f\": URL must not contain a fragment]",
        ),
        (
            issuer("url: 'https://ours', audiences: [b]"),
            "jwt[0].issuer.url: Invalid value: \"https://ours\": URL must not overlap with disallowed issuers: [https://ours]",
        ),
        (
            issuer("url: 'https://a', discoveryURL: 'https://a/', audiences: [b]"),
            "jwt[0].issuer.discoveryURL: Invalid value: \"https://a/\": discoveryURL must be different from URL",
        ),
        (
            issuer("url: 'https://a'"),
            "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
        (
            issuer("url: 'https://a', audiences: [b, b]"),
            "[jwt[0].issuer.audiences[1]: Duplicate value: \"b\", jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for multiple audiences]",
        ),
        (
            issuer("url: 'https://a', audiences: [b], certificateAuthority: x"),
            "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA or ECDSA certificates",
        ),
        (
            issuer("url: 'https://a', audiences: [b], egressSelectorType: cluster"),
            "jwt[0].issuer.egressSelectorType: Invalid value: \"cluster\": oidc: egress lookup required with egress selector type \"cluster\"",
        ),
        (
            issuer("url: 'https://a', audiences: [b], egressSelectorType: x"),
            "jwt[0].issuer.egressSelectorType: Invalid value: \"x\": egress selector must be either controlplane or cluster",
        ),
        (
            mapping("username: {claim: sub}"),
            "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
        ),
        (
            mapping(""),
            "jwt[0].claimMappings.username: Required value: claim or expression is required",
        ),
        (
            mapping("username: {claim: a, expression: b, prefix: ''}"),
            "jwt[0].claimMappings.username: Invalid value: \"\": claim and expression can't both be set",
        ),
        (
            mapping("username: {expression: claims.email}"),
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.email\": claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression",
        ),
        (
            mapping("username: {expression: 'claims.email_verified ? claims.email : claims.sub'}"),
            "",
        ),
        (
            mapping("username: {expression: 'foo.bar'}"),
            "jwt[0].claimMappings.username.expression: Invalid value: \"foo.bar\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo.bar\n | ^",
        ),
        (
            mapping(
                "username: {claim: a, prefix: ''}, extra: [{key: Foo, valueExpression: claims.a}]",
            ),
            "[jwt[0].claimMappings.extra[0].key: Invalid value: \"Foo\": must be a domain-prefixed path (such as \"acme.io/foo\"), jwt[0].claimMappings.extra[0].key: Invalid value: \"Foo\": must be lowercase]",
        ),
        (
            mapping(
                "username: {claim: a, prefix: ''}, extra: [{key: a.k8s.io/b, valueExpression: ''}]",
            ),
            "[jwt[0].claimMappings.extra[0].key: Invalid value: \"a.k8s.io/b\": k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use, jwt[0].claimMappings.extra[0].valueExpression: Required value]",
        ),
        (
            rules(
                "claimValidationRules: [{claim: a, message: m}, {expression: claims.a, requiredValue: v}, {}]",
            ),
            "[jwt[0].claimValidationRules[0].message: Invalid value: \"m\": may not be specified when claim is set, jwt[0].claimValidationRules[1].requiredValue: Invalid value: \"v\": may not be specified when expression is set, jwt[0].claimValidationRules[1].expression: Invalid value: \"claims.a\": must evaluate to bool, jwt[0].claimValidationRules[2]: Required value: claim or expression is required]",
        ),
        (
            rules("userValidationRules: [{expression: user.name == ''}, {}]"),
            "[jwt[0].userValidationRules[0].expression: Invalid value: \"user.name == ''\": compilation failed: ERROR: <input>:1:5: undefined field 'name'\n | user.name == ''\n | ....^, jwt[0].userValidationRules[1].expression: Required value]",
        ),
    ] {
        assert_eq!(told(&given, ""), wanted, "{given}");
    }
    let twice = "{issuer: {url: 'https://a', audiences: [b]}, claimMappings: {username: {claim: sub, prefix: ''}}}";
    assert_eq!(
        told(&format!("[{twice}, {twice}]"), ""),
        "jwt[1].issuer.url: Duplicate value: \"https://a\""
    );
    assert_eq!(
        told("[]", "anonymous: {enabled: false, conditions: [{path: /livez}]}"),
        "anonymous.conditions: Invalid value: [{\"Path\":\"/livez\"}]: enabled should be set to true when conditions are defined"
    );
    let many = vec![twice; MAX_ISSUERS + 1].join(",");
    assert_eq!(told(&format!("[{many}]"), ""), "jwt: Too many: 65: must have at most 64 items");
}
