//! Shortens names to the limits of clouds.

/// Returns the 32-bit FNV-1a hash.
pub(crate) fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns the hash in lower-case base32 with the extended hex alphabet, cut to a length.
pub(crate) fn hash(text: &str, length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let sum = fnv(text);
    // Seven digits of five bits hold the 32 bits; the last three bits are zero.
    let bits = u64::from(sum) << 3;
    let digits = (0..7).rev().map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31]));
    digits.take(length).collect()
}

/// Cuts a longer text to a length, with a hash of the whole at its end.
pub(crate) fn truncate(text: &str, length: usize) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    hashed(text, length)
}

/// Cuts a text to a length, and always appends the hash, so that short and long texts have the same form.
pub(crate) fn hashed(text: &str, length: usize) -> String {
    let base: String = text.chars().take(length.saturating_sub(7)).collect();
    format!("{base}-{}", hash(text, 6))
}

/// Returns a cluster's name in GCE, which allows no dots.
pub(crate) fn gce(cluster: &str) -> String {
    cluster.replace('.', "-")
}

/// Returns the network tag of a role's machines.
pub(crate) fn gce_role_tag(cluster: &str, role: &str) -> String {
    let suffix = format!("-k8s-io-role-{role}");
    format!("{}{suffix}", truncate(&gce(cluster), 63usize.saturating_sub(suffix.len())))
}

/// Returns the name of a cluster's queue in AWS.
pub(crate) fn queue_name(cluster: &str) -> String {
    format!("{}-nth", truncate(&cluster.replace('.', "-"), 75))
}

/// Normalizes a DNS name of Route 53.
pub fn dns_name(name: &str) -> String {
    name.trim_end_matches('.').replace("\\052", "*").to_lowercase()
}

/// Returns the prefix of the names of a cluster's event rules in AWS.
pub(crate) fn rule_prefix(cluster: &str) -> String {
    truncate(cluster, 40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_and_hashes_long_names() {
        assert_eq!(truncate("short", 10), "short");
        let long = truncate("a-very-long-name-of-a-cluster", 20);
        assert_eq!(long.len(), 20);
        assert!(long.starts_with("a-very-long-n-"), "{long}");
        assert_ne!(long, truncate("a-very-long-name-of-a-clusters", 20));
        // The hash of the empty text is FNV-1a's offset basis.
        assert_eq!(hash("", 7), "g4e9rh8");
    }
}
