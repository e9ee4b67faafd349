use std::{fs, path::Path, sync::Arc};

use serde_json::json;

use super::{check::check, *};
use crate::labels::from_query;

fn put(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn store() -> (tempfile::TempDir, Matchbox) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(
        root,
        "groups/default.json",
        r#"{"id":"default","profile":"p","metadata":{"a":{"b":"c"},"n":3,"l":[1],"z":null}}"#,
    );
    put(
        root,
        "groups/node1.json",
        r#"{"id":"node1","profile":"p","selector":{"mac":"52-54-00-A1-9C-AE"},"metadata":{"a":{"b":"d"},"name":"one"}}"#,
    );
    put(root, "groups/lost.json", r#"{"id":"lost","profile":"none","selector":{"os":"lost"}}"#);
    put(
        root,
        "profiles/p.json",
        r#"{"id":"p","ignition_id":"p.ign","generic_id":"g","cloud_id":"c","boot":{"kernel":"/image/kernel","initrd":["/image/initrd_a","/image/initrd_b"],"args":["a=b","c"]}}"#,
    );
    put(root, "ignition/p.ign", r#"{"ignition":{"version":"3.3.0"},"systemd":{}}"#);
    put(root, "generic/g", "{{.a.b}}\n{{.name}} {{.request.query.mac}} {{.request.raw_query}}");
    put(root, "cloud/c", "#cloud-config\nhostname: {{.a.b}}");
    let matchbox = Matchbox::new(Arc::new(Store::new(root)), Settings::default());
    (dir, matchbox)
}

#[track_caller]
fn get(matchbox: &Matchbox, path: &str, query: &str) -> Result<(&'static str, String), String> {
    let request = HttpRequest { path: path.into(), query: query.into(), ..HttpRequest::default() };
    match matchbox.serve(&request).unwrap() {
        Ok(content) => Ok((content.content_type, String::from_utf8(content.body).unwrap())),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn macs() {
    for (text, want) in [
        ("52:54:00:A1:9C:AE", Some("52:54:00:a1:9c:ae")),
        ("52-54-00-a1-9c-ae", Some("52:54:00:a1:9c:ae")),
        ("5254.00a1.9cae", Some("52:54:00:a1:9c:ae")),
        ("00:00:00:00:fe:80:00:00", Some("00:00:00:00:fe:80:00:00")),
        ("52:54:00:a1:9c", None),
        ("52:54-00:a1:9c:ae", None),
        ("525400a19cae", None),
        ("", None),
        ("é:54:00:a1:9c:ae", None),
    ] {
        assert_eq!(parse_mac(text).as_deref(), want, "{text}");
    }
}

#[test]
fn uses_first_value_of_each_label() {
    let labels =
        from_query("a=1&a=2&MAC=52-54-00-A1-9C-AE&mac=none&UUID=AbC&b=x%20y+z&c&d=%zz&e;f=1");
    let want =
        [("MAC", "52:54:00:a1:9c:ae"), ("UUID", "AbC"), ("a", "1"), ("b", "x y z"), ("c", "")];
    assert_eq!(labels, want.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
}

#[test]
fn selects_most_specific_group() {
    let group = |id: &str, selector: serde_json::Value| {
        let text = json!({ "id": id, "profile": "p", "selector": selector }).to_string();
        Arc::new(Group::parse(text.as_bytes()).unwrap())
    };
    let groups = [
        group("default", json!({})),
        group("a", json!({ "os": "a" })),
        group("z", json!({ "zone": "a" })),
        group("both", json!({ "os": "a", "zone": "a" })),
        group("absent", json!({ "os": "", "rack": "" , "x": "1"})),
        group("any", json!({ "mac": ["52-54-00-00-00-01", "52:54:00:00:00:02"] })),
        group("prefix", json!({ "serial": { "prefix": "AB" } })),
    ];
    for (query, want) in [
        ("", "default"),
        ("os=b", "default"),
        ("os=a", "a"),
        ("os=a&zone=a", "both"),
        ("zone=a", "z"),
        ("OS=a", "default"),
        ("x=1", "absent"),
        ("mac=52:54:00:00:00:02", "any"),
        ("serial=ABC", "prefix"),
        ("serial=BABC", "default"),
    ] {
        assert_eq!(select(&groups, &from_query(query)).unwrap().id, want, "{query}");
    }
    // With equally many selectors, the greater text wins.
    assert_eq!(select(&groups[1..3], &from_query("os=a&zone=a")).unwrap().id, "z");
    assert!(select(&groups[1..], &from_query("")).is_none());
}

#[test]
fn scripts() {
    let (_dir, matchbox) = store();
    let (kind, text) = get(&matchbox, "/ipxe", "").unwrap();
    assert_eq!(kind, "text/plain; charset=utf-8");
    assert_eq!(
        text,
        "#!ipxe\nkernel /image/kernel a=b c\ninitrd /image/initrd_a\ninitrd /image/initrd_b\nboot\n"
    );
    let (_, text) = get(&matchbox, "/grub", "").unwrap();
    assert_eq!(
        text,
        "default=0\nfallback=1\ntimeout=1\nmenuentry \"CoreOS (EFI)\" {\necho \"Loading kernel\"\n\
         linuxefi \"/image/kernel\" a=b c\necho \"Loading initrd\"\n\
         initrdefi  \"/image/initrd_a\" \"/image/initrd_b\"\n}\n\
         menuentry \"CoreOS (BIOS)\" {\necho \"Loading kernel\"\nlinux \"/image/kernel\" a=b c\n\
         echo \"Loading initrd\"\ninitrd  \"/image/initrd_a\" \"/image/initrd_b\"\n}\n"
    );
    for path in ["/boot.ipxe", "/boot.ipxe.0", "/autoexec.ipxe"] {
        let (_, text) = get(&matchbox, path, "").unwrap();
        assert!(text.starts_with("#!ipxe\nchain ipxe?uuid=${uuid}&mac=${mac:hexhyp}&"), "{path}");
    }
    assert_eq!(get(&matchbox, "/", "").unwrap().1, "matchbox\n");
    let other = HttpRequest { path: "/other".into(), ..HttpRequest::default() };
    assert!(matchbox.serve(&other).is_none());
}

#[test]
fn templates_and_metadata() {
    let (_dir, matchbox) = store();
    assert_eq!(
        get(&matchbox, "/generic", "mac=52-54-00-a1-9c-ae&x=1").unwrap().1,
        "d\none 52:54:00:a1:9c:ae mac=52-54-00-a1-9c-ae&x=1"
    );
    assert_eq!(get(&matchbox, "/cloud", "").unwrap().1, "#cloud-config\nhostname: c");
    assert_eq!(
        get(&matchbox, "/ignition", "").unwrap(),
        ("application/json", r#"{"ignition":{"version":"3.4.0"},"systemd":{}}"#.to_owned())
    );
    assert_eq!(
        get(&matchbox, "/metadata", "x=1").unwrap(),
        ("plain/text", "A_B=c\nN=3\nREQUEST_QUERY_X=1\nREQUEST_RAW_QUERY=x=1\n".to_owned())
    );
}

#[test]
fn renders_and_translates_butane() {
    let (dir, matchbox) = store();
    put(dir.path(), "profiles/p.json", r#"{"id":"p","ignition_id":"b.yaml"}"#);
    let butane = "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n    - path: {{.a.b}}\n      contents: {inline: \"{{.request.query.mac}}\"}\n";
    put(dir.path(), "ignition/b.yaml", butane);
    let query = "mac=52-54-00-a1-9c-ae";
    let relative = get(&matchbox, "/ignition", query).unwrap_err();
    assert_eq!(
        relative,
        "group \"node1\", profile \"p\", ignition template \"b.yaml\": once rendered, \
         error at $.storage.files.0.path, line 5 col 13: path not absolute"
    );
    put(dir.path(), "ignition/b.yaml", &butane.replace("path: ", "path: /"));
    assert_eq!(
        get(&matchbox, "/ignition", query).unwrap().1,
        "{\"ignition\":{\"version\":\"3.4.0\"},\"storage\":{\"files\":[{\"contents\":{\"compression\":\"\",\
         \"source\":\"data:,52%3A54%3A00%3Aa1%3A9c%3Aae\"},\"path\":\"/d\"}]}}"
    );
}

#[test]
fn translates_container_linux_config() {
    let (dir, matchbox) = store();
    put(dir.path(), "profiles/p.json", r#"{"id":"p","ignition_id":"c.yaml"}"#);
    let config = "passwd:\n  users:\n    - name: core\n      ssh_authorized_keys: [\"{{.a.b}}\"]\n";
    put(dir.path(), "ignition/c.yaml", config);
    let (kind, text) = get(&matchbox, "/ignition", "mac=52-54-00-a1-9c-ae").unwrap();
    assert_eq!(kind, "application/json");
    assert_eq!(
        text,
        "{\"ignition\":{\"version\":\"2.3.0\"},\"networkd\":{},\"passwd\":{\"users\":[{\"name\":\"core\",\
         \"sshAuthorizedKeys\":[\"d\"]}]},\"storage\":{},\"systemd\":{}}"
    );
    put(dir.path(), "ignition/c.yaml", "systemd:\n  units:\n    - enabled: maybe\n");
    let error = get(&matchbox, "/ignition", "mac=52-54-00-a1-9c-ae").unwrap_err();
    let wanted = "template \"c.yaml\": once rendered, error at $.systemd.units.0.enabled, line 3 col 16: expected a boolean, found a string";
    assert!(error.ends_with(wanted), "{error}");
}

#[test]
fn failure_names_group_profile_and_template() {
    let (dir, matchbox) = store();
    assert_eq!(
        get(&matchbox, "/generic", "").unwrap_err(),
        "group \"default\", profile \"p\", generic template \"g\": template: g:2:2: executing \"g\" at \
         <.name>: map has no entry for key \"name\""
    );
    let lost = get(&matchbox, "/ipxe", "os=lost").unwrap_err();
    assert!(lost.starts_with("group \"lost\": reading profile \"none\""), "{lost}");
    let report = check(&matchbox);
    assert_eq!(report.problems.len(), 2, "{report}");
    // A repaired file is used at once. A broken one is skipped and reported.
    put(dir.path(), "groups/default.json", "{");
    let none = get(&matchbox, "/ipxe", "").unwrap_err();
    assert!(none.starts_with("no group matches the labels {}"), "{none}");
    let report = check(&matchbox).to_string();
    assert!(report.contains("default.json") && report.contains("line 1"), "{report}");
}

#[test]
fn reports_unknown_fields_and_equal_selectors() {
    let (dir, matchbox) = store();
    let before = check(&matchbox).problems;
    put(dir.path(), "groups/typo.json", r#"{"id":"typo","profile":"p","selectors":{"os":"x"}}"#);
    put(dir.path(), "groups/z.json", r#"{"id":"z","profile":"p","selector":{"os":"y"}}"#);
    put(dir.path(), "groups/y.json", r#"{"id":"y","profile":"p","selector":{"os":"y"}}"#);
    put(dir.path(), "profiles/typo.json", r#"{"id":"typo","boot":{"arg":["a"]},"ignition":"i"}"#);
    let found = check(&matchbox).problems;
    for wanted in [
        "groups \"default\" and \"typo\" have no selectors",
        "groups \"y\" and \"z\" have the same selectors",
        "groups/typo.json: unknown field \"selectors\"",
        "profiles/typo.json: unknown field \"boot.arg\"",
        "profiles/typo.json: unknown field \"ignition\"",
    ] {
        let is_it = |problem: &&String| problem.contains(wanted);
        assert_eq!(found.iter().filter(is_it).count(), 1, "{wanted}: {found:#?}");
        assert!(!before.iter().any(|problem| problem.contains(wanted)));
    }
    assert!(!before.iter().any(|problem| problem.contains("unknown field")), "{before:#?}");
}

#[test]
fn rejects_ids_that_leave_their_directory() {
    let (dir, matchbox) = store();
    put(dir.path(), "secret", "s");
    put(dir.path(), "groups/default.json", r#"{"id":"default","profile":"../profiles/p"}"#);
    put(dir.path(), "profiles/p.json", r#"{"id":"p","generic_id":"../secret"}"#);
    let error = get(&matchbox, "/generic", "").unwrap_err();
    assert!(error.contains("profile"), "{error}");
}

#[test]
fn survives_ten_thousand_groups_and_looping_template() {
    let (dir, matchbox) = store();
    for n in 0..10_000 {
        let mac = format!("52:54:00:01:{:02x}:{:02x}", n / 256, n % 256);
        let group = json!({ "id": format!("g{n}"), "profile": "p", "selector": {"mac": mac},
            "metadata": {"name": n, "a": {"b": 1}} });
        put(dir.path(), &format!("groups/g{n}.json"), &group.to_string());
    }
    assert!(get(&matchbox, "/generic", "mac=52-54-00-01-00-07").unwrap().1.starts_with("1\n7 "));
    // While the groups are cached, requests match all groups and read no file.
    let groups = || matchbox.store().groups().0;
    let before = groups();
    for n in 0..500 {
        let mac = format!("mac=52-54-00-01-{:02x}-{:02x}", n / 256, n % 256);
        assert!(get(&matchbox, "/generic", &mac).unwrap().1.starts_with(&format!("1\n{n} ")));
    }
    let after = groups();
    let same = before.iter().zip(after.iter()).filter(|(old, new)| Arc::ptr_eq(old, new));
    assert_eq!((same.count(), after.len()), (before.len(), before.len()));
    for looping in [
        "{{define \"x\"}}{{template \"x\" .}}{{end}}{{template \"x\" .}}",
        "{{range .many}}{{range $.many}}{{range $.many}}{{range $.many}}x{{end}}{{end}}{{end}}{{end}}",
        "{{define \"x\"}}{{.}}{{template \"x\" (print . .)}}{{end}}{{template \"x\" \"long\"}}",
    ] {
        put(dir.path(), "generic/g", looping);
        let many: Vec<u8> = vec![0; 200];
        let group = json!({ "id": "node1", "profile": "p", "selector": {"x": "1"}, "metadata": {"many": many} });
        put(dir.path(), "groups/node1.json", &group.to_string());
        let start = std::time::Instant::now();
        let matchbox = Matchbox::new(Arc::new(Store::new(dir.path())), Settings::default());
        let error = get(&matchbox, "/generic", "x=1").unwrap_err();
        assert!(error.contains("generic template \"g\""), "{error}");
        assert!(start.elapsed() < std::time::Duration::from_secs(20), "{looping}");
    }
}
