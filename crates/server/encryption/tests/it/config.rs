use std::path::Path;

use encryption::EncryptionConfiguration;

use crate::harness::{Bench, of_keys, secrets};

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n";

/// Returns the errors of entries, with reloading enabled.
fn error_of(entries: &str) -> String {
    let text = format!("{HEAD}resources: {entries}\n");
    let config = EncryptionConfiguration::parse(Path::new("file"), &text).unwrap();
    api_meta::field::aggregate(&config.errors(true))
}

fn provided(provider: &str) -> String {
    error_of(&secrets(provider))
}

fn named(resources: &str) -> String {
    error_of(&format!("[{{resources: [{resources}], providers: [{{identity: {{}}}}]}}]"))
}

/// Messages and paths are upstream's.
#[test]
fn reports_errors_with_upstreams_messages() {
    let overlap = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked";
    for (found, wanted) in [
        (error_of("[]"), "resources: Required value: at least one resources is required".to_owned()),
        (
            error_of("[{}]"),
            "[resources[0].resources: Required value: at least one resources[0].resources is required, resources[0].providers: Required value: at least one resources[0].providers is required]".to_owned(),
        ),
        (named("'*'"), "resources[0].resources[0]: Invalid value: \"*\": use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources".to_owned()),
        (named("Secrets"), "resources[0].resources[0]: Invalid value: \"Secrets\": resource name should not contain capital letters".to_owned()),
        (named("secrets, secrets"), "resources[0].resources: Invalid value: [\"secrets\",\"secrets\"]: the same resource cannot be specified multiple times".to_owned()),
        (named("secrets, '*.'"), format!("resources[0].resources: Invalid value: [\"secrets\",\"*.\"]: {overlap}")),
        (named("deployments.apps, '*.*'"), format!("resources[0].resources: Invalid value: [\"deployments.apps\",\"*.*\"]: {overlap}")),
        (named("secrets.*"), "resources[0].resources[0]: Invalid value: \"secrets.*\": encrypting the same resource across groups is not supported".to_owned()),
        (named("events.events.k8s.io"), "resources[0].resources[0]: Invalid value: \"events.events.k8s.io\": '*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file".to_owned()),
        (named("serviceipallocations"), "resources[0].resources[0]: Invalid value: \"serviceipallocations\": resources which do not have REST API/s cannot be encrypted".to_owned()),
        (provided("{aesgcm: {keys: []}}"), "resources[0].providers[0].aesgcm.keys: Required value: at least one keys is required".to_owned()),
        (provided("{aesgcm: {keys: [{name: a, secret: YQ==}]}}"), "resources[0].providers[0].aesgcm.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 1, expected one of [16 24 32]".to_owned()),
        (provided("{secretbox: {keys: [{name: a, secret: '?'}]}}"), "resources[0].providers[0].secretbox.keys[0].secret: Invalid value: \"REDACTED\": secrets must be base64 encoded".to_owned()),
        (provided("{aescbc: {keys: [{secret: ''}]}}"), "[resources[0].providers[0].aescbc.keys[0].name: Required value: name is a mandatory field for a key, resources[0].providers[0].aescbc.keys[0].secret: Required value: secret is a mandatory field for a key]".to_owned()),
        (provided("{kms: {apiVersion: v2, name: 'a:b', endpoint: 'unix:///s'}}"), "resources[0].providers[0].kms.name: Invalid value: \"a:b\": invalid KMS provider name a:b, must not contain ':'".to_owned()),
        (provided("{kms: {apiVersion: v2, name: a, endpoint: 'http://s', timeout: 0s, cachesize: 3}}"), "[resources[0].providers[0].kms.timeout: Invalid value: \"0s\": timeout should be a positive value, resources[0].providers[0].kms.endpoint: Invalid value: \"http://s\": unsupported scheme \"http\" for KMS provider, only unix is supported, resources[0].providers[0].kms.cachesize: Invalid value: 3: cachesize is not supported in v2]".to_owned()),
        (provided("{kms: {apiVersion: v2, name: a, endpoint: 'unix:///s'}}, {kms: {apiVersion: v2, name: a, endpoint: 'unix:///s'}}"), "resources[0].providers[1].kms.name: Invalid value: \"a\": duplicate KMS provider name a, names must be unique".to_owned()),
    ] {
        assert_eq!(found, wanted);
    }
    // Messages must not contain keys.
    let both = provided(&format!("{{identity: {{}}, {}", &of_keys("aescbc", &[("a", 1)])[1..]));
    assert_eq!(
        both,
        "resources[0].providers[0]: Invalid value: \"REDACTED\": more than one provider specified in a single element, should split into different list elements"
    );
    assert!(provided("{}").contains("provider does not contain any of the expected providers"));
}

#[test]
fn parses_the_file_strictly() {
    let parse = |text: &str| EncryptionConfiguration::parse(Path::new("file"), text);
    let error_of = |text: &str| parse(text).unwrap_err().to_string();
    assert!(error_of("").ends_with("encryption provider configuration file \"file\" is empty"));
    assert!(error_of("kind: Pod\napiVersion: v1\n").contains("no kind \"Pod\" is registered"));
    let typo = error_of(&format!("{HEAD}resources: [{{resource: [secrets]}}]\n"));
    assert!(typo.contains("strict decoding error: unknown field"), "{typo}");
    assert!(error_of(&format!("{HEAD}resources: 3\n")).contains("error decoding"));
    // The kind's name in old documentation.
    parse("kind: EncryptionConfig\napiVersion: v1\nresources: []\n").unwrap();
}

#[tokio::test]
async fn rejects_masked_rules_and_kms_v1() {
    let bench = Bench::new();
    let identity = "providers: [{identity: {}}]";
    for (entries, wanted) in [
        (
            format!(
                "[{{resources: ['*.apps'], {identity}}}, {{resources: [deployments.apps], {identity}}}]"
            ),
            "resource \"deployments.apps\" is masked by earlier rule \"*.apps\"",
        ),
        (
            format!("[{{resources: ['*.*'], {identity}}}, {{resources: ['*.'], {identity}}}]"),
            "resource \"*.\" is masked by earlier rule \"*.*\"",
        ),
        (
            secrets("{kms: {name: a, endpoint: 'unix:///s'}}"),
            "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature.",
        ),
    ] {
        bench.configure(&entries);
        let error = bench.load().await.err().unwrap().to_string();
        assert_eq!(error, format!("error while building transformers: {wanted}"));
    }
}
