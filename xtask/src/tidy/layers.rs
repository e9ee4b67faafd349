//! The layers of crates: a crate uses crates of lower layers only.
//!
//! Each crate names its layer in its Cargo.toml (`[package.metadata.windlass]`).

use super::metadata::Crate;

struct Layer {
    name: &'static str,
    /// `true` if crates of this layer may use one another. Cargo refuses circles.
    siblings: bool,
}

/// The layers, the lowest first.
const LAYERS: [Layer; 6] = [
    Layer { name: "base", siblings: true },
    Layer { name: "api", siblings: true },
    Layer { name: "core", siblings: false },
    Layer { name: "adapter", siblings: true },
    Layer { name: "component", siblings: false },
    Layer { name: "assembly", siblings: true },
];

/// Edges between components, each with its reason.
const BETWEEN_COMPONENTS: [(&str, &[&str], &str); 8] = [
    (
        "apiserver",
        &["audit", "auth", "admission", "flow"],
        "they are the stages of its one pipeline",
    ),
    ("controllers", &["auth"], "auth signs and verifies the tokens of service accounts in Secrets"),
    ("instances", &["cni"], "cni opens a host firewall that forwards nothing by default"),
    (
        "kops",
        &["bootstrap", "instances", "kops-aws", "kops-local", "kops-node"],
        "it is the command for the clusters of all clouds, and shuts down the etcd members of their machines",
    ),
    (
        "kops-local",
        &["instances", "kops-node"],
        "its machines are instances, and agree with kops-node on names and files",
    ),
    (
        "kops-node",
        &["bootstrap", "instances"],
        "its machines run the phases of init, and those of cloud local are instances",
    ),
    ("metrics-server", &["auth"], "auth alone reads the identity that the front proxy asserts"),
    (
        "metal",
        &["netboot"],
        "enrolment writes the store that machines boot from, and reads its book of machines",
    ),
];

/// Dependencies that pure crates must not have.
const IMPURE: [&str; 8] =
    ["tokio", "hyper", "hyper-util", "futures-util", "rt", "client", "nix", "rustix"];

/// Crates that read X.509. Only `pki` reads subjects, because two readers could take one subject for two users. `auth`
/// reads public keys.
const READS_X509: [&str; 2] = ["pki", "auth"];

/// Crates that the tests of every crate may use.
const FOR_TESTS: [&str; 4] = ["testkit", "apiserver", "scheduler", "cni"];

pub(super) fn problems(crates: &[Crate]) -> Vec<String> {
    let mut problems = Vec::new();
    for user in crates {
        let Some(upper) = rank(user) else {
            let names = LAYERS.map(|layer| layer.name).join(", ");
            problems.push(format!(
                "{}: its Cargo.toml must name one of the layers {names} as package.metadata.windlass.layer",
                user.name
            ));
            continue;
        };
        for used in &user.uses {
            let lower = crates.iter().find(|c| c.name == used.name);
            let refused = match (used.in_tests, used.name.as_str()) {
                (true, name) if FOR_TESTS.contains(&name) => None,
                (false, name) if user.is_pure && IMPURE.contains(&name) => {
                    Some("the crate is pure".to_owned())
                }
                (false, "x509-parser") if !READS_X509.contains(&user.name.as_str()) => {
                    Some("pki reads certificates and requests for all crates".to_owned())
                }
                _ => lower.and_then(|lower| refusal(user, upper, lower)),
            };
            problems.extend(
                refused.map(|why| format!("{} may not use {}: {why}", user.name, used.name)),
            );
        }
    }
    problems
}

/// Returns the reason that forbids the edge from `user` to `used`, if one does.
fn refusal(user: &Crate, upper: usize, used: &Crate) -> Option<String> {
    let lower = rank(used)?;
    let layer = &LAYERS[upper];
    if lower > upper {
        return Some(format!("layer {} is above layer {}", LAYERS[lower].name, layer.name));
    }
    let is_excepted = BETWEEN_COMPONENTS
        .iter()
        .any(|(from, to, _)| *from == user.name && to.contains(&used.name.as_str()));
    if lower < upper || layer.siblings || is_excepted {
        return None;
    }
    Some(format!("both are of layer {}", layer.name))
}

fn rank(member: &Crate) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.name == member.layer)
}
