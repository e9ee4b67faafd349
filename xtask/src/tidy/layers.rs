//! Checks the dependencies between crates: they must point to lower layers.

use super::metadata::Crate;

pub(super) struct Layer {
    pub(super) name: &'static str,
    /// The crates of the layer. With `siblings`, each may use those before it.
    pub(super) crates: &'static [&'static str],
    /// `true` if crates of this layer may use those before them.
    pub(super) siblings: bool,
}

/// The layers, the lowest first. A crate may use all crates of lower layers.
pub(super) const LAYERS: &[Layer] = &[
    Layer { name: "base", crates: &["fuzz", "rt", "gotmpl", "telemetry", "pki"], siblings: true },
    Layer {
        name: "API",
        crates: &[
            "api-meta",
            "cel",
            "api-schema",
            "api-codec",
            "api-patch",
            "api-rules",
            "api-config",
            "api-docs",
            "kops-api",
        ],
        siblings: true,
    },
    Layer {
        name: "core",
        crates: &["sched-core", "pod-core", "net-core", "bootstrap-core", "ignition", "kops-core"],
        siblings: false,
    },
    Layer {
        name: "adapter",
        crates: &[
            "store",
            "store-etcd",
            "encryption",
            "client",
            "events",
            "serve",
            "sys",
            "aws",
            "vfs",
            "netlink",
            "cri",
            "csi",
            "deviceplugin",
            "oci",
        ],
        siblings: true,
    },
    Layer {
        name: "component",
        crates: &[
            "audit",
            "auth",
            "admission",
            "flow",
            "apiserver",
            "controllers",
            "scheduler",
            "kubelet",
            "proxy",
            "podnet",
            "dns",
            "cni",
            "balancer",
            "metrics-server",
            "vip",
            "bootstrap",
            "netboot",
            "metal",
            "firstboot",
            "nodeimage",
            "instances",
            "kops",
        ],
        siblings: false,
    },
    Layer {
        name: "assembly",
        crates: &["testkit", "local", "windlass", "e2e", "xtask"],
        siblings: true,
    },
];

/// The exceptions: dependencies between components, with their reasons.
const BETWEEN_COMPONENTS: &[(&str, &[&str], &str)] = &[
    (
        "apiserver",
        &["audit", "auth", "admission", "flow"],
        "they are the stages of its one pipeline",
    ),
    (
        "instances",
        &["cni"],
        "a host firewall without forwarding needs the same rules for links as for bridges",
    ),
    (
        "kops",
        &["bootstrap", "instances"],
        "its machines are set up by the phases of init, and those of cloud local are instances",
    ),
    (
        "metrics-server",
        &["auth"],
        "all servers that trust the front proxy read its headers with the same code",
    ),
    (
        "metal",
        &["netboot"],
        "enrollment writes the store of the boot servers and updates their list of nodes",
    ),
];

/// The crates without side effects: they use no clock, sockets or tasks.
pub(super) const PURE: &[&str] = &[
    "api-meta",
    "api-schema",
    "api-codec",
    "api-patch",
    "api-rules",
    "api-config",
    "api-docs",
    "kops-api",
    "sched-core",
    "pod-core",
    "net-core",
    "bootstrap-core",
    "audit",
    "auth",
    "admission",
    "pki",
    "gotmpl",
    "ignition",
    "kops-core",
];

/// The dependencies that pure crates must not have.
const IMPURE: &[&str] =
    &["tokio", "hyper", "hyper-util", "futures-util", "rt", "client", "nix", "rustix"];

/// The crates that may parse X.509: only `pki` parses subjects, because two parsers may disagree about a user. `auth`
/// parses public keys.
const READS_X509: &[&str] = &["pki", "auth"];

/// The crates that all tests may use: an in-memory API server, the real one, and the Pod network's plugin.
const FOR_TESTS: &[&str] = &["testkit", "apiserver", "cni"];

pub(super) fn problems(crates: &[Crate]) -> Vec<String> {
    let mut problems = Vec::new();
    for listed in LAYERS.iter().flat_map(|l| l.crates) {
        if !crates.iter().any(|c| c.name == *listed) {
            problems.push(format!("the table of layers lists {listed}, which is not a crate"));
        }
    }
    for member in crates {
        if place(&member.name).is_none() {
            problems.push(format!(
                "{} has no place in the table of layers (xtask/src/tidy/layers.rs)",
                member.name
            ));
        }
        for used in &member.uses {
            let refused = match (used.in_tests, used.name.as_str()) {
                (true, name) if FOR_TESTS.contains(&name) => None,
                (false, name) if PURE.contains(&member.name.as_str()) && IMPURE.contains(&name) => {
                    Some("the crate is pure".to_owned())
                }
                (false, "x509-parser") if !READS_X509.contains(&member.name.as_str()) => {
                    Some("only pki parses certificates and requests".to_owned())
                }
                (_, name) => refusal(&member.name, name),
            };
            problems.extend(
                refused.map(|why| format!("{} may not use {}: {why}", member.name, used.name)),
            );
        }
    }
    problems
}

/// Returns the reason why an edge is not allowed, or `None`. External crates are ignored.
fn refusal(user: &str, used: &str) -> Option<String> {
    let ((upper, at), (lower, below)) = (place(user)?, place(used)?);
    if lower != upper {
        return (lower > upper)
            .then(|| format!("{} is above {}", LAYERS[lower].name, LAYERS[upper].name));
    }
    let excepted =
        BETWEEN_COMPONENTS.iter().any(|(from, to, _)| *from == user && to.contains(&used));
    if excepted {
        return None;
    }
    let layer = &LAYERS[upper];
    match layer.siblings {
        true => (below >= at).then(|| format!("it stands after it in the {} layer", layer.name)),
        false => Some(format!("both are of the {} layer", layer.name)),
    }
}

/// Returns a crate's layer, and its position in it.
fn place(name: &str) -> Option<(usize, usize)> {
    LAYERS
        .iter()
        .enumerate()
        .find_map(|(number, layer)| Some((number, layer.crates.iter().position(|c| *c == name)?)))
}
