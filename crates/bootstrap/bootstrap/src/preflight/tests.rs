use std::{fs, net::TcpListener, path::Path, sync::Arc};

use api_config::kubeadm::NodeBalancer;
use bootstrap_core::{
    Layout,
    config::{Documents, Facts, Init},
};
use rt::SystemClock;

use super::*;
use crate::{containers::NoRuntime, host::Host};

fn file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn cause(check: Check) -> String {
    match check.result {
        Ok(()) => "fine".to_owned(),
        Err(p) => {
            assert!(!p.cure.is_empty());
            p.cause
        }
    }
}

#[test]
fn checks_machine_by_its_files() {
    let (good, bad) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (path, fine, wrong) in [
        ("proc/cpuinfo", "processor: 0\nprocessor: 1\n", "processor: 0\n"),
        ("proc/meminfo", "MemTotal: 4000000 kB\n", "MemTotal: 1000000 kB\n"),
        ("proc/swaps", "Filename Type\n", "Filename Type\n/swap file\n"),
        ("proc/sys/kernel/osrelease", "6.1.0-1\n", "3.10.0\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n", "cpu io\n"),
        ("proc/sys/net/ipv4/ip_forward", "1\n", "0\n"),
        ("usr/bin/mount", "", ""),
    ] {
        file(good.path(), path, fine);
        file(bad.path(), path, wrong);
    }
    let judge = |root: &Path| {
        let host = Host::under(root);
        [
            system::cpus(&host),
            system::memory(&host),
            system::swap(&host),
            system::verification(&host),
            checks::forwarding(&host, &Default::default()),
        ]
        .map(cause)
    };
    assert_eq!(judge(good.path()), ["fine"; 5]);
    let wanted = [
        "CPUs 1 is less",
        "976 MB",
        "swap is on",
        "3.10.0 is unsupported",
        "ip_forward contents are not set to 1",
    ];
    for (cause, wanted) in judge(bad.path()).iter().zip(wanted) {
        assert!(cause.contains(wanted), "{cause}");
    }
    fs::write(bad.path().join("proc/sys/kernel/osrelease"), "6.1.0").unwrap();
    assert_eq!(
        cause(system::verification(&Host::under(bad.path()))),
        "missing required cgroups: cpuset memory pids"
    );
}

#[test]
fn rejects_clock_before_release() {
    use std::time::{Duration, SystemTime};
    let told = cause(system::clock(SystemTime::UNIX_EPOCH + Duration::from_secs(3600)));
    assert!(told.contains("clock says 1970-01-01T01:00:00Z"), "{told}");
    assert_eq!(cause(system::clock(SystemTime::now())), "fine");
}

#[test]
fn reports_used_ports_and_existing_files() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(cause(checks::port(port)), format!("Port {port} is in use"));
    let dir = tempfile::tempdir().unwrap();
    let host = Host::under(dir.path());
    file(dir.path(), "var/lib/etcd/member", "");
    let check = checks::empty_directory(&host, "/var/lib/etcd");
    assert_eq!(check.name, "DirAvailable--var-lib-etcd");
    assert_eq!(cause(check), "/var/lib/etcd is not empty");
    assert_eq!(cause(checks::program(&host, "losetup", false)), "losetup not found in system path");
    let check = checks::absent(Path::new("/proc/version"));
    assert_eq!(check.name, "FileAvailable--proc-version");
    assert_eq!(cause(check), "/proc/version already exists");
}

#[test]
fn rejects_versions_of_other_releases() {
    for (version, fine) in [
        ("v1.36.0", true),
        ("1.35.9", true),
        ("v1.34.0", false),
        ("v1.37.0", false),
        ("latest", false),
    ] {
        assert_eq!(checks::version(version).result.is_ok(), fine, "{version}");
    }
}

#[test]
fn ignored_errors_become_warnings() {
    let failing = || vec![Check::new("NumCPU", Err(Problem::error("few", "more")))];
    let error = check(failing(), &Ignored::default()).unwrap_err().to_string();
    assert!(
        error.contains("\t[ERROR NumCPU]: few; more\n")
            && error.contains("--ignore-preflight-errors"),
        "{error}"
    );
    for names in ["numcpu", "ALL", "Mem,NumCPU"] {
        check(failing(), &Ignored::new([names.to_owned()]).unwrap()).unwrap();
    }
    assert!(check(failing(), &Ignored::new(["Mem".to_owned()]).unwrap()).is_err());
    assert!(Ignored::new(["all".to_owned(), "Mem".to_owned()]).is_err());
}

#[test]
fn rejects_clusters_outside_of_the_version_skew_policy() {
    for (control_plane, expected) in [
        ("v1.36.0", "fine"),
        ("v1.36.9+build", "fine"),
        ("v1.39.9", "fine"),
        ("v1.35.7", "the kubelet version is higher than the control plane version"),
        ("v1.36.2-rc.0", "fine"),
        ("v1.40.0", "more than 3 minor versions older"),
        ("v2.36.0", "more than 3 minor versions older"),
        ("v1.99999999999999999999.0", "no version"),
        ("latest", "no version"),
        ("", "no version"),
    ] {
        let seen = cause(checks::kubelet_version(control_plane));
        assert!(seen.contains(expected), "{control_plane}: {seen}");
    }
}

#[test]
fn checks_version_and_balancer_of_the_cluster_of_a_join() {
    let root = tempfile::tempdir().unwrap();
    let mut node = Node::new(
        Init::complete(Documents::default(), &Facts::default()),
        Layout::under(root.path()),
        Host::under(root.path()),
        Arc::new(SystemClock),
        Arc::new(NoRuntime("this is a test".into())),
    );
    node.config.cluster.kubernetes_version = "v1.35.7".to_owned();
    node.config.cluster.node_balancer = Some(NodeBalancer { port: 0 });
    let checks = for_cluster(&node).into_iter().map(|check| (check.name, check.result.is_ok()));
    let expected = [("KubeletVersion".to_owned(), false), ("Port-0".to_owned(), true)];
    assert_eq!(checks.collect::<Vec<_>>(), expected);
}

#[test]
fn compares_versions_by_number() {
    assert!(version_of("3.5.9") < version_of("3.5.24"));
    assert!(version_of("3.6.0") > version_of("3.5.24"));
    assert_eq!(version_of("v3.6.8-0"), [3, 6, 8, 0]);
}
