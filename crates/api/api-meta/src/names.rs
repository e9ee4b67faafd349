//! Generated names for `generateName`.

/// The alphabet of generated suffixes. It has no vowels and no look-alikes, so that suffixes spell no words.
pub const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

const SUFFIX: usize = 5;
const MAX_NAME: usize = 63;

/// Generates a name from `prefix` and five characters. `below(n)` returns a random number in `0..n`.
pub fn generate(prefix: &str, below: impl FnMut(usize) -> usize) -> String {
    let mut end = prefix.len().min(MAX_NAME - SUFFIX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &prefix[..end], suffix(SUFFIX, below))
}

/// Returns `length` random characters of [`ALPHABET`].
pub fn suffix(length: usize, mut below: impl FnMut(usize) -> usize) -> String {
    (0..length).map(|_| char::from(ALPHABET[below(ALPHABET.len()) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_five_characters_within_label_length() {
        assert_eq!(generate("web-", |_| 0), "web-bbbbb");
        assert_eq!(generate("web-", |n| n - 1), "web-99999");
        assert_eq!(generate(&"a".repeat(70), |_| 1).len(), 63);
    }
}
