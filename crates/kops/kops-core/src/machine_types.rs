//! Machine types of AWS: the defaults of new groups, and the architecture by the type's name.

/// Returns the machine types for a role's machines, the preferred one first, as upstream does. All are `amd64`.
pub fn default_machine_types(role: &str) -> &'static [&'static str] {
    match role {
        "Bastion" => &["t3.micro", "t2.micro"],
        _ => &["t3.medium", "c5.large", "c4.large"],
    }
}

/// Returns the architecture of a machine type by AWS' naming rule: after the series and the generation, `g` stands for
/// Graviton processors, which are `arm64`.
pub(crate) fn architecture(machine_type: &str) -> &'static str {
    let family = machine_type.split_once('.').map_or(machine_type, |(family, _)| family);
    let series = family.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let attributes = series.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_named_otherwise = family == "a1" || family.starts_with("mac2");
    if attributes.starts_with('g') || is_named_otherwise { "arm64" } else { "amd64" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_architecture_by_name() {
        for name in [
            "a1.large",
            "t4g.small",
            "m6g.xlarge",
            "m6gd.metal",
            "c7gn.large",
            "x2gd.medium",
            "g5g.xlarge",
            "im4gn.large",
            "is4gen.medium",
            "hpc7g.4xlarge",
            "r8g.large",
            "i4g.large",
            "mac2.metal",
            "mac2-m2pro.metal",
        ] {
            assert_eq!(architecture(name), "arm64", "{name}");
        }
        for name in [
            "t3.medium",
            "t2.micro",
            "m5.large",
            "c5n.large",
            "g4dn.xlarge",
            "g4ad.xlarge",
            "gr6.4xlarge",
            "p4de.24xlarge",
            "m7i-flex.large",
            "u-6tb1.metal",
            "mac1.metal",
            "c5ad.large",
            "trn1.2xlarge",
            "",
            "x",
            "7",
            "é.é",
        ] {
            assert_eq!(architecture(name), "amd64", "{name}");
        }
    }
}
