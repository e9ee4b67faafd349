//! Names that clouds put limits on.

/// 32 bits of FNV-1a.
pub(crate) fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The same in lower-case base32 of the extended hex alphabet, cut to a length.
pub(crate) fn hash(text: &str, length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let sum = fnv(text);
    // Seven digits of five bits hold 32 bits, the last three of them zero.
    let bits = u64::from(sum) << 3;
    let digits = (0..7).rev().map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31]));
    digits.take(length).collect()
}

/// A text cut to a length, with a hash of the whole at its end.
pub(crate) fn truncate(text: &str, length: usize) -> String {
    if text.len() <= length {
        return text.to_owned();
    }
    hashed(text, length)
}

/// The same, with the hash also where nothing need be cut: what is short today has the same form as what is long.
pub(crate) fn hashed(text: &str, length: usize) -> String {
    let base: String = text.chars().take(length.saturating_sub(7)).collect();
    format!("{base}-{}", hash(text, 6))
}

/// GCE's names have no dots.
pub(crate) fn gce(cluster: &str) -> String {
    cluster.replace('.', "-")
}

/// The network tag of a role's machines.
pub(crate) fn gce_role_tag(cluster: &str, role: &str) -> String {
    let suffix = format!("-k8s-io-role-{role}");
    format!("{}{suffix}", truncate(&gce(cluster), 63usize.saturating_sub(suffix.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_and_hashed() {
        assert_eq!(truncate("short", 10), "short");
        let long = truncate("a-very-long-name-of-a-cluster", 20);
        assert_eq!(long.len(), 20);
        assert!(long.starts_with("a-very-long-n-"), "{long}");
        assert_ne!(long, truncate("a-very-long-name-of-a-clusters", 20));
        // FNV-1a of nothing is its offset basis.
        assert_eq!(hash("", 7), "g4e9rh8");
    }
}
