//! The command lines, without a cluster.

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _, path::Path};

use bootstrap::cmd::{self, Command, Program};
use clap::{CommandFactory, FromArgMatches, Parser};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Runs a command line and returns the text of its error.
fn kubeadm(args: &[&str]) -> Result<(), String> {
    let hooks = cmd::ComponentHooks {
        clean_up: |_| Vec::new(),
        take_address: |_, _| Ok(()),
        review_corefile: |_| Default::default(),
    };
    let mut command = cmd::shape(Cli::command());
    let words = std::iter::once(&"kubeadm").chain(args);
    let mut matches = command.try_get_matches_from_mut(words).map_err(|e| e.to_string())?;
    cmd::check(&command, &matches).map_err(|e| e.to_string())?;
    let cli = Cli::from_arg_matches_mut(&mut matches).map_err(|e| e.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(cmd::run(cli.command, Program::Kubeadm, hooks)).map_err(|e| e.to_string())
}

fn config(dir: &Path) -> String {
    let path = dir.join("kubeadm.yaml");
    let text = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 10.0.0.5}\n\
         nodeRegistration: {name: alpha}\n---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n\
         encryptionAlgorithm: ECDSA-P256\nkubernetesVersion: v1.36.2\ncertificatesDir: /etc/kubernetes/pki\n";
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn offline_phases_write_below_rootfs() {
    let dir = tempfile::tempdir().unwrap();
    let (root, config) = (dir.path().join("root"), config(dir.path()));
    let root_text = root.display().to_string();
    for phase in [
        &["certs", "all"][..],
        &["kubeconfig", "all"],
        &["control-plane", "all"],
        &["etcd", "local"],
    ] {
        let mut args = vec!["init", "phase"];
        args.extend(phase);
        args.extend(["--config", &config, "--rootfs", &root_text]);
        kubeadm(&args).unwrap();
    }
    for file in
        ["pki/etcd/server.crt", "pki/sa.pub", "super-admin.conf", "manifests/kube-scheduler.yaml"]
    {
        assert!(root.join("etc/kubernetes").join(file).exists(), "{file}");
    }
    let manifest =
        fs::read_to_string(root.join("etc/kubernetes/manifests/kube-apiserver.yaml")).unwrap();
    assert!(
        manifest.contains("--client-ca-file=/etc/kubernetes/pki/ca.crt"),
        "paths are those on the host: {manifest}"
    );
    assert!(root.join("var/lib/etcd").is_dir());
    for output in ["text", "json", "yaml"] {
        let args = ["certs", "check-expiration", "-o", output, "--config", &config];
        kubeadm(&[&args[..], &["--rootfs", &root_text, "-v", "5"]].concat()).unwrap();
    }
    let before = fs::read(root.join("etc/kubernetes/pki/apiserver.crt")).unwrap();
    kubeadm(&["certs", "renew", "all", "--config", &config, "--rootfs", &root_text]).unwrap();
    assert_ne!(fs::read(root.join("etc/kubernetes/pki/apiserver.crt")).unwrap(), before);
    kubeadm(&["init", "phase", "certs", "all", "--config", &config, "--rootfs", &root_text])
        .unwrap();
    kubeadm(&[
        "kubeconfig",
        "user",
        "--client-name",
        "jane",
        "--org",
        "dev",
        "--config",
        &config,
        "--rootfs",
        &root_text,
    ])
    .unwrap();
}

#[test]
fn dry_run_writes_only_to_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let before = Path::new("/etc/kubernetes").exists();
    let directories = || {
        let entries = fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|e| e.path());
        let prefix = std::env::temp_dir().join("kubeadm-init-dryrun-").display().to_string();
        entries
            .filter(|path| path.display().to_string().starts_with(&prefix))
            .collect::<std::collections::BTreeSet<_>>()
    };
    let others = directories();
    kubeadm(&["init", "--dry-run", "--skip-phases", "preflight", "--config", &config]).unwrap();
    let written = directories().difference(&others).next().unwrap().clone();
    // The directory must be new and private, because keys are written to it.
    assert_eq!(fs::metadata(&written).unwrap().permissions().mode() & 0o777, 0o700);
    for file in
        ["pki/ca.crt", "manifests/etcd.yaml", "admin.conf", "config.yaml", "kubeadm-flags.env"]
    {
        assert!(written.join(file).exists(), "{file}");
    }
    fs::remove_dir_all(written).unwrap();
    assert_eq!(Path::new("/etc/kubernetes").exists(), before);
}

#[test]
fn prints_output_for_programs() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    for args in [
        &["version", "-o", "short"][..],
        &["version", "--output", "json"],
        &["config", "images", "list", "-o", "json", "--config", &config],
        &["init", "phase", "addon", "coredns", "--print-manifest", "--config", &config],
        &["init", "phase", "addon", "kube-proxy", "--print-manifest", "--config", &config],
    ] {
        kubeadm(args).unwrap();
    }
}

#[test]
fn reports_mistakes_before_any_change() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let cases: &[(&[&str], &str)] = &[
        (
            &["init", "phase", "certs", "nonsense", "--config", &config],
            "unrecognized subcommand 'nonsense'",
        ),
        (
            &["init", "--config", &config, "--service-cidr", "10.0.0.0/16"],
            "can not mix '--config' with arguments",
        ),
        (&["init", "--config", "/nonexistent"], "cannot read /nonexistent"),
        (&["init", "--nonsense"], "unexpected argument '--nonsense'"),
        (
            &["init", "--service-cidr", "10.0.0.0/8", "--apiserver-advertise-address", "10.0.0.1"],
            "the mask must be >= 12",
        ),
        (&["join", "10.0.0.1:6443", "--token", "bad"], "the bootstrap token is invalid"),
        (
            &["join", "10.0.0.1:6443", "--token", "abcdef.0123456789abcdef"],
            "without caCertHashes can be unsafe",
        ),
        (
            &[
                "join",
                "10.0.0.1:6443",
                "--token",
                "abcdef.0123456789abcdef",
                "--discovery-token-ca-cert-hash",
                "sha256:00",
            ],
            "64 hexadecimal digits",
        ),
        (
            &[
                "join",
                "10.0.0.1",
                "--token",
                "abcdef.0123456789abcdef",
                "--discovery-token-unsafe-skip-ca-verification",
            ],
            "address 10.0.0.1: missing port in address",
        ),
        (&["reset", "phase", "nonsense", "--dry-run"], "unrecognized subcommand 'nonsense'"),
        (&["certs", "renew", "all", "--dry-run"], "unknown flag: --dry-run"),
        (&["config", "images", "pull", "--dry-run"], "unknown flag: --dry-run"),
        (
            &["init", "phase", "certs", "all", "--print-manifest", "--config", &config],
            "unknown flag: --print-manifest",
        ),
        (&["token", "list", "--kubeconfig", "/nonexistent"], "/nonexistent"),
        (&["certs", "renew", "nonsense", "--config", &config], "not a renewable certificate"),
    ];
    for (args, wanted) in cases {
        let error = kubeadm(args).unwrap_err();
        assert!(error.contains(wanted), "{args:?}: {error}");
    }
}

#[test]
fn prints_migrates_and_validates_configurations() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old.yaml"), dir.path().join("new.yaml"));
    for what in ["init-defaults", "join-defaults", "reset-defaults", "upgrade-defaults"] {
        kubeadm(&["config", "print", what]).unwrap();
    }
    fs::write(&old, "apiVersion: kubeadm.k8s.io/v1beta3\nkind: ClusterConfiguration\napiServer: {extraArgs: {v: '4'}}\n").unwrap();
    let (old_text, new_text) = (old.display().to_string(), new.display().to_string());
    kubeadm(&["config", "migrate", "--old-config", &old_text, "--new-config", &new_text]).unwrap();
    assert!(fs::read_to_string(&new).unwrap().contains("- name: v"));
    kubeadm(&["config", "validate", "--config", &new_text]).unwrap();
    fs::write(
        &new,
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nnonsense: 1\n",
    )
    .unwrap();
    let error = kubeadm(&["config", "validate", "--config", &new_text]).unwrap_err();
    assert!(error.contains("unknown field \"nonsense\""), "{error}");
}

/// Returns the long flags in a command's help.
fn shown(help: &str) -> BTreeSet<String> {
    let flag = |line: &str| {
        let start = line.trim_start();
        let (_, after) = start.starts_with('-').then(|| start.split_once("--"))??;
        Some(after.split([' ', '=', '[']).next()?.to_owned())
    };
    help.lines().filter_map(flag).collect()
}

/// Compares an upstream command and its subcommands; returns their number.
fn compare(peer: &Path, path: &[&str]) -> usize {
    let asked = std::process::Command::new(peer).args(path).arg("--help").output().unwrap();
    let theirs = String::from_utf8(asked.stdout).unwrap();
    let below = theirs.lines().skip_while(|line| *line != "Available Commands:").skip(1);
    let mut compared = 0;
    for line in below.take_while(|line| !line.is_empty()) {
        let name = line.split_whitespace().next().unwrap();
        // Not implemented: a new binary and a second `init` are an upgrade.
        if !matches!(name, "completion" | "help" | "upgrade") {
            compared += compare(peer, &[path, &[name]].concat());
        }
    }
    // A command group shows no flags of its own; `certs renew` requires a name.
    let usage = format!("  kubeadm {} ", path.join(" "));
    if path == ["certs", "renew"]
        || !theirs.lines().any(|line| line.starts_with(&usage) && line.contains("[flags]"))
    {
        return compared;
    }
    let words = [&["kubeadm"], path, &["--help"]].concat();
    let ours = cmd::shape(Cli::command()).try_get_matches_from(words).unwrap_err().to_string();
    assert_eq!(shown(&ours), shown(&theirs), "{usage}");
    compared + 1
}

#[test]
fn has_flags_of_every_upstream_command() {
    let Some(directory) = std::env::var_os("WINDLASS_PEER") else {
        eprintln!("skipped: WINDLASS_PEER names no directory with upstream's kubeadm");
        return;
    };
    let compared = compare(&Path::new(&directory).join("kubeadm"), &[]);
    assert!(compared > 70, "only {compared} commands were compared");
}
