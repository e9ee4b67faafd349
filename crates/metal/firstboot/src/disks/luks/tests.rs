//! Tests of volumes in plain files, which need no device mapper, and of Debian's Tang server.

use std::{
    net::TcpListener,
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use ignition::spec::{Clevis, Tang};
use sys::{HostPrograms, Programs};

use super::*;

const TANG: &str = "/usr/libexec/tangd";

/// Serves like inetd: one process per connection.
fn tang(directory: &Path) -> u16 {
    HostPrograms.must(&["/usr/libexec/tangd-keygen", &directory.display().to_string()]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let directory = directory.to_owned();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let ends = connection.and_then(|there| Ok((there.try_clone()?, there))).unwrap();
            let (input, output) = (OwnedFd::from(ends.0), OwnedFd::from(ends.1));
            let mut command = Command::new(TANG);
            command.arg(&directory).stdin(input).stdout(output).stderr(Stdio::null());
            command.status().unwrap();
        }
    });
    port
}

/// Returns the thumbprint of a Tang server's signing key.
fn thumbprint(directory: &Path) -> String {
    let keys = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let signs = |path: &PathBuf| fs::read_to_string(path).unwrap().contains("ES512");
    let key = keys.into_iter().find(signs).unwrap();
    key.file_stem().unwrap().to_string_lossy().into_owned()
}

fn context() -> Context {
    Context::below(Path::new("/x"), Arc::new(HostPrograms))
}

fn volume(clevis: Clevis) -> Luks {
    let options = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    Luks { clevis, options: options.map(str::to_owned).to_vec(), ..Luks::default() }
}

fn opens(device: &str, key: &[u8]) -> bool {
    let command = ["cryptsetup", "open", "--test-passphrase", "--key-file=-", device];
    HostPrograms.run(&command, key).unwrap().code == Some(0)
}

/// Returns `true` if the kernel supports encrypted volumes: user-space ciphers and the device mapper.
fn makes_volumes(device: &str) -> bool {
    let command =
        ["cryptsetup", "luksFormat", "--pbkdf=pbkdf2", "--batch-mode", "--key-file=-", device];
    HostPrograms.run(&command, b"k").unwrap().code == Some(0)
}

#[test]
fn key_files_are_unique_and_removed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it needs root");
        return;
    }
    let mut files = Vec::new();
    with_key(b"one", |one| {
        with_key(b"two", |two| {
            files.extend([one.to_owned(), two.to_owned()]);
            Ok(())
        })?;
        assert_eq!(fs::read(one).unwrap(), b"one");
        Ok(())
    })
    .unwrap();
    assert!(files.iter().all(|file| !Path::new(file).exists()), "{files:?}");
    let failed = with_key(b"x", |file| {
        files.push(file.to_owned());
        Err(Error::Refused { what: "it".into(), reason: "no".into() })
    });
    assert!(failed.unwrap_err().to_string().contains("no") && !Path::new(&files[2]).exists());
}

#[test]
fn only_tang_server_unlocks_bound_volume() {
    let needed = [TANG, "/usr/bin/clevis-luks-bind", "/usr/bin/jose", "/usr/sbin/cryptsetup"];
    if !rustix::process::geteuid().is_root() || !needed.iter().all(|path| Path::new(path).exists())
    {
        eprintln!("skipped: it needs root and {needed:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::create_dir(&keys).unwrap();
    let url = format!("http://127.0.0.1:{}", tang(&keys));
    let server = |thumbprint: &str| Clevis {
        tang: vec![Tang {
            url: url.clone(),
            thumbprint: Some(thumbprint.into()),
            ..Tang::default()
        }],
        ..Clevis::default()
    };
    let path = dir.path().join("volume");
    File::create(&path).unwrap().set_len(32 << 20).unwrap();
    let (context, device) = (context(), path.display().to_string());
    let device = device.as_str();
    if !makes_volumes(device) {
        eprintln!("skipped: this kernel lets cryptsetup make no volume in a file");
        return;
    }
    let pass = || HostPrograms.run(&["clevis", "luks", "pass", "-d", device, "-s", "1"], &[]);

    let bound = volume(server(&thumbprint(&keys)));
    format(&context, &bound, device, b"made").unwrap();
    let stranger = volume(server("UsEWv5PvWmEDxkqRLEoTTfXstBIFCOB4AWtpZc1Po6U"));
    let made = Key::Generated(b"made".to_vec());
    let error = bind(&context, &stranger, device, &made).unwrap_err().to_string();
    assert!(error.contains("Unable to fetch advertisement") && opens(device, b"made"), "{error}");

    bind(&context, &bound, device, &made).unwrap();
    let opened = pass().unwrap();
    assert!(opens(device, opened.stdout.trim().as_bytes()), "{}", opened.stderr);
    assert!(!opens(device, b"made"), "the key that was made is still one");

    // A second run finds the binding and needs no key.
    let before = fs::read(&path).unwrap();
    clevis::bind(&context, &bound.clevis, device, "/absent").unwrap();
    assert!(fs::read(&path).unwrap() == before);

    fs::rename(&keys, dir.path().join("elsewhere")).unwrap();
    let opened = pass().unwrap();
    assert!(opened.code != Some(0) && opened.stdout.is_empty(), "{}", opened.stdout);
}
