//! Runs the shell examples of the book's pages, as printed, each on a machine of its own.

use e2e::{Machines, is_etcd_installed, run_examples, share_machine};

#[test]
fn getting_started_works_as_printed() {
    let _machine = share_machine();
    let machines = Machines::new("started");
    let host = machines.start("reader", 1);
    let headings = [
        "Run a Deployment with a Service",
        "Read logs and run commands",
        "Add a second node",
        "See what happened",
        "Remove everything",
    ];
    // The page's `cargo xtask up` installs packages and builds the binary, and then runs `windlass up`.
    let output = run_examples(&host, "getting-started.md", "windlass up", &headings).ok();
    for part in ["hello from hello-", "Name:", "MEMORY(bytes)", "worker"] {
        assert!(output.contains(part), "{part:?} is not in: {output}");
    }
}

#[test]
fn kops_page_works_as_printed() {
    if !is_etcd_installed() {
        return;
    }
    let _machine = share_machine();
    let machines = Machines::new("kopsbook");
    let host = machines.start("reader", 1);
    let output = run_examples(&host, "ways/kops.md", "", &["Commands"]).ok();
    for part in ["Must specify --yes", "Your cluster demo.local is ready", "nodes-local-1"] {
        assert!(output.contains(part), "{part:?} is not in: {output}");
    }
    host.windlass("kops --state file:///var/lib/windlass/kops delete cluster demo.local --yes")
        .ok();
}
