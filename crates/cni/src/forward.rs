//! Hosts whose firewall forwards nothing by default: Docker sets iptables' policy so when it starts.
//!
//! An accepting rule in a table of ours cannot overrule a drop in another, so the bridge has to be excepted in
//! iptables itself. Nothing is done where the policy lets packets through, or where there is no iptables.

use std::process::{Command, Stdio};

/// Lets the bridge's packets through the host's own firewall, both ways.
pub fn allow_forwarding(bridge: &str) {
    for program in ["iptables", "ip6tables"] {
        let policy =
            Command::new(program).args(["-w", "5", "-S", "FORWARD"]).stderr(Stdio::null()).output();
        let Ok(policy) = policy else { continue };
        let drops =
            String::from_utf8_lossy(&policy.stdout).lines().any(|line| line == "-P FORWARD DROP");
        for rule in rules(bridge).iter().filter(|_| drops) {
            if !run(program, "-C", rule) && !run(program, "-I", rule) {
                // The Pod works all the same on its node; there is nobody here to tell but the runtime's log.
                eprintln!("{program} did not take the rule {}", rule.join(" "));
            }
        }
    }
}

/// Takes the rules back; those that are not there are no error.
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
