use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    sync::Arc,
};

use serde_json::{Value, json};
use sys::{ProgramOutput, RecordedPrograms};

use super::*;

fn lay_out(root: &Path, config: Value) -> Result<(), Error> {
    let mut config = config;
    config["ignition"] = json!({ "version": "3.6.0" });
    lay_out_unread(root, &ignition::parse(&config.to_string()).unwrap())
}

/// Applies a config without validation.
fn lay_out_unread(root: &Path, config: &Value) -> Result<(), Error> {
    let programs = Arc::new(RecordedPrograms::new(|_| ProgramOutput::default()));
    let context = Context::below(root, programs);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(&context, &ignition::typed(config).unwrap(), &Fetcher::new(false)))
}

fn root_only() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: giving files to users needs root");
    }
    root
}

/// Returns everything below a directory: paths, modes, owners, contents.
fn snapshot(root: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let contents = match (metadata.is_dir(), metadata.is_symlink()) {
                (true, _) => {
                    left.push(path.clone());
                    String::new()
                }
                (_, true) => path.read_link().unwrap().display().to_string(),
                _ => fs::read_to_string(&path).unwrap(),
            };
            let name = path.strip_prefix(root).unwrap().display().to_string();
            out.push(format!(
                "{name} {:o} {}:{} {contents}",
                metadata.mode() & 0o7777,
                metadata.uid(),
                metadata.gid()
            ));
        }
    }
    out.sort();
    out
}

#[test]
fn lays_out_root_idempotently() {
    if !root_only() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    fs::create_dir_all(root.join("etc/skel")).unwrap();
    fs::write(root.join("etc/skel/.profile"), "p").unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
    symlink("/etc", root.join("link")).unwrap();
    let config = json!({
        "passwd": {
            "groups": [{ "name": "ops", "gid": 3000 }],
            "users": [{ "name": "core", "groups": ["ops"], "sshAuthorizedKeys": ["ssh-ed25519 A"] }],
        },
        "storage": {
            "directories": [{ "path": "/srv/deep/down", "mode": 0o750, "user": { "name": "core" } }],
            "files": [
                { "path": "/srv/deep/a", "contents": { "source": "data:,one" }, "append": [{ "source": "data:,two" }], "mode": 0o4755 },
                { "path": "/link/through", "contents": { "source": "data:,x" }, "group": { "name": "ops" } },
                { "path": "/etc/hostname", "contents": { "source": "" } },
            ],
            "links": [
                { "path": "/srv/soft", "target": "/elsewhere" },
                { "path": "/srv/hard", "target": "/srv/deep/a", "hard": true },
            ],
        },
        "systemd": { "units": [
            { "name": "a.service", "enabled": true, "contents": "[Unit]\n", "dropins": [{ "name": "x.conf", "contents": "[Unit]\n" }] },
            { "name": "b.service", "mask": true },
        ] },
    });
    lay_out(root, config.clone()).unwrap();
    let first = snapshot(root);
    for want in [
        "srv/deep/down 750 1000:0 ",
        "srv 755 0:0 ",
        "srv/deep/a 4755 0:0 onetwo",
        "etc/through 644 0:3000 x",
        "etc/hostname 644 0:0 ",
        "srv/soft 777 0:0 /elsewhere",
        "srv/hard 4755 0:0 onetwo",
        "home/core/.profile 644 1000:1000 p",
        "home/core/.ssh/authorized_keys.d/ignition 600 1000:1000 ssh-ed25519 A\n",
        "etc/systemd/system/a.service 644 0:0 [Unit]\n",
        "etc/systemd/system/a.service.d/x.conf 644 0:0 [Unit]\n",
        "etc/systemd/system/b.service 777 0:0 /dev/null",
        "etc/systemd/system-preset/20-ignition.preset 644 0:0 enable a.service\n",
        "etc/group 644 0:0 root:x:0:\nops:x:3000:core\ncore:x:1000:\n",
    ] {
        assert!(first.contains(&want.to_owned()), "{want} is not in {first:#?}");
    }
    lay_out(root, config).unwrap();
    assert_eq!(snapshot(root), first);
}

#[test]
fn rejects_paths_out_of_root() {
    if !root_only() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub")).unwrap();
    symlink("../../../../..", root.join("sub/up")).unwrap();
    symlink(dir.path(), root.join("absolute")).unwrap();
    let file = |path: &str| json!({ "storage": { "files": [{ "path": path, "contents": { "source": "data:,x" } }] } });
    lay_out(&root, file("/sub/up/a")).unwrap();
    assert!(root.join("a").exists(), "upwards ends at the root");
    let error = lay_out(&root, file("/absolute/b"));
    assert!(!dir.path().join("b").exists(), "{error:?}");
    let mut roundabout = file("/sub/../../c");
    roundabout["ignition"] = json!({ "version": "3.6.0" });
    assert!(lay_out_unread(&root, &roundabout).is_err());
    assert!(!dir.path().join("c").exists());
}

#[test]
fn replaces_existing_nodes_only_with_overwrite() {
    if !root_only() {
        return;
    }
    for (files, overwrite, works) in [
        ("/a", false, false),
        ("/a", true, true),
        ("/d", false, false),
        ("/d", true, true),
        ("/l", false, false),
        ("/l", true, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "old").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/x"), "").unwrap();
        symlink("a", dir.path().join("l")).unwrap();
        let config = json!({ "storage": { "files": [{ "path": files, "overwrite": overwrite, "contents": { "source": "data:,new" } }] } });
        let outcome = lay_out(dir.path(), config);
        assert_eq!(outcome.is_ok(), works, "{files} {overwrite}: {outcome:?}");
        if works {
            assert_eq!(
                fs::read_to_string(dir.path().join(files.trim_start_matches('/'))).unwrap(),
                "new"
            );
        }
        let untouched = files == "/a" && overwrite;
        assert_eq!(
            fs::read_to_string(dir.path().join("a")).unwrap(),
            if untouched { "new" } else { "old" }
        );
    }
}

#[test]
fn writes_keys_and_crypttab_once() {
    let dir = tempfile::tempdir().unwrap();
    if !root_only() {
        return;
    }
    fs::create_dir(dir.path().join("etc")).unwrap();
    fs::write(dir.path().join("etc/crypttab"), "# mine\ndata UUID=old /etc/luks/data luks\n")
        .unwrap();
    let state = r#"{"luks":{"data":{"uuid":"new","key":"c2VjcmV0","discard":true},
        "bound":{"uuid":"b","key":null,"discard":false},"far":{"uuid":"f","discard":true,"network":true}}}"#;
    fs::write(dir.path().join("run-state"), state).unwrap();
    lay_out(dir.path(), json!({})).unwrap();
    let table = fs::read_to_string(dir.path().join("etc/crypttab")).unwrap();
    assert_eq!(
        table,
        "# mine\nbound UUID=b none luks\ndata UUID=new /etc/luks/data luks,discard\n\
         far UUID=f none luks,discard,_netdev\n"
    );
    assert!(!dir.path().join("etc/luks/bound").exists());
    assert_eq!(fs::read_to_string(dir.path().join("etc/luks/data")).unwrap(), "secret");
}

#[test]
fn removes_links_to_disabled_unit() {
    if !root_only() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let wants = dir.path().join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    for unit in ["a.service", "b.service"] {
        symlink("/usr/lib/systemd/system/x", wants.join(unit)).unwrap();
    }
    let units = json!([{ "name": "a.service", "enabled": false }, { "name": "none.service", "enabled": false }]);
    lay_out(dir.path(), json!({ "systemd": { "units": units } })).unwrap();
    let left: Vec<_> = fs::read_dir(wants).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["b.service"]);
}

#[test]
fn assigns_mount_point_in_home_to_user() {
    if !root_only() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("home/me/data")).unwrap();
    fs::create_dir_all(dir.path().join("home/meadow")).unwrap();
    let directories = ["/home", "/home/me", "/home/me/data", "/home/meadow"];
    let state = json!({ "luks": {}, "directories": directories });
    fs::write(dir.path().join("run-state"), state.to_string()).unwrap();
    let users = json!([{ "name": "me", "uid": 1234 }]);
    lay_out(dir.path(), json!({ "passwd": { "users": users } })).unwrap();
    let owners = directories.map(|path| {
        let metadata = fs::metadata(dir.path().join(&path[1..])).unwrap();
        (metadata.uid(), metadata.mode() & 0o777 == 0o700)
    });
    assert_eq!(owners, [(0, false), (1234, true), (1234, true), (0, false)]);
}

#[test]
fn rejects_two_paths_to_one_place() {
    let dir = tempfile::tempdir().unwrap();
    symlink("/", dir.path().join("foo")).unwrap();
    let files = json!([{ "path": "/foo/bar/baz" }, { "path": "/bar/baz" }]);
    let error = lay_out(dir.path(), json!({ "storage": { "files": files } })).unwrap_err();
    let wanted = "/foo/bar/baz: through a link it is the same path as /bar/baz, which the config also contains";
    assert_eq!(error.to_string(), wanted);
}
