//! Warnings that several kinds share, in upstream's words.

use std::net::{IpAddr, Ipv6Addr};

use api_meta::{Path, Quantity, Tree as _, Warnings, validation};
use serde_json::Value;

/// Deprecated node labels, with upstream's warnings.
const OLD_LABELS: [(&str, &str); 8] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead",
    ),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    (
        "scheduler.alpha.kubernetes.io/preferAvoidPods",
        "deprecated since v1.22; use Taints and Tolerations instead",
    ),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// Returns the warning for a deprecated node label.
pub(crate) fn node_label(label: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(old, _)| *old == label).map(|(_, message)| *message)
}

/// Returns the warnings for a node selector term. `values` enables the check of label values.
pub(crate) fn selector_term(term: &Value, values: bool, path: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, expression) in term.items("matchExpressions").iter().enumerate() {
        let (key, path) = (expression.text("key"), path.child("matchExpressions").index(i));
        if let Some(old) = node_label(key) {
            warnings.push(format!("{}: {key} is {old}", path.child("key")));
        }
        for (j, value) in expression.items("values").iter().enumerate().filter(|_| values) {
            let value = value.as_str().unwrap_or_default();
            for message in validation::label_value(value) {
                let path = path.child("values").index(j);
                warnings.push(format!("{path}: {value} is invalid, {message}"));
            }
        }
    }
    warnings
}

/// Warns about a name that is no DNS label, although Pods use it as a host name.
pub(crate) fn name_as_host(object: &Value, used_in: &str) -> Option<String> {
    let messages = validation::dns1123_label(object.name());
    let applies = !messages.is_empty() && !object.blank("metadata.name");
    applies.then(|| {
        format!(
            "metadata.name: this is used in {used_in}, which can result in surprising behavior; a \
            DNS label is recommended: [{}]",
            messages.join(" ")
        )
    })
}

/// Warns about a fractional number of bytes.
pub(crate) fn fractional(amount: &Value, path: &Path) -> Option<String> {
    let text = amount.as_str()?;
    let amount = Quantity::parse(text).ok().filter(|amount| !amount.is_integer())?;
    let shown = amount.to_string();
    Some(format!("{path}: fractional byte value {shown:?} is invalid, must be an integer"))
}

/// Returns the warnings for the spec of a claim.
pub(crate) fn claim(spec: &Value, path: &Path) -> Vec<String> {
    let of = |amounts: &str| {
        let path = path.child("resources").child(amounts).key("storage");
        fractional(spec.at("resources").at(amounts).at("storage"), &path)
    };
    ["requests", "limits"].into_iter().filter_map(of).collect()
}

/// Warns about an IP address that is not in canonical form.
pub(crate) fn ip(text: &str, path: &Path) -> Option<String> {
    let IpAddr::V6(address) = text.parse().ok()? else { return None };
    if let Some(inner) = address.to_ipv4_mapped() {
        let inner = inner.to_string();
        return Some(format!("{path}: non-standard IP address {text:?} is invalid: use {inner:?}"));
    }
    let shown = address.to_string();
    (shown != text).then(|| {
        format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format ({shown:?})")
    })
}

/// Warns about a CIDR that is not in canonical form or has bits set after its prefix.
pub(crate) fn cidr(text: &str, path: &Path) -> Option<String> {
    let (address, length) = text.split_once('/')?;
    let (address, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
    let (network, width) = match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(length)?).unwrap_or(0);
            (IpAddr::V4((v4.to_bits() & mask).into()), 32)
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
            (IpAddr::V6(Ipv6Addr::from(v6.to_bits() & mask)), 128)
        }
    };
    let canonical = format!("{network}/{length}");
    if network != address {
        return Some(format!(
            "{path}: CIDR value {text:?} is ambiguous in this context (should be {canonical:?} or \
            \"{address}/{width}\"?)"
        ));
    }
    (address.is_ipv6() && canonical != text).then(|| {
        format!(
            "{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({canonical:?})"
        )
    })
}

/// Warns about new finalizers of custom objects whose names may collide.
pub(crate) fn finalizers(new: &Value, old: Option<&Value>) -> Warnings {
    let list = |object: &Value| -> std::collections::BTreeSet<String> {
        let items = object.texts("metadata.finalizers");
        items.map(str::to_owned).collect()
    };
    let known = old.map(list).unwrap_or_default();
    let mut warnings = Warnings::new();
    for name in list(new).difference(&known) {
        let messages = validation::qualified_name(name).into_iter();
        warnings.extend(messages.map(|m| format!("metadata.finalizers: {name:?}: {m}")));
        if !name.contains('/') && !crate::meta::STANDARD_FINALIZERS.contains(&name.as_str()) {
            let path = if name.contains('.') { " including a path (/)" } else { "" };
            warnings.push(format!(
                "metadata.finalizers: {name:?}: prefer a domain-qualified \
                finalizer name{path} to avoid accidental conflicts with other finalizer writers"
            ));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn warns_of_non_canonical_addresses() {
        let path = Path::new("f");
        for (text, want) in [
            ("10.0.0.1", None),
            ("fd00::1", None),
            (
                "FD00::1",
                Some(
                    "f: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
                ),
            ),
            (
                "::ffff:1.2.3.4",
                Some("f: non-standard IP address \"::ffff:1.2.3.4\" is invalid: use \"1.2.3.4\""),
            ),
            ("x", None),
        ] {
            assert_eq!(ip(text, &path).as_deref(), want, "{text}");
        }
        for (text, want) in [
            ("10.0.0.0/8", None),
            ("0.0.0.0/0", None),
            ("::/0", None),
            (
                "10.0.0.1/8",
                Some(
                    "f: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)",
                ),
            ),
            (
                "fd00:0::/8",
                Some(
                    "f: IPv6 CIDR value \"fd00:0::/8\" should be in RFC 5952 canonical format (\"fd00::/8\")",
                ),
            ),
            ("10.0.0.0/33", None),
            ("10.0.0.0", None),
        ] {
            assert_eq!(cidr(text, &path).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn warns_of_finalizers_without_domain_or_path() {
        let with = |names: &[&str]| json!({"metadata": {"finalizers": names}});
        let old = with(&["old.example"]);
        let new = with(&["old.example", "kubernetes", "b", "a.example", "c.example/d"]);
        assert_eq!(
            finalizers(&new, Some(&old)),
            [
                "metadata.finalizers: \"a.example\": prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers",
                "metadata.finalizers: \"b\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers",
            ]
        );
        assert_eq!(finalizers(&old, None).len(), 1);
    }
}
