//! Tests of the checks before `up`.

use std::fs;

use super::*;

/// Returns a host without problems.
fn good() -> Machine {
    Machine {
        root: true,
        image: None,
        containerd: Ok(
            "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1\n".to_owned()
        ),
        missing_programs: Vec::new(),
        ports_in_use: Vec::new(),
        missing_controllers: Vec::new(),
        forwarding: "1".to_owned(),
        free: Some((PathBuf::from("/var/lib"), 20_000)),
        overlaps: Vec::new(),
    }
}

#[test]
fn accepts_suitable_host() {
    assert!(good().problems().is_empty());
    for version in ["v1.7.2", "1.6.0", "v2.1.0-beta.1", "2.0.0"] {
        let told = format!("containerd github.com/containerd/containerd {version} abc");
        let machine = Machine { containerd: Ok(told), ..good() };
        assert!(machine.problems().is_empty(), "{version}");
    }
    assert!(Machine { free: None, ..good() }.problems().is_empty());
}

/// Asserts that a machine has one problem, which names the failed check, the cause and the cure.
#[track_caller]
fn assert_problem(machine: &Machine, check: &str, cause: &str, cure: &str) {
    let problems = machine.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let text = problems[0].to_string();
    assert!(text.starts_with(&format!("[{check}] ")), "{text}");
    assert!(text.contains(cause) && text.contains(cure), "{text}");
}

#[test]
fn reports_each_problem_of_programs_with_cause_and_cure() {
    let old = "containerd github.com/containerd/containerd v1.5.9 abc".to_owned();
    for (machine, check, cause, cure) in [
        (
            Machine { root: false, ..good() },
            "IsPrivilegedUser",
            "user is not running as root",
            "sudo",
        ),
        (
            Machine { containerd: Err(io::Error::other("No such file or directory")), ..good() },
            "CRI",
            "containerd cannot be run: No such file",
            "apt-get install containerd",
        ),
        (
            Machine { containerd: Ok(old), ..good() },
            "ContainerRuntimeVersion",
            "containerd is 1.5.9, which is too old",
            "1.6 or newer",
        ),
        (
            Machine { containerd: Ok(String::new()), ..good() },
            "ContainerRuntimeVersion",
            "does not report its version",
            "1.6 or newer",
        ),
        (
            Machine {
                image: Some(oci::ProgramError::Dynamic {
                    path: "/bin/windlass".into(),
                    loader: "/lib/ld.so".to_owned(),
                }),
                ..good()
            },
            "ImageProgram",
            "/bin/windlass is linked dynamically: it needs the loader /lib/ld.so",
            "cargo xtask dist",
        ),
        (
            Machine { missing_programs: vec!["nft"], ..good() },
            "FileExisting",
            "nft not found in PATH",
            "nftables",
        ),
    ] {
        assert_problem(&machine, check, cause, cure);
    }
}

#[test]
fn reports_each_problem_of_the_system_with_cause_and_cure() {
    for (machine, check, cause, cure) in [
        (
            Machine {
                ports_in_use: vec![(6443, "the API server", "Address already in use".to_owned())],
                ..good()
            },
            "Port",
            "port 6443, for the API server, is in use (Address already in use)",
            "ss -ltnp",
        ),
        (
            Machine { missing_controllers: vec!["memory", "pids"], ..good() },
            "SystemVerification",
            "missing required cgroups: memory pids",
            "cgroup_enable=memory",
        ),
        (
            Machine { forwarding: "0".to_owned(), ..good() },
            "FileContent",
            "ip_forward contents are not set to 1",
            "sysctl -w net.ipv4.ip_forward=1",
        ),
        (
            Machine { free: Some((PathBuf::from("/var/lib"), 1023)), ..good() },
            "Space",
            "/var/lib has 1023 MiB free, and 1024 are needed",
            "--root",
        ),
        (
            Machine {
                overlaps: vec![(
                    "Services",
                    "10.96.0.0/12".parse().unwrap(),
                    [10, 99, 0, 2].into(),
                )],
                ..good()
            },
            "Networking",
            "the node's address 10.99.0.2 is one of the Services' range 10.96.0.0/12",
            "--service-cidr",
        ),
    ] {
        assert_problem(&machine, check, cause, cure);
    }
}

#[test]
fn finds_that_a_dynamic_program_is_no_image() {
    // Tests are linked dynamically.
    let machine = Machine::inspect(&crate::cluster::example(Path::new("/nowhere")));
    assert!(
        matches!(machine.image, Some(oci::ProgramError::Dynamic { .. })),
        "{:?}",
        machine.image
    );
}

#[test]
fn finds_node_address_inside_cluster_range() {
    let (services, pods) = ("10.96.0.0/12,fd00:10:96::/112", "10.244.0.0/16,fd00:10:244::/48");
    for (node, found) in [
        ("192.168.1.5", None),
        ("10.99.0.2", Some("Services 10.96.0.0/12")),
        ("10.112.0.1", None),
        ("fd00:10:96::7", Some("Services fd00:10:96::/112")),
        ("10.244.3.1", Some("Pods 10.244.0.0/16")),
        ("fd00:10:244:5::1", Some("Pods fd00:10:244::/48")),
    ] {
        let overlaps = overlaps(services, pods, node.parse().unwrap());
        let told: Vec<_> =
            overlaps.iter().map(|(what, range, _)| format!("{what} {range}")).collect();
        assert_eq!(told, Vec::from_iter(found), "{node}");
    }
}

#[test]
fn reports_all_problems_at_once() {
    let machine = Machine {
        forwarding: String::new(),
        missing_programs: vec!["runc", "ctr"],
        free: Some((PathBuf::from("/"), 0)),
        ..good()
    };
    assert_eq!(machine.problems().len(), 4);
}

#[test]
fn finds_controllers_in_cgroup_v1_and_v2() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(missing_controllers(dir.path()), CONTROLLERS);
    for name in ["cpu", "memory"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    assert_eq!(missing_controllers(dir.path()), ["pids"]);
    fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
    assert!(missing_controllers(dir.path()).is_empty());
    fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu io pids\n").unwrap();
    assert_eq!(missing_controllers(dir.path()), ["memory"]);
}

#[test]
fn measures_space_of_the_nearest_existing_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (place, _) = free(&dir.path().join("not/yet/there")).unwrap();
    assert_eq!(place, dir.path());
}
