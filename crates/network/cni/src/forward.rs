//! Supports hosts whose firewall forwards nothing by default, as Docker's setup of iptables does.
//!
//! An accepting rule in an nftables table cannot overrule a drop in another table, so the bridge needs an exception in
//! iptables itself. Nothing is done if the policy accepts packets or iptables is not installed.

use std::process::{Command, Stdio};

/// Allows packets from and to the bridge in the host's firewall.
pub fn allow_forwarding(bridge: &str) {
    for program in ["iptables", "ip6tables"] {
        let policy =
            Command::new(program).args(["-w", "5", "-S", "FORWARD"]).stderr(Stdio::null()).output();
        let Ok(policy) = policy else { continue };
        let drops =
            String::from_utf8_lossy(&policy.stdout).lines().any(|line| line == "-P FORWARD DROP");
        for rule in rules(bridge).iter().filter(|_| drops) {
            if !run(program, "-C", rule) && !run(program, "-I", rule) {
                // The Pod still works on its own node. Only the runtime's log can report this.
                eprintln!("{program} rejected the rule {}", rule.join(" "));
            }
        }
    }
}

/// Removes the rules; missing ones are not an error.
pub fn disallow_forwarding(bridge: &str) {
    for program in ["iptables", "ip6tables"] {
        for rule in &rules(bridge) {
            run(program, "-D", rule);
        }
    }
}

fn rules(bridge: &str) -> [Vec<&str>; 2] {
    ["-i", "-o"].map(|side| {
        vec!["FORWARD", side, bridge, "-m", "comment", "--comment", "windlass", "-j", "ACCEPT"]
    })
}

fn run(program: &str, action: &str, rule: &[&str]) -> bool {
    let mut command = Command::new(program);
    command
        .args(["-w", "5", action])
        .args(rule)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
