//! Names that the server makes up for `generateName`.

/// The alphabet of generated suffixes: no vowels and no look-alikes, so that no word comes out by accident.
pub const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

const SUFFIX: usize = 5;
const MAX_NAME: usize = 63;

/// Makes a name of `prefix` and five characters. `below(n)` draws a number in `0..n`.
pub fn generate(prefix: &str, below: impl FnMut(usize) -> usize) -> String {
    let mut end = prefix.len().min(MAX_NAME - SUFFIX);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{}", &prefix[..end], suffix(SUFFIX, below))
}

/// Draws `length` characters of the safe alphabet.
pub fn suffix(length: usize, mut below: impl FnMut(usize) -> usize) -> String {
    (0..length).map(|_| char::from(ALPHABET[below(ALPHABET.len()) % ALPHABET.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_five_and_keeps_to_a_label() {
        assert_eq!(generate("web-", |_| 0), "web-bbbbb");
        assert_eq!(generate("web-", |n| n - 1), "web-99999");
        assert_eq!(generate(&"a".repeat(70), |_| 1).len(), 63);
    }
}
