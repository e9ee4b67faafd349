use serde_json::{Value, json};

use super::*;

#[test]
fn rejects_invalid_configs() {
    let unit = json!({ "units": [{ "name": "a.service", "contents": "[X]", "dropins": [{ "name": "b.conf", "contents": "[X]" }] }] });
    let file = |contents: Value| json!({ "storage": { "files": [{ "path": "/a", "contents": contents }] } });
    let at = |path: &str| json!({ "systemd": unit, "storage": { "files": [{ "path": path }] } });
    let luks = |more: Value| {
        let mut volume = json!({ "name": "a", "device": "/dev/a", "cex": { "enabled": true } });
        volume.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        json!({ "storage": { "luks": [volume] } })
    };
    let hard = |target: &str| {
        let link = json!({ "path": "/l", "target": target, "hard": true });
        json!({ "storage": { "links": [link], "directories": [{ "path": "/d" }] } })
    };
    let proxy = |url: &str| json!({ "ignition": { "proxy": { "httpsProxy": url } } });
    let header = |header: Value| file(json!({ "source": "http://a", "httpHeaders": [header] }));
    let hash = format!("sha256-{}", "0".repeat(64));
    for (config, want) in [
        (proxy("http://a"), ""),
        (proxy("ftp://a"), "$.ignition.proxy.httpsProxy"),
        (proxy("a:80"), "$.ignition.proxy.httpsProxy"),
        (header(json!({ "name": "a", "value": "b" })), ""),
        (header(json!({ "name": "a" })), ""),
        (header(json!({ "name": "", "value": "b" })), "httpHeaders.0.name"),
        (header(json!({ "name": "a", "value": "" })), "httpHeaders.0.value"),
        (file(json!({ "httpHeaders": [{ "name": "a" }] })), "contents.httpHeaders"),
        (file(json!({ "verification": { "hash": hash } })), "contents.verification.hash"),
        (file(json!({ "source": "data:,", "verification": { "hash": hash } })), ""),
        (json!({ "kernelArguments": { "shouldExist": ["a", "b", "a"] } }), "shouldExist.2: dup"),
        (
            json!({ "passwd": { "users": [{ "name": "a", "groups": ["b", "b"] }] } }),
            "groups.1: dup",
        ),
        (luks(json!({})), ""),
        (luks(json!({ "options": ["-a", "-a"] })), ""),
        (luks(json!({ "clevis": { "tpm2": true } })), "luks.0.cex"),
        (luks(json!({ "keyFile": { "source": "data:,a" } })), "luks.0.cex"),
        (hard("/e"), ""),
        (hard("/d"), "links.0: hard link"),
        (at("/etc/systemd/system/c.service"), ""),
        (
            json!({ "storage": { "disks": [{ "device": "/dev/vda/" }] } }),
            "disks.0.device: path is not fully simplified",
        ),
        (at("/etc/systemd/system/a.service"), "files.0.path: path conflicts"),
        (at("/etc/systemd/system/a.service.d/b.conf"), "files.0.path: path conflicts"),
        (
            json!({ "storage": { "filesystems": [{ "device": "/dev/a", "wipeFilesystem": true }] } }),
            "filesystems.0.format: format cannot",
        ),
    ] {
        let said = validate(&serde_json::from_value(config.clone()).unwrap());
        let said = said.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(said.contains(want) && said.is_empty() == want.is_empty(), "{config}: {said}");
    }
}

#[test]
fn validates_unit_syntax() {
    for text in [
        "",
        "garbage",
        "# [a\nx [A]\nX=1",
        "[A]\n=x\n]=1\n\tX =1",
        "[]\nA=1\n[A\n]\nX=1",
        "[A]\n#c\n;d\nX=1 \\\nno assignment\\\nnor this\nY=2\\",
    ] {
        assert_eq!(validate_sections("p", text), Ok(()), "{text:?}");
    }
    for (text, want) in [
        ("[A]x\nB=c", "garbage"),
        ("[A] x", "garbage"),
        ("[A]\n[B]C=1", "garbage"),
        ("[A]\n B", "neither"),
        ("[A]\nX\n", "neither"),
        ("[A]\nX=1\\ \ny\n", "neither"),
        ("[A]\nX=1\n[", "end of section"),
        ("[Service", "end of section"),
    ] {
        let error = validate_sections("p", text).unwrap_err().to_string();
        assert!(error.contains("invalid unit content: ") && error.contains(want), "{error}");
    }
}
